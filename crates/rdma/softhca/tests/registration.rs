//! Regions that change, regions that are nowhere, and completions that know their time.

mod support;

use std::sync::atomic::{AtomicU64, Ordering};

use softhca::*;
use support::*;
use verbs::Policy;

fn each(test: impl Fn(&mut Net, End, End)) {
    for medium in Medium::ALL {
        for policy in Policy::ALL {
            let mut net = Net::new(2, policy, medium, 5);
            let (a, b) = pair(&mut net, 0, 1, &Plan { memory: 1 << 20, ..Plan::default() });
            test(&mut net, a, b);
        }
    }
}

fn rereg(net: &mut Net, end: &End, change: Rereg) -> Result<(), Errno> {
    // SAFETY: test memory is never unmapped.
    unsafe { net.device(end.node).rereg_mr(end.mr, &change) }
}

fn write(net: &mut Net, a: &End, b: &End, va: u64) -> WcStatus {
    a.memory.store(0, &pattern(7, 64));
    a.post(net, 1, SendOp::Write { va, rkey: b.key }, &[a.sge(0, 64)]);
    net.settle();
    statuses(&a.poll_sends(net))[0]
}

#[test]
fn a_reregistered_region_keeps_its_key() {
    each(|net, a, b| {
        assert_eq!(write(net, &a, &b, b.va(0)), WcStatus::Success);
        let other = Memory::new(4096);
        let change = Rereg { translation: Some((other.address(), 4096)), ..Rereg::default() };
        rereg(net, &b, change).unwrap();
        assert_eq!(write(net, &a, &b, other.address() + 100), WcStatus::Success);
        assert_eq!(other.load(100, 64), pattern(7, 64));
        assert_eq!(write(net, &a, &b, b.va(0)), WcStatus::RemoteAccess);
    });
}

#[test]
fn rights_and_domain_change() {
    each(|net, a, b| {
        rereg(net, &b, Rereg { access: Some(Access::LOCAL_WRITE), ..Rereg::default() }).unwrap();
        assert_eq!(write(net, &a, &b, b.va(0)), WcStatus::RemoteAccess);
    });
    each(|net, a, b| {
        let zero = EVERYTHING | Access::ZERO_BASED;
        rereg(net, &b, Rereg { access: Some(zero), ..Rereg::default() }).unwrap();
        assert_eq!(write(net, &a, &b, 5), WcStatus::Success);
        assert_eq!(b.memory.load(5, 64), pattern(7, 64));
        rereg(net, &b, Rereg { access: Some(EVERYTHING), ..Rereg::default() }).unwrap();
        let pd = net.device(1).alloc_pd().unwrap();
        rereg(net, &b, Rereg { pd: Some(pd), ..Rereg::default() }).unwrap();
        assert_eq!(net.device(1).dealloc_pd(pd), Err(Errno::BUSY));
        assert_eq!(write(net, &a, &b, b.va(0)), WcStatus::RemoteAccess);
        net.device(1).dereg_mr(b.mr).unwrap();
        net.device(1).dealloc_pd(pd).unwrap();
    });
}

#[test]
fn a_failed_reregistration_leaves_the_region_unchanged() {
    each(|net, a, b| {
        for change in [
            Rereg { translation: Some((u64::MAX - 10, 100)), ..Rereg::default() },
            Rereg { access: Some(Access::REMOTE_WRITE), ..Rereg::default() },
            Rereg { pd: Some(Pd(4000)), ..Rereg::default() },
        ] {
            assert_eq!(rereg(net, &b, change), Err(Errno::INVALID));
        }
        assert_eq!(write(net, &a, &b, b.va(0)), WcStatus::Success);
    });
}

#[test]
fn a_null_region_reads_as_zeroes_and_swallows_stores() {
    each(|net, a, b| {
        for size in [5, 64, 300_000] {
            let (_, nowhere) = net.device(0).alloc_null_mr(a.pd).unwrap();
            let (null, nothing) = net.device(1).alloc_null_mr(b.pd).unwrap();
            let piece = |lkey: u32, length: u32| Sge { addr: 0x1234_5678, length, lkey };
            b.memory.store(0, &pattern(1, size + 8));
            a.memory.store(0, b"beginend");
            // Between real pieces there are zeroes; the first received bytes are not wanted.
            let pieces = [a.sge(0, 5), piece(nowhere.lkey, size as u32), a.sge(5, 3)];
            b.receive(net, 1, &[piece(nothing.lkey, 4), b.sge(0, size + 4)]);
            a.post(net, 1, SendOp::Send, &pieces);
            let read = SendOp::Read { va: b.va(0), rkey: b.key };
            a.post(net, 2, read, &[piece(nowhere.lkey, size as u32)]);
            net.settle();
            assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::Success; 2]);
            assert_eq!(statuses(&b.poll_receives(net)), [WcStatus::Success]);
            let expected = [b"n" as &[u8], &vec![0; size], b"end"].concat();
            assert!(b.memory.load(0, size + 4) == expected);
            net.device(1).dereg_mr(null).unwrap();
        }
    });
}

