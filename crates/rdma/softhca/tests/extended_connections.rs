//! Extended reliable connections: one target, several shared receive queues, each message to the one that it names.

mod support;

use softhca::*;
use support::*;
use verbs::Policy;

/// A target on node 1: its receives come from two queues.
struct Target {
    xrcd: Xrcd,
    qp: Qp,
    qpn: u32,
    queues: [Queue; 2],
    memory: Memory,
    mr: Mr,
    key: u32,
}

/// A shared receive queue with the domain and the CQ that are its own.
struct Queue {
    pd: Pd,
    cq: Cq,
    srq: Srq,
    number: u32,
}

const ATTR: SrqAttr = SrqAttr { max_wr: 16, max_sge: 2, limit: 0 };

fn target(net: &mut Net) -> Target {
    let device = net.device(1);
    let xrcd = device.alloc_xrcd().unwrap();
    let queues = [0; 2].map(|_| {
        let (pd, (cq, _)) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
        let (srq, _) = device.create_xrc_srq(pd, Xrc { xrcd, cq }, &ATTR).unwrap();
        Queue { pd, cq, srq, number: device.srq_number(srq).unwrap() }
    });
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
    let memory = Memory::new(1 << 20);
    // SAFETY: test memory is never unmapped.
    let registered =
        unsafe { device.reg_mr(queues[0].pd, memory.address(), 1 << 20, memory.address(), EVERYTHING) };
    let (mr, keys) = registered.unwrap();
    Target { xrcd, qp, qpn, queues, memory, mr, key: keys.rkey }
}

fn initiator(net: &mut Net, plan: &Plan) -> End {
    let rc = open(net, 0, plan);
    let init =
        QpInit { kind: QpKind::XrcSend, recv_cq: Cq::NONE, ..net.device(0).query_qp(rc.qp).unwrap().1 };
    net.device(0).destroy_qp(rc.qp).unwrap();
    let (qp, qpn, caps) = net.device(0).create_qp(&init).unwrap();
    assert_eq!((caps.max_recv_wr, caps.max_send_wr), (0, 64));
    End { qp, qpn, ..rc }
}

fn bring_up(net: &mut Net, node: usize, qp: Qp, remote: u32, plan: &Plan) {
    use QpAttrMask as M;
    let sends = node == 0;
    let dlid = net.nodes[1 - node].id.vid.lid();
    let address = AddressVector { dlid, port: 1, ..AddressVector::default() };
    let attr = QpAttr { remote_qpn: remote, address, ..plan.attr };
    let identity = M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS;
    let rtr = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
    let rtr = if sends { rtr } else { rtr | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER };
    let rts = M::TIMEOUT | M::SQ_PSN;
    let rts = if sends { rts | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC } else { rts };
    for (state, mask) in [(QpState::Init, identity), (QpState::Rtr, rtr), (QpState::Rts, rts)] {
        net.device(node).modify_qp(qp, &QpAttr { state, ..attr }, mask | M::STATE).unwrap();
    }
}

fn plan() -> Plan {
    let mut plan = Plan { memory: 1 << 20, ..Plan::default() };
    plan.attr.min_rnr_timer = 1;
    plan
}

fn each(test: impl Fn(&mut Net, End, Target)) {
    for medium in Medium::ALL {
        for policy in Policy::ALL {
            let mut net = Net::new(2, policy, medium, 5);
            let (a, b) = connected(&mut net);
            test(&mut net, a, b);
        }
    }
}

fn connected(net: &mut Net) -> (End, Target) {
    let (a, b) = (initiator(net, &plan()), target(net));
    bring_up(net, 1, b.qp, a.qpn, &plan());
    bring_up(net, 0, a.qp, b.qpn, &plan());
    (a, b)
}

impl Target {
    fn sge(&self, offset: usize, length: usize) -> Sge {
        Sge { addr: self.memory.address() + offset as u64, length: length as u32, lkey: self.key }
    }

