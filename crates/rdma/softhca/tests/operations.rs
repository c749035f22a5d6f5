//! Each operation, each error status, on every medium and with every way to pick handles.

mod support;

use std::time::Duration;

use softhca::*;
use support::*;
use verbs::Policy;

/// Runs `test` on every medium and policy.
fn everywhere(test: impl Fn(&mut Net)) {
    for policy in Policy::ALL {
        for medium in Medium::ALL {
            test(&mut Net::new(2, policy, medium, 11));
        }
    }
}

#[test]
fn every_operation_arrives() {
    everywhere(|net| {
        let (a, b) = pair(net, 0, 1, &Plan::default());
        a.memory.store(0, &pattern(1, 5000));
        b.memory.store(8192, &pattern(2, 3000));
        b.memory.store(20_000, &7u64.to_ne_bytes());
        b.receive(net, 100, &[b.sge(0, 3000), b.sge(4000, 2000)]);
        b.receive(net, 101, &[]);
        let (rkey, va) = (b.key, b.va(30_000));
        a.post(net, 1, SendOp::SendImm(0xfeed), &[a.sge(0, 2500), a.sge(2500, 2500)]);
        a.post(net, 2, SendOp::WriteImm { va, rkey, imm: 9 }, &[a.sge(100, 2000)]);
        a.post(net, 3, SendOp::Read { va: b.va(8192), rkey }, &[a.sge(10_000, 1000), a.sge(12_000, 2000)]);
        a.post(net, 4, SendOp::FetchAdd { va: b.va(20_000), rkey, add: 5 }, &[a.sge(16_000, 8)]);
        a.post(
            net,
            5,
            SendOp::CompareSwap { va: b.va(20_000), rkey, compare: 12, swap: 99 },
            &[a.sge(16_008, 8)],
        );
        net.settle();
        let sent = a.poll_sends(net);
        assert_eq!(sent.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        assert!(sent.iter().all(|wc| wc.status == WcStatus::Success), "{sent:?}");
        let received = b.poll_receives(net);
        assert_eq!((received[0].wr_id, received[0].imm, received[0].byte_len), (100, Some(0xfeed), 5000));
        assert_eq!((received[1].wr_id, received[1].imm, received[1].byte_len), (101, Some(9), 2000));
        assert_eq!(received[1].opcode, WcOpcode::ReceiveRdmaWithImm);
        assert_eq!(b.memory.load(0, 3000), pattern(1, 5000)[..3000]);
        assert_eq!(b.memory.load(4000, 2000), pattern(1, 5000)[3000..]);
        assert_eq!(b.memory.load(30_000, 2000), pattern(1, 5000)[100..2100]);
        assert_eq!(a.memory.load(10_000, 1000), pattern(2, 3000)[..1000]);
        assert_eq!(a.memory.load(12_000, 2000), pattern(2, 3000)[1000..]);
        assert_eq!((a.memory.word(16_000), a.memory.word(16_008), b.memory.word(20_000)), (7, 12, 99));
    });
}

#[test]
fn short_requests_leave_together() {
    let net = &mut Net::new(2, Policy::Random, Medium::Tcp, 11);
    let (a, b) = pair(net, 0, 1, &Plan::default());
    let write = |net: &mut Net, wr_id| {
        let (piece, payload_of) = ([a.sge(0, 8)], Payload::Sges);
        let op = SendOp::Write { va: b.va(0), rkey: b.key };
        let (fence, solicited, srq_number, payload) = (false, false, 0, payload_of(&piece));
        let wr = SendWr { wr_id, op, signaled: true, fence, solicited, srq_number, payload };
        // SAFETY: nothing is inline.
        unsafe { net.device(0).post_send(a.qp, &wr) }.unwrap();
        net.device(0).defer_doorbell(a.qp);
    };
    let poll_one = |net: &mut Net| net.device(0).poll_cq(a.send_cq, 1, |_| ()).unwrap();
    write(net, 1);
    net.settle();
    assert_eq!(poll_one(net), 1);

    write(net, 2);
    assert!(!net.device(0).has_output(), "nothing is on its way that it could wait for");
    write(net, 3);
    write(net, 4);
    assert!(net.device(0).has_output());
    assert_eq!(poll_one(net), 0);
    assert!(!net.device(0).has_output(), "a poll that finds nothing has sent them");

    net.run(|net| net.device(0).poll_cq(a.send_cq, 1, |_| ()).unwrap() > 0, 10_000);
    write(net, 5);
    write(net, 6);
    assert!(net.device(0).has_output());
    assert_eq!(poll_one(net), 1);
    assert!(!net.device(0).has_output(), "and so has one that finds something");
    write(net, 7);
    write(net, 8);
    assert!(net.device(0).has_output());
    net.device(0).arm_cq(a.send_cq, false).unwrap();
    assert!(!net.device(0).has_output(), "and a caller that is about to wait has flushed");
    write(net, 9);
    assert!(net.device(0).has_output());
    // The answers to those before it send the last one.
    net.settle();
    assert_eq!(a.poll_sends(net).iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [4, 5, 6, 7, 8, 9]);
}

#[test]
fn posting_in_a_loop_drives_all_links() {
    let net = &mut Net::new(3, Policy::Random, Medium::Tcp, 12);
    let plan = Plan { memory: 100_000, ..Plan::default() };
    let ((a, b), (c, d)) = (pair(net, 0, 1, &plan), pair(net, 2, 0, &plan));
    let write = |net: &mut Net, from: &End, to: &End, length| {
        let piece = [from.sge(0, length)];
        let op = SendOp::Write { va: to.va(0), rkey: to.key };
        let (fence, solicited, srq_number, payload) = (false, false, 0, Payload::Sges(&piece));
        let wr = SendWr { wr_id: 1, op, signaled: true, fence, solicited, srq_number, payload };
        // SAFETY: nothing is inline.
        unsafe { net.device(from.node).post_send(from.qp, &wr) }.unwrap();
        net.device(from.node).flush_doorbell(from.qp)
    };
    assert!(!write(net, &a, &b, 8), "a short one is sent, and that is all");
    write(net, &c, &d, 8);
    net.settle();
    assert_eq!((a.poll_sends(net).len(), c.poll_sends(net).len()), (1, 1));

    // From here on the first device is driven by its posts alone.
    c.memory.store(0, b"from the third");
    write(net, &c, &d, 14);
    net.device(0).arm_cq(a.recv_cq, false).unwrap();
    let mut completed = 0;
    for _ in 0..100_000 {
        if net.device(0).send_room(a.qp) > 0 {
            write(net, &a, &b, 50_000);
        } else {
            net.device(0).flush_doorbell(a.qp);
        }
        for node in [1, 2] {
            net.device(node).progress(Duration::ZERO);
        }
        completed += net.device(2).poll_cq(c.send_cq, 1, |_| ()).unwrap();
        if completed > 0 && d.memory.load(0, 14) == b"from the third" && net.device(0).send_room(a.qp) > 0 {
            return;
        }
    }
    panic!("the third has {completed} completions, and there is room for {}", net.device(0).send_room(a.qp));
}

#[test]
fn a_wait_that_starts_as_another_ends_has_a_deadline() {
    let net = &mut Net::new(2, Policy::Random, Medium::Tcp, 13);
    let attr = QpAttr { timeout: 14, retry_count: 3, ..Plan::default().attr };
    let plan = Plan { attr, ..Plan::default() };
    let (a, b) = (open(net, 0, &plan), open(net, 1, &plan));
    // No process can have this number.
    let nobody = End { qpn: 5, ..b };
    to_init(net, &a, &plan);
    to_rtr(net, &a, &nobody, &plan);
    to_rts(net, &a, &plan);
    a.post(net, 1, SendOp::Send, &[a.sge(0, 8)]);
    let mut now = Duration::ZERO;
    for _ in 0..100 {
        // As a thread that nothing else wakes.
        let progress = net.device(0).progress(now);
        match progress.next_deadline {
            Some(deadline) => now = deadline,
            None => assert!(progress.more || net.device(0).waiting() == 0, "it sleeps for ever"),
        }
    }
    assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::RetryExceeded]);
}

