//! Datagrams.

mod support;

use fabric::attach::LinkRefusal;
use softhca::attr::GlobalRoute;
use softhca::limits::MTU;
use softhca::*;
use support::*;
use verbs::Policy;

const QKEY: u32 = 0x1234_5678;
const GRH: usize = 40;

fn plan() -> Plan {
    let attr = QpAttr { qkey: QKEY, ..Plan::default().attr };
    let caps = QpCaps { max_send_wr: 4096, max_recv_wr: 4096, ..Plan::default().caps };
    Plan { kind: QpKind::Ud, cq_depth: 8192, attr, caps, ..Plan::default() }
}

/// A datagram queue pair that is ready.
fn ready(net: &mut Net, node: usize) -> End {
    let end = open(net, node, &plan());
    start(net, &end);
    end
}

fn start(net: &mut Net, end: &End) {
    use QpAttrMask as M;
    let attr = |state| QpAttr { state, ..plan().attr };
    let device = net.device(end.node);
    device.modify_qp(end.qp, &attr(QpState::Init), M::STATE | M::PKEY_INDEX | M::PORT | M::QKEY).unwrap();
    device.modify_qp(end.qp, &attr(QpState::Rtr), M::STATE).unwrap();
    device.modify_qp(end.qp, &attr(QpState::Rts), M::STATE | M::SQ_PSN).unwrap();
}

fn two(net: &mut Net) -> (End, End) {
    (ready(net, 0), ready(net, 1))
}

/// Runs `test` with two ends on every medium and with every policy of handles.
fn each(test: impl Fn(&mut Net, End, End)) {
    for medium in Medium::ALL {
        for policy in Policy::ALL {
            let mut net = Net::new(2, policy, medium, 5);
            let (a, b) = two(&mut net);
            test(&mut net, a, b);
        }
    }
}

fn handle_to(net: &mut Net, from: &End, to: &End, routed: bool) -> Ah {
    handle_in(net, (from.node, from.pd), to, routed)
}

fn handle_in(net: &mut Net, (node, pd): (usize, Pd), to: &End, routed: bool) -> Ah {
    let vid = net.nodes[to.node].id.vid;
    let (flow_label, hop_limit, traffic_class) = (0x0012_3456, 3, 0x60);
    let route = GlobalRoute { dgid: vid.gid(FABRIC), flow_label, sgid_index: 0, hop_limit, traffic_class };
    let global = routed.then_some(route);
    let address = AddressVector { dlid: vid.lid(), global, sl: 2, port: 1, ..AddressVector::default() };
    net.device(node).create_ah(pd, &address).unwrap()
}

fn op(ah: Ah, to: &End) -> SendOp {
    SendOp::Datagram { ah, qpn: to.qpn, qkey: QKEY, imm: None }
}

/// Posts receives of `size` bytes, `count` of them, named from `first` on.
fn receives(net: &mut Net, end: &End, first: u64, count: u64, size: usize) {
    for number in 0..count {
        let at = number as usize * size % (end.memory.len() - size);
        end.receive(net, first + number, &[end.sge(at, size)]);
    }
}

fn assert_success(completions: &[Wc], count: usize) {
    assert_eq!(statuses(completions), vec![WcStatus::Success; count]);
}

#[test]
fn a_datagram_arrives_with_its_sender() {
    each(|net, a, b| {
        for (routed, imm) in [(false, None), (true, Some(7))] {
            let ah = handle_to(net, &a, &b, routed);
            b.memory.store(0, &[0xee; 200]);
            b.receive(net, 9, &[b.sge(0, 30), b.sge(30, 100)]);
            a.memory.store(0, b"a datagram");
            let op = SendOp::Datagram { ah, qpn: b.qpn, qkey: QKEY, imm };
            a.post(net, 1, op, &[a.sge(0, 2), a.sge(2, 8)]);
            net.settle();
            assert_success(&a.poll_sends(net), 1);
            let got = b.poll_receives(net)[0];
            assert_eq!((got.wr_id, got.byte_len, got.imm), (9, 50, imm));
            assert_eq!((got.src_qp, got.qpn, got.slid), (a.qpn, b.qpn, net.nodes[0].id.vid.lid()));
            assert_eq!(got.sl, 2);
            assert_eq!(b.memory.load(GRH, 11), b"a datagram\xee");
            assert_eq!(got.has_route, routed);
            let route = b.memory.load(0, GRH);
            if routed {
                assert_eq!(
                    (&route[..4], route[7]),
                    (&[0x66, 0x02, 0x34, 0x56][..], 3),
                    "20 bits of the flow label"
                );
                assert_eq!(route[8..24], net.nodes[0].id.vid.gid(FABRIC));
                assert_eq!(route[24..40], net.nodes[1].id.vid.gid(FABRIC));
            } else {
                assert_eq!(route, [0xee; GRH]);
            }
        }
    });
}

