//! Devices count the payload that they exchange with other instances.

mod support;

use fabric::Vid;
use fabric::traffic::{Traffic, Volume};
use softhca::*;
use support::*;
use verbs::Policy;

fn volume(bytes: u64, messages: u64) -> Volume {
    Volume { bytes, messages }
}

fn taken(net: &mut Net, at: usize) -> Vec<(Vid, Traffic)> {
    net.device(at).take_traffic(usize::MAX)
}

fn sent(net: &Net, to: usize, bytes: u64, messages: u64) -> Vec<(Vid, Traffic)> {
    vec![(net.nodes[to].id.vid, Traffic { sent: volume(bytes, messages), ..Traffic::default() })]
}

/// Sends `count` messages of `length` from `a` to `b`.
fn send(net: &mut Net, (a, b): (&End, &End), count: u64, length: usize) {
    for n in 0..count {
        b.receive(net, n, &[b.sge(0, length)]);
        a.post(net, n, SendOp::Send, &[a.sge(0, length)]);
        net.settle();
        assert_eq!(statuses(&a.poll_sends(net)), [WcStatus::Success]);
        assert_eq!(b.poll_receives(net).len(), 1);
    }
}

#[test]
fn the_sender_counts_bytes_and_messages_once() {
    for medium in Medium::ALL {
        let mut net = Net::new(2, Policy::Random, medium, 5);
        let (a, b) = pair(&mut net, 0, 1, &Plan { memory: 1 << 20, ..Plan::default() });
        send(&mut net, (&a, &b), 3, 8);
        send(&mut net, (&a, &b), 1, 300_000);
        assert_eq!(taken(&mut net, 0), sent(&net, 1, 300_024, 4), "{medium:?}");
        assert_eq!(taken(&mut net, 0), [], "{medium:?}");
        assert_eq!(taken(&mut net, 1), [], "acknowledgements are no payload");

        a.post(&mut net, 1, SendOp::Read { va: b.va(0), rkey: b.key }, &[a.sge(0, 5000)]);
        a.post(&mut net, 2, SendOp::FetchAdd { va: b.va(0), rkey: b.key, add: 1 }, &[a.sge(0, 8)]);
        net.settle();
        assert_eq!(a.poll_sends(&mut net).len(), 2);
        assert_eq!(taken(&mut net, 1), sent(&net, 0, 5000, 1), "the owner of the memory sends it");
        assert_eq!(taken(&mut net, 0), sent(&net, 1, 16, 1));
    }
}

#[test]
fn counts_that_were_not_reported_outlive_links_and_moves() {
    let mut net = Net::new(2, Policy::Random, Medium::Tcp, 5);
    let (a, b) = pair(&mut net, 0, 1, &Plan::default());
    send(&mut net, (&a, &b), 2, 100);
    let report = taken(&mut net, 0);
    net.device(0).keep_traffic(report);
    net.suspend(0);
    net.resume(0);
    net.settle();
    send(&mut net, (&a, &b), 1, 10);
    for end in [&a, &b] {
        net.device(end.node).destroy_qp(end.qp).unwrap();
    }
    net.suspend(0);
    assert_eq!(taken(&mut net, 0), sent(&net, 1, 210, 3));
}

#[test]
fn copies_between_neighbours_count_at_the_one_that_copies() {
    let mut net = Net::new(2, Policy::Random, Medium::Shm, 3);
    (0..2).for_each(|at| net.device(at).allow_sharing(true));
    let plan = Plan { memory: 3 << 20, whole_pages: true, ..Plan::default() };
    let (a, b) = pair(&mut net, 0, 1, &plan);
    for n in 0..8 {
        // The first ones pass through the ring, and ask for a mapping.
        a.post(&mut net, n, SendOp::Write { va: b.va(0), rkey: b.key }, &[a.sge(0, 1000)]);
        net.settle();
    }
    assert_eq!(statuses(&a.poll_sends(&mut net)), [WcStatus::Success; 8]);
    assert_eq!(taken(&mut net, 0), sent(&net, 1, 8000, 8));
    // A WRITE of one piece, and a request of several pieces, take different ways.
    a.post(&mut net, 1, SendOp::Read { va: b.va(0), rkey: b.key }, &[a.sge(0, 500), a.sge(600, 100)]);
    net.settle();
    assert_eq!(a.poll_sends(&mut net).len(), 1);
    let (here, there) = (taken(&mut net, 0), taken(&mut net, 1));
    let fetched = Traffic { fetched: volume(600, 1), ..Traffic::default() };
    let copied = here == [(net.nodes[1].id.vid, fetched)] && there.is_empty();
    // Without the privilege for userfaultfd nothing is shared.
    assert!(copied || here.is_empty() && there == sent(&net, 0, 600, 1), "{here:?} {there:?}");
}

#[test]
fn traffic_within_an_instance_is_left_out() {
    let mut net = Net::new(1, Policy::Random, Medium::Tcp, 5);
    let (a, b) = pair(&mut net, 0, 0, &Plan::default());
    send(&mut net, (&a, &b), 2, 100);
    assert_eq!(taken(&mut net, 0), []);
}