#[test]
fn inline_data_is_copied_at_once() {
    everywhere(|net| {
        let (a, b) = pair(net, 0, 1, &Plan::default());
        let bytes = Memory::new(8);
        bytes.store(0, b"original");
        let piece = [Sge { addr: bytes.address(), length: 8, lkey: 0 }];
        let op = SendOp::Write { va: b.va(0), rkey: b.key };
        let wr = SendWr {
            wr_id: 1,
            op,
            signaled: true,
            fence: false,
            solicited: false,
            srq_number: 0,
            payload: Payload::Inline(&piece),
        };
        // SAFETY: the piece is readable.
        unsafe { net.device(0).post_send(a.qp, &wr) }.unwrap();
        bytes.store(0, b"modified");
        net.device(0).flush_doorbell(a.qp);
        net.settle();
        assert_eq!(b.memory.load(0, 8), b"original");
        assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::Success]);
    });
}

#[test]
fn large_messages_and_zero_length_ones() {
    everywhere(|net| {
        let plan = Plan { memory: 3 << 20, ..Plan::default() };
        let (a, b) = pair(net, 0, 1, &plan);
        let size = (1 << 20) + 17;
        a.memory.store(0, &pattern(5, size));
        b.receive(net, 7, &[b.sge(0, size)]);
        b.receive(net, 8, &[]);
        a.post(net, 1, SendOp::Send, &[a.sge(0, size)]);
        a.post(net, 2, SendOp::Send, &[]);
        a.post(net, 3, SendOp::Write { va: 0, rkey: 0 }, &[]);
        a.post(
            net,
            4,
            SendOp::Read { va: b.va(0), rkey: b.key },
            &[a.sge(2 << 20, 1000), a.sge(1 << 20, size - 1000)],
        );
        net.settle();
        assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::Success; 4]);
        assert_eq!(b.poll_receives(net).iter().map(|wc| wc.byte_len).collect::<Vec<_>>(), [size as u32, 0]);
        assert!(b.memory.load(0, size) == pattern(5, size));
        assert!(a.memory.load(1 << 20, size - 1000) == pattern(5, size)[1000..]);
    });
}

/// A program may watch any word of a short message, and the last one of a long one.
#[test]
fn words_arrive_atomically_at_any_stream_boundary() {
    let mut net = Net::new(2, Policy::Random, Medium::Pipe, 9);
    let (a, b) = pair(&mut net, 0, 1, &Plan { memory: 1 << 16, ..Plan::default() });
    for round in 0..200u8 {
        let length = [4, 8, 12, 60, 248, 1000, 1004, 20_000][usize::from(round % 8)];
        a.memory.store(0, &vec![round; length]);
        a.post(&mut net, 1, SendOp::Write { va: b.va(0), rkey: b.key }, &[a.sge(0, length)]);
        let watched = if length < 256 { 0 } else { length - 4 };
        net.run(
            |net| {
                let words = b.memory.load(watched, length - watched);
                let is_whole = |word: &[u8]| word.iter().all(|byte| *byte == word[0]);
                assert!(words.chunks(4).all(is_whole), "{length} bytes: {words:?}");
                !a.poll_sends(net).is_empty()
            },
            10_000,
        );
        assert_eq!(b.memory.load(0, length), vec![round; length]);
    }
}

#[test]
fn a_process_reaches_its_own_queue_pairs() {
    for policy in Policy::ALL {
        let net = &mut Net::new(1, policy, Medium::Shm, 1);
        let (a, b) = pair(net, 0, 0, &Plan::default());
        b.receive(net, 9, &[b.sge(0, 100)]);
        a.memory.store(0, &pattern(3, 100));
        a.post(net, 1, SendOp::Send, &[a.sge(0, 100)]);
        a.post(net, 2, SendOp::Read { va: b.va(0), rkey: b.key }, &[a.sge(200, 100)]);
        net.settle();
        assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::Success; 2]);
        assert_eq!(a.memory.load(200, 100), pattern(3, 100));
    }
}

/// Posts `op` once and expects `status` at the requester; both queue pairs must be in `states` then.
fn refused(net: &mut Net, ends: &(End, End), op: SendOp, sges: &[Sge], status: WcStatus, peer: QpState) {
    let (a, b) = ends;
    a.post(net, 1, op, sges);
    a.post(net, 2, SendOp::Write { va: 0, rkey: 0 }, &[]);
    net.settle();
    assert_eq!(statuses(&a.poll_sends(net)), [status, WcStatus::Flushed], "{op:?}");
    assert_eq!(a.state(net), QpState::Error);
    assert_eq!(b.state(net), peer);
}

#[test]
fn remote_access_errors() {
    everywhere(|net| {
        let plan = Plan::default();
        let outside = |b: &End| b.va(0) + b.memory.len() as u64 - 50;
        let wrong: [fn(&End, u64) -> SendOp; 5] = [
            |b, _| SendOp::Write { va: b.va(0), rkey: b.key ^ 0x5555 },
            |b, outside| SendOp::Write { va: outside, rkey: b.key },
            |b, outside| SendOp::Read { va: outside, rkey: b.key },
            |b, _| SendOp::Write { va: b.va(0) - 1, rkey: b.key },
            |b, _| SendOp::Write { va: u64::MAX - 10, rkey: b.key },
        ];
        for op in wrong {
            let ends = pair(net, 0, 1, &plan);
            let op = op(&ends.1, outside(&ends.1));
            let sges = [ends.0.sge(0, 100)];
            net.nodes[1].events.clear();
            refused(net, &ends, op, &sges, WcStatus::RemoteAccess, QpState::Error);
            assert_eq!(net.asyncs(1), [AsyncEvent::QpAccessError(ends.1.qp)]);
        }
    });
}

#[test]
fn missing_rights_of_a_region_are_access_errors_and_of_a_queue_pair_invalid_requests() {
    everywhere(|net| {
        for missing in [Access::REMOTE_WRITE, Access::REMOTE_READ, Access::REMOTE_ATOMIC] {
            for by_region in [false, true] {
                let mut plan = Plan::default();
                let status = if by_region {
                    plan.mr_access -= missing;
                    WcStatus::RemoteAccess
                } else {
                    plan.attr.access -= missing;
                    WcStatus::RemoteInvalidRequest
                };
                let ends = pair(net, 0, 1, &plan);
                let (va, rkey) = (ends.1.va(0), ends.1.key);
                let op = match missing {
                    Access::REMOTE_WRITE => SendOp::Write { va, rkey },
                    Access::REMOTE_READ => SendOp::Read { va, rkey },
                    _ => SendOp::FetchAdd { va, rkey, add: 1 },
                };
                let sges = [ends.0.sge(0, 8)];
                refused(net, &ends, op, &sges, status, QpState::Error);
            }
        }
    });
}

#[test]
fn another_domains_key_is_refused() {
    everywhere(|net| {
        let ends = pair(net, 0, 1, &Plan::default());
        let stranger = open(net, 1, &Plan::default());
        let op = SendOp::Write { va: stranger.va(0), rkey: stranger.key };
        let sges = [ends.0.sge(0, 8)];
        refused(net, &ends, op, &sges, WcStatus::RemoteAccess, QpState::Error);
    });
}

#[test]
fn a_misaligned_atomic_is_an_invalid_request() {
    everywhere(|net| {
        let ends = pair(net, 0, 1, &Plan::default());
        let op = SendOp::FetchAdd { va: ends.1.va(4), rkey: ends.1.key, add: 1 };
        let sges = [ends.0.sge(0, 8)];
        refused(net, &ends, op, &sges, WcStatus::RemoteInvalidRequest, QpState::Error);
        assert_eq!(net.asyncs(1), [AsyncEvent::QpRequestError(ends.1.qp)]);
    });
}

