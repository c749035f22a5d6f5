//! Peers that talk nonsense: the link ends, nothing else does.

mod support;

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use fabric::Epoch;
use softhca::limits::MTU;
use softhca::wire::{HEADER, Header, Hello, MAX_SEGMENT, Opcode, Syndrome, flag};
use softhca::*;
use support::*;
use verbs::Policy;

/// Whether some link has ended since its peer spoke nonsense.
fn noise_was_noticed(net: &Net) -> bool {
    let mut lost = net.nodes.iter().flat_map(|node| &node.events);
    lost.any(|event| matches!(event, Event::LinkLost { reason: LinkLoss::Violation(_), .. }))
}

/// Traffic on a link with random changes of bytes, for a while and until one is noticed: most changes are noticed
/// only by the application.
fn noisy(policy: Policy, seed: u64) {
    let net = &mut Net::new(2, policy, Medium::Pipe, seed);
    let mut plan = Plan { memory: 1 << 20, ..Plan::default() };
    plan.attr.timeout = 1;
    let mut ends = Vec::new();
    for round in 0..10_000u64 {
        if round >= 200 && noise_was_noticed(net) {
            break;
        }
        if round % 20 == 0 {
            ends.push(pair(net, 0, 1, &plan));
        }
        let Some((a, b)) = ends.last() else { continue };
        for cutter in net.pipes.values() {
            cutter.disturb(30);
        }
        let size = net.random.below(300_000) as usize;
        let (va, rkey) = (b.va(0), b.key);
        let op = match net.random.below(6) {
            0 => SendOp::Write { va, rkey },
            1 => SendOp::Read { va, rkey },
            2 => SendOp::WriteImm { va, rkey, imm: 1 },
            3 => SendOp::SendInvalidate(rkey),
            _ => SendOp::Send,
        };
        // Queue pairs fail here and there; the test is that devices do not.
        let _ = net.device(1).post_recv(b.qp, round, &[b.sge(0, 1 << 20)]);
        let _ = a.try_post(net, round, op, &[a.sge(0, size)]);
        for _ in 0..10 {
            net.step();
            net.now += std::time::Duration::from_millis(3);
        }
        let _ = (a.poll_sends(net), b.poll_receives(net));
    }
    assert!(noise_was_noticed(net));
    // Without noise everything works again.
    net.cut();
    let (a, b) = pair(net, 0, 1, &plan);
    a.post(net, 1, SendOp::Write { va: b.va(0), rkey: b.key }, &[a.sge(0, 1 << 20)]);
    net.settle();
    assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::Success]);
}

#[test]
fn random_bytes_end_the_link_but_not_the_device() {
    for policy in Policy::ALL {
        for seed in 0..2 {
            noisy(policy, seed);
        }
    }
}

/// A device with a connected queue pair. The test sends the frames of its peer.
struct Victim {
    net: Net,
    end: End,
    peer: End,
}

impl Victim {
    fn new() -> Self {
        Self::of(&Plan::default())
    }

    fn of(plan: &Plan) -> Self {
        let mut net = Net::new(2, Policy::Stable, Medium::Pipe, 1);
        let (end, peer) = pair(&mut net, 0, 1, plan);
        let (cutter, own, _) = support::pipe::pair(1, None);
        let (id, hello) = (net.nodes[1].id, hello(&net));
        net.nodes[0].device.link_up(id, Epoch(0), own);
        cutter
            .inject(0, &frame(&Header { length: hello.len() as u32, ..Header::new(Opcode::Hello) }, &hello));
        cutter.inject(0, &frame(&Header::new(Opcode::Ready), &[]));
        net.pipes.insert((id, id), cutter);
        Self { net, end, peer }
    }

    /// The state of the link after `bytes` have arrived.
    fn hear(&mut self, bytes: &[u8]) -> Option<LinkLoss> {
        for cutter in self.net.pipes.values() {
            cutter.inject(0, bytes);
        }
        let node = &mut self.net.nodes[0];
        for _ in 0..100 {
            node.device.progress(self.net.now);
        }
        node.device.take_events(&mut node.events);
        node.events.drain(..).find_map(|event| match event {
            Event::LinkLost { reason, .. } => Some(reason),
            _ => None,
        })
    }

