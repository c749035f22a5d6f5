//! Short SENDs between neighbours, which pass straight through the ring: executed once wherever the link is lost, in order
//! with all that goes the long way.

mod support;

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

use fabric::Epoch;
use softhca::wire::{self, Brief, HEADER, Header, Hello, Opcode, flag};
use softhca::*;
use support::*;
use verbs::Policy;

/// Two neighbours with a link.
fn neighbours() -> (Net, End, End) {
    let mut net = Net::new(2, Policy::Random, Medium::Shm, 5);
    let (a, b) = pair(&mut net, 0, 1, &Plan::default());
    a.receive(&mut net, 0, &[a.sge(0, 64)]);
    b.post(&mut net, 0, SendOp::Send, &[b.sge(0, 1)]);
    net.settle();
    assert_eq!(a.poll_receives(&mut net).len(), 1);
    assert_eq!(statuses(&b.poll_sends(&mut net)), [WcStatus::Success]);
    (net, a, b)
}

/// Posts without ringing the doorbell. True if the message has left.
fn leaves(net: &mut Net, from: &End, wr_id: u64, op: SendOp, sges: &[Sge]) -> bool {
    leaves_signaled(net, from, wr_id, op, sges, true)
}

fn leaves_signaled(net: &mut Net, from: &End, wr_id: u64, op: SendOp, sges: &[Sge], signaled: bool) -> bool {
    let payload = Payload::Sges(sges);
    let wr = SendWr { wr_id, op, signaled, fence: false, solicited: false, srq_number: 0, payload };
    // SAFETY: nothing is inline.
    (unsafe { net.device(from.node).post_send(from.qp, &wr) }).unwrap() == Posted::Done
}

fn send(net: &mut Net, from: &End, wr_id: u64) -> bool {
    from.memory.store(8 * wr_id as usize, &wr_id.to_ne_bytes());
    leaves(net, from, wr_id, SendOp::SendImm(wr_id as u32), &[from.sge(8 * wr_id as usize, 8)])
}

fn receive_eight(net: &mut Net, at: &End) {
    for n in 0..8 {
        at.receive(net, n, &[at.sge(4096 + 8 * n as usize, 8)]);
    }
}

#[test]
fn a_short_send_leaves_when_it_is_posted() {
    let (mut net, a, b) = neighbours();
    receive_eight(&mut net, &b);
    assert!((0..8).all(|n| send(&mut net, &a, n)));
    let received = b.poll_receives(&mut net);
    let imms: Vec<_> = received.iter().map(|wc| (wc.wr_id, wc.imm, wc.byte_len)).collect();
    assert_eq!(imms, (0..8).map(|n| (n, Some(n as u32), 8)).collect::<Vec<_>>());
    assert!((0..8).all(|n| b.memory.word(4096 + 8 * n) == n as u64));
    net.settle();
    assert_eq!(
        a.poll_sends(&mut net).iter().map(|wc| wc.wr_id).collect::<Vec<_>>(),
        (0..8).collect::<Vec<_>>()
    );
}

/// Frames behind it are not taken before it.
#[test]
fn the_completion_of_many_does_not_wait_for_later_ones() {
    const ALL: u64 = 24;
    const SIGNALED: u64 = 19;
    let (mut net, a, b) = neighbours();
    for n in 0..ALL {
        b.receive(&mut net, n, &[b.sge(4096, 8)]);
    }
    let leave = |n| leaves_signaled(&mut net, &a, n, SendOp::Send, &[a.sge(0, 8)], n == SIGNALED);
    assert!((0..ALL).all(leave));
    let received = net.device(1).poll_cq(b.recv_cq, ALL as usize, |_| {}).unwrap();
    assert_eq!(received as u64, SIGNALED + 1);
    let mut sent = Vec::new();
    net.device(0).poll_cq(a.send_cq, 16, |wc| sent.push(wc.wr_id)).unwrap();
    assert_eq!(sent, [SIGNALED]);
    assert_eq!(b.poll_receives(&mut net).len() as u64, ALL - SIGNALED - 1);
}

/// How far a message has come when the link is lost.
#[derive(Clone, Copy, Debug)]
enum Point {
    InTheRing,
    HalfOfThemTaken,
    Taken,
    AnswerInTheRing,
    AnswerTaken,
}