#[test]
fn local_errors_touch_only_the_requester() {
    everywhere(|net| {
        let bad_key = |a: &End| [Sge { lkey: a.key ^ 0x5555, ..a.sge(0, 10) }];
        let ends = pair(net, 0, 1, &Plan::default());
        let (va, rkey) = (ends.1.va(0), ends.1.key);
        let sges = bad_key(&ends.0);
        refused(net, &ends, SendOp::Write { va, rkey }, &sges, WcStatus::LocalProtection, QpState::Rts);

        let ends = pair(net, 0, 1, &Plan { mr_access: Access::REMOTE_READ, ..Plan::default() });
        let (va, rkey) = (ends.1.va(0), ends.1.key);
        let sges = [ends.0.sge(0, 10)];
        refused(net, &ends, SendOp::Read { va, rkey }, &sges, WcStatus::LocalProtection, QpState::Rts);

        let mut plan = Plan::default();
        plan.attr.max_rd_atomic = 0;
        let ends = pair(net, 0, 1, &plan);
        let sges = [ends.0.sge(0, 10)];
        let op = SendOp::Read { va: ends.1.va(0), rkey: ends.1.key };
        refused(net, &ends, op, &sges, WcStatus::LocalQpOperation, QpState::Rts);
    });
}

#[test]
fn a_message_past_the_devices_limit_is_a_local_length_error() {
    let net = &mut Net::new(2, Policy::Stable, Medium::Pipe, 1);
    let ends = pair(net, 0, 1, &Plan::default());
    let huge = [Sge { length: (1 << 30) + 1, ..ends.0.sge(0, 0) }];
    let op = SendOp::Write { va: ends.1.va(0), rkey: ends.1.key };
    refused(net, &ends, op, &huge, WcStatus::LocalLength, QpState::Rts);
}

#[test]
fn a_receive_that_is_too_short_fails_on_both_sides() {
    everywhere(|net| {
        let ends = pair(net, 0, 1, &Plan::default());
        ends.1.receive(net, 5, &[ends.1.sge(0, 99)]);
        ends.1.receive(net, 6, &[ends.1.sge(0, 99)]);
        let sges = [ends.0.sge(0, 100)];
        refused(net, &ends, SendOp::Send, &sges, WcStatus::RemoteInvalidRequest, QpState::Error);
        let received = ends.1.poll_receives(net);
        assert_eq!(statuses(&received), [WcStatus::LocalLength, WcStatus::Flushed]);
        assert_eq!(received.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [5, 6]);
        assert_eq!(net.asyncs(1), [], "the receive tells it");
    });
}

#[test]
fn a_receive_with_a_bad_key_fails_on_both_sides() {
    everywhere(|net| {
        let ends = pair(net, 0, 1, &Plan::default());
        ends.1.receive(net, 5, &[Sge { lkey: ends.1.key ^ 0x5555, ..ends.1.sge(0, 100) }]);
        let sges = [ends.0.sge(0, 100)];
        refused(net, &ends, SendOp::Send, &sges, WcStatus::RemoteOperation, QpState::Error);
        assert_eq!(statuses(&ends.1.poll_receives(net)), [WcStatus::LocalProtection]);
    });
}

#[test]
fn sends_wait_for_receives() {
    everywhere(|net| {
        let (a, b) = pair(net, 0, 1, &Plan::default());
        a.memory.store(0, &pattern(8, 300));
        for at in 0..3 {
            a.post(net, at, SendOp::Send, &[a.sge(at as usize * 100, 100)]);
        }
        net.run(|net| net.now.as_millis() > 1100, 100_000);
        assert_eq!(a.poll_sends(net), []);
        for at in 0..3 {
            b.receive(net, at, &[b.sge(at as usize * 100, 100)]);
            net.run(|net| net.now.as_millis() > 1200 + u128::from(at) * 100, 100_000);
        }
        net.settle();
        assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::Success; 3]);
        assert_eq!(b.memory.load(0, 300), pattern(8, 300));
        assert_eq!(b.poll_receives(net).len(), 3);
    });
}

#[test]
fn receiver_not_ready_retries_run_out() {
    everywhere(|net| {
        let mut plan = Plan::default();
        plan.attr.rnr_retry = 3;
        let ends = pair(net, 0, 1, &plan);
        let sges = [ends.0.sge(0, 1)];
        refused(net, &ends, SendOp::Send, &sges, WcStatus::RnrRetryExceeded, QpState::Rts);
    });
}

/// As programs do that exchange the numbers wrongly.
#[test]
fn a_peer_that_expects_another_number_exceeds_retries() {
    for expected in [0x00ff_fff4, 0x00ff_ffe0, 0] {
        everywhere(|net| {
            let ends = misnumbered(net, expected);
            let (va, rkey) = (ends.1.va(0), ends.1.key);
            let read = SendOp::Read { va, rkey };
            let started = net.now;
            refused(net, &ends, read, &[ends.0.sge(0, 8)], WcStatus::RetryExceeded, QpState::Rts);
            let waited = net.now - started;
            assert!((200..220).contains(&waited.as_millis()), "three pauses of 67 ms, not {waited:?}");
            for op in [SendOp::Send, SendOp::FetchAdd { va, rkey, add: 1 }] {
                let ends = misnumbered(net, expected);
                refused(net, &ends, op, &[ends.0.sge(0, 8)], WcStatus::RetryExceeded, QpState::Rts);
            }
            assert_eq!(ends.1.memory.load(0, 8), [0; 8]);
        });
    }
}

/// Its peer has executed messages of the same numbers, which were others.
#[test]
fn a_new_incarnation_that_reuses_numbers_exceeds_retries() {
    everywhere(|net| {
        let ops: [fn(&End) -> SendOp; 4] = [
            |_| SendOp::Send,
            |b| SendOp::Write { va: b.va(0), rkey: b.key },
            |b| SendOp::Read { va: b.va(0), rkey: b.key },
            |b| SendOp::FetchAdd { va: b.va(0), rkey: b.key, add: 1 },
        ];
        for (op, is_refused) in ops.into_iter().flat_map(|op| [(op, false), (op, true)]) {
            let (a, b) = pair(net, 0, 1, &Plan::default());
            for wr_id in 0..4 {
                a.post(net, wr_id, SendOp::FetchAdd { va: b.va(0), rkey: b.key, add: 1 }, &[a.sge(0, 8)]);
            }
            net.settle();
            assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::Success; 4]);
            if is_refused {
                a.post(net, 5, SendOp::Send, &[a.sge(0, 8)]);
                for _ in 0..50 {
                    net.step();
                }
            }
            start_new_incarnation(net, &a, &b, &Plan::default(), 0x00ff_fff0);
            b.receive(net, 1, &[b.sge(64, 8)]);
            let sges = [a.sge(0, 8)];
            let op = op(&b);
            refused(net, &(a, b), op, &sges, WcStatus::RetryExceeded, QpState::Rts);
        }
    });
}

/// More than its peer has executed, so that some are the next expected ones.
#[test]
fn a_new_incarnation_that_reuses_numbers_executes_nothing() {
    everywhere(|net| {
        let (a, b) = pair(net, 0, 1, &Plan::default());
        let (va, rkey) = (b.va(0), b.key);
        for wr_id in 0..4 {
            a.post(net, wr_id, SendOp::FetchAdd { va, rkey, add: 1 }, &[a.sge(0, 8)]);
        }
        net.settle();
        assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::Success; 4]);
        start_new_incarnation(net, &a, &b, &Plan::default(), 0x00ff_fff0);
        for wr_id in 0..4 {
            b.receive(net, wr_id, &[b.sge(64, 8)]);
            for op in [SendOp::Send, SendOp::Read { va, rkey }, SendOp::FetchAdd { va, rkey, add: 1 }] {
                a.post(net, wr_id, op, &[a.sge(0, 8)]);
            }
        }
        net.settle();
        let ends = statuses(&a.poll_sends(net));
        assert_eq!((ends[0], &ends[1..]), (WcStatus::RetryExceeded, &[WcStatus::Flushed; 11][..]));
        assert_eq!((b.poll_receives(net).len(), b.state(net)), (0, QpState::Rts));
        assert_eq!(b.memory.word(0), 4);
    });
}