    fn receive(&self, net: &mut Net, queue: usize, wr_id: u64, sges: &[Sge]) {
        net.device(1).post_srq_recv(self.queues[queue].srq, wr_id, sges).unwrap();
    }

    fn poll(&self, net: &mut Net, queue: usize) -> Vec<Wc> {
        poll(net, 1, self.queues[queue].cq)
    }
}

fn post(net: &mut Net, from: &End, wr_id: u64, op: SendOp, sges: &[Sge], srq_number: u32) {
    let payload = Payload::Sges(sges);
    let wr = SendWr { wr_id, op, signaled: true, fence: false, solicited: false, srq_number, payload };
    from.post_wr(net, &wr).unwrap();
}

#[test]
fn each_message_is_received_in_the_queue_that_it_names() {
    each(|net, a, b| {
        for wr_id in 0..6 {
            b.receive(net, 0, wr_id, &[b.sge(1000 * wr_id as usize, 1000)]);
        }
        // The second queue is in another domain, which has no memory: it takes messages without bytes.
        b.receive(net, 1, 100, &[]);
        b.receive(net, 1, 101, &[]);
        a.memory.store(0, &pattern(3, 1000));
        for (wr_id, queue, length) in [(0, 0, 1000), (1, 1, 0), (2, 0, 500), (3, 0, 7), (4, 1, 0)] {
            post(net, &a, wr_id, SendOp::SendImm(wr_id as u32), &[a.sge(0, length)], b.queues[queue].number);
        }
        net.settle();
        assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::Success; 5]);
        let got = b.poll(net, 0);
        assert_eq!(
            got.iter().map(|wc| (wc.wr_id, wc.imm)).collect::<Vec<_>>(),
            [(0, Some(0)), (1, Some(2)), (2, Some(3))]
        );
        assert!(got.iter().all(|wc| wc.qpn == b.qpn && wc.src_qp == a.qpn));
        assert_eq!(
            b.poll(net, 1).iter().map(|wc| (wc.wr_id, wc.imm)).collect::<Vec<_>>(),
            [(100, Some(1)), (101, Some(4))]
        );
        assert_eq!(b.memory.load(1000, 500), pattern(3, 500));
    });
}

#[test]
fn all_operations_work_in_the_domain_of_the_queue() {
    each(|net, a, b| {
        let number = b.queues[0].number;
        let (va, rkey) = (b.memory.address() + 4096, b.key);
        a.memory.store(0, &pattern(4, 300_000));
        b.receive(net, 0, 9, &[]);
        post(net, &a, 1, SendOp::Write { va, rkey }, &[a.sge(0, 300_000)], number);
        post(net, &a, 2, SendOp::Read { va, rkey }, &[a.sge(400_000, 300_000)], number);
        post(net, &a, 3, SendOp::FetchAdd { va, rkey, add: 5 }, &[a.sge(800_000, 8)], number);
        post(net, &a, 4, SendOp::WriteImm { va, rkey, imm: 7 }, &[a.sge(0, 8)], number);
        net.settle();
        assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::Success; 4]);
        assert!(a.memory.load(400_000, 300_000) == pattern(4, 300_000));
        assert_eq!(b.poll(net, 0)[0].imm, Some(7));
        post(net, &a, 5, SendOp::Write { va, rkey }, &[a.sge(0, 8)], b.queues[1].number);
        net.settle();
        assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::RemoteAccess], "another domain");
    });
}

#[test]
fn an_empty_srq_delays_and_a_wrong_one_fails() {
    each(|net, a, b| {
        post(net, &a, 1, SendOp::Send, &[a.sge(0, 8)], b.queues[0].number);
        for _ in 0..10 {
            net.step();
        }
        b.receive(net, 0, 1, &[b.sge(0, 8)]);
        net.settle();
        assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::Success]);
        post(net, &a, 2, SendOp::Send, &[a.sge(0, 8)], 0x00ab_cdef);
        net.settle();
        assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::RemoteInvalidRequest]);
    });
}