#[test]
fn a_message_may_be_longer_than_any_piece_of_a_null_region() {
    each(|net, a, b| {
        let (_, nowhere) = net.device(0).alloc_null_mr(a.pd).unwrap();
        let (_, nothing) = net.device(1).alloc_null_mr(b.pd).unwrap();
        let length = 9 << 20;
        b.receive(net, 1, &[Sge { addr: 0, length, lkey: nothing.lkey }]);
        a.post(net, 1, SendOp::Send, &[Sge { addr: 0, length, lkey: nowhere.lkey }]);
        net.settle();
        assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::Success]);
        assert_eq!(b.poll_receives(net)[0].byte_len, length);
    });
}

#[test]
fn a_null_region_grants_no_remote_access() {
    each(|net, a, b| {
        let (_, nothing) = net.device(1).alloc_null_mr(b.pd).unwrap();
        a.post(net, 1, SendOp::Write { va: 0, rkey: nothing.lkey }, &[a.sge(0, 8)]);
        net.settle();
        assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::RemoteAccess]);
    });
}

#[test]
fn a_write_with_immediate_data_consumes_its_receive_when_its_memory_goes_away() {
    let mut seen = Vec::new();
    for steps in 0..30 {
        let net = &mut Net::new(2, Policy::Stable, Medium::Pipe, steps);
        let (a, b) = pair(net, 0, 1, &Plan { memory: 1 << 20, ..Plan::default() });
        b.receive(net, 1, &[]);
        let write = SendOp::WriteImm { va: b.va(0), rkey: b.key, imm: 5 };
        a.post(net, 1, write, &[a.sge(0, 1 << 20)]);
        for _ in 0..steps {
            net.step();
        }
        net.device(1).dereg_mr(b.mr).unwrap();
        net.settle();
        let (sent, received) = (statuses(&a.poll_sends(net)), statuses(&b.poll_receives(net)));
        let (expected, how) = match received[..] {
            [WcStatus::Success] => (WcStatus::Success, 0),
            [WcStatus::Flushed] => (WcStatus::RemoteAccess, 1),
            [WcStatus::LocalAccess] => (WcStatus::RemoteAccess, 2),
            _ => panic!("{received:?}"),
        };
        assert_eq!(sent, [expected], "after {steps} steps");
        seen.push(how);
    }
    assert!([0, 1, 2].iter().all(|how| seen.contains(how)), "{seen:?}");
}

#[test]
fn completions_carry_timestamps_on_request() {
    static NOW: AtomicU64 = AtomicU64::new(41);
    fn clock() -> u64 {
        NOW.fetch_add(1, Ordering::Relaxed) + 1
    }
    let net = &mut Net::new(2, Policy::Stable, Medium::Pipe, 5);
    let (a, b) = (open(net, 0, &Plan::default()), open(net, 1, &Plan::default()));
    let init = net.device(0).query_qp(a.qp).unwrap().1;
    net.device(0).destroy_qp(a.qp).unwrap();
    let (send_cq, _) = net.device(0).create_stamped_cq(16, clock).unwrap();
    let (qp, qpn, _) = net.device(0).create_qp(&QpInit { send_cq, ..init }).unwrap();
    let a = End { qp, qpn, send_cq, ..a };
    connect(net, &a, &b, &Plan::default());
    b.receive(net, 1, &[]);
    a.post(net, 1, SendOp::Send, &[]);
    a.post(net, 2, SendOp::Write { va: b.va(0), rkey: b.key }, &[a.sge(0, 8)]);
    net.settle();
    assert_eq!(a.poll_sends(net).iter().map(|wc| wc.timestamp).collect::<Vec<_>>(), [42, 43]);
    assert_eq!(b.poll_receives(net)[0].timestamp, 0);
}