/// Its peer has executed as many in the life before as are in flight in this.
#[test]
fn a_new_incarnation_gets_no_acknowledgement_for_its_previous_one() {
    for has_link in [true, false] {
        everywhere(|net| {
            let (a, b) = pair(net, 0, 1, &Plan::default());
            let add = SendOp::FetchAdd { va: b.va(0), rkey: b.key, add: 1 };
            let wait = |net: &mut Net| {
                for _ in 0..50 {
                    net.step();
                }
            };
            for wr_id in 0..4 {
                a.post(net, wr_id, add, &[a.sge(0, 8)]);
            }
            net.settle();
            assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::Success; 4]);
            let moved = (!has_link).then(|| net.suspend(1));
            wait(net);
            start_new_incarnation(net, &a, &b, &Plan::default(), 0x00ff_fff0);
            for wr_id in 0..5 {
                let op = [SendOp::Write { va: b.va(8), rkey: b.key }, add][wr_id as usize % 2];
                a.post(net, wr_id, op, &[a.sge(0, 8)]);
            }
            if moved.is_some() {
                net.resume(1);
            }
            wait(net);
            let _ = net.suspend(1);
            wait(net);
            net.resume(1);
            net.settle();
            let ends = statuses(&a.poll_sends(net));
            assert_eq!((ends[0], &ends[1..]), (WcStatus::RetryExceeded, &[WcStatus::Flushed; 4][..]));
            assert_eq!(b.memory.word(0), 4);
        });
    }
}

#[test]
fn a_new_incarnation_is_served_once_its_peer_has_one_too() {
    // The first would follow the refused one.
    for numbers in [&[0x00ff_fff1][..], &[0x100], &[0x100, 0x200, 0x300]] {
        everywhere(|net| {
            let (a, b) = pair(net, 0, 1, &Plan::default());
            // Refused, without a receive.
            a.post(net, 1, SendOp::Send, &[a.sge(0, 8)]);
            let wait = |net: &mut Net| {
                for _ in 0..50 {
                    net.step();
                }
            };
            for psn in numbers {
                wait(net);
                start_new_incarnation(net, &a, &b, &Plan::default(), *psn);
                a.post(net, 2, SendOp::Send, &[a.sge(0, 8)]);
            }
            wait(net);
            start_new_incarnation(net, &b, &a, &Plan::default(), numbers[numbers.len() - 1]);
            b.receive(net, 1, &[b.sge(0, 8)]);
            net.settle();
            assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::Success]);
            assert_eq!(b.poll_receives(net).len(), 1);
        });
    }
}

/// Two connected ends. The second expects another number first.
fn misnumbered(net: &mut Net, expected: u32) -> (End, End) {
    let mut plan = Plan::default();
    plan.attr.retry_count = 2;
    let mut other = plan;
    other.attr.rq_psn = expected;
    let ends = (open(net, 0, &plan), open(net, 1, &plan));
    for (own, peer, plan) in [(&ends.0, &ends.1, &plan), (&ends.1, &ends.0, &other)] {
        to_init(net, own, plan);
        to_rtr(net, own, peer, plan);
        to_rts(net, own, plan);
    }
    ends
}

#[test]
fn a_mismatched_peer_stops_no_other_queue_pair_in_a_move() {
    everywhere(|net| {
        let (a, b) = pair(net, 0, 1, &Plan::default());
        let (c, d) = misnumbered(net, 0x00ff_fff3);
        for wr_id in 0..4 {
            c.post(net, wr_id, SendOp::FetchAdd { va: d.va(0), rkey: d.key, add: 1 }, &[c.sge(0, 8)]);
        }
        a.memory.store(0, b"goes on!");
        a.post(net, 1, SendOp::Write { va: b.va(0), rkey: b.key }, &[a.sge(0, 8)]);
        net.suspend(1);
        net.resume(1);
        a.post(net, 2, SendOp::Read { va: b.va(0), rkey: b.key }, &[a.sge(8, 8)]);
        net.settle();
        assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::Success; 2]);
        assert_eq!(a.memory.load(8, 8), b"goes on!");
        // Atomics that the peer has never executed.
        assert_eq!(statuses(&c.poll_sends(net))[0], WcStatus::RetryExceeded);
    });
}

/// Its peer takes the first messages for executed ones, as hardware does; nothing waits for ever.
#[test]
fn a_peer_that_expects_a_later_number_answers_all_requests() {
    everywhere(|net| {
        let target = |d: &End| (d.va(0), d.key);
        let ops: [fn((u64, u32)) -> SendOp; 4] = [
            |_| SendOp::Send,
            |(va, rkey)| SendOp::Write { va, rkey },
            |(va, rkey)| SendOp::Read { va, rkey },
            |(va, rkey)| SendOp::FetchAdd { va, rkey, add: 1 },
        ];
        for op in ops {
            let (c, d) = misnumbered(net, 0x00ff_fff3);
            for wr_id in 0..8 {
                d.receive(net, wr_id, &[d.sge(64, 8)]);
                c.post(net, wr_id, op(target(&d)), &[c.sge(0, 8)]);
            }
            net.settle();
            assert_eq!(c.poll_sends(net).len(), 8, "{:?}", op(target(&d)));
        }
    });
}

/// Both ends get new incarnations, with other numbers, while the first still reads the second's earlier frames.
#[test]
fn messages_of_previous_incarnations_do_not_stop_new_ones() {
    everywhere(|net| {
        let (c, d) = misnumbered(net, 0x00ff_fff3);
        c.post(net, 1, SendOp::Write { va: d.va(0), rkey: d.key }, &[c.sge(0, 8)]);
        for _ in 0..20 {
            net.step();
        }
        let reset = QpAttr { state: QpState::Reset, ..QpAttr::default() };
        let mut plan = Plan::default();
        (plan.attr.sq_psn, plan.attr.rq_psn) = (0x00ff_fff3, 0x00ff_fff0);
        net.device(0).modify_qp(c.qp, &reset, QpAttrMask::STATE).unwrap();
        to_init(net, &c, &plan);
        to_rtr(net, &c, &d, &plan);
        to_rts(net, &c, &plan);
        c.post(net, 2, SendOp::Write { va: d.va(0), rkey: d.key }, &[c.sge(0, 8)]);
        net.settle();
        assert_eq!(statuses(&c.poll_sends(net)), [WcStatus::Success]);
    });
}

#[test]
fn a_peer_that_is_not_ready_or_gone_exceeds_retries() {
    everywhere(|net| {
        let mut plan = Plan::default();
        plan.attr.retry_count = 2;
        let ends = (open(net, 0, &plan), open(net, 1, &plan));
        to_init(net, &ends.0, &plan);
        to_rtr(net, &ends.0, &ends.1, &plan);
        to_rts(net, &ends.0, &plan);
        let (sges, started) = ([ends.0.sge(0, 1)], net.now);
        refused(net, &ends, SendOp::Send, &sges, WcStatus::RetryExceeded, QpState::Reset);
        let waited = net.now - started;
        assert!((200..220).contains(&waited.as_millis()), "three pauses of 67 ms, not {waited:?}");

        let ends = pair(net, 0, 1, &plan);
        net.settle();
        net.nodes[1].gone = true;
        net.suspend(1);
        let sges = [ends.0.sge(0, 1)];
        refused(net, &ends, SendOp::Send, &sges, WcStatus::RetryExceeded, QpState::Rts);
    });
}

#[test]
fn requests_wait_for_a_late_peer() {
    everywhere(|net| {
        let plan = Plan::default();
        let (a, b) = (open(net, 0, &plan), open(net, 1, &plan));
        to_init(net, &a, &plan);
        to_rtr(net, &a, &b, &plan);
        to_rts(net, &a, &plan);
        a.memory.store(0, b"knocking");
        for at in 0..5 {
            a.post(net, at, SendOp::Write { va: b.va(0), rkey: b.key }, &[a.sge(0, 8)]);
        }
        net.run(|net| net.now.as_millis() > 1100, 100_000);
        to_init(net, &b, &plan);
        to_rtr(net, &b, &a, &plan);
        net.settle();
        assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::Success; 5]);
        assert_eq!(b.memory.load(0, 8), b"knocking");
        assert_eq!(net.asyncs(1), [AsyncEvent::CommunicationEstablished(b.qp)]);
    });
}