/// An address handle from `a` to a process that does not exist.
fn handle_to_nobody(net: &mut Net, a: &End, lid: u16) -> Ah {
    let address = AddressVector { dlid: lid, port: 1, ..AddressVector::default() };
    net.device(a.node).create_ah(a.pd, &address).unwrap()
}

fn exchange(net: &mut Net, a: &End, b: &End) {
    for (from, to) in [(a, b), (b, a), (a, b)] {
        let ah = handle_to(net, from, to, false);
        receives(net, to, 0, 1, 100);
        from.post(net, 1, op(ah, to), &[from.sge(0, 8)]);
        net.settle();
        assert_success(&from.poll_sends(net), 1);
        assert_success(&to.poll_receives(net), 1);
    }
}

/// Sends datagrams that no queue pair takes.
fn send_in_vain(net: &mut Net, a: &End, b: &End) {
    let ah = handle_to(net, a, b, false);
    a.post(net, 1, op(ah, b), &[a.sge(0, 8)]);
    net.settle();
    assert_success(&a.poll_sends(net), 1);
}

#[test]
fn a_late_receiver_gets_datagrams_sent_from_then_on() {
    each(|net, a, b| {
        net.nodes[1].gone = true;
        send_in_vain(net, &a, &b);
        net.nodes[1].gone = false;
        exchange(net, &a, &b);
    });
}

#[test]
fn after_an_outage_datagrams_go_on() {
    each(|net, a, b| {
        exchange(net, &a, &b);
        net.suspend(1);
        net.refuse_with = LinkRefusal::Unreachable;
        send_in_vain(net, &a, &b);
        let given_up = net.now.as_secs() + 61;
        net.run(|net| net.now.as_secs() > given_up, 100_000);
        assert!(!net.device(0).has_datagrams());
        net.refuse_with = LinkRefusal::Moving;
        net.resume(1);
        exchange(net, &a, &b);
    });
}

#[test]
fn a_datagram_from_a_peer_that_just_ended_is_harmless() {
    for steps in 0..20 {
        let net = &mut Net::new(3, Policy::Stable, Medium::Pipe, 5);
        let ends: Vec<_> = (0..3).map(|node| ready(net, node)).collect();
        for from in &ends[1..] {
            let ah = handle_to(net, from, &ends[0], false);
            from.post(net, 1, op(ah, &ends[0]), &[from.sge(0, 8)]);
        }
        for _ in 0..steps {
            net.step();
        }
        net.pipes.values().for_each(|pipe| pipe.end(1));
        receives(net, &ends[0], 0, 4, 100);
    }
}

#[test]
fn datagrams_resent_by_an_evicted_peer_are_delivered_once() {
    const SENT: usize = 21;
    for seed in 1..60 {
        let net = &mut Net::new(2, Policy::Stable, Medium::Pipe, seed);
        let (a, b) = two(net);
        exchange(net, &a, &b);
        let ah = handle_to(net, &a, &b, false);
        receives(net, &b, 0, 3 * SENT as u64, 100);
        for _ in 0..SENT {
            a.post(net, 1, op(ah, &b), &[a.sge(0, 8)]);
        }
        for _ in 0..seed % 6 {
            net.step();
        }
        net.suspend(0);
        for stranger in 0..4 * MAX_PEERS as u16 {
            let to = handle_to_nobody(net, &b, 100 + stranger);
            b.post(net, 1, op(to, &a), &[b.sge(0, 8)]);
            net.settle();
        }
        net.resume(0);
        net.settle();
        assert!(b.poll_receives(net).len() <= SENT, "seed {seed}");
    }
}

