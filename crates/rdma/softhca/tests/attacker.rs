//! A peer that plays the attacker, over a socket and over rings: it can harm only its own connections.

mod support;

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use fabric::{Epoch, ProcessId};
use softhca::limits::MTU;
use softhca::wire::{Export, Header, Hello, MAX_SEGMENT, Opcode, Syndrome, encode_translations, flag};
use softhca::*;
use support::*;
use verbs::{HandleKind, Policy, Translation};

/// The first message's number of every connection.
const FIRST: u64 = 0x00ff_fff0;

const SECRET_QKEY: u32 = 0x5ec_4e75;
const GROUP: GroupId = [0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0x0f, 1, 2, 3];

/// The attacker's fate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Its link ends.
    LinkEnds,
    /// Its connection fails.
    ConnectionFails,
    /// It is not listened to.
    Ignored,
}

/// The attacker's end of a link.
enum Line {
    Socket(TcpStream),
    Ring(Box<dyn Stream>),
}

impl Line {
    /// Both ends.
    fn new(medium: Medium) -> (Self, Box<dyn Stream>) {
        if medium == Medium::Shm {
            let (lower, higher) = stream::create_shm_pair().unwrap();
            let far = stream::shm_stream(higher, false).unwrap();
            return (Self::Ring(far), stream::shm_stream(lower, true).unwrap());
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        near.set_nonblocking(true).unwrap();
        (Self::Socket(near), stream::tcp_stream(listener.accept().unwrap().0.into()).unwrap())
    }

    /// Writes as much as there is room for. Returns the bytes.
    fn write(&mut self, bytes: &[u8]) -> usize {
        let vector = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        match self {
            Self::Socket(socket) => socket.write(bytes).unwrap_or(0),
            // SAFETY: the bytes are live and only read.
            Self::Ring(ring) => unsafe { ring.write(&[vector]) }.unwrap_or(0),
        }
    }
}

/// A device, its honest peer, and the attacker, which has a connection of its own and knows all numbers.
struct Stage {
    net: Net,
    line: Line,
    /// The attacker's connection: the device's end and its own.
    own: (End, End),
    /// The honest connection.
    honest: (End, End),
    /// A datagram queue pair with a key that the attacker does not know, and a window for the honest peer.
    datagrams: End,
    window: u32,
    /// An extended connection of the attacker's, and a shared queue of another domain.
    target: u32,
    foreign_queue: u32,
}

impl Stage {
    fn new(medium: Medium) -> Self {
        let mut net = Net::new(3, Policy::Stable, medium, 1);
        let net = &mut net;
        let plan = Plan { mr_access: EVERYTHING | Access::MW_BIND, ..Plan::default() };
        let (honest, own) = (pair(net, 0, 1, &plan), pair(net, 0, 2, &plan));
        for number in 0..4 {
            own.0.receive(net, number, &[own.0.sge(1024, 64)]);
        }
        let window = window_of(net, &honest.0);
        let datagrams = datagrams(net);
        let (target, foreign_queue) = extended(net, &own.1);
        let (line, far) = Line::new(medium);
        let net = std::mem::replace(net, Net::new(0, Policy::Stable, medium, 1));
        let mut stage = Self { net, line, own, honest, datagrams, window, target, foreign_queue };
        let attacker = stage.attacker();
        stage.net.device(0).link_up(attacker, Epoch(0), far);
        let hello = Hello { process: attacker, fabric: FABRIC, epoch: Epoch(0), incarnation: 5 }.encode();
        stage.say(&frame(Header { length: hello.len() as u32, ..Header::new(Opcode::Hello) }, &hello));
        stage.say(&frame(Header::new(Opcode::Ready), &[]));
        stage.exchange(1);
        stage
    }

    fn attacker(&self) -> ProcessId {
        self.net.nodes[2].id
    }

    /// Says all of `bytes`, if it is listened to.
    fn say(&mut self, mut bytes: &[u8]) {
        for _ in 0..2000 {
            bytes = &bytes[self.line.write(bytes)..];
            self.net.step();
            if bytes.is_empty() {
                break;
            }
        }
        for _ in 0..50 {
            self.net.step();
        }
    }