#[test]
fn each_is_executed_once_wherever_the_link_is_lost() {
    use Point::{AnswerInTheRing, AnswerTaken, HalfOfThemTaken, InTheRing, Taken};
    for point in [InTheRing, HalfOfThemTaken, Taken, AnswerInTheRing, AnswerTaken] {
        for mover in 0..2 {
            lose_the_link(point, mover);
        }
    }
}

fn lose_the_link(point: Point, mover: usize) {
    let (mut net, a, b) = neighbours();
    a.receive(&mut net, 100, &[a.sge(8192, 8)]);
    let ready = if matches!(point, Point::HalfOfThemTaken) { 2 } else { 4 };
    for n in 0..ready {
        b.receive(&mut net, n, &[b.sge(4096 + 8 * n as usize, 8)]);
    }
    assert!((0..4).all(|n| send(&mut net, &a, n)));
    let (mut received, mut sent) = (Vec::new(), Vec::new());
    if !matches!(point, Point::InTheRing) {
        net.device(1).poll_cq(b.recv_cq, 16, |wc| received.push(*wc)).unwrap();
        assert_eq!(received.len(), ready as usize);
    }
    if matches!(point, Point::AnswerInTheRing | Point::AnswerTaken) {
        // It carries the acknowledgement.
        assert!(send(&mut net, &b, 9));
    }
    if matches!(point, Point::AnswerTaken) {
        net.device(0).poll_cq(a.send_cq, 16, |wc| sent.push(*wc)).unwrap();
        assert_eq!(sent.len(), 4);
    }
    net.suspend(mover);
    for _ in 0..10 {
        net.step();
    }
    for n in ready..4 {
        b.receive(&mut net, n, &[b.sge(4096 + 8 * n as usize, 8)]);
    }
    net.resume(mover);
    net.settle();
    received.append(&mut b.poll_receives(&mut net));
    sent.append(&mut a.poll_sends(&mut net));
    let place = format!("{point:?}, {mover} moves");
    assert_eq!(
        received.iter().map(|wc| wc.imm).collect::<Vec<_>>(),
        (0..4).map(Some).collect::<Vec<_>>(),
        "{place}"
    );
    assert_eq!(sent.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [0, 1, 2, 3], "{place}");
    assert!(sent.iter().chain(&received).all(|wc| wc.status == WcStatus::Success), "{place}");
    assert!((0..4).all(|n| b.memory.word(4096 + 8 * n) == n as u64), "{place}");
    let answered = a.poll_receives(&mut net).len();
    assert_eq!(
        answered,
        usize::from(matches!(point, Point::AnswerInTheRing | Point::AnswerTaken)),
        "{place}"
    );
}

#[test]
fn messages_unfit_for_the_fast_path_keep_their_order() {
    let (mut net, a, b) = neighbours();
    let pieces = [b.sge(4096, 3), b.sge(5000, 5)];
    b.receive(&mut net, 0, &pieces);
    b.receive(&mut net, 1, &[b.sge(6000, 60_000 - 6000)]);
    b.receive(&mut net, 2, &[b.sge(7000, 0)]);
    b.receive(&mut net, 3, &[b.sge(7000, 100)]);
    assert!(send(&mut net, &a, 0), "the sender cannot know that the receive has two elements");
    assert!(!leaves(&mut net, &a, 1, SendOp::Send, &[a.sge(0, 2000)]), "it is long");
    assert!(!send(&mut net, &a, 2), "one waits before it");
    net.device(0).flush_doorbell(a.qp);
    net.settle();
    let lengths: Vec<_> =
        b.poll_receives(&mut net).iter().map(|wc| (wc.wr_id, wc.status, wc.byte_len)).collect();
    assert_eq!(lengths[..2], [(0, WcStatus::Success, 8), (1, WcStatus::Success, 2000)]);
    assert_eq!(lengths[2].1, WcStatus::LocalLength, "the receive has no room");
    let done = statuses(&a.poll_sends(&mut net));
    assert_eq!(done, [WcStatus::Success, WcStatus::Success, WcStatus::RemoteInvalidRequest]);
}

