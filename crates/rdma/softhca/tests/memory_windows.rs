//! Memory windows of both types, on every medium and with every way to pick handles.

mod support;

use softhca::*;
use support::*;
use verbs::Policy;

const READ_WRITE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

/// A connected pair. The second end's memory allows the binding of windows, and nothing else.
fn each(test: impl Fn(&mut Net, End, End)) {
    for medium in Medium::ALL {
        for policy in Policy::ALL {
            let mut net = Net::new(2, policy, medium, 5);
            let (a, b) = pair(&mut net, 0, 1, &plan());
            test(&mut net, a, b);
        }
    }
}

fn plan() -> Plan {
    Plan { mr_access: Access::LOCAL_WRITE | Access::MW_BIND, ..Plan::default() }
}

fn window(net: &mut Net, end: &End, kind: WindowKind) -> (Mw, u32) {
    net.device(end.node).alloc_mw(end.pd, kind).unwrap()
}

/// A binding of 100 bytes at 1000 under `key`.
fn binding(end: &End, key: u32, access: Access) -> Binding {
    Binding { key, lkey: end.key, access, va: end.va(1000), length: 100 }
}

/// Does local work on `end`, and says how it ended.
fn locally(net: &mut Net, end: &End, op: SendOp) -> WcStatus {
    end.post(net, 77, op, &[]);
    net.settle();
    let done = end.poll_sends(net);
    assert_eq!(done.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [77]);
    done[0].status
}

fn bind(net: &mut Net, end: &End, binding: Binding) -> WcStatus {
    locally(net, end, SendOp::Bind(binding))
}

/// Writes `length` bytes of `from` at `va` of its peer.
fn write(net: &mut Net, from: &End, va: u64, rkey: u32, length: usize) -> WcStatus {
    from.post(net, 5, SendOp::Write { va, rkey }, &[from.sge(0, length)]);
    net.settle();
    statuses(&from.poll_sends(net))[0]
}

fn expect_written(net: &mut Net, a: &End, b: &End, va: u64, rkey: u32, seed: u64) {
    a.memory.store(0, &pattern(seed, 100));
    assert_eq!(write(net, a, va, rkey, 100), WcStatus::Success);
    assert_eq!(b.memory.load(1000, 100), pattern(seed, 100));
}

#[test]
fn a_window_of_type_one_opens_a_part_of_a_region_to_its_domain() {
    each(|net, a, b| {
        let (mw, first) = window(net, &b, WindowKind::One);
        assert_eq!(bind(net, &b, binding(&b, first + 1, READ_WRITE)), WcStatus::Success);
        expect_written(net, &a, &b, b.va(1000), first + 1, 1);
        // Bound again, it has another key.
        assert_eq!(bind(net, &b, binding(&b, first + 2, READ_WRITE)), WcStatus::Success);
        expect_written(net, &a, &b, b.va(1000), first + 2, 2);
        assert_eq!(net.device(1).dereg_mr(b.mr), Err(Errno::BUSY));
        let nothing = Binding { lkey: 0, va: 0, length: 0, ..binding(&b, first + 3, READ_WRITE) };
        assert_eq!(bind(net, &b, nothing), WcStatus::Success);
        assert_eq!(write(net, &a, b.va(1000), first + 2, 8), WcStatus::RemoteAccess);
        net.device(1).dealloc_mw(mw).unwrap();
        net.device(1).dereg_mr(b.mr).unwrap();
    });
}

#[test]
fn a_stale_window_key_is_refused() {
    each(|net, a, b| {
        let (_, first) = window(net, &b, WindowKind::One);
        for key in [first + 1, first + 2] {
            assert_eq!(bind(net, &b, binding(&b, key, READ_WRITE)), WcStatus::Success);
        }
        assert_eq!(write(net, &a, b.va(1000), first + 1, 8), WcStatus::RemoteAccess);
    });
}

#[test]
fn a_window_has_its_own_range_and_rights() {
    for (va, access, length) in [(1000, Access::REMOTE_READ, 8), (999, READ_WRITE, 8), (1093, READ_WRITE, 8)]
    {
        each(|net, a, b| {
            let (_, first) = window(net, &b, WindowKind::One);
            assert_eq!(bind(net, &b, binding(&b, first + 1, access)), WcStatus::Success);
            assert_eq!(write(net, &a, b.va(va), first + 1, length), WcStatus::RemoteAccess);
        });
    }
}

#[test]
fn a_window_of_type_two_may_be_zero_based_and_is_invalidated_by_its_user() {
    each(|net, a, b| {
        let (_, first) = window(net, &b, WindowKind::Two);
        for round in 1..5 {
            let key = first + round % 2;
            assert_eq!(bind(net, &b, binding(&b, key, READ_WRITE | Access::ZERO_BASED)), WcStatus::Success);
            expect_written(net, &a, &b, 0, key, round.into());
            if round % 2 == 0 {
                assert_eq!(locally(net, &b, SendOp::LocalInvalidate(key)), WcStatus::Success);
                continue;
            }
            b.receive(net, 3, &[b.sge(0, 50)]);
            a.post(net, 9, SendOp::SendInvalidate(key), &[a.sge(0, 50)]);
            net.settle();
            assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::Success]);
            let got = b.poll_receives(net);
            assert_eq!(
                (got[0].status, got[0].invalidated, got[0].byte_len),
                (WcStatus::Success, Some(key), 50)
            );
        }
        assert_eq!(write(net, &a, 0, first, 8), WcStatus::RemoteAccess);
    });
}