#[test]
fn there_is_always_room_for_another_peer() {
    each(|net, a, b| {
        exchange(net, &a, &b);
        // A known peer without a link may be the first or the last that is forgotten.
        net.cut();
        for stranger in 0..4 * MAX_PEERS as u16 {
            let ah = handle_to_nobody(net, &a, 100 + stranger);
            a.post(net, 1, op(ah, &b), &[a.sge(0, 8)]);
            net.settle();
            assert_success(&a.poll_sends(net), 1);
        }
        exchange(net, &a, &b);
    });
}

#[test]
fn an_address_of_another_domain_fails_the_send() {
    each(|net, a, b| {
        let domain = net.device(0).alloc_pd().unwrap();
        let ah = handle_in(net, (a.node, domain), &b, false);
        receives(net, &b, 0, 1, 100);
        a.post(net, 1, op(ah, &b), &[a.sge(0, 8)]);
        net.settle();
        assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::LocalQpOperation]);
        assert_eq!((a.state(net), b.poll_receives(net).len()), (QpState::Sqe, 0));
    });
}

#[test]
fn datagrams_with_a_wrong_key_are_counted() {
    each(|net, a, b| {
        let ah = handle_to(net, &a, &b, false);
        receives(net, &b, 0, 1, 100);
        let guessed = SendOp::Datagram { ah, qpn: b.qpn, qkey: QKEY + 1, imm: None };
        a.post(net, 1, guessed, &[a.sge(0, 8)]);
        net.settle();
        assert_success(&a.poll_sends(net), 1);
        assert_eq!((net.device(1).wrong_keys(), net.device(0).wrong_keys()), (1, 0));
        assert!(b.poll_receives(net).is_empty());
    });
}

#[test]
fn inline_and_the_largest_datagrams_arrive() {
    each(|net, a, b| {
        let ah = handle_to(net, &a, &b, false);
        let size = MTU as usize;
        receives(net, &b, 0, 2, GRH + size);
        a.memory.store(0, &pattern(1, size));
        a.post(net, 1, op(ah, &b), &[a.sge(0, size)]);
        let piece = [Sge { lkey: 0, ..a.sge(0, 64) }];
        let payload = Payload::Inline(&piece);
        let wr = SendWr {
            wr_id: 2,
            op: op(ah, &b),
            signaled: false,
            fence: false,
            solicited: true,
            srq_number: 0,
            payload,
        };
        a.post_wr(net, &wr).unwrap();
        a.memory.store(0, &[0; 64]);
        net.settle();
        assert_success(&a.poll_sends(net), 1);
        let got = b.poll_receives(net);
        assert_success(&got, 2);
        assert!(got[1].solicited && !got[0].solicited);
        assert_eq!(b.memory.load(GRH, size), pattern(1, size));
        assert_eq!(b.memory.load(2 * GRH + size, 64), pattern(1, 64));
    });
}

#[test]
fn many_senders_and_a_process_itself() {
    let net = &mut Net::new(3, Policy::Random, Medium::Shm, 5);
    let ends = [ready(net, 0), ready(net, 1), ready(net, 2)];
    receives(net, &ends[0], 0, 3, 100);
    for end in &ends {
        let ah = handle_to(net, end, &ends[0], false);
        end.post(net, 1, op(ah, &ends[0]), &[end.sge(0, 8)]);
        net.settle();
    }
    let senders: Vec<u16> = ends[0].poll_receives(net).iter().map(|wc| wc.slid).collect();
    assert!(senders.into_iter().eq(net.nodes.iter().map(|node| node.id.vid.lid())));
}