#[test]
fn requests_wait_a_minute_for_an_unreachable_peer_and_without_limit_for_a_moving_one() {
    let net = &mut Net::new(2, Policy::Stable, Medium::Pipe, 1);
    let (a, b) = pair(net, 0, 1, &Plan::default());
    net.suspend(1);
    a.post(net, 1, SendOp::Write { va: b.va(0), rkey: b.key }, &[a.sge(0, 8)]);
    net.run(|net| net.now.as_secs() > 300, 1_000_000);
    assert_eq!(a.poll_sends(net), []);
    net.refuse_with = fabric::attach::LinkRefusal::Unreachable;
    let started = net.now;
    net.run(|net| a.state(net) == QpState::Error, 1_000_000);
    assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::RetryExceeded]);
    assert_eq!((net.now - started).as_secs(), 60);
}

#[test]
fn modify_to_error_flushes_in_order() {
    everywhere(|net| {
        let (a, b) = pair(net, 0, 1, &Plan::default());
        for at in 0..3 {
            b.receive(net, at, &[b.sge(0, 10)]);
        }
        net.suspend(0);
        for at in 0..3 {
            b.post(net, at, SendOp::Send, &[b.sge(0, 10)]);
        }
        b.fail(net);
        b.post(net, 3, SendOp::Send, &[b.sge(0, 10)]);
        b.receive(net, 3, &[]);
        for completions in [b.poll_sends(net), b.poll_receives(net)] {
            assert_eq!(completions.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [0, 1, 2, 3]);
            assert!(completions.iter().all(|wc| wc.status == WcStatus::Flushed));
        }
        assert_eq!(a.state(net), QpState::Rts);
    });
}

#[test]
fn a_reset_connection_can_be_made_again() {
    everywhere(|net| {
        let plan = Plan::default();
        let (a, b) = pair(net, 0, 1, &plan);
        for round in 0..3 {
            b.receive(net, round, &[b.sge(0, 10)]);
            a.post(net, round, SendOp::Send, &[a.sge(0, 10)]);
            net.settle();
            assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::Success]);
            assert_eq!(b.poll_receives(net).len(), 1);
            let reset = QpAttr { state: QpState::Reset, ..QpAttr::default() };
            for end in [&a, &b] {
                net.device(end.node).modify_qp(end.qp, &reset, QpAttrMask::STATE).unwrap();
            }
            connect(net, &a, &b, &plan);
        }
    });
}

/// Frames of the first incarnation arrive in the second one, which drops them all.
#[test]
fn messages_of_the_previous_incarnation_are_dropped() {
    for kind in [QpKind::Rc, QpKind::Uc] {
        everywhere(|net| {
            let plan = Plan { kind, ..Plan::default() };
            let (a, b) = pair(net, 0, 1, &plan);
            let (va, rkey) = (b.va(0), b.key);
            b.receive(net, 1, &[b.sge(100, 8)]);
            a.post(net, 1, SendOp::Send, &[a.sge(0, 8)]);
            net.settle();
            assert_eq!((a.poll_sends(net).len(), b.poll_receives(net).len()), (1, 1));
            a.memory.store(0, b"ghost!!!");
            for heard in [false, true] {
                for wr_id in 0..4 {
                    b.receive(net, wr_id, &[b.sge(100, 8)]);
                    a.post(net, wr_id, SendOp::WriteImm { va, rkey, imm: 1 }, &[a.sge(0, 8)]);
                }
                net.nodes[0].device.progress(net.now);
                if heard {
                    net.nodes[1].device.progress(net.now);
                }
                let reset = QpAttr { state: QpState::Reset, ..QpAttr::default() };
                for end in [&a, &b] {
                    net.device(end.node).modify_qp(end.qp, &reset, QpAttrMask::STATE).unwrap();
                }
                b.memory.store(0, &[0; 8]);
                connect(net, &a, &b, &plan);
                a.post(net, 9, SendOp::Write { va: va + 8, rkey }, &[a.sge(8, 8)]);
                b.receive(net, 9, &[b.sge(100, 8)]);
                net.settle();
                assert_eq!(b.poll_receives(net), []);
                assert_eq!(b.memory.load(0, 8), [0; 8]);
                let ends = a.poll_sends(net);
                let ends: Vec<_> = ends.iter().map(|wc| (wc.wr_id, wc.status)).collect();
                assert_eq!(ends, [(9, WcStatus::Success)]);
                a.post(net, 10, SendOp::Send, &[a.sge(0, 8)]);
                net.settle();
                assert_eq!((a.poll_sends(net).len(), b.poll_receives(net)[0].wr_id), (1, 9));
            }
        });
    }
}

/// One end knows later than the other that nothing of an earlier life comes any more.
#[test]
fn no_message_is_lost_or_delayed_at_a_change_of_incarnation() {
    for kind in [QpKind::Rc, QpKind::Uc] {
        for steps in 0..6 {
            everywhere(|net| {
                let mut plan = Plan { kind, ..Plan::default() };
                plan.attr.retry_count = 0;
                let (a, b) = pair(net, 0, 1, &plan);
                a.post(net, 1, SendOp::Write { va: b.va(0), rkey: b.key }, &[a.sge(0, 8)]);
                net.settle();
                assert_eq!(a.poll_sends(net).len(), 1);
                let reset = QpAttr { state: QpState::Reset, ..QpAttr::default() };
                for end in [&a, &b] {
                    net.device(end.node).modify_qp(end.qp, &reset, QpAttrMask::STATE).unwrap();
                }
                to_init(net, &a, &plan);
                to_rtr(net, &a, &b, &plan);
                net.settle();
                to_rts(net, &a, &plan);
                to_init(net, &b, &plan);
                to_rtr(net, &b, &a, &plan);
                net.nodes[1].device.progress(net.now);
                let started = net.now;
                for wr_id in 0..8 {
                    b.receive(net, wr_id, &[b.sge(100, 8)]);
                    a.post(net, wr_id, SendOp::Send, &[a.sge(0, 8)]);
                    for _ in 0..steps {
                        net.nodes[0].device.progress(net.now);
                    }
                }
                net.settle();
                assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::Success; 8], "{kind:?}, {steps}");
                let got: Vec<_> = b.poll_receives(net).iter().map(|wc| wc.wr_id).collect();
                assert_eq!(got, [0, 1, 2, 3, 4, 5, 6, 7], "{kind:?}, {steps}");
                assert!(net.now - started < Duration::from_millis(10));
            });
        }
    }
}

/// The second end owes acknowledgements and answers to a life that is over.
#[test]
fn acknowledgements_for_the_previous_incarnation_do_not_reach_the_next() {
    for op in [0, 1, 2] {
        everywhere(|net| {
            let (a, b) = pair(net, 0, 1, &Plan::default());
            let (va, rkey) = (b.va(0), b.key);
            a.post(net, 0, SendOp::Write { va, rkey }, &[a.sge(0, 8)]);
            net.settle();
            for wr_id in 0..3 {
                b.receive(net, wr_id, &[b.sge(100, 8)]);
                let op = [SendOp::Send, SendOp::Read { va, rkey }, SendOp::FetchAdd { va, rkey, add: 1 }][op];
                a.post(net, wr_id, op, &[a.sge(0, 8)]);
            }
            net.nodes[0].device.progress(net.now);
            start_new_incarnation(net, &a, &b, &Plan::default(), 0x00ff_fff0);
            for wr_id in 0..3 {
                a.post(net, wr_id, SendOp::Send, &[a.sge(0, 8)]);
            }
            net.settle();
            let is_lost = |event: &Event| matches!(event, Event::LinkLost { .. });
            assert!(!net.nodes.iter().any(|node| node.events.iter().any(is_lost)));
            let ends = statuses(&a.poll_sends(net));
            assert_eq!(
                ends[ends.len() - 3..],
                [WcStatus::RetryExceeded, WcStatus::Flushed, WcStatus::Flushed]
            );
        });
    }
}