    fn says(&mut self, header: Header) -> Option<LinkLoss> {
        let (dst_qpn, src_qpn) = (self.end.qpn, self.peer.qpn);
        self.hear(&frame(&Header { dst_qpn, src_qpn, ..header }, &vec![0; header.length as usize]))
    }
}

fn hello(net: &Net) -> Vec<u8> {
    Hello { process: net.nodes[1].id, fabric: FABRIC, epoch: Epoch(0), incarnation: 9 }.encode().to_vec()
}

fn frame(header: &Header, payload: &[u8]) -> Vec<u8> {
    [&header.encode()[..], payload].concat()
}

/// As a device sends it after its peer was restored from a checkpoint.
#[test]
fn an_acknowledgement_of_unsent_datagrams_is_accepted_only_as_the_first_on_a_link() {
    let mut victim = Victim::new();
    let expects = |msn| Header { msn, ..Header::new(Opcode::DatagramAck) };
    assert_eq!(victim.says(expects(5)), None);
    assert_eq!(victim.says(expects(5)), None);
    assert!(matches!(victim.says(expects(6)), Some(LinkLoss::Violation(_))));
}

#[test]
fn protocol_violations_end_the_link() {
    let msn = 0x00ff_fff0;
    let violations = [
        Header { msn: msn + 1, ..Header::new(Opcode::Ack) },
        Header { msn: msn - 1, length: 0, total: 8, flags: 2, ..Header::new(Opcode::FetchAdd) },
        Header { length: 24, ..Header::new(Opcode::Hello) },
        Header::new(Opcode::Ready),
        Header { length: 13, ..Header::new(Opcode::Translate) },
        Header { msn: 1, ..Header::new(Opcode::Datagram) },
        Header { va: 1 << 62, ..Header::new(Opcode::Datagram) },
        Header { length: MTU + 1, total: MTU + 1, ..Header::new(Opcode::Datagram) },
        Header { msn: 1 << 62, ..Header::new(Opcode::DatagramAck) },
        Header { msn: u64::MAX, ..Header::new(Opcode::Send) },
    ];
    for header in violations {
        let lost = Victim::new().says(header);
        assert!(matches!(lost, Some(LinkLoss::Violation(_))), "{header:?}: {lost:?}");
    }
    for bytes in [&[0xff; HEADER][..], &[0; HEADER], &[7; 1000]] {
        let lost = Victim::new().hear(bytes);
        assert!(matches!(lost, Some(LinkLoss::Violation(_))), "{lost:?}");
    }
}

/// Frames about the queue pair's former incarnation are ignored, until it has executed something.
#[test]
fn segments_without_a_start_are_dropped_at_the_first_message_and_end_the_link_later() {
    let (first, mut victim) = (0x00ff_fff0, Victim::new());
    let rest = |msn| Header { msn, length: 5, offset: 5, total: 20, ..Header::new(Opcode::Send) };
    assert_eq!(victim.says(rest(first)), None);
    assert_eq!(victim.says(Header { msn: first, ..Header::new(Opcode::Write) }), None);
    let lost = victim.says(rest(first + 1));
    assert!(matches!(lost, Some(LinkLoss::Violation(_))), "{lost:?}");
}

/// An answer that was refused when the queue pair was not ready may be executed the second time.
#[test]
fn the_answer_to_a_retransmitted_query_is_accepted() {
    let (first, mut victim) = (0x00ff_fff0, Victim::new());
    let Victim { net, end, peer } = &mut victim;
    let target = SendOp::Read { va: peer.va(0), rkey: peer.key };
    for (wr_id, op) in [(1, SendOp::Send), (2, target), (3, SendOp::Send)] {
        end.post(net, wr_id, op, &[end.sge(0, 8)]);
    }
    let answer = Header { msn: first + 1, length: 8, total: 8, ..Header::new(Opcode::ReadResponse) };
    let refusal = |msn| Header { msn, syndrome: Some(Syndrome::NotReady), ..Header::new(Opcode::Nak) };
    let ack = Header { msn: first + 3, ..Header::new(Opcode::Ack) };
    let wait = |victim: &mut Victim| {
        victim.net.now += Duration::from_secs(1);
        assert_eq!(victim.hear(&[]), None);
    };
    assert_eq!(victim.says(refusal(first)), None);
    wait(&mut victim);
    for said in [refusal(first + 1), answer, ack] {
        assert_eq!(victim.says(said), None);
    }
    assert_eq!(statuses(&victim.end.poll_sends(&mut victim.net)), [WcStatus::Success; 3]);
}