#[test]
fn datagrams_without_a_receiver_are_dropped_and_the_rest_arrives() {
    each(|net, a, b| {
        let ah = handle_to(net, &a, &b, false);
        let gone = handle_to(net, &a, &b, false);
        net.device(0).destroy_ah(gone).unwrap();
        let unready = open(net, 1, &plan());
        let connection = open(net, 1, &Plan::default());
        receives(net, &b, 0, 8, 100);
        let datagram = |ah, qpn, qkey| SendOp::Datagram { ah, qpn, qkey, imm: None };
        let lost = [
            datagram(ah, b.qpn, QKEY + 1),
            datagram(ah, b.qpn + 100, QKEY),
            datagram(ah, 1, QKEY),
            datagram(ah, unready.qpn, QKEY),
            datagram(ah, connection.qpn, 0),
            datagram(gone, b.qpn, QKEY),
        ];
        for (number, op) in lost.into_iter().enumerate() {
            a.post(net, number as u64, op, &[a.sge(0, 8)]);
        }
        // Bit 31 stands for the sender's own Q_Key.
        a.post(net, 10, datagram(ah, b.qpn, 1 << 31), &[a.sge(0, 9)]);
        net.settle();
        assert_success(&a.poll_sends(net), lost.len() + 1);
        assert_eq!(b.poll_receives(net).iter().map(|wc| wc.byte_len).collect::<Vec<_>>(), [49]);
        assert_eq!((a.state(net), b.state(net)), (QpState::Rts, QpState::Rts));
    });
}

#[test]
fn a_bad_request_stops_the_sends_until_they_are_started_again() {
    use QpAttrMask as M;
    each(|net, a, b| {
        let ah = handle_to(net, &a, &b, false);
        receives(net, &b, 0, 1, 100);
        let size = MTU as usize + 1;
        let foreign = Sge { lkey: a.key ^ 0x5555, ..a.sge(0, 8) };
        for (sge, status) in [(a.sge(0, size), WcStatus::LocalLength), (foreign, WcStatus::LocalProtection)] {
            a.post(net, 1, op(ah, &b), &[sge]);
            a.post(net, 2, op(ah, &b), &[a.sge(0, 8)]);
            assert_eq!(statuses(&a.poll_sends(net)), [status, WcStatus::Flushed]);
            assert_eq!(a.state(net), QpState::Sqe);
            let attr = QpAttr { state: QpState::Rts, ..QpAttr::default() };
            net.device(0).modify_qp(a.qp, &attr, M::STATE).unwrap();
        }
        let write = SendOp::Write { va: b.va(0), rkey: b.key };
        assert_eq!(a.try_post(net, 3, write, &[a.sge(0, 8)]), Err(Errno::INVALID));
        assert_eq!(a.try_post(net, 3, SendOp::Send, &[a.sge(0, 8)]), Err(Errno::INVALID));
        a.post(net, 4, op(ah, &b), &[a.sge(0, 8)]);
        net.settle();
        assert_success(&a.poll_sends(net), 1);
        assert_success(&b.poll_receives(net), 1);
    });
}

#[test]
fn an_invalid_receive_fails_only_the_receiver() {
    each(|net, a, b| {
        let ah = handle_to(net, &a, &b, false);
        let foreign = Sge { lkey: b.key ^ 0x5555, ..b.sge(0, 100) };
        b.receive(net, 1, &[foreign]);
        b.receive(net, 2, &[b.sge(0, 100)]);
        a.post(net, 1, op(ah, &b), &[a.sge(0, 8)]);
        net.settle();
        assert_eq!(statuses(&b.poll_receives(net)), [WcStatus::LocalProtection, WcStatus::Flushed]);
        assert_eq!(b.state(net), QpState::Error);
        assert_success(&a.poll_sends(net), 1);
        assert_eq!(a.state(net), QpState::Rts);
    });
}

#[test]
fn a_datagram_too_long_for_its_receive_is_dropped() {
    each(|net, a, b| {
        let ah = handle_to(net, &a, &b, false);
        b.receive(net, 7, &[b.sge(0, 48)]);
        for length in [9, 64, 8] {
            a.post(net, 1, op(ah, &b), &[a.sge(0, length)]);
        }
        net.settle();
        assert_success(&a.poll_sends(net), 3);
        let received = b.poll_receives(net);
        assert_success(&received, 1);
        assert_eq!((received[0].wr_id, received[0].byte_len), (7, 48));
        assert_eq!(b.state(net), QpState::Rts);
    });
}

/// Sends `count` datagrams that say their number.
fn send_numbers(net: &mut Net, from: &End, to: &End, ah: Ah, numbers: std::ops::Range<u64>) {
    for number in numbers {
        from.memory.store(0, &number.to_ne_bytes());
        let piece = [Sge { lkey: 0, ..from.sge(0, 8) }];
        let payload = Payload::Inline(&piece);
        let op = op(ah, to);
        let wr = SendWr {
            wr_id: number,
            op,
            signaled: true,
            fence: false,
            solicited: false,
            srq_number: 0,
            payload,
        };
        from.post_wr(net, &wr).unwrap();
    }
}