#[test]
fn a_drained_send_queue_raises_an_event_and_starts_again() {
    everywhere(|net| {
        let (a, b) = pair(net, 0, 1, &Plan::default());
        let op = SendOp::Write { va: b.va(0), rkey: b.key };
        a.post(net, 1, op, &[a.sge(0, 8)]);
        let sqd = QpAttr { state: QpState::Sqd, en_sqd_async_notify: true, ..QpAttr::default() };
        let mask = QpAttrMask::STATE | QpAttrMask::EN_SQD_ASYNC_NOTIFY;
        net.device(0).modify_qp(a.qp, &sqd, mask).unwrap();
        a.post(net, 2, op, &[a.sge(0, 8)]);
        net.settle();
        assert!(net.asyncs(0).contains(&AsyncEvent::SendQueueDrained(a.qp)));
        assert!(!a.poll_sends(net).iter().any(|wc| wc.wr_id == 2));
        let rts = QpAttr { state: QpState::Rts, ..QpAttr::default() };
        net.device(0).modify_qp(a.qp, &rts, QpAttrMask::STATE).unwrap();
        net.settle();
        assert!(a.poll_sends(net).iter().any(|wc| wc.wr_id == 2 && wc.status == WcStatus::Success));
    });
}

#[test]
fn a_send_queue_drains_when_its_last_message_is_refused_during_transmission() {
    const LENGTH: usize = 1 << 20;
    everywhere(|net| {
        let (a, b) = pair(net, 0, 1, &Plan { memory: LENGTH, ..Plan::default() });
        a.post(net, 1, SendOp::Write { va: b.va(0), rkey: b.key }, &[a.sge(0, 8)]);
        net.settle();
        a.memory.store(0, &pattern(3, LENGTH));
        a.post(net, 2, SendOp::Send, &[a.sge(0, LENGTH)]);
        net.nodes[0].device.progress(net.now);
        let sqd = QpAttr { state: QpState::Sqd, en_sqd_async_notify: true, ..QpAttr::default() };
        let mask = QpAttrMask::STATE | QpAttrMask::EN_SQD_ASYNC_NOTIFY;
        net.device(0).modify_qp(a.qp, &sqd, mask).unwrap();
        for _ in 0..50 {
            net.step();
        }
        assert_eq!(net.asyncs(0), []);
        b.receive(net, 7, &[b.sge(0, LENGTH)]);
        net.settle();
        assert_eq!(net.asyncs(0), [AsyncEvent::SendQueueDrained(a.qp)]);
        assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::Success; 2]);
        assert_eq!(b.poll_receives(net).len(), 1);
        assert!(b.memory.load(0, LENGTH) == pattern(3, LENGTH));
    });
}

#[test]
fn a_fenced_request_waits_for_reads() {
    everywhere(|net| {
        let (a, b) = pair(net, 0, 1, &Plan::default());
        b.memory.store(0, b"before");
        a.memory.store(100, b"after!");
        let (va, rkey) = (b.va(0), b.key);
        a.post(net, 1, SendOp::Read { va, rkey }, &[a.sge(0, 6)]);
        let sges = [a.sge(100, 6)];
        let op = SendOp::Write { va, rkey };
        let wr = SendWr {
            wr_id: 2,
            op,
            signaled: true,
            fence: true,
            solicited: false,
            srq_number: 0,
            payload: Payload::Sges(&sges),
        };
        a.post_wr(net, &wr).unwrap();
        net.settle();
        assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::Success; 2]);
        assert_eq!((a.memory.load(0, 6), b.memory.load(0, 6)), (b"before".to_vec(), b"after!".to_vec()));
    });
}

#[test]
fn a_shared_receive_queue_serves_all_and_reports_its_limit() {
    everywhere(|net| {
        let pd = net.device(1).alloc_pd().unwrap();
        let wanted = SrqAttr { max_wr: 10, max_sge: 1, limit: 0 };
        let (srq, _) = net.device(1).create_srq(pd, &wanted).unwrap();
        let memory = Memory::new(1000);
        let at = memory.address();
        // SAFETY: test memory is never unmapped.
        let (_, keys) = unsafe { net.device(1).reg_mr(pd, at, 1000, at, Access::LOCAL_WRITE) }.unwrap();
        for slot in 0..10 {
            let sge = Sge { addr: at + slot * 100, length: 100, lkey: keys.lkey };
            net.device(1).post_srq_recv(srq, slot, &[sge]).unwrap();
        }
        assert_eq!(net.device(1).post_srq_recv(srq, 10, &[]), Err(Errno::NO_MEMORY));
        net.device(1).modify_srq(srq, None, Some(8)).unwrap();
        let plan = Plan::default();
        let shared = Plan { srq: Some(srq), ..plan };
        let mut ends = Vec::new();
        for _ in 0..3 {
            let (a, b) = (open(net, 0, &plan), open(net, 1, &shared));
            connect(net, &a, &b, &plan);
            a.post(net, 1, SendOp::Send, &[a.sge(0, 50)]);
            ends.push((a, b));
        }
        net.settle();
        let received: usize = ends.iter().map(|(_, b)| b.poll_receives(net).len()).sum();
        assert_eq!(received, 3);
        assert_eq!(net.asyncs(1), [AsyncEvent::SrqLimitReached(srq)]);
        assert_eq!(net.device(1).query_srq(srq).unwrap().limit, 0);
        assert_eq!(net.device(1).destroy_srq(srq), Err(Errno::BUSY));
        ends[0].1.fail(net);
        net.settle();
        assert!(net.asyncs(1).contains(&AsyncEvent::LastWqeReached(ends[0].1.qp)));
    });
}

#[test]
fn a_process_can_have_any_number_of_peers_over_time() {
    everywhere(|net| {
        let plan = Plan::default();
        let (a, b) = (open(net, 0, &plan), open(net, 1, &plan));
        for stranger in 0..4 * MAX_PEERS as u16 {
            to_init(net, &a, &plan);
            to_rtr_with(net, &a, 100 + stranger, b.qpn, &plan);
            to_rts(net, &a, &plan);
            a.post(net, 1, SendOp::Write { va: b.va(0), rkey: b.key }, &[a.sge(0, 8)]);
            net.settle();
            let reset = QpAttr { state: QpState::Reset, ..plan.attr };
            net.device(0).modify_qp(a.qp, &reset, QpAttrMask::STATE).unwrap();
        }
        a.poll_sends(net);
        connect(net, &a, &b, &plan);
        a.post(net, 2, SendOp::Write { va: b.va(0), rkey: b.key }, &[a.sge(0, 8)]);
        net.settle();
        assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::Success]);
    });
}

#[test]
fn a_peer_beyond_the_limit_gets_a_link_when_another_is_gone() {
    let mut net = Net::new(2, Policy::Stable, Medium::Pipe, 3);
    let plan = Plan::default();
    let others: Vec<_> = (0..MAX_PEERS as u16).map(|_| open(&mut net, 0, &plan)).collect();
    let (a, b) = (open(&mut net, 0, &plan), open(&mut net, 1, &plan));
    for (stranger, end) in (100..).zip(&others) {
        to_init(&mut net, end, &plan);
        to_rtr_with(&mut net, end, stranger, b.qpn, &plan);
    }
    connect(&mut net, &a, &b, &plan);
    net.device(0).destroy_qp(others[0].qp).unwrap();
    for number in 0..3 {
        b.post(&mut net, number, SendOp::Write { va: a.va(0), rkey: a.key }, &[b.sge(0, 8)]);
        net.settle();
        assert_eq!(statuses(&b.poll_sends(&mut net)), [WcStatus::Success], "{number}");
        // Acknowledgements owed over the old link are sent over the next.
        b.post(&mut net, number, SendOp::Write { va: a.va(0), rkey: a.key }, &[b.sge(0, 8)]);
        net.step();
        net.cut();
        net.settle();
        assert_eq!(statuses(&b.poll_sends(&mut net)), [WcStatus::Success], "{number}, cut");
    }
    a.post(&mut net, 1, SendOp::Write { va: b.va(0), rkey: b.key }, &[a.sge(0, 8)]);
    net.settle();
    assert_eq!(statuses(&a.poll_sends(&mut net)), [WcStatus::Success]);
}