/// It was not ready for the second one first, and for the first one when that came: it expects both.
#[test]
fn a_nak_during_a_pause_is_handled() {
    let (first, mut victim) = (0x00ff_fff0, Victim::new());
    for wr_id in 0..2 {
        victim.end.post(&mut victim.net, wr_id, SendOp::Send, &[victim.end.sge(0, 8)]);
    }
    assert_eq!(victim.hear(&[]), None);
    for msn in [first + 1, first] {
        let refusal = Header { msn, syndrome: Some(Syndrome::NotReady), ..Header::new(Opcode::Nak) };
        assert_eq!(victim.says(refusal), None);
    }
    victim.net.now += Duration::from_secs(1);
    let said = |victim: &Victim| victim.net.pipes.values().map(|cutter| cutter.unread(1)).sum::<usize>();
    let before = said(&victim);
    assert_eq!(victim.hear(&[]), None);
    assert_eq!(said(&victim) - before, 2 * (HEADER + 8));
}

#[test]
fn a_long_answer_continues_when_its_query_is_retransmitted() {
    let first = 0x00ff_fff0;
    let mut victim = Victim::of(&Plan { memory: 1 << 20, ..Plan::default() });
    let Victim { net, end, peer } = &mut victim;
    let length = 2 * MAX_SEGMENT;
    let read = SendOp::Read { va: peer.va(0), rkey: peer.key };
    end.post(net, 1, read, &[end.sge(0, length as usize)]);
    end.post(net, 2, SendOp::Send, &[end.sge(0, 8)]);
    let part = |offset| Header {
        msn: first,
        length: MAX_SEGMENT,
        offset,
        total: length,
        ..Header::new(Opcode::ReadResponse)
    };
    let refusal = Header { msn: first, syndrome: Some(Syndrome::NotReady), ..Header::new(Opcode::Nak) };
    let ack = Header { msn: first + 2, ..Header::new(Opcode::Ack) };
    assert_eq!(victim.hear(&[]), None);
    for said in [part(0), refusal, ack] {
        assert_eq!(victim.says(said), None);
    }
    victim.net.now += Duration::from_secs(1);
    assert_eq!(victim.says(part(MAX_SEGMENT)), None);
    assert_eq!(statuses(&victim.end.poll_sends(&mut victim.net)), [WcStatus::Success; 2]);
}

/// The peer has a new incarnation in the middle of the answer, and executes the query again.
#[test]
fn an_answer_may_restart() {
    let mut victim = Victim::of(&Plan { memory: 1 << 20, ..Plan::default() });
    let Victim { net, end, peer } = &mut victim;
    let total = 2 * MAX_SEGMENT;
    end.post(net, 1, SendOp::Read { va: peer.va(0), rkey: peer.key }, &[end.sge(0, total as usize)]);
    assert_eq!(victim.hear(&[]), None);
    let msn = 0x00ff_fff0;
    let part =
        |offset| Header { msn, length: MAX_SEGMENT, offset, total, ..Header::new(Opcode::ReadResponse) };
    let refusal = Header { msn, syndrome: Some(Syndrome::NotReady), ..Header::new(Opcode::Nak) };
    for said in [part(0), refusal, part(0), part(MAX_SEGMENT)] {
        assert_eq!(victim.says(said), None);
    }
    assert_eq!(statuses(&victim.end.poll_sends(&mut victim.net)), [WcStatus::Success]);
}