#[test]
fn a_send_that_finds_no_receive_waits_for_one() {
    let (mut net, a, b) = neighbours();
    assert!(send(&mut net, &a, 1) && send(&mut net, &a, 2));
    assert!(b.poll_receives(&mut net).is_empty());
    receive_eight(&mut net, &b);
    net.settle();
    assert_eq!(b.poll_receives(&mut net).iter().map(|wc| wc.imm).collect::<Vec<_>>(), [Some(1), Some(2)]);
    assert_eq!(statuses(&a.poll_sends(&mut net)), [WcStatus::Success; 2]);
}

/// Without immediate data the header is brief, and a message that finds no receive goes into the buffer.
#[test]
fn brief_sends_on_the_general_path_keep_their_order() {
    let (mut net, a, b) = neighbours();
    let brief = |net: &mut Net, n: usize| {
        a.memory.store(8 * n, &n.to_ne_bytes());
        leaves(net, &a, n as u64, SendOp::Send, &[a.sge(8 * n, 8)])
    };
    assert!(brief(&mut net, 1));
    assert!(b.poll_receives(&mut net).is_empty(), "there is no receive");
    b.receive(&mut net, 0, &[b.sge(4096, 3), b.sge(4099, 5)]);
    for n in 1..6 {
        b.receive(&mut net, n, &[b.sge(4096 + 8 * n as usize, 8)]);
    }
    net.settle();
    assert!(brief(&mut net, 2) && send(&mut net, &a, 3) && brief(&mut net, 4));
    assert!(brief(&mut net, 5) && send(&mut net, &a, 6));
    net.settle();
    let received = b.poll_receives(&mut net);
    assert_eq!(statuses(&received), [WcStatus::Success; 6]);
    assert_eq!(
        received.iter().map(|wc| wc.imm).collect::<Vec<_>>(),
        [None, None, Some(3), None, None, Some(6)]
    );
    assert!((0..6).all(|n| b.memory.word(4096 + 8 * n) == n as u64 + 1));
    assert_eq!(a.poll_sends(&mut net).len(), 6);
}

#[test]
fn memory_is_checked_at_both_ends() {
    let (mut net, a, b) = neighbours();
    receive_eight(&mut net, &b);
    let beyond = Sge { addr: a.va(0) + a.memory.len() as u64 - 4, length: 8, lkey: a.key };
    a.post(&mut net, 1, SendOp::Send, &[beyond]);
    assert_eq!(statuses(&a.poll_sends(&mut net)), [WcStatus::LocalProtection]);

    let (mut net, a, b) = neighbours();
    let elsewhere = Sge { addr: b.va(0) - 8, length: 8, lkey: b.key };
    b.receive(&mut net, 1, &[elsewhere]);
    assert!(send(&mut net, &a, 1));
    net.settle();
    assert_eq!(statuses(&b.poll_receives(&mut net))[0], WcStatus::LocalProtection);
    assert_eq!(statuses(&a.poll_sends(&mut net)), [WcStatus::RemoteOperation]);
}

/// A program that only receives need not go further.
#[test]
fn a_ready_receiver_gets_an_event_and_all_messages() {
    let (mut net, plan) = (Net::new(2, Policy::Stable, Medium::Shm, 5), Plan::default());
    let (c, d) = pair(&mut net, 0, 1, &plan);
    c.post(&mut net, 0, SendOp::Write { va: d.va(0), rkey: d.key }, &[c.sge(0, 1)]);
    net.settle();
    let (a, b) = (open(&mut net, 0, &plan), open(&mut net, 1, &plan));
    for (end, peer) in [(&a, &b), (&b, &a)] {
        to_init(&mut net, end, &plan);
        to_rtr(&mut net, end, peer, &plan);
    }
    to_rts(&mut net, &a, &plan);
    receive_eight(&mut net, &b);
    a.post(&mut net, 0, SendOp::SendImm(0), &[a.sge(0, 8)]);
    net.settle();
    assert!((1..8).all(|n| send(&mut net, &a, n)));
    net.settle();
    let imms: Vec<_> = b.poll_receives(&mut net).iter().map(|wc| wc.imm).collect();
    assert_eq!(imms, (0..8).map(Some).collect::<Vec<_>>());
    assert_eq!(net.asyncs(1), [AsyncEvent::CommunicationEstablished(b.qp)]);
}