#[test]
fn pending_frames_of_an_evicted_link_do_not_reach_the_next_peer() {
    const MANY: u64 = 16;
    for seed in 0..8 {
        let mut net = Net::new(3, Policy::Stable, Medium::Pipe, seed);
        let plan = Plan::default();
        let (a, b) = pair(&mut net, 0, 1, &plan);
        let c = open(&mut net, 2, &plan);
        let write = |to: &End| SendOp::Write { va: to.va(0), rkey: to.key };
        a.post(&mut net, 1, write(&b), &[a.sge(0, 8)]);
        net.settle();
        // More than the way holds.
        for number in 0..MANY {
            b.receive(&mut net, number, &[b.sge(0, 60_000)]);
            a.post(&mut net, number, SendOp::Send, &[a.sge(0, 60_000)]);
        }
        net.device(0).progress(Duration::from_secs(1));
        let reset = QpAttr { state: QpState::Reset, ..plan.attr };
        net.device(0).modify_qp(a.qp, &reset, QpAttrMask::STATE).unwrap();
        a.poll_sends(&mut net);
        connect(&mut net, &a, &c, &plan);
        for number in 3..6 {
            a.post(&mut net, number, write(&c), &[a.sge(0, 8)]);
            net.settle();
            let done = a.poll_sends(&mut net);
            assert_eq!(
                done.iter().map(|wc| (wc.wr_id, wc.status)).collect::<Vec<_>>(),
                [(number, WcStatus::Success)]
            );
        }
    }
}

#[test]
fn returning_peers_are_told_from_evicted_ones() {
    for medium in Medium::ALL {
        let mut net = Net::new(3, Policy::Stable, medium, 11);
        let plan = Plan::default();
        let ends: Vec<_> = (0..3).map(|node| open(&mut net, node, &plan)).collect();
        let other = open(&mut net, 0, &plan);
        let reset = QpAttr { state: QpState::Reset, ..plan.attr };
        for (end, peer) in [(&ends[0], &ends[1]), (&other, &ends[2])] {
            to_init(&mut net, end, &plan);
            to_rtr(&mut net, end, peer, &plan);
        }
        for end in [&ends[0], &other] {
            net.device(0).modify_qp(end.qp, &reset, QpAttrMask::STATE).unwrap();
        }
        connect(&mut net, &ends[0], &ends[1], &plan);
        for number in 0..3 {
            let op = SendOp::Write { va: ends[1].va(0), rkey: ends[1].key };
            ends[0].post(&mut net, number, op, &[ends[0].sge(0, 8)]);
            net.settle();
            assert_eq!(statuses(&ends[0].poll_sends(&mut net)), [WcStatus::Success]);
            net.suspend(0);
            net.resume(0);
        }
    }
}

#[test]
fn an_overrun_queue_fails_its_queue_pairs() {
    everywhere(|net| {
        let (a, b) = pair(net, 0, 1, &Plan { cq_depth: 2, ..Plan::default() });
        for at in 0..4 {
            a.post(net, at, SendOp::Write { va: b.va(0), rkey: b.key }, &[a.sge(0, 8)]);
        }
        net.settle();
        let events = net.asyncs(0);
        assert!(
            events.contains(&AsyncEvent::CqError(a.send_cq)) && events.contains(&AsyncEvent::QpFatal(a.qp))
        );
        assert_eq!(a.poll_sends(net).len(), 2);
        assert!(net.device(0).poll_cq(a.send_cq, 1, |_| ()).is_err());
        assert_eq!(a.state(net), QpState::Error);
    });
}

#[test]
fn armed_queues_raise_one_event() {
    everywhere(|net| {
        let (a, b) = pair(net, 0, 1, &Plan::default());
        net.device(1).arm_cq(b.recv_cq, true).unwrap();
        for (at, solicited) in [(0, false), (1, true), (2, true)] {
            b.receive(net, at, &[b.sge(0, 8)]);
            let sges = [a.sge(0, 8)];
            let wr = SendWr {
                wr_id: at,
                op: SendOp::Send,
                signaled: false,
                fence: false,
                solicited,
                srq_number: 0,
                payload: Payload::Sges(&sges),
            };
            a.post_wr(net, &wr).unwrap();
            net.settle();
            let woken =
                net.nodes[1].events.iter().filter(|event| **event == Event::Completion(b.recv_cq)).count();
            assert_eq!(woken, usize::from(at > 0));
        }
        assert_eq!(a.poll_sends(net), [], "unsignalled");
    });
}

#[test]
fn limits_and_uses_are_checked() {
    let net = &mut Net::new(2, Policy::Stable, Medium::Pipe, 1);
    let plan = Plan { caps: QpCaps { max_send_wr: 2, ..Plan::default().caps }, ..Plan::default() };
    let (a, b) = pair(net, 0, 1, &plan);
    net.suspend(1);
    let op = SendOp::Write { va: b.va(0), rkey: b.key };
    assert!(a.try_post(net, 1, op, &[a.sge(0, 1); 5]).is_err());
    a.post(net, 1, op, &[]);
    a.post(net, 2, op, &[]);
    assert_eq!(a.try_post(net, 3, op, &[]), Err(Errno::NO_MEMORY));
    assert_eq!(net.device(0).dealloc_pd(a.pd), Err(Errno::BUSY));
    assert_eq!(net.device(0).destroy_cq(a.send_cq), Err(Errno::BUSY));
    net.device(0).destroy_qp(a.qp).unwrap();
    assert_eq!(net.device(0).destroy_qp(a.qp), Err(Errno::INVALID));
    net.device(0).dereg_mr(a.mr).unwrap();
    net.device(0).dealloc_pd(a.pd).unwrap();
    net.device(0).destroy_cq(a.send_cq).unwrap();
    // SAFETY: refused before anything is touched.
    let refused = unsafe { net.device(1).reg_mr(b.pd, u64::MAX - 5, 10, 0, Access::empty()) };
    assert_eq!(refused.err(), Some(Errno::INVALID));
    // SAFETY: refused before anything is touched.
    let refused = unsafe { net.device(1).reg_mr(b.pd, b.va(0), 10, 0, Access::REMOTE_WRITE) };
    assert_eq!(refused.err(), Some(Errno::INVALID));
}

#[test]
fn completions_survive_destroying_the_queue_pair_but_not_resetting_it() {
    let is_found_after = |end: fn(&mut Net, &End)| {
        let net = &mut Net::new(2, Policy::Stable, Medium::Pipe, 1);
        let (a, b) = pair(net, 0, 1, &Plan::default());
        b.receive(net, 7, &[b.sge(0, 10)]);
        a.post(net, 1, SendOp::Send, &[a.sge(0, 10)]);
        net.settle();
        for side in [&a, &b] {
            end(net, side);
        }
        let (sent, received) = (a.poll_sends(net), b.poll_receives(net));
        [sent, received].map(|found| found.iter().map(|wc| (wc.wr_id, wc.status)).collect::<Vec<_>>())
    };
    let [_, reset, destroy] = ENDS;
    assert_eq!(is_found_after(destroy), [[(1, WcStatus::Success)], [(7, WcStatus::Success)]]);
    assert_eq!(is_found_after(reset), [[], []]);
}