#[test]
fn a_target_whose_srq_is_destroyed_during_a_message_reports_an_error() {
    for sends in [false, true] {
        let mut net = Net::new(2, Policy::Stable, Medium::Pipe, 5);
        let (a, b) = connected(&mut net);
        let write = SendOp::WriteImm { va: b.memory.address(), rkey: b.key, imm: 7 };
        let (op, status, event) = if sends {
            (SendOp::Send, WcStatus::RemoteOperation, AsyncEvent::QpFatal(b.qp))
        } else {
            (write, WcStatus::RemoteAccess, AsyncEvent::QpAccessError(b.qp))
        };
        a.memory.store(0, &pattern(4, 1 << 20));
        b.receive(&mut net, 0, 1, &[b.sge(0, 1 << 20)]);
        post(&mut net, &a, 1, op, &[a.sge(0, 1 << 20)], b.queues[0].number);
        net.run(|_| b.memory.load(0, 8) == pattern(4, 8), 1000);
        net.device(1).destroy_srq(b.queues[0].srq).unwrap();
        net.settle();
        assert_eq!(statuses(&a.poll_sends(&mut net)), [status]);
        assert!(net.asyncs(1).contains(&event), "{:?}", net.asyncs(1));
    }
}

#[test]
fn queues_of_other_domains_are_out_of_reach() {
    each(|net, a, b| {
        let device = net.device(1);
        let xrcd = device.alloc_xrcd().unwrap();
        let Queue { pd, cq, .. } = b.queues[0];
        let (other, _) = device.create_xrc_srq(pd, Xrc { xrcd, cq }, &ATTR).unwrap();
        device.post_srq_recv(other, 1, &[]).unwrap();
        let number = device.srq_number(other).unwrap();
        post(net, &a, 1, SendOp::Send, &[], number);
        net.settle();
        assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::RemoteInvalidRequest]);
        assert!(b.poll(net, 0).is_empty());
    });
}

#[test]
fn a_receive_that_is_too_short_completes_with_its_queue() {
    each(|net, a, b| {
        b.receive(net, 0, 4, &[b.sge(0, 8)]);
        post(net, &a, 1, SendOp::Send, &[a.sge(0, 9)], b.queues[0].number);
        net.settle();
        assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::RemoteInvalidRequest]);
        assert_eq!(statuses(&b.poll(net, 0)), [WcStatus::LocalLength]);
    });
}

#[test]
fn nothing_is_lost_in_moves() {
    each(|net, a, b| {
        for (round, moved) in [0, 1, 1, 0, 1].into_iter().enumerate() {
            let wr_id = round as u64;
            b.receive(net, 0, wr_id, &[b.sge(0, 400_000)]);
            b.receive(net, 1, wr_id, &[]);
            a.memory.store(0, &pattern(wr_id, 400_000));
            post(net, &a, wr_id, SendOp::Send, &[a.sge(0, 400_000)], b.queues[0].number);
            post(net, &a, wr_id, SendOp::Send, &[], b.queues[1].number);
            for _ in 0..round {
                net.step();
            }
            net.suspend(moved);
            for _ in 0..5 {
                net.step();
            }
            net.resume(moved);
            net.settle();
            assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::Success; 2]);
            let got = [b.poll(net, 0), b.poll(net, 1)].concat();
            assert_eq!(
                got.iter().map(|wc| (wc.wr_id, wc.byte_len)).collect::<Vec<_>>(),
                [(wr_id, 400_000), (wr_id, 0)]
            );
            assert!(b.memory.load(0, 400_000) == pattern(wr_id, 400_000));
        }
    });
}