#[test]
fn a_fenced_short_send_waits_for_reads() {
    let (mut net, a, b) = neighbours();
    receive_eight(&mut net, &b);
    a.post(&mut net, 1, SendOp::Read { va: b.va(0), rkey: b.key }, &[a.sge(1000, 16)]);
    let sges = [a.sge(0, 8)];
    let fenced = SendWr {
        wr_id: 2,
        op: SendOp::Send,
        signaled: true,
        fence: true,
        solicited: true,
        srq_number: 0,
        payload: Payload::Sges(&sges),
    };
    // SAFETY: nothing is inline.
    assert_eq!(unsafe { net.device(0).post_send(a.qp, &fenced) }, Ok(Posted::Queued));
    net.device(0).flush_doorbell(a.qp);
    net.settle();
    assert!(b.poll_receives(&mut net)[0].solicited);
    assert_eq!(statuses(&a.poll_sends(&mut net)), [WcStatus::Success; 2]);
}

#[test]
fn a_full_ring_sends_the_rest_later() {
    let mut net = Net::new(2, Policy::Stable, Medium::Shm, 5);
    let mut plan = Plan { cq_depth: 20_000, ..Plan::default() };
    (plan.caps.max_send_wr, plan.caps.max_recv_wr) = (8192, 8192);
    let (a, b) = pair(&mut net, 0, 1, &plan);
    b.post(&mut net, 0, SendOp::Write { va: a.va(0), rkey: a.key }, &[b.sge(0, 1)]);
    net.settle();
    for n in 0..8000 {
        b.receive(&mut net, n, &[b.sge(4096, 1024)]);
    }
    let left = (0..8000).filter(|n| leaves(&mut net, &a, *n, SendOp::Send, &[a.sge(0, 1000)])).count();
    assert!((100..1000).contains(&left), "so many have room: {left}");
    net.device(0).flush_doorbell(a.qp);
    net.settle();
    assert_eq!(
        b.poll_receives(&mut net).iter().map(|wc| wc.wr_id).collect::<Vec<_>>(),
        (0..8000).collect::<Vec<_>>()
    );
    assert_eq!(a.poll_sends(&mut net).len(), 8000);
}

/// A device, and the ring of a neighbour that writes the test's bytes.
struct Attacked {
    net: Net,
    end: End,
    peer_qpn: u32,
    attacker: Box<dyn Stream>,
    memory: File,
    /// Where the attacker's next chunk is in its ring.
    next: u64,
}

impl Attacked {
    fn new() -> Self {
        let mut net = Net::new(2, Policy::Stable, Medium::Shm, 1);
        let (end, peer) = pair(&mut net, 0, 1, &Plan::default());
        let (lower, higher) = stream::create_shm_pair().unwrap();
        let id = net.nodes[1].id;
        net.device(0).link_up(id, Epoch(0), stream::shm_stream(lower, true).unwrap());
        let memory = higher[0].try_clone().unwrap().into();
        let attacker = stream::shm_stream(higher, false).unwrap();
        let hello = Hello { process: id, fabric: FABRIC, epoch: Epoch(0), incarnation: 1 }.encode();
        let mut attacked = Self { net, end, peer_qpn: peer.qpn, attacker, memory, next: 0 };
        attacked.write(&Header { length: hello.len() as u32, ..Header::new(Opcode::Hello) }.encode());
        attacked.write(&hello);
        attacked.write(&Header::new(Opcode::Ready).encode());
        assert_eq!(attacked.ends(), None);
        attacked.end.receive(&mut attacked.net, 1, &[attacked.end.sge(0, 64)]);
        attacked
    }

    fn write(&mut self, bytes: &[u8]) {
        let vector = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        // SAFETY: the vector names live bytes, which are only read.
        assert_eq!(unsafe { self.attacker.write(&[vector]) }.unwrap(), bytes.len());
        self.next += chunk(bytes.len());
    }

    /// Writes a message with a brief header, past the stream.
    fn says_brief(&mut self, brief: Brief, payload: &[u8]) -> Option<LinkLoss> {
        self.next += write_brief(&self.memory, self.next, brief, payload);
        self.ends()
    }