#[test]
fn a_query_repeated_on_the_same_link_is_answered_once() {
    let mut beset = Beset::new(&Plan::default());
    let (dst_qpn, src_qpn) = (beset.end.qpn, beset.peer.qpn);
    let (va, rkey) = (beset.end.va(0), beset.end.key);
    let read = Header { dst_qpn, src_qpn, va, rkey, total: 8, msn: 0x00ff_fff0, ..Header::new(Opcode::Read) };
    beset.say(&frame(&read, &[]));
    assert_eq!(beset.count(Opcode::ReadResponse), 1);
    beset.say(&frame(&Header { flags: flag::RETRANSMITTED, ..read }, &[]));
    assert_eq!(beset.count(Opcode::ReadResponse), 1);
}

#[test]
fn a_query_repeated_during_its_answer_is_answered_once() {
    let mut plan = Plan { memory: 1 << 20, ..Plan::default() };
    plan.attr.max_dest_rd_atomic = 1;
    let mut beset = Beset::new(&plan);
    let (dst_qpn, src_qpn) = (beset.end.qpn, beset.peer.qpn);
    let (va, rkey, total) = (beset.end.va(0), beset.end.key, 1 << 20);
    let read = Header { dst_qpn, src_qpn, va, rkey, total, msn: 0x00ff_fff0, ..Header::new(Opcode::Read) };
    for flags in [0, flag::RETRANSMITTED] {
        beset.write(&frame(&Header { flags, ..read }, &[]));
        beset.net.nodes[0].device.progress(beset.net.now);
    }
    for _ in 0..20 {
        beset.progress();
    }
    assert_eq!(beset.count(Opcode::ReadResponse), (total / MAX_SEGMENT) as usize);
    assert_eq!(beset.count(Opcode::Nak), 0);
}

#[test]
fn frames_for_unknown_queue_pairs_are_ignored() {
    let msn = 0x00ff_fff0;
    for header in [
        Header { msn: 3, ..Header::new(Opcode::Ack) },
        Header { msn: 3, syndrome: Some(Syndrome::RemoteAccess), ..Header::new(Opcode::Nak) },
        Header { msn, va: 7, ..Header::new(Opcode::AtomicResponse) },
        Header { msn, length: 100, total: 100, ..Header::new(Opcode::ReadResponse) },
        Header { msn: 0, length: 100, total: 100, ..Header::new(Opcode::Send) },
    ] {
        assert_eq!(Victim::new().says(header), None, "{header:?}");
    }
}

#[test]
fn a_peer_that_only_asks_does_not_fill_memory() {
    let mut victim = Victim::new();
    // Requests to an unknown queue pair. Each is answered; the answers are never read.
    let request = Header { dst_qpn: 9, length: 1, total: 1, ..Header::new(Opcode::Send) };
    let flood = frame(&request, &[0]).repeat(20_000);
    for _ in 0..5 {
        assert_eq!(victim.hear(&flood), None);
    }
    let unread: usize = victim.net.pipes.values().map(|cutter| cutter.unread(0)).sum();
    assert!(unread > flood.len(), "it is not listened to for ever");
}

#[test]
fn a_peer_that_ignores_the_limit_of_datagrams_does_not_fill_memory() {
    let mut victim = Victim::new();
    let idle = open(&mut victim.net, 0, &Plan { kind: QpKind::Ud, ..Plan::default() });
    let states = [
        (QpState::Init, QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::QKEY),
        (QpState::Rtr, QpAttrMask::empty()),
    ];
    for (state, mask) in states {
        let attr = QpAttr { state, ..Plan::default().attr };
        victim.net.device(0).modify_qp(idle.qp, &attr, mask | QpAttrMask::STATE).unwrap();
    }
    let (dst_qpn, src_qpn) = (idle.qpn, victim.peer.qpn);
    let one = Header { dst_qpn, src_qpn, length: 1000, total: 1000, ..Header::new(Opcode::Datagram) };
    let flood = (0..5000).flat_map(|msn| frame(&Header { msn, ..one }, &[0; 1000]));
    let lost = victim.hear(&flood.collect::<Vec<u8>>());
    assert_eq!(lost, Some(LinkLoss::Violation("more datagrams in flight than allowed")));
}