/// The second end has so much to say that acknowledgements leave before the refusal.
#[test]
fn a_send_fails_when_its_window_is_invalidated_during_it() {
    /// More than leave with one write.
    const OTHERS: usize = 20;
    const LENGTH: usize = 1 << 20;
    let plan = Plan { memory: LENGTH, ..plan() };
    for medium in Medium::ALL {
        let net = &mut Net::new(2, Policy::Stable, medium, 5);
        let (a, b) = pair(net, 0, 1, &plan);
        let (_, first) = window(net, &b, WindowKind::Two);
        assert_eq!(bind(net, &b, binding(&b, first, READ_WRITE)), WcStatus::Success);
        let others: Vec<_> = (0..OTHERS).map(|_| pair(net, 0, 1, &plan)).collect();
        net.settle();
        b.receive(net, 3, &[b.sge(0, LENGTH)]);
        a.memory.store(0, b"it begins");
        a.post(net, 9, SendOp::SendInvalidate(first), &[a.sge(0, LENGTH)]);
        for (c, d) in &others {
            c.receive(net, 1, &[c.sge(0, LENGTH)]);
            d.post(net, 1, SendOp::Send, &[d.sge(0, LENGTH)]);
        }
        while b.memory.load(0, 9) != b"it begins" {
            net.step();
        }
        b.post(net, 77, SendOp::LocalInvalidate(first), &[]);
        net.settle();
        assert_eq!(statuses(&b.poll_receives(net)), [WcStatus::RemoteInvalidRequest]);
        assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::RemoteAccess]);
    }
}

#[test]
fn a_window_of_type_two_serves_one_queue_pair() {
    each(|net, a, b| {
        let (_, first) = window(net, &b, WindowKind::Two);
        assert_eq!(bind(net, &b, binding(&b, first, READ_WRITE)), WcStatus::Success);
        let (c, d) = (open(net, 0, &plan()), sibling(net, &b));
        connect(net, &c, &d, &plan());
        assert_eq!(write(net, &c, b.va(1000), first, 8), WcStatus::RemoteAccess);
        expect_written(net, &a, &b, b.va(1000), first, 3);
        // Nor may others invalidate it.
        let (c, d) = (open(net, 0, &plan()), sibling(net, &b));
        connect(net, &c, &d, &plan());
        d.receive(net, 3, &[]);
        c.post(net, 9, SendOp::SendInvalidate(first), &[]);
        net.settle();
        assert_eq!(statuses(&c.poll_sends(net)), [WcStatus::RemoteAccess]);
        assert_eq!(statuses(&d.poll_receives(net)), [WcStatus::RemoteInvalidRequest]);
        expect_written(net, &a, &b, b.va(1000), first, 4);
    });
}

/// Another end in the same domain, with the same memory.
fn sibling(net: &mut Net, of: &End) -> End {
    let (init, plan) = (net.device(of.node).query_qp(of.qp).unwrap().1, plan());
    let fresh = open(net, of.node, &plan);
    let device = net.device(of.node);
    device.destroy_qp(fresh.qp).unwrap();
    let init = QpInit { send_cq: fresh.send_cq, recv_cq: fresh.recv_cq, ..init };
    let (qp, qpn, _) = device.create_qp(&init).unwrap();
    End { pd: of.pd, qp, qpn, ..fresh }
}

#[test]
fn an_invalid_binding_fails_its_queue_pair() {
    type Mistake = fn(&End, u32) -> (WindowKind, Binding);
    let mistakes: [Mistake; 7] = [
        |end, key| (WindowKind::One, Binding { lkey: end.key ^ 1, ..binding(end, key, READ_WRITE) }),
        |end, key| (WindowKind::One, Binding { length: 1 << 20, ..binding(end, key, READ_WRITE) }),
        |end, key| (WindowKind::One, binding(end, key, READ_WRITE | Access::ZERO_BASED)),
        |end, key| (WindowKind::One, binding(end, key, Access::LOCAL_WRITE)),
        |end, key| (WindowKind::One, binding(end, key + 256, READ_WRITE)),
        |end, key| (WindowKind::Two, Binding { length: 0, ..binding(end, key, READ_WRITE) }),
        |end, key| (WindowKind::Two, Binding { lkey: key, ..binding(end, key, READ_WRITE) }),
    ];
    for mistake in mistakes {
        each(|net, _, b| {
            let (kind, _) = mistake(&b, 0);
            let (_, first) = window(net, &b, kind);
            let (_, wrong) = mistake(&b, first);
            assert_eq!(bind(net, &b, wrong), WcStatus::WindowBind);
            assert_eq!(b.state(net), QpState::Error);
        });
    }
    each(|net, _, b| {
        let (_, first) = window(net, &b, WindowKind::Two);
        assert_eq!(bind(net, &b, binding(&b, first, READ_WRITE)), WcStatus::Success);
        assert_eq!(bind(net, &b, binding(&b, first + 1, READ_WRITE)), WcStatus::WindowBind, "it is bound");
    });
    each(|net, _, b| {
        let (_, first) = window(net, &b, WindowKind::Two);
        assert_eq!(locally(net, &b, SendOp::LocalInvalidate(first)), WcStatus::WindowBind, "it is free");
    });
}