/// Runs for a while, with a clock that stands still.
fn rounds(net: &mut Net, count: usize) {
    for _ in 0..count {
        net.step();
    }
}

/// Takes arrived datagrams, and posts a receive for each. Returns the sent numbers.
fn numbers(net: &mut Net, end: &End, size: usize) -> Vec<u64> {
    let mut found = Vec::new();
    for wc in end.poll_receives(net) {
        assert_eq!(wc.status, WcStatus::Success);
        let at = wc.wr_id as usize * size;
        found.push(end.memory.word(at + GRH));
        end.receive(net, wc.wr_id, &[end.sge(at, size)]);
    }
    found
}

#[test]
fn a_burst_waits_for_receives() {
    each(|net, a, b| {
        let ah = handle_to(net, &a, &b, false);
        receives(net, &b, 0, 4, 48);
        send_numbers(net, &a, &b, ah, 0..3000);
        let mut got = Vec::new();
        net.run(
            |net| {
                got.extend(numbers(net, &b, 48));
                got.len() == 3000
            },
            100_000,
        );
        assert!(got.into_iter().eq(0..3000));
        net.settle();
        assert_success(&a.poll_sends(net), 3000);
    });
}

#[test]
fn a_receiver_without_receives_loses_datagrams_and_blocks_no_other() {
    each(|net, a, b| {
        let ah = handle_to(net, &a, &b, false);
        let other = ready(net, 1);
        receives(net, &other, 0, 1, 48);
        send_numbers(net, &a, &b, ah, 0..50);
        send_numbers(net, &a, &other, ah, 50..51);
        net.settle();
        assert_eq!(numbers(net, &other, 48), [50]);
        assert_success(&a.poll_sends(net), 51);
        receives(net, &b, 0, 2, 48);
        send_numbers(net, &a, &b, ah, 60..62);
        net.settle();
        assert_eq!(numbers(net, &b, 48), [60, 61]);
    });
}

#[test]
fn nothing_is_lost_or_doubled_when_links_break_and_processes_move() {
    const COUNT: u64 = 2000;
    for (policy, seed) in Policy::ALL.into_iter().flat_map(|policy| (1..=10).map(move |seed| (policy, seed)))
    {
        let net = &mut Net::new(2, policy, Medium::Pipe, seed);
        net.cut_within = Some(60_000);
        let ends = two(net);
        let (a, b) = &ends;
        let handles = [handle_to(net, a, b, false), handle_to(net, b, a, true)];
        receives(net, a, 0, 600, 48);
        receives(net, b, 0, 600, 48);
        let (mut sent, mut got) = ([0; 2], [Vec::new(), Vec::new()]);
        let mut suspended = None;
        net.run(
            |net| {
                for (at, (from, to)) in [(a, b), (b, a)].into_iter().enumerate() {
                    let more = (sent[at] + net.random.below(8)).min(COUNT);
                    send_numbers(net, from, to, handles[at], sent[at]..more);
                    sent[at] = more;
                    got[at].extend(numbers(net, to, 48));
                }
                match suspended {
                    Some(node) if net.random.one_in(5) => {
                        net.resume(node);
                        suspended = None;
                    }
                    None if net.random.one_in(100) => {
                        let node = net.random.below(2) as usize;
                        net.suspend(node);
                        suspended = Some(node);
                    }
                    _ => {}
                }
                got.iter().all(|got| got.len() as u64 == COUNT)
            },
            100_000,
        );
        for got in got {
            assert!(got.into_iter().eq(0..COUNT), "{policy:?} {seed}");
        }
    }
}