    /// A header of the attacker's connection.
    fn own(&self, opcode: Opcode) -> Header {
        Header { dst_qpn: self.own.0.qpn, src_qpn: self.own.1.qpn, msn: FIRST, ..Header::new(opcode) }
    }

    /// The same for something done to the device's memory of this connection.
    fn touch(&self, opcode: Opcode, va: u64, rkey: u32, length: u32) -> Header {
        let carried = if matches!(opcode, Opcode::Read) { 0 } else { length };
        Header { va, rkey, length: carried, total: length, ..self.own(opcode) }
    }

    /// Messages of the honest peers, both ways and of all kinds, arrive as they are.
    fn exchange(&mut self, seed: u64) {
        let (a, b) = (&self.honest.0, &self.honest.1);
        let net = &mut self.net;
        for (from, to) in [(a, b), (b, a)] {
            from.memory.store(0, &pattern(seed, 300));
            to.receive(net, seed, &[to.sge(2048, 300)]);
            from.post(net, 1, SendOp::Write { va: to.va(1024), rkey: to.key }, &[from.sge(0, 300)]);
            from.post(net, 2, SendOp::Send, &[from.sge(0, 300)]);
            from.post(net, 3, SendOp::Read { va: to.va(4096), rkey: to.key }, &[from.sge(512, 300)]);
        }
        let (mut sent, mut received) = (Vec::new(), Vec::new());
        net.run(
            |net| {
                for end in [a, b] {
                    sent.extend(end.poll_sends(net));
                    received.extend(end.poll_receives(net));
                }
                (sent.len(), received.len()) == (6, 2)
            },
            100_000,
        );
        assert_eq!(statuses(&sent), [WcStatus::Success; 6]);
        assert_eq!(statuses(&received), [WcStatus::Success; 2]);
        for end in [a, b] {
            assert!(end.memory.load(1024, 300) == pattern(seed, 300), "written");
            assert!(end.memory.load(2048, 300) == pattern(seed, 300), "received");
            assert_eq!(end.memory.load(4096, 8192), [0; 8192], "an unused page");
            assert_eq!(end.memory.load(512, 300), [0; 300], "read");
        }
    }

    /// True if the device comes to rest, and nothing that it sleeps on wakes it at once.
    fn rests(&mut self) -> bool {
        let now = self.net.now;
        let device = self.net.device(0);
        (0..1000).any(|_| {
            !device.progress(now).more && device.prepare_to_sleep() && {
                let mut waitables = Vec::new();
                device.waitables(&mut waitables);
                let sleeps = !waitables.iter().any(is_ready);
                device.awake();
                device.drain_wakes();
                sleeps
            }
        })
    }