#[test]
fn a_queue_pair_of_another_peer_cannot_be_used() {
    let mut victim = Victim::new();
    let (third, _) = pair(&mut victim.net, 0, 0, &Plan::default());
    let msn = 0x00ff_fff0;
    let write = Header { msn, dst_qpn: third.qpn, src_qpn: third.qpn + 1, ..Header::new(Opcode::Write) };
    let write = Header { va: third.va(0), rkey: third.key, length: 4, total: 4, ..write };
    assert_eq!(victim.hear(&frame(&write, b"evil")), None);
    assert_eq!(third.memory.load(0, 4), [0; 4]);
}

#[test]
fn a_datagram_with_a_foreign_source_ends_the_link() {
    let mut victim = Victim::new();
    let forged =
        Header { src_qpn: victim.net.nodes[0].id.qpn(1) | 0x7f_0000, ..Header::new(Opcode::Datagram) };
    let lost = victim.hear(&frame(&Header { dst_qpn: victim.end.qpn, ..forged }, &[]));
    assert_eq!(lost, Some(LinkLoss::Violation("a datagram from a queue pair of another process")));
}

#[test]
fn a_peer_that_takes_no_datagrams_blocks_others_only_briefly() {
    let mut victim = Victim::new();
    let net = &mut victim.net;
    let ends = [0, 0].map(|node| ready_for_datagrams(net, node));
    let handles = [1, 0].map(|node| {
        let address =
            AddressVector { dlid: net.nodes[node].id.vid.lid(), port: 1, ..AddressVector::default() };
        net.device(0).create_ah(ends[0].pd, &address).unwrap()
    });
    ends[1].receive(net, 9, &[ends[1].sge(0, 100)]);
    let post = |net: &mut Net, ah, qpn| {
        let op = SendOp::Datagram { ah, qpn, qkey: 0, imm: None };
        ends[0].post(net, 1, op, &[ends[0].sge(0, 8)]);
        ends[0].poll_sends(net).len()
    };
    // The peer says nothing at all of them.
    let deaf = victim.peer.qpn;
    let sent: usize = (0..1024).map(|_| post(net, handles[0], deaf)).sum();
    assert_eq!(sent, 1024);
    assert_eq!(post(net, handles[0], deaf), 0, "there is no more room");
    assert_eq!(post(net, handles[1], ends[1].qpn), 0, "it waits behind");
    let begin = net.now;
    net.run(|net| !ends[1].poll_receives(net).is_empty(), 10_000);
    assert!(net.now - begin < std::time::Duration::from_secs(3));
    assert_eq!(ends[0].poll_sends(net).len(), 2);
    assert_eq!(post(net, handles[0], deaf), 1, "it is dropped at once from now on");
}

/// A datagram queue pair in RTS.
fn ready_for_datagrams(net: &mut Net, node: usize) -> End {
    use QpAttrMask as M;
    let plan = Plan {
        kind: QpKind::Ud,
        caps: QpCaps { max_send_wr: 2048, ..Plan::default().caps },
        ..Plan::default()
    };
    let end = open(net, node, &plan);
    let steps = [
        (QpState::Init, M::PKEY_INDEX | M::PORT | M::QKEY),
        (QpState::Rtr, M::empty()),
        (QpState::Rts, M::SQ_PSN),
    ];
    for (state, mask) in steps {
        net.device(node).modify_qp(end.qp, &QpAttr { state, ..plan.attr }, mask | M::STATE).unwrap();
    }
    end
}

#[test]
fn an_unreliable_connection_survives_a_nak_for_an_unsent_message() {
    let mut victim = Victim::of(&Plan { kind: QpKind::Uc, ..Plan::default() });
    let msn = 0x00ff_fff0;
    assert_eq!(
        victim.says(Header { msn, syndrome: Some(Syndrome::NotReady), ..Header::new(Opcode::Nak) }),
        None
    );
    let (end, net) = (&victim.end, &mut victim.net);
    end.post(net, 1, SendOp::Send, &[end.sge(0, 8)]);
    for _ in 0..100 {
        net.nodes[0].device.progress(net.now);
    }
    let said: usize = net.pipes.values().map(|cutter| cutter.unread(1)).sum();
    assert!(said >= HEADER + 8, "the message has left");
}

