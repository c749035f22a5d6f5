//! Unreliable connections.

mod support;

use softhca::*;
use support::*;
use verbs::Policy;

fn plan() -> Plan {
    Plan { kind: QpKind::Uc, ..Plan::default() }
}

/// Runs `test` with connected ends on every medium and with every policy of handles.
fn each(test: impl Fn(&mut Net, End, End)) {
    for medium in Medium::ALL {
        for policy in Policy::ALL {
            let mut net = Net::new(2, policy, medium, 5);
            let (a, b) = pair(&mut net, 0, 1, &plan());
            test(&mut net, a, b);
        }
    }
}

fn send(net: &mut Net, from: &End, wr_id: u64, text: &[u8]) {
    from.memory.store(0, text);
    from.post(net, wr_id, SendOp::Send, &[from.sge(0, text.len())]);
    net.settle();
}

fn assert_received(net: &mut Net, end: &End, wr_id: u64, text: &[u8]) {
    let got = end.poll_receives(net);
    assert_eq!(got.iter().map(|wc| (wc.wr_id, wc.status)).collect::<Vec<_>>(), [(wr_id, WcStatus::Success)]);
    assert_eq!(end.memory.load(1000, text.len()), text);
}

#[test]
fn sends_and_writes_arrive_and_nothing_else_is_done() {
    each(|net, a, b| {
        b.receive(net, 1, &[b.sge(1000, 100)]);
        send(net, &a, 1, b"a message");
        assert_received(net, &b, 1, b"a message");
        a.memory.store(0, &pattern(3, 20_000));
        a.post(net, 2, SendOp::Write { va: b.va(2000), rkey: b.key }, &[a.sge(0, 20_000)]);
        net.settle();
        assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::Success; 2]);
        assert!(b.memory.load(2000, 20_000) == pattern(3, 20_000));
        let read = SendOp::Read { va: b.va(0), rkey: b.key };
        assert_eq!(a.try_post(net, 3, read, &[a.sge(0, 8)]), Err(Errno::INVALID));
        let add = SendOp::FetchAdd { va: b.va(0), rkey: b.key, add: 1 };
        assert_eq!(a.try_post(net, 3, add, &[a.sge(0, 8)]), Err(Errno::INVALID));
    });
}

/// A connection without acknowledgements goes on from any number.
#[test]
fn a_new_incarnation_with_a_lower_number_is_accepted() {
    each(|net, a, b| {
        for (wr_id, sq_psn) in [(1, 0x00ff_fff0), (2, 100), (3, 50), (4, 7000)] {
            let again = Plan { attr: QpAttr { sq_psn, ..plan().attr }, ..plan() };
            let reset = QpAttr { state: QpState::Reset, ..QpAttr::default() };
            net.device(0).modify_qp(a.qp, &reset, QpAttrMask::STATE).unwrap();
            to_init(net, &a, &again);
            to_rtr(net, &a, &b, &again);
            to_rts(net, &a, &again);
            b.receive(net, wr_id, &[b.sge(1000, 100)]);
            send(net, &a, wr_id, b"a message");
            assert_received(net, &b, wr_id, b"a message");
            assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::Success]);
        }
    });
}

#[test]
fn messages_that_the_peer_cannot_take_are_dropped_and_the_rest_arrives() {
    each(|net, a, b| {
        send(net, &a, 1, b"nobody waits");
        a.memory.store(0, &pattern(3, 20_000));
        a.post(net, 2, SendOp::Send, &[a.sge(0, 20_000)]);
        a.post(net, 3, SendOp::Write { va: b.va(2000), rkey: b.key ^ 1 }, &[a.sge(0, 20_000)]);
        net.settle();
        assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::Success; 3]);
        b.receive(net, 9, &[b.sge(1000, 100)]);
        send(net, &a, 4, b"now");
        assert_received(net, &b, 9, b"now");
        assert_eq!((a.state(net), b.state(net)), (QpState::Rts, QpState::Rts));
    });
}

#[test]
fn a_long_message_dropped_during_transmission_is_done() {
    const LENGTH: usize = 1 << 20;
    each(|net, _, _| {
        let (a, b) = pair(net, 0, 1, &Plan { memory: LENGTH, ..plan() });
        b.receive(net, 1, &[b.sge(1000, 100)]);
        send(net, &a, 1, b"first");
        assert_received(net, &b, 1, b"first");
        a.post(net, 2, SendOp::Send, &[a.sge(0, LENGTH)]);
        net.settle();
        b.receive(net, 9, &[b.sge(1000, 100)]);
        send(net, &a, 3, b"now");
        assert_received(net, &b, 9, b"now");
        assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::Success; 3]);
        let is_lost = |event: &Event| matches!(event, Event::LinkLost { .. });
        assert!(!net.nodes.iter().any(|node| node.events.iter().any(is_lost)));
    });
}