    fn fate(&mut self) -> Fate {
        let lost = |event: &Event| matches!(event, Event::LinkLost { reason: LinkLoss::Violation(_), .. });
        if self.net.nodes[0].events.iter().any(lost) {
            return Fate::LinkEnds;
        }
        match self.own.0.state(&mut self.net) {
            QpState::Error => Fate::ConnectionFails,
            _ => Fate::Ignored,
        }
    }
}

fn frame(header: Header, payload: &[u8]) -> Vec<u8> {
    [&header.encode()[..], payload].concat()
}

/// `header` with as many bytes as it says.
fn filled(header: Header) -> Vec<u8> {
    frame(header, &vec![0xee; header.length as usize])
}

/// A window that the honest peer may use.
fn window_of(net: &mut Net, end: &End) -> u32 {
    let (_, key) = net.device(0).alloc_mw(end.pd, WindowKind::Two).unwrap();
    let access = Access::REMOTE_WRITE;
    let binding = Binding { key, lkey: end.key, access, va: end.va(8192), length: 4096 };
    end.post(net, 9, SendOp::Bind(binding), &[]);
    assert_eq!(statuses(&end.poll_sends(net)), [WcStatus::Success]);
    key
}

fn datagrams(net: &mut Net) -> End {
    use QpAttrMask as M;
    let plan = Plan { kind: QpKind::Ud, ..Plan::default() };
    let end = open(net, 0, &plan);
    let steps = [(QpState::Init, M::PKEY_INDEX | M::PORT | M::QKEY), (QpState::Rtr, M::empty())];
    for (state, mask) in steps {
        let attr = QpAttr { state, qkey: SECRET_QKEY, ..plan.attr };
        net.device(0).modify_qp(end.qp, &attr, mask | M::STATE).unwrap();
    }
    net.device(0).attach_group(end.qp, GROUP).unwrap();
    end.receive(net, 1, &[end.sge(0, 8192)]);
    end
}

/// An XRC target that is connected with `peer`, and the number of a shared queue of another domain.
fn extended(net: &mut Net, peer: &End) -> (u32, u32) {
    use QpAttrMask as M;
    let dlid = net.nodes[2].id.vid.lid();
    let device = net.device(0);
    let (xrcd, other) = (device.alloc_xrcd().unwrap(), device.alloc_xrcd().unwrap());
    let (pd, (cq, _)) = (device.alloc_pd().unwrap(), device.create_cq(16).unwrap());
    let attr = SrqAttr { max_wr: 4, max_sge: 1, limit: 0 };
    let (srq, _) = device.create_xrc_srq(pd, Xrc { xrcd: other, cq }, &attr).unwrap();
    let init = QpInit {
        kind: QpKind::XrcRecv,
        pd: Pd::NONE,
        send_cq: Cq::NONE,
        recv_cq: Cq::NONE,
        srq: None,
        xrcd: Some(xrcd),
        caps: QpCaps::default(),
        sq_sig_all: false,
    };
    let (qp, qpn, _) = device.create_qp(&init).unwrap();
    let address = AddressVector { dlid, port: 1, ..AddressVector::default() };
    let attr = QpAttr { remote_qpn: peer.qpn, address, ..Plan::default().attr };
    let where_to = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
    let rtr = where_to | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
    for (state, mask) in [(QpState::Init, M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS), (QpState::Rtr, rtr)] {
        device.modify_qp(qp, &QpAttr { state, ..attr }, mask | M::STATE).unwrap();
    }
    (qpn, device.srq_number(srq).unwrap())
}

/// Plays each of `attacks` on its own stage, over a socket and over rings.
fn play(fate: Fate, attacks: &[fn(&Stage) -> Vec<u8>]) {
    for medium in [Medium::Tcp, Medium::Shm] {
        for (number, attack) in attacks.iter().enumerate() {
            let mut stage = Stage::new(medium);
            let before = stage.own.0.memory.load(2048, 4096);
            let said = attack(&stage);
            stage.say(&said);
            assert_eq!(stage.fate(), fate, "attack {number} over {medium:?}");
            stage.exchange(2);
            assert!(stage.datagrams.poll_receives(&mut stage.net).is_empty(), "attack {number}");
            assert!(stage.honest.0.memory.load(8192, 4096) == [0; 4096], "attack {number}: the window");
            assert!(stage.own.0.memory.load(2048, 4096) == before, "attack {number}");
        }
    }
}

#[test]
fn an_attacker_cannot_use_keys_ranges_or_rights_of_others() {
    play(
        Fate::ConnectionFails,
        &[
            // A key that there is not; the honest peer's; its window.
            |s| filled(s.touch(Opcode::Write, s.own.0.va(0), 0xdead_beef, 64)),
            |s| filled(s.touch(Opcode::Write, s.honest.0.va(4096), s.honest.0.key, 64)),
            |s| filled(s.touch(Opcode::Read, s.honest.0.va(4096), s.honest.0.key, 64)),
            |s| filled(s.touch(Opcode::Write, s.honest.0.va(8192), s.window, 64)),
            |s| filled(Header { rkey: s.window, ..s.touch(Opcode::SendInvalidate, 0, 0, 8) }),
            |s| filled(s.touch(Opcode::FetchAdd, s.honest.0.va(4096), s.honest.0.key, 16)),
            // Before, over the end of and far behind its own; addresses that wrap.
            |s| filled(s.touch(Opcode::Write, s.own.0.va(0) - 1, s.own.0.key, 64)),
            |s| filled(s.touch(Opcode::Write, s.own.0.va(64 * 1024 - 63), s.own.0.key, 64)),
            |s| filled(s.touch(Opcode::Read, s.own.0.va(1 << 30), s.own.0.key, 64)),
            |s| filled(s.touch(Opcode::Write, u64::MAX - 3, s.own.0.key, 64)),
            |s| filled(s.touch(Opcode::Read, u64::MAX - 3, s.own.0.key, u32::MAX)),
            |s| filled(s.touch(Opcode::CompareSwap, s.own.0.va(64 * 1024 - 4), s.own.0.key, 16)),
            // Not aligned; longer than the receive; longer than any message.
            |s| filled(s.touch(Opcode::FetchAdd, s.own.0.va(4), s.own.0.key, 16)),
            |s| filled(s.touch(Opcode::Send, 0, 0, 65)),
            |s| filled(Header { length: 8, ..s.touch(Opcode::Send, 0, 0, u32::MAX) }),
            |s| filled(Header { length: 8, ..s.touch(Opcode::Write, s.own.0.va(0), s.own.0.key, 1 << 31) }),
            // More READs at a time than agreed.
            |s| {
                let read = |number| Header {
                    msn: FIRST + number,
                    ..s.touch(Opcode::Read, s.own.0.va(0), s.own.0.key, 64)
                };
                (0..5).flat_map(|number| filled(read(number))).collect()
            },
        ],
    );
}

#[test]
fn an_attacker_cannot_use_objects_of_others() {
    play(
        Fate::Ignored,
        &[
            // Requests and answers to the honest connection, in its own name and in the peer's.
            |s| filled(Header { dst_qpn: s.honest.0.qpn, ..s.touch(Opcode::Send, 0, 0, 8) }),
            |s| {
                let (dst_qpn, src_qpn) = (s.honest.0.qpn, s.honest.1.qpn);
                let write = s.touch(Opcode::Write, s.honest.0.va(4096), s.honest.0.key, 8);
                filled(Header { dst_qpn, src_qpn, ..write })
            },
            |s| {
                let (dst_qpn, src_qpn) = (s.honest.0.qpn, s.honest.1.qpn);
                let kinds = [Opcode::Ack, Opcode::ResyncAck, Opcode::AtomicResponse, Opcode::Resync];
                kinds.iter().flat_map(|kind| filled(Header { dst_qpn, src_qpn, ..s.own(*kind) })).collect()
            },
            |s| {
                let (dst_qpn, src_qpn) = (s.honest.0.qpn, s.honest.1.qpn);
                let nak = Header { dst_qpn, src_qpn, ..s.own(Opcode::Nak) };
                let why = [Syndrome::RemoteAccess, Syndrome::NotReady, Syndrome::ReceiverNotReady];
                why.iter().flat_map(|why| filled(Header { syndrome: Some(*why), ..nak })).collect()
            },
            |s| {
                let (dst_qpn, src_qpn) = (s.honest.0.qpn, s.honest.1.qpn);
                filled(Header {
                    dst_qpn,
                    src_qpn,
                    length: 300,
                    total: 300,
                    msn: FIRST + 2,
                    ..s.own(Opcode::ReadResponse)
                })
            },
            // Datagrams without the key, to one and to a group.
            |s| {
                filled(Header {
                    dst_qpn: s.datagrams.qpn,
                    msn: 0,
                    length: 8,
                    total: 8,
                    ..s.own(Opcode::Datagram)
                })
            },
            |s| {
                let to_group =
                    Header { flags: flag::GROUP, msn: 0, length: 24, total: 24, ..s.own(Opcode::Datagram) };
                frame(to_group, &[GROUP.as_slice(), b"evil bit"].concat())
            },
            // A queue of another domain for its extended connection.
            |s| {
                let select = Header { dst_qpn: s.target, imm: s.foreign_queue, ..s.own(Opcode::SelectSrq) };
                filled(select)
            },
            // Memory that was not asked for, and windows to the honest peer's.
            |s| {
                let export = Export { memory: 1, offset: 0, length: 4096, rights: 7, count: 0 };
                frame(Header { length: 32, imm: 1, ..s.own(Opcode::Export) }, &export.encode())
            },
            |s| filled(Header { rkey: s.honest.0.key, imm: 1, ..s.own(Opcode::MapRequest) }),
            // Handles of its own that are called like the honest peer's.
            |s| {
                let lines = [s.honest.1.qpn, s.honest.0.qpn].map(|virtual_handle| Translation {
                    kind: HandleKind::QueuePair,
                    virtual_handle,
                    real: 7,
                });
                let mut payload = Vec::new();
                encode_translations(&lines, &mut payload);
                frame(Header { length: payload.len() as u32, msn: 1, ..s.own(Opcode::Translate) }, &payload)
            },
            // The end of news that there were not.
            |s| filled(Header { msn: u64::MAX >> 1, ..s.own(Opcode::TranslateAck) }),
            // A message that is repeated after it was executed, and one far ahead.
            |s| filled(s.touch(Opcode::Send, 0, 0, 8)).repeat(3),
            |s| filled(Header { msn: FIRST + 1000, ..s.touch(Opcode::Send, 0, 0, 8) }),
        ],
    );
}

#[test]
fn malformed_frames_harm_no_other_connection() {
    play(
        Fate::LinkEnds,
        &[
            |s| filled(Header { msn: FIRST + 1, ..s.own(Opcode::Ack) }),
            |s| filled(Header { va: FIRST + 1, flags: flag::ACKNOWLEDGES, ..s.touch(Opcode::Send, 0, 0, 8) }),
            |s| [0, 1].map(|msn| filled(Header { msn, ..s.own(Opcode::DatagramAck) })).concat(),
            |s| filled(Header { msn: 7, length: 8, total: 8, ..s.own(Opcode::Datagram) }),
            |s| {
                filled(Header {
                    msn: 0,
                    src_qpn: s.own.1.qpn ^ 0x7f_0000,
                    length: 8,
                    total: 8,
                    ..s.own(Opcode::Datagram)
                })
            },
            |s| filled(Header { msn: 0, length: MTU + 1, total: MTU + 1, ..s.own(Opcode::Datagram) }),
            |s| filled(Header { length: MAX_SEGMENT + 1, total: MAX_SEGMENT + 1, ..s.own(Opcode::Send) }),
            |s| filled(Header { offset: u32::MAX, length: 8, total: 4, ..s.own(Opcode::Send) }),
            |s| {
                let rest = Header { msn: FIRST + 1, offset: 8, length: 8, total: 16, ..s.own(Opcode::Send) };
                [filled(s.touch(Opcode::Send, 0, 0, 8)), filled(rest)].concat()
            },
            |s| {
                let first = Header { length: 8, total: 64, ..s.own(Opcode::Send) };
                let skips = Header { offset: 32, ..first };
                [filled(first), filled(skips)].concat()
            },
            |s| filled(s.own(Opcode::Ready)),
            |_| vec![0xff; 100],
        ],
    );
}

/// Floods end when the device stops reading, and no connection waits for the attacker.
#[test]
fn a_flood_with_unread_answers_harms_no_other_connection() {
    for medium in [Medium::Tcp, Medium::Shm] {
        let floods: [fn(&Stage) -> Header; 3] = [
            |s| Header { dst_qpn: 9, ..s.touch(Opcode::Send, 0, 0, 8) },
            |s| s.own(Opcode::Resync),
            |s| Header { dst_qpn: 9, ..s.own(Opcode::Resync) },
        ];
        for flood in floods {
            let mut stage = Stage::new(medium);
            let one = filled(flood(&stage));
            let (said, mut written) = (one.repeat(2000), 0);
            for seed in 2..20 {
                written += stage.line.write(&said[written % one.len()..]);
                stage.exchange(seed);
                stage.net.now += Duration::from_millis(1);
            }
            assert_eq!(stage.fate(), Fate::Ignored);
            assert!(stage.rests(), "an ignored stream keeps the device awake");
            let Stage { mut net, line, .. } = stage;
            drop(line);
            let is_lost = |event: &Event| matches!(event, Event::LinkLost { .. });
            net.run(|net| net.nodes[0].events.iter().any(is_lost), 1000);
        }
    }
}