#[test]
fn queues_made_while_the_link_is_up_are_found() {
    each(|net, a, b| {
        b.receive(net, 0, 1, &[]);
        post(net, &a, 1, SendOp::Send, &[], b.queues[0].number);
        net.settle();
        assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::Success]);
        for round in 0..4 {
            let Queue { pd, cq, .. } = b.queues[0];
            let device = net.device(1);
            let (srq, _) = device.create_xrc_srq(pd, Xrc { xrcd: b.xrcd, cq }, &ATTR).unwrap();
            device.post_srq_recv(srq, 7, &[]).unwrap();
            let number = device.srq_number(srq).unwrap();
            // At once, before the news can have come.
            post(net, &a, round, SendOp::Send, &[], number);
            net.settle();
            assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::Success]);
            net.device(1).destroy_srq(srq).unwrap();
        }
    });
}

#[test]
fn random_bytes_end_the_link_but_not_the_device() {
    for policy in Policy::ALL {
        let net = &mut Net::new(2, policy, Medium::Pipe, 3);
        let (mut a, mut b) = connected(net);
        for round in 0..200 {
            if round % 20 == 0 {
                (a, b) = connected(net);
            }
            for cutter in net.pipes.values() {
                cutter.disturb(30);
            }
            let queue = &b.queues[net.random.below(2) as usize];
            let number = queue.number;
            let _ = net.device(1).post_srq_recv(queue.srq, round, &[b.sge(0, 1000)]);
            let wr = SendWr {
                wr_id: round,
                op: SendOp::SendImm(1),
                signaled: true,
                fence: false,
                solicited: false,
                srq_number: number,
                payload: Payload::Sges(&[a.sge(0, 1000)]),
            };
            // Queue pairs fail here and there; the test is that devices do not.
            let _ = a.post_wr(net, &wr);
            for _ in 0..10 {
                net.step();
                net.now += std::time::Duration::from_millis(3);
            }
            let _ = (a.poll_sends(net), b.poll(net, 0), b.poll(net, 1));
        }
        net.cut();
        let (a, b) = connected(net);
        b.receive(net, 0, 1, &[b.sge(0, 8)]);
        post(net, &a, 1, SendOp::Send, &[a.sge(0, 8)], b.queues[0].number);
        net.settle();
        assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::Success]);
    }
}

#[test]
fn objects_in_use_cannot_be_destroyed() {
    let net = &mut Net::new(2, Policy::Stable, Medium::Pipe, 5);
    let (a, b) = connected(net);
    b.receive(net, 0, 1, &[]);
    post(net, &a, 1, SendOp::Send, &[], b.queues[0].number);
    net.settle();
    let device = net.device(1);
    assert_eq!(device.dealloc_xrcd(b.xrcd), Err(Errno::BUSY));
    assert_eq!(device.destroy_cq(b.queues[0].cq), Err(Errno::BUSY));
    // A queue may go although a target has taken receives from it.
    device.dereg_mr(b.mr).unwrap();
    for Queue { pd, cq, srq, .. } in b.queues {
        device.destroy_srq(srq).unwrap();
        device.destroy_cq(cq).unwrap();
        device.dealloc_pd(pd).unwrap();
    }
    assert_eq!(device.dealloc_xrcd(b.xrcd), Err(Errno::BUSY));
    device.destroy_qp(b.qp).unwrap();
    device.dealloc_xrcd(b.xrcd).unwrap();
}

#[test]
fn an_initiator_receives_nothing_and_a_target_sends_nothing() {
    let net = &mut Net::new(2, Policy::Stable, Medium::Pipe, 5);
    let (a, b) = connected(net);
    assert!(net.device(0).post_recv(a.qp, 1, &[]).is_err());
    assert!(net.device(1).post_recv(b.qp, 1, &[]).is_err());
    let wr = SendWr {
        wr_id: 1,
        op: SendOp::Send,
        signaled: true,
        fence: false,
        solicited: false,
        srq_number: 1,
        payload: Payload::Sges(&[]),
    };
    // SAFETY: nothing is inline.
    let sent = unsafe { net.device(1).post_send(b.qp, &wr) };
    assert_eq!(sent, Err(Errno::INVALID));
}