#[test]
fn a_region_must_allow_windows_and_their_rights() {
    for (region, window_access) in
        [(EVERYTHING, READ_WRITE), (Access::MW_BIND, READ_WRITE), (Access::MW_BIND, Access::REMOTE_ATOMIC)]
    {
        let net = &mut Net::new(2, Policy::Stable, Medium::Pipe, 5);
        let (_, b) = pair(net, 0, 1, &Plan { mr_access: region, ..Plan::default() });
        let (_, first) = window(net, &b, WindowKind::One);
        assert_eq!(bind(net, &b, binding(&b, first + 1, window_access)), WcStatus::WindowBind);
    }
}

#[test]
fn a_window_key_is_not_a_local_key() {
    each(|net, _, b| {
        let (_, first) = window(net, &b, WindowKind::One);
        assert_eq!(bind(net, &b, binding(&b, first + 1, READ_WRITE)), WcStatus::Success);
        let piece = Sge { lkey: first + 1, ..b.sge(1000, 8) };
        b.post(net, 1, SendOp::Send, &[piece]);
        net.settle();
        assert_eq!(statuses(&b.poll_sends(net)), [WcStatus::LocalProtection]);
    });
}

#[test]
fn local_operations_keep_the_order_of_the_send_queue() {
    each(|net, a, b| {
        let (_, first) = window(net, &b, WindowKind::Two);
        b.memory.store(0, &pattern(8, 2000));
        // No receive is posted for the first message yet.
        b.post(net, 1, SendOp::Send, &[b.sge(0, 2000)]);
        b.post(net, 2, SendOp::Bind(binding(&b, first, READ_WRITE)), &[]);
        b.post(net, 3, SendOp::Send, &[b.sge(0, 10)]);
        for _ in 0..20 {
            net.step();
        }
        assert!(b.poll_sends(net).is_empty());
        a.receive(net, 1, &[a.sge(0, 2000)]);
        a.receive(net, 2, &[a.sge(0, 2000)]);
        net.settle();
        let ended = b.poll_sends(net);
        assert_eq!(ended.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(statuses(&ended), [WcStatus::Success; 3]);
        expect_written(net, &a, &b, b.va(1000), first, 1);
    });
}

#[test]
fn windows_survive_moves() {
    each(|net, a, b| {
        let (_, first) = window(net, &b, WindowKind::Two);
        assert_eq!(bind(net, &b, binding(&b, first, READ_WRITE)), WcStatus::Success);
        for (round, moved) in [1, 0, 1, 1].into_iter().enumerate() {
            net.suspend(moved);
            net.resume(moved);
            net.settle();
            expect_written(net, &a, &b, b.va(1000), first, round as u64);
        }
        // Local work that is posted in a move is done after it.
        net.suspend(1);
        b.post(net, 1, SendOp::LocalInvalidate(first), &[]);
        assert!(b.poll_sends(net).is_empty());
        net.resume(1);
        assert_eq!(statuses(&b.poll_sends(net)), [WcStatus::Success]);
        assert_eq!(write(net, &a, b.va(1000), first, 8), WcStatus::RemoteAccess);
    });
}

#[test]
fn an_unreliable_connection_keeps_bindings_when_it_drops_messages() {
    let net = &mut Net::new(2, Policy::Stable, Medium::Pipe, 5);
    let (_, b) = pair(net, 0, 1, &Plan { kind: QpKind::Uc, ..plan() });
    net.nodes[0].gone = true;
    let (_, first) = window(net, &b, WindowKind::Two);
    b.post(net, 1, SendOp::Send, &[b.sge(0, 8)]);
    b.post(net, 2, SendOp::Bind(binding(&b, first, READ_WRITE)), &[]);
    b.post(net, 3, SendOp::Send, &[b.sge(0, 8)]);
    let mut ended = Vec::new();
    net.run(
        |net| {
            ended.extend(b.poll_sends(net));
            ended.len() == 3
        },
        1000,
    );
    assert_eq!(statuses(&ended), [WcStatus::Success; 3]);
    assert_eq!(net.device(1).dereg_mr(b.mr), Err(Errno::BUSY), "it is bound");
}

#[test]
fn binding_needs_no_link() {
    let net = &mut Net::new(2, Policy::Stable, Medium::Pipe, 5);
    let (_, b) = pair(net, 0, 1, &plan());
    net.nodes[0].gone = true;
    let (_, first) = window(net, &b, WindowKind::Two);
    b.post(net, 1, SendOp::Bind(binding(&b, first, READ_WRITE)), &[]);
    assert_eq!(statuses(&b.poll_sends(net)), [WcStatus::Success]);
}