/// A device. Its neighbour sends frames, and changes the shared memory, as the test wants.
struct Beset {
    net: Net,
    end: End,
    peer: End,
    /// The neighbour's end of the link, and its descriptors.
    stream: Box<dyn Stream>,
    descriptors: [OwnedFd; 4],
    heard: Vec<u8>,
}

impl Beset {
    fn new(plan: &Plan) -> Self {
        let mut net = Net::new(2, Policy::Stable, Medium::Shm, 1);
        net.device(0).allow_sharing(true);
        let (end, peer) = pair(&mut net, 0, 1, plan);
        let (own, theirs) = stream::create_shm_pair().unwrap();
        let descriptors = theirs.each_ref().map(|descriptor| descriptor.try_clone().unwrap());
        let id = net.nodes[1].id;
        net.nodes[0].device.link_up(id, Epoch(0), stream::shm_stream(own, true).unwrap());
        let stream = stream::shm_stream(theirs, false).unwrap();
        let mut this = Self { net, end, peer, stream, descriptors, heard: Vec::new() };
        let hello = hello(&this.net);
        this.say(&frame(&Header { length: hello.len() as u32, ..Header::new(Opcode::Hello) }, &hello));
        this.say(&frame(&Header::new(Opcode::Ready), &[]));
        this
    }

    fn say(&mut self, bytes: &[u8]) {
        self.write(bytes);
        self.progress();
    }

    fn write(&mut self, bytes: &[u8]) {
        let vector = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        // SAFETY: the bytes are live and only read.
        assert_eq!(unsafe { self.stream.write(&[vector]) }.unwrap(), bytes.len());
    }

    /// Runs the device, and reads its frames. True if the link is still there.
    fn progress(&mut self) -> bool {
        for _ in 0..100 {
            self.net.nodes[0].device.progress(self.net.now);
            let mut bytes = [0u8; 4096];
            let vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
            // SAFETY: the array is live.
            if let Ok(read) = unsafe { self.stream.read(&[vector]) } {
                self.heard.extend(&bytes[..read]);
            }
        }
        let node = &mut self.net.nodes[0];
        node.device.take_events(&mut node.events);
        !node.events.iter().any(|event| matches!(event, Event::LinkLost { .. }))
    }

    /// How many frames of this kind the device has said.
    fn count(&self, opcode: Opcode) -> usize {
        let (mut rest, mut count) = (self.heard.as_slice(), 0);
        while let Some(bytes) = rest.first_chunk::<HEADER>() {
            let header = Header::decode(bytes).unwrap();
            count += usize::from(header.opcode == opcode);
            rest = &rest[HEADER + header.length as usize..];
        }
        count
    }

    /// Passes `memory` as sending `number`, and opens a window to it.
    fn export(&mut self, number: u64, memory: &OwnedFd) {
        fabric::seqpacket::send(self.descriptors[3].as_fd(), &number.to_le_bytes(), &[memory.as_fd()])
            .unwrap();
        let export = softhca::wire::Export { memory: number, offset: 0, length: 4096, rights: 7, count: 0 };
        let (dst_qpn, src_qpn) = (self.end.qpn, self.peer.qpn);
        let header = Header { dst_qpn, src_qpn, imm: 1, length: 32, ..Header::new(Opcode::Export) };
        self.say(&frame(&header, &export.encode()));
    }

    fn ask_for_window(&mut self) {
        let request = Header { rkey: self.end.key, imm: 1, ..Header::new(Opcode::MapRequest) };
        let (dst_qpn, src_qpn) = (self.end.qpn, self.peer.qpn);
        self.say(&frame(&Header { dst_qpn, src_qpn, ..request }, &[]));
        for _ in 0..20 {
            self.progress();
        }
    }
}

fn pages(access: Access) -> Plan {
    Plan { memory: 1 << 20, whole_pages: true, mr_access: access, ..Plan::default() }
}