/// It goes on meanwhile: its messages before its peer is ready are lost, and no others.
#[test]
fn a_sender_that_continues_to_a_new_incarnation_is_accepted_again() {
    for steps in 0..3 {
        each(|net, a, b| {
            b.receive(net, 1, &[b.sge(1000, 100)]);
            send(net, &a, 1, b"first");
            assert_received(net, &b, 1, b"first");
            let reset = QpAttr { state: QpState::Reset, ..QpAttr::default() };
            net.device(1).modify_qp(b.qp, &reset, QpAttrMask::STATE).unwrap();
            to_init(net, &b, &plan());
            for (wr_id, is_ready) in [(2, false), (3, false), (4, true), (5, true)] {
                a.post(net, wr_id, SendOp::Send, &[a.sge(0, 8)]);
                if is_ready && b.state(net) == QpState::Init {
                    to_rtr(net, &b, &a, &plan());
                }
                for _ in 0..steps {
                    net.nodes[1].device.progress(net.now);
                }
            }
            net.settle();
            assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::Success; 5]);
            b.receive(net, 9, &[b.sge(1000, 100)]);
            send(net, &a, 6, b"now");
            assert_received(net, &b, 9, b"now");
        });
    }
}

#[test]
fn a_receive_that_is_too_short_fails_the_receiver_alone() {
    each(|net, a, b| {
        b.receive(net, 1, &[b.sge(1000, 3)]);
        send(net, &a, 1, b"longer");
        send(net, &a, 2, b"to nobody");
        assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::Success; 2]);
        assert_eq!(statuses(&b.poll_receives(net)), [WcStatus::LocalLength]);
        assert_eq!((a.state(net), b.state(net)), (QpState::Rts, QpState::Error));
    });
}

#[test]
fn a_failed_send_stops_sends_until_they_are_started_again() {
    each(|net, a, b| {
        let wrong = Sge { lkey: a.key ^ 1, ..a.sge(0, 8) };
        a.post(net, 1, SendOp::Send, &[wrong]);
        a.post(net, 2, SendOp::Send, &[a.sge(0, 8)]);
        net.settle();
        assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::LocalProtection, WcStatus::Flushed]);
        assert_eq!(a.state(net), QpState::Sqe);
        a.receive(net, 5, &[a.sge(1000, 100)]);
        send(net, &b, 1, b"it still receives");
        assert_received(net, &a, 5, b"it still receives");
        let rts = QpAttr { state: QpState::Rts, ..QpAttr::default() };
        net.device(0).modify_qp(a.qp, &rts, QpAttrMask::STATE).unwrap();
        b.receive(net, 6, &[b.sge(1000, 100)]);
        send(net, &a, 3, b"and sends");
        assert_received(net, &b, 6, b"and sends");
    });
}

#[test]
fn unreliable_sends_do_not_wait_for_absent_peers() {
    each(|net, a, b| {
        let reset = QpAttr { state: QpState::Reset, ..QpAttr::default() };
        net.device(1).modify_qp(b.qp, &reset, QpAttrMask::STATE).unwrap();
        send(net, &a, 1, b"to nobody");
        assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::Success]);
    });
    let net = &mut Net::new(2, Policy::Stable, Medium::Pipe, 5);
    let (a, _) = pair(net, 0, 1, &plan());
    net.nodes[1].gone = true;
    for wr_id in 0..20 {
        a.post(net, wr_id, SendOp::Send, &[a.sge(0, 8)]);
    }
    net.run(|net| a.poll_sends(net).len() == 20, 1000);
}

#[test]
fn nothing_is_lost_in_a_move() {
    each(|net, a, b| {
        for (round, moved) in [0, 1, 0].into_iter().enumerate() {
            let wr_id = round as u64;
            b.receive(net, wr_id, &[b.sge(1000, 30_000)]);
            a.memory.store(0, &pattern(wr_id, 30_000));
            a.post(net, wr_id, SendOp::Send, &[a.sge(0, 30_000)]);
            net.step();
            net.suspend(moved);
            // It is never idle: a sender asks for a link again and again.
            for _ in 0..5 {
                net.step();
            }
            net.resume(moved);
            net.settle();
            assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::Success]);
            assert_received(net, &b, wr_id, &pattern(wr_id, 30_000));
        }
    });
}