    /// A SEND to the device's queue pair.
    fn send(&self, msn: u64) -> Header {
        let (dst_qpn, src_qpn) = (self.end.qpn, self.peer_qpn);
        Header { dst_qpn, src_qpn, msn, ..Header::new(Opcode::Send) }
    }

    fn says(&mut self, header: Header, payload: &[u8]) -> Option<LinkLoss> {
        let (dst_qpn, src_qpn) = (self.end.qpn, self.peer_qpn);
        let header =
            Header { dst_qpn, src_qpn, length: payload.len() as u32, total: payload.len() as u32, ..header };
        self.write(&[&header.encode()[..], payload].concat());
        self.ends()
    }

    /// Why the link has ended, if it has.
    fn ends(&mut self) -> Option<LinkLoss> {
        self.end.poll_sends(&mut self.net);
        let mut events = Vec::new();
        self.net.device(0).take_events(&mut events);
        events
            .iter()
            .find_map(|event| if let Event::LinkLost { reason, .. } = event { Some(*reason) } else { None })
    }
}

/// Writes a message with a brief header into the ring of the higher end. The first `next` bytes of it have been used.
/// Returns how many are used then.
fn write_brief(memory: &File, next: u64, brief: Brief, payload: &[u8]) -> u64 {
    const CAPACITY: u64 = 512 * 1024;
    /// It lies behind a page and the other ring.
    const RING: u64 = 4096 + CAPACITY;
    const LENGTH_BITS: u32 = 20;
    let bytes = [&brief.words.map(u64::to_ne_bytes).concat()[..], payload].concat();
    let (word, at) = (bytes.len() as u64 | brief.tag << LENGTH_BITS, RING + next % CAPACITY);
    memory.write_all_at(&bytes, at + 8).unwrap();
    memory.write_all_at(&word.to_ne_bytes(), at).unwrap();
    chunk(bytes.len())
}

/// The bytes of a ring that a chunk of so many bytes takes.
fn chunk(bytes: usize) -> u64 {
    (8 + bytes as u64).next_multiple_of(32)
}

const FIRST: u64 = 0x00ff_fff0;

#[test]
fn a_malformed_brief_header_ends_the_link() {
    let mut honest = Attacked::new();
    assert_eq!(honest.says_brief(honest.send(FIRST).brief(), b"brief"), None);
    assert_eq!(honest.end.poll_receives(&mut honest.net)[0].byte_len, 5);
    assert_eq!(honest.end.memory.load(0, 5), b"brief");

    let lie = |lie: &dyn Fn(Header) -> Brief, payload: &[u8]| {
        let mut attacked = Attacked::new();
        let lost = attacked.says_brief(lie(attacked.send(FIRST)), payload);
        assert!(matches!(lost, Some(LinkLoss::Violation(_))), "{lost:?}");
    };
    lie(&|send| Brief { tag: send.brief().tag | 0x02, ..send.brief() }, b"");
    lie(&|send| Brief { tag: send.brief().tag | 1 << 40, ..send.brief() }, b"");
    lie(&|send| send.brief(), &[0; wire::MAX_BRIEF as usize + 1]);
    lie(&|send| Header { opcode: Opcode::Ack, ..send }.brief(), b"x");
    lie(&|send| Header { opcode: Opcode::Ack, msn: FIRST + 1, ..send }.brief(), b"");
    lie(&|send| Header { flags: flag::ACKNOWLEDGES, va: FIRST + 1, ..send }.brief(), b"");
}

#[test]
fn a_brief_header_in_the_middle_of_a_frame_is_refused() {
    let mut attacked = Attacked::new();
    let begun = Header { length: 8, total: 8, ..attacked.send(FIRST) };
    attacked.write(&begun.encode()[..HEADER - 1]);
    assert_eq!(attacked.ends(), None);
    let lost = attacked.says_brief(attacked.send(FIRST).brief(), b"");
    assert_eq!(lost, Some(LinkLoss::Broken(ErrorKind::InvalidData)));
}