#[test]
fn datagrams_wait_for_a_peer_that_moves_and_end_with_one_that_is_gone() {
    each(|net, a, b| {
        let ah = handle_to(net, &a, &b, false);
        receives(net, &b, 0, 1300, 48);
        net.suspend(1);
        send_numbers(net, &a, &b, ah, 0..1300);
        rounds(net, 100);
        let sent = a.poll_sends(net).len();
        assert!((1..1300).contains(&sent), "as many as fit on the link are sent: {sent}");
        net.resume(1);
        net.settle();
        assert_success(&a.poll_sends(net), 1300 - sent);
        assert!(numbers(net, &b, 48).into_iter().eq(0..1300));
        net.suspend(1);
        net.nodes[1].gone = true;
        send_numbers(net, &a, &b, ah, 0..1300);
        net.settle();
        assert_success(&a.poll_sends(net), 1300);
    });
}

#[test]
fn a_new_process_with_the_same_identity_gets_only_its_own_datagrams() {
    each(|net, a, b| {
        let ah = handle_to(net, &a, &b, false);
        receives(net, &b, 0, 40, 48);
        send_numbers(net, &a, &b, ah, 0..30);
        net.settle();
        assert_eq!(numbers(net, &b, 48).len(), 30);
        net.replace(1);
        let new = ready(net, 1);
        assert_eq!(new.qpn, b.qpn);
        receives(net, &new, 0, 40, 48);
        send_numbers(net, &a, &new, ah, 30..40);
        net.settle();
        assert!(numbers(net, &new, 48).into_iter().eq(30..40));
        let back = handle_to(net, &new, &a, false);
        receives(net, &a, 0, 4, 48);
        send_numbers(net, &new, &a, back, 0..4);
        net.settle();
        assert!(numbers(net, &a, 48).into_iter().eq(0..4));
    });
}

#[test]
fn a_drained_send_queue_keeps_its_datagrams() {
    use QpAttrMask as M;
    each(|net, a, b| {
        let ah = handle_to(net, &a, &b, false);
        receives(net, &b, 0, 4, 48);
        let state = |state| QpAttr { state, ..QpAttr::default() };
        net.device(0).modify_qp(a.qp, &state(QpState::Sqd), M::STATE).unwrap();
        send_numbers(net, &a, &b, ah, 0..3);
        net.settle();
        assert!(numbers(net, &b, 48).is_empty());
        net.device(0).modify_qp(a.qp, &state(QpState::Rts), M::STATE).unwrap();
        net.settle();
        assert_eq!(numbers(net, &b, 48), [0, 1, 2]);
    });
}

#[test]
fn receives_come_from_a_shared_queue() {
    let net = &mut Net::new(2, Policy::Stable, Medium::Tcp, 5);
    let a = ready(net, 0);
    let owner = open(net, 1, &plan());
    let attr = SrqAttr { max_wr: 8, max_sge: 1, limit: 0 };
    let (srq, _) = net.device(1).create_srq(owner.pd, &attr).unwrap();
    let b = open(net, 1, &Plan { srq: Some(srq), ..plan() });
    start(net, &b);
    let ah = handle_to(net, &a, &b, false);
    send_numbers(net, &a, &b, ah, 0..1);
    rounds(net, 10);
    net.device(1).post_srq_recv(srq, 77, &[owner.sge(0, 48)]).unwrap();
    net.settle();
    assert_eq!(b.poll_receives(net)[0].wr_id, 77);
    assert_eq!(owner.memory.word(GRH), 0);
}

#[test]
fn address_handles_are_checked_and_hold_their_domain() {
    let net = &mut Net::new(1, Policy::Stable, Medium::Shm, 5);
    let device = net.device(0);
    let pd = device.alloc_pd().unwrap();
    let address = AddressVector { dlid: 1, port: 1, ..AddressVector::default() };
    let global = Some(GlobalRoute { sgid_index: 1, ..GlobalRoute::default() });
    let bad = [
        AddressVector { dlid: 0, ..address },
        AddressVector { port: 2, ..address },
        AddressVector { global, ..address },
    ];
    for address in bad {
        assert_eq!(device.create_ah(pd, &address), Err(Errno::INVALID));
    }
    assert_eq!(device.create_ah(Pd(99), &address), Err(Errno::INVALID));
    let ah = device.create_ah(pd, &address).unwrap();
    assert_eq!(device.dealloc_pd(pd), Err(Errno::BUSY));
    device.destroy_ah(ah).unwrap();
    assert_eq!(device.destroy_ah(ah), Err(Errno::INVALID));
    device.dealloc_pd(pd).unwrap();
}