/// Events of a queue pair while a message is arriving for it.
const ENDS: [fn(&mut Net, &End); 3] = [
    |net, end| end.fail(net),
    |net, end| {
        let reset = QpAttr { state: QpState::Reset, ..QpAttr::default() };
        net.device(end.node).modify_qp(end.qp, &reset, QpAttrMask::STATE).unwrap();
    },
    |net, end| net.device(end.node).destroy_qp(end.qp).unwrap(),
];

#[test]
fn a_message_is_dropped_when_its_queue_pair_is_destroyed_half_way() {
    for (medium, end) in Medium::ALL.into_iter().flat_map(|medium| ENDS.map(|end| (medium, end))) {
        for steps in 0..30 {
            let net = &mut Net::new(2, Policy::Stable, medium, steps);
            let mut plan = Plan { memory: 1 << 20, ..Plan::default() };
            plan.attr.timeout = 1;
            let (a, b) = pair(net, 0, 1, &plan);
            b.receive(net, 1, &[b.sge(0, 1 << 20)]);
            let write = SendOp::Write { va: b.va(0), rkey: b.key };
            for (wr_id, op) in [write, SendOp::Send, write].into_iter().enumerate() {
                a.post(net, wr_id as u64, op, &[a.sge(0, 700_000)]);
            }
            for _ in 0..steps {
                net.step();
            }
            end(net, &b);
            net.settle();
            let ends = statuses(&a.poll_sends(net));
            let done = ends.iter().take_while(|status| **status == WcStatus::Success).count();
            let rest = [WcStatus::RetryExceeded, WcStatus::Flushed, WcStatus::Flushed];
            assert_eq!(ends[done..], rest[..3 - done], "{medium:?}, after {steps} steps");
        }
    }
}

#[test]
fn executed_messages_are_acknowledged_when_the_queue_pair_is_destroyed() {
    for (medium, end) in Medium::ALL.into_iter().flat_map(|medium| ENDS.map(|end| (medium, end))) {
        let net = &mut Net::new(2, Policy::Stable, medium, 1);
        let (a, b) = pair(net, 0, 1, &Plan::default());
        b.receive(net, 0, &[b.sge(0, 10)]);
        a.post(net, 0, SendOp::Send, &[a.sge(0, 10)]);
        net.settle();
        assert_eq!((a.poll_sends(net).len(), b.poll_receives(net).len()), (1, 1));
        b.receive(net, 1, &[b.sge(0, 10)]);
        net.device(1).hold_acks(true);
        a.post(net, 1, SendOp::Send, &[a.sge(0, 10)]);
        net.run(|net| net.device(1).has_output(), 1_000_000);
        end(net, &b);
        net.settle();
        assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::Success], "{medium:?}");
    }
}

#[test]
fn messages_before_an_unsent_answer_are_acknowledged() {
    for (medium, end) in Medium::ALL.into_iter().flat_map(|medium| ENDS.map(|end| (medium, end))) {
        let net = &mut Net::new(2, Policy::Stable, medium, 1);
        let mut plan = Plan { memory: 4 << 20, ..Plan::default() };
        plan.attr.timeout = 1;
        let (a, b) = pair(net, 0, 1, &plan);
        b.receive(net, 0, &[b.sge(0, 10)]);
        net.device(1).hold_acks(true);
        a.post(net, 0, SendOp::Send, &[a.sge(0, 10)]);
        a.post(net, 1, SendOp::Read { va: b.va(0), rkey: b.key }, &[a.sge(0, 4 << 20)]);
        net.run(|net| !b.poll_receives(net).is_empty(), 1_000_000);
        end(net, &b);
        net.settle();
        let ends = statuses(&a.poll_sends(net));
        assert_eq!(ends, [WcStatus::Success, WcStatus::RetryExceeded], "{medium:?}");
    }
}

#[test]
fn messages_executed_behind_a_failure_are_flushed() {
    for (medium, steps) in
        Medium::ALL.into_iter().flat_map(|medium| (0..30).map(move |steps| (medium, steps)))
    {
        let net = &mut Net::new(2, Policy::Stable, medium, steps);
        let (a, b) = pair(net, 0, 1, &Plan { memory: 1 << 20, ..Plan::default() });
        a.post(net, 1, SendOp::Read { va: b.va(0), rkey: b.key }, &[a.sge(0, 900_000)]);
        a.post(net, 2, SendOp::Write { va: b.va(1_000_000), rkey: b.key }, &[a.sge(1_000_000, 8)]);
        for _ in 0..steps {
            net.step();
        }
        let done = a.poll_sends(net).len();
        a.fail(net);
        assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::Flushed, WcStatus::Flushed][done..]);
    }
}

/// Takes the pages of `memory` away.
fn unmap(memory: &Memory) {
    // SAFETY: the pages are the test's own, and only devices know them, which are to find out.
    let unmapped = unsafe { libc::munmap(memory.address() as *mut libc::c_void, memory.len()) };
    assert_eq!(unmapped, 0);
}

#[test]
fn unmapped_registered_memory_is_an_error_and_no_hang() {
    let memory = 1 << 20;
    for owner in 0..2 {
        let net = &mut Net::new(2, Policy::Stable, Medium::Tcp, 1);
        let mut plan = Plan { memory, whole_pages: true, ..Plan::default() };
        plan.attr.timeout = 1;
        let (a, b) = pair(net, 0, 1, &plan);
        let (c, d) = pair(net, 0, 1, &plan);
        unmap(if owner == 0 { &a.memory } else { &b.memory });
        let op = match owner {
            0 => SendOp::Write { va: b.va(0), rkey: b.key },
            _ => SendOp::Read { va: b.va(0), rkey: b.key },
        };
        a.post(net, 1, op, &[a.sge(0, memory)]);
        a.post(net, 2, op, &[a.sge(0, memory)]);
        c.post(net, 3, SendOp::Write { va: d.va(0), rkey: d.key }, &[c.sge(0, memory)]);
        net.settle();
        let ends = statuses(&a.poll_sends(net));
        let expected = if owner == 0 { WcStatus::LocalProtection } else { WcStatus::RetryExceeded };
        assert_eq!(ends, [expected, WcStatus::Flushed]);
        assert_eq!(statuses(&c.poll_sends(net)), [WcStatus::Success], "others on the link go on");
    }
}

/// Its peer has executed all that was sent, and cannot answer.
#[test]
fn a_read_of_unmapped_memory_fails() {
    let net = &mut Net::new(2, Policy::Stable, Medium::Tcp, 1);
    let (a, b) = pair(net, 0, 1, &Plan { memory: 1 << 20, whole_pages: true, ..Plan::default() });
    unmap(&b.memory);
    a.post(net, 1, SendOp::Read { va: b.va(0), rkey: b.key }, &[a.sge(0, 1 << 20)]);
    net.settle();
    assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::RetryExceeded]);
}

#[test]
fn frames_sent_before_a_peer_ended_are_handled() {
    let net = &mut Net::new(2, Policy::Stable, Medium::Pipe, 7);
    let (a, b) = pair(net, 0, 1, &Plan::default());
    b.receive(net, 0, &[b.sge(0, 100)]);
    b.receive(net, 1, &[b.sge(0, 100)]);
    a.post(net, 1, SendOp::Send, &[a.sge(0, 100)]);
    net.settle();
    assert_eq!((a.poll_sends(net).len(), b.poll_receives(net).len()), (1, 1));
    a.post(net, 2, SendOp::Send, &[a.sge(0, 100)]);
    // The peer takes the message and acknowledges it, which is not read yet, and ends.
    let arrived = (0..1000).any(|_| {
        let now = net.now;
        net.device(0).progress(now);
        net.device(1).progress(now);
        !b.poll_receives(net).is_empty()
    });
    assert!(arrived);
    net.device(1).destroy_qp(b.qp).unwrap();
    net.pipes.values().for_each(|pipe| pipe.end(1));
    net.nodes[1].gone = true;
    a.post(net, 3, SendOp::Send, &[a.sge(0, 100)]);
    net.settle();
    let sent = a.poll_sends(net);
    assert_eq!(sent.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(statuses(&sent), [WcStatus::Success, WcStatus::RetryExceeded]);
}