#[test]
fn a_malformed_fast_path_frame_ends_the_link() {
    for header in [
        Header { msn: FIRST + 1, ..Header::new(Opcode::Ack) },
        Header { msn: FIRST, flags: flag::ACKNOWLEDGES, va: FIRST + 1, ..Header::new(Opcode::Send) },
        Header { msn: FIRST, flags: 0x80, ..Header::new(Opcode::Send) },
        Header { msn: FIRST, offset: 4, ..Header::new(Opcode::Send) },
    ] {
        let lost = Attacked::new().says(header, b"");
        assert!(matches!(lost, Some(LinkLoss::Violation(_))), "{header:?}: {lost:?}");
    }
}

#[test]
fn a_neighbour_reaches_nothing_but_its_own_receives() {
    let mut attacked = Attacked::new();
    let send = Header { msn: FIRST, ..Header::new(Opcode::Send) };
    let (third, _) = pair(&mut attacked.net, 0, 0, &Plan::default());
    third.receive(&mut attacked.net, 1, &[third.sge(0, 64)]);
    let stray = Header { dst_qpn: third.qpn, src_qpn: third.qpn + 1, length: 4, total: 4, ..send };
    attacked.write(&[&stray.encode()[..], b"evil"].concat());
    assert_eq!(attacked.ends(), None);
    assert_eq!(third.memory.load(0, 4), [0; 4]);
    // A payload that comes later is waited for, in the receive that the message has.
    let split = Header { dst_qpn: attacked.end.qpn, src_qpn: attacked.peer_qpn, length: 8, total: 8, ..send };
    attacked.write(&split.encode()[..HEADER - 1]);
    attacked.write(&[&split.encode()[HEADER - 1..], b"spl"].concat());
    assert_eq!(attacked.ends(), None);
    assert!(attacked.end.poll_receives(&mut attacked.net).is_empty());
    attacked.write(b"itted");
    assert_eq!(statuses(&attacked.end.poll_receives(&mut attacked.net)), [WcStatus::Success]);
    assert_eq!(attacked.end.memory.load(0, 8), b"splitted");
    // More than its receive holds is an error of that receive alone.
    attacked.end.receive(&mut attacked.net, 2, &[attacked.end.sge(0, 4)]);
    let next = Header { msn: FIRST + 1, ..send };
    assert_eq!(attacked.says(next, &[1; 200]), None);
    assert_eq!(statuses(&attacked.end.poll_receives(&mut attacked.net)), [WcStatus::LocalLength]);
    assert_eq!(attacked.end.memory.load(0, 8), b"splitted");
}

/// Has messages arrive while the device looks for them, and says why the link has ended, if it has.
fn lost_while_messages_arrive() -> Option<LinkLoss> {
    /// There is room for so many unread acknowledgements.
    const MESSAGES: u64 = 15_000;
    const AHEAD: u64 = 12;
    let mut honest = Attacked::new();
    let (memory, taken) = (honest.memory.try_clone().unwrap(), AtomicU64::new(0));
    let (mut next, first) = (honest.next, honest.send(FIRST));
    // A scatter list takes the general path.
    let places = [honest.end.sge(0, 1), honest.end.sge(1, 1)];
    (0..AHEAD).for_each(|wr_id| honest.end.receive(&mut honest.net, wr_id, &places));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for message in 0..MESSAGES {
                while taken.load(Ordering::Acquire) + AHEAD < message {
                    std::hint::spin_loop();
                }
                next += write_brief(&memory, next, Header { msn: FIRST + message, ..first }.brief(), b"");
            }
        });
        let (mut lost, mut arrived) = (None, 0);
        while lost.is_none() && arrived < MESSAGES {
            lost = honest.ends();
            let received = honest.end.poll_receives(&mut honest.net).len() as u64;
            (0..received).for_each(|wr_id| honest.end.receive(&mut honest.net, wr_id, &places));
            arrived += received;
            taken.store(arrived, Ordering::Release);
        }
        taken.store(MESSAGES, Ordering::Release);
        lost
    })
}

/// Also when the device has just put one into its buffer, and looks for the next.
#[test]
fn a_message_may_arrive_at_any_moment() {
    for _ in 0..10 {
        assert_eq!(lost_while_messages_arrive(), None);
    }
}