#[test]
fn memory_without_remote_rights_is_not_exported() {
    let mut beset = Beset::new(&pages(EVERYTHING));
    beset.ask_for_window();
    // Without the privilege to turn pages nothing is handed out at all.
    let usual = beset.count(Opcode::Export);
    let mut beset = Beset::new(&pages(Access::LOCAL_WRITE));
    beset.ask_for_window();
    assert_eq!((beset.count(Opcode::Export), usual.min(1)), (0, usual));
}

#[test]
fn a_peer_that_stayed_inside_a_gate_gets_no_more_direct_mappings() {
    let mut beset = Beset::new(&pages(EVERYTHING));
    beset.ask_for_window();
    if beset.count(Opcode::Export) == 0 {
        return test_support::skip("no privilege for userfaultfd");
    }
    /// Where the count of visitors of the lower end's gate is.
    const INSIDE: u64 = 2 * 1024 + 128;
    let memory = std::fs::File::from(beset.descriptors[0].try_clone().unwrap());
    memory.write_all_at(&1u32.to_ne_bytes(), INSIDE).unwrap();
    beset.end.fail(&mut beset.net);
    let other = Plan { ..pages(EVERYTHING) };
    let (end, peer) = pair(&mut beset.net, 0, 1, &other);
    (beset.end, beset.peer) = (end, peer);
    beset.ask_for_window();
    assert_eq!(beset.count(Opcode::Export), 1);
}

#[test]
fn unread_answers_to_mapping_requests_do_not_fill_memory() {
    let mut beset = Beset::new(&pages(EVERYTHING));
    beset.ask_for_window();
    if beset.count(Opcode::Export) == 0 {
        return test_support::skip("no privilege for userfaultfd");
    }
    let request = Header { rkey: beset.end.key, imm: 1, ..Header::new(Opcode::MapRequest) };
    let (dst_qpn, src_qpn) = (beset.end.qpn, beset.peer.qpn);
    let requests = frame(&Header { dst_qpn, src_qpn, ..request }, &[]).repeat(1000);
    for _ in 0..50 {
        beset.write(&requests);
        beset.net.nodes[0].device.progress(beset.net.now);
    }
    for _ in 0..50 {
        beset.progress();
    }
    let answered = beset.count(Opcode::Export);
    assert!((1000..20_000).contains(&answered), "{answered}");
    beset.ask_for_window();
    assert_eq!(beset.count(Opcode::Export), answered + 1, "one that listens is answered");
}

#[test]
fn a_neighbour_that_wakes_for_nothing_does_not_keep_its_neighbour_awake() {
    let mut beset = Beset::new(&Plan::default());
    let device = &mut beset.net.nodes[0].device;
    assert!(device.prepare_to_sleep());
    let mut waitables = Vec::new();
    device.waitables(&mut waitables);
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: a live byte is passed.
    let sent = unsafe { libc::send(beset.descriptors[2].as_raw_fd(), [0u8].as_ptr().cast(), 1, flags) };
    assert_eq!(sent, 1);
    assert!(waitables.iter().any(is_ready));
    device.awake();
    assert!(!device.progress(beset.net.now).did_work);
    device.drain_wakes();
    assert!(!waitables.iter().any(is_ready));
}

#[test]
fn a_neighbour_that_makes_descriptors_blocking_stops_no_other() {
    let mut beset = Beset::new(&Plan::default());
    for descriptor in &beset.descriptors {
        // SAFETY: no memory is passed.
        assert_eq!(unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_SETFL, 0) }, 0);
    }
    // No data is there, and soon there is no room for more wake-ups.
    for _ in 0..2000 {
        let device = &mut beset.net.nodes[0].device;
        device.drain_wakes();
        device.prepare_to_sleep();
        device.awake();
        beset.say(&frame(&Header::new(Opcode::TranslateAck), &[]));
    }
    assert!(beset.progress());
}

#[test]
fn a_neighbours_memory_has_a_limit() {
    let mut beset = Beset::new(&Plan::default());
    let (end, net) = (&beset.end, &mut beset.net);
    for wr_id in 0..2 {
        end.post(net, wr_id, SendOp::Write { va: 0, rkey: 1 }, &[end.sge(0, 8)]);
    }
    beset.progress();
    assert_eq!(beset.count(Opcode::MapRequest), 1);
    // More addresses than a program has in all, most of it.
    let memory = sealed_memory(1 << 46);
    let before = mapped();
    for number in 1..=2 {
        beset.export(number, &memory);
    }
    assert!(mapped().saturating_sub(before) < 1 << 41, "its memory was not mapped");
    assert!(beset.progress());
}

#[test]
fn a_neighbour_without_a_connection_has_nothing_mapped() {
    let mut beset = Beset::new(&Plan::default());
    beset.net.device(0).destroy_qp(beset.end.qp).unwrap();
    let before = mapped();
    beset.export(1, &sealed_memory(1 << 39));
    assert!(mapped().saturating_sub(before) < 1 << 38);
    assert!(beset.progress());
}

fn sealed_memory(length: i64) -> OwnedFd {
    // SAFETY: the name is a C string, and the descriptor is fresh.
    unsafe {
        let memory = libc::memfd_create(c"hostile".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        assert_eq!(libc::ftruncate(memory, length), 0);
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        assert_eq!(libc::fcntl(memory, libc::F_ADD_SEALS, seals), 0);
        OwnedFd::from_raw_fd(memory)
    }
}

/// Bytes of addresses that this process uses.
fn mapped() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').next().unwrap().parse::<u64>().unwrap() * 4096
}

/// Short messages with headers that change while they are read: the checked values are the executed ones.
#[test]
fn a_message_that_changes_while_it_is_read_stays_in_bounds() {
    const LINE: usize = 64;
    let mut beset = Beset::new(&Plan::default());
    let (dst_qpn, src_qpn) = (beset.end.qpn, beset.peer.qpn);
    let file = std::fs::File::from(beset.descriptors[0].try_clone().unwrap());
    let memory = Mapped::new(&file);
    let stop = AtomicBool::new(false);
    let is_over = &stop;
    std::thread::scope(|scope| {
        // It turns the length of the ring's present message back and forth.
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                for line in 0..64 {
                    let chunk = 4096 + 512 * 1024 + LINE * line;
                    let length = memory.word(chunk + 8 + 12);
                    length.fetch_xor(0x00ff_ff00, Ordering::Relaxed);
                    memory.word(chunk + 8 + 44).fetch_xor(0x00ff_ff00, Ordering::Relaxed);
                }
            }
        });
        for round in 0..3000u64 {
            let (end, net) = (&beset.end, &mut beset.net);
            let _ = net.device(0).post_recv(end.qp, round, &[end.sge(64, 8)]);
            let header = Header { dst_qpn, src_qpn, length: 8, total: 8, ..Header::new(Opcode::Send) };
            let msn = 0x00ff_fff0 + round;
            let bytes = frame(&Header { msn, ..header }, &[0xee; 8]);
            let vector = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
            // SAFETY: the bytes are live and only read.
            let _ = unsafe { beset.stream.write(&[vector]) };
            beset.net.nodes[0].device.progress(beset.net.now);
            let _ = beset.end.poll_receives(&mut beset.net);
            let lost = beset.net.nodes[0].device.query_qp(beset.end.qp).unwrap().0.state != QpState::Rts;
            if lost || !beset.progress() {
                break;
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let after = beset.end.memory.load(72, 4096);
    assert!(after.iter().all(|byte| *byte == 0), "nothing lies behind the receive");
}

/// A link's memory as the neighbour has it.
struct Mapped(*mut u8);

// SAFETY: it is used through atomics only.
unsafe impl Sync for Mapped {}

impl Mapped {
    fn new(file: &std::fs::File) -> Self {
        let length = file.metadata().unwrap().len() as usize;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping where the kernel likes; it stays.
        let at = unsafe {
            libc::mmap(std::ptr::null_mut(), length, rights, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        assert_ne!(at, libc::MAP_FAILED);
        Self(at.cast())
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: tests name aligned words within the mapping.
        unsafe { &*self.0.add(offset).cast() }
    }
}
