//! The phase in which the memory travels while the instance runs: whatever goes wrong, the instance never stands still.

use std::time::Duration;

use fabric::{Epoch, Vid};
use moves::coordinator;
use moves::node::{self, Input, Operation, Outcome, Output};
use moves::progress::{self, Event};
use moves::protocol::{Directive, Report, ToCoordinator, ToNode};
use moves::{MoveId, NodeAgent};

use crate::cluster::{Cluster, Step, host, to, vid};

/// A cluster in which the source was just told to send the memory.
fn in_precopy() -> (Cluster, MoveId) {
    let mut cluster = Cluster::new();
    let id = cluster.begin(to(2));
    cluster.run(Some("h1 ◀ Precopy"));
    (cluster, id)
}

fn assert_rolled_back(cluster: &Cluster, why: &str) {
    let progress::Outcome::RolledBack { reasons } = cluster.outcome() else {
        panic!("{:?}", cluster.events);
    };
    assert_eq!(reasons, &[why]);
    assert!(cluster.never_stood_still(), "{:?}", cluster.wire);
    assert!(
        cluster.nodes[&host(2)].entry(vid()).is_none() && cluster.coordinator.snapshot().moves.is_empty()
    );
}

#[test]
fn a_failure_rolls_back() {
    let mut cluster = Cluster::new();
    cluster.refused = Some(("Precopy", "host h2 did not take it"));
    cluster.begin(to(2));
    cluster.run(None);
    assert_rolled_back(&cluster, "host h2 did not take it");
}

#[test]
fn a_cancel_rolls_back() {
    let (mut cluster, id) = in_precopy();
    let out = cluster.coordinator.cancel(id, "cancelled".into(), cluster.now).unwrap();
    cluster.coordinator_does(out);
    cluster.run(None);
    assert_rolled_back(&cluster, "cancelled");
}

#[test]
fn a_host_that_goes_away_rolls_back() {
    let (mut cluster, _) = in_precopy();
    cluster.queue.retain(|step| !matches!(step, Step::Ended(..)));
    cluster.coordinator.handle(coordinator::Input::LinkDown(host(2)), cluster.now);
    cluster.tick_after(coordinator::Config::default().unreachable);
    cluster.run(None);
    assert_rolled_back(&cluster, "host h2 is unreachable");
}

#[test]
fn a_restart_of_the_destination_rolls_back() {
    let (mut cluster, _) = in_precopy();
    cluster.queue.retain(|step| !matches!(step, Step::Ended(..)));
    cluster.restart_node(2);
    cluster.run(None);
    assert_rolled_back(&cluster, "the node restarted during the move");
}

#[test]
fn a_restart_of_the_coordinator_rolls_back() {
    let (mut cluster, _) = in_precopy();
    cluster.restart_coordinator();
    cluster.run(None);
    assert_rolled_back(&cluster, "the coordinator restarted");
}

/// Nothing of the memory that it had sent is left.
#[test]
fn a_restart_of_the_source_after_the_copy_rolls_back() {
    let (mut cluster, _) = in_precopy();
    cluster.run(Some("h1 ▶ Copied"));
    cluster.restart_node(1);
    cluster.run(None);
    let progress::Outcome::RolledBack { reasons } = cluster.outcome() else { panic!("{:?}", cluster.events) };
    assert_eq!(reasons, &["the node restarted during the move"]);
    assert!(cluster.nodes[&host(1)].runs(vid()));
    assert!(!cluster.wire.iter().any(|line| line == "h1 ▶ Suspended"), "{:?}", cluster.wire);
}

#[test]
fn a_restart_of_the_source_restarts_the_copy() {
    let (mut cluster, _) = in_precopy();
    cluster.restart_node(1);
    cluster.run(None);
    cluster.tick_after(coordinator::Config::default().repeat);
    cluster.run(None);
    assert_eq!(cluster.wire.iter().filter(|line| *line == "h1 ◀ Precopy").count(), 2);
    assert_eq!(cluster.outcome(), &progress::Outcome::Moved);
}

#[test]
fn location_is_unchanged_during_precopy() {
    let (cluster, _) = in_precopy();
    let location = cluster.coordinator.locate(vid()).unwrap();
    assert_eq!((location.host, location.moving), (host(1), false));
    assert!(cluster.nodes[&host(1)].runs(vid()));
}

#[test]
fn precopy_with_progress_has_no_time_limit() {
    let (mut cluster, id) = in_precopy();
    let copied = std::mem::take(&mut cluster.queue);
    let patience = coordinator::Config::default().transfer;
    for bytes in 1..4 {
        cluster.tick_after(patience.saturating_sub(Duration::from_secs(1)));
        cluster.tell(&host(1), Input::Progress { vid: vid(), bytes, total: 9 });
        cluster.queue.retain(|step| matches!(step, Step::ToCoordinator(..)));
        cluster.run(None);
    }
    assert!(cluster.events.contains(&Event::Progress { bytes: 3, total: 9 }));
    assert!(cluster.coordinator.moves().any(|view| view.id == id && view.is_under_way));
    cluster.queue = copied;
    cluster.run(None);
    assert_eq!(cluster.outcome(), &progress::Outcome::Moved);
}

#[test]
fn precopy_without_progress_times_out() {
    let (mut cluster, _) = in_precopy();
    cluster.queue.clear();
    cluster.tick_after(coordinator::Config::default().transfer);
    cluster.run(None);
    assert_rolled_back(&cluster, "the pre-copy phase exceeded its time limit");
}

#[test]
fn a_group_is_suspended_when_the_memory_of_all_is_sent() {
    let mut cluster = Cluster::new();
    let slow = Vid::new(77).unwrap();
    cluster.add_instance(slow, "slow");
    let together = [(vid(), host(2).into()), (slow, host(2).into())].into();
    let (_, out) = cluster.coordinator.begin_together(together, cluster.now).unwrap();
    cluster.coordinator_does(out);
    let is_slow = |step: &Step| matches!(step, Step::Ended(_, of, Outcome::Copied { .. }) if *of == slow);
    while !cluster.queue.iter().any(is_slow) {
        cluster.step();
    }
    let copied = cluster.queue.remove(cluster.queue.iter().position(is_slow).unwrap());
    cluster.run(None);
    assert_eq!(cluster.wire.last().unwrap(), "h1 ▶ Copied");
    cluster.queue.extend(copied);
    cluster.run(None);
    let count = |what| cluster.wire.iter().filter(|line| *line == what).count();
    assert_eq!((count("h1 ▶ Copied"), count("h1 ◀ Suspend"), count("h2 ▶ Running")), (2, 2, 2));
}

#[test]
fn a_checkpoint_copies_nothing_before() {
    let mut cluster = Cluster::new();
    let images = [(vid(), moves::Side::Images("/shared/job".into()))].into();
    let (_, out) = cluster.coordinator.begin_together(images, cluster.now).unwrap();
    cluster.coordinator_does(out);
    cluster.run(None);
    assert_eq!(cluster.outcome(), &progress::Outcome::Saved);
    assert!(!cluster.wire.iter().any(|line| line.contains("Precopy")), "{:?}", cluster.wire);
}

/// A node that hosts the instance, and its reactions to directives of a move.
struct Source(NodeAgent);

impl Source {
    fn new() -> Self {
        let mut agent = NodeAgent::new(host(1), node::Config::default(), [].into(), Duration::ZERO).0;
        agent.host_instance(vid(), Epoch(0)).unwrap();
        Self(agent)
    }

    fn told(&mut self, directive: Directive) -> Vec<Output> {
        let message = ToNode::Move { id: MoveId(1), vid: vid(), directive };
        self.0.handle(Input::Message(message), Duration::ZERO)
    }

    fn copy(&mut self) -> Vec<Output> {
        self.told(Directive::Precopy { destination: host(2), post_copy: false })
    }

    fn ended(&mut self, outcome: Outcome) -> Vec<Output> {
        self.0.handle(Input::Ended { vid: vid(), outcome }, Duration::ZERO)
    }
}

fn reports(report: Report) -> Output {
    Output::Send(ToCoordinator::Move { id: MoveId(1), vid: vid(), report })
}

#[test]
fn lost_reports_are_repeated() {
    for (outcome, report) in [
        (Outcome::Copied { bytes: 5 }, Report::Copied { bytes: 5 }),
        (Outcome::Failed { reason: "no".into() }, Report::Failed { reason: "no".into() }),
    ] {
        let mut source = Source::new();
        let (id, destination) = (MoveId(1), host(2));
        let operation = Operation::Precopy { id, destination, post_copy: false };
        assert_eq!(source.copy(), [Output::Operate { vid: vid(), operation }]);
        assert_eq!(source.copy(), [], "it is under way");
        assert_eq!(source.ended(outcome), [reports(report.clone())]);
        assert_eq!(source.copy(), [reports(report)]);
    }
}

#[test]
fn a_rollback_and_the_end_of_the_instance_cancel_it() {
    let stays = Output::Stays { vid: vid() };
    let mut source = Source::new();
    source.copy();
    let out = source.told(Directive::RollBack);
    assert!(out.contains(&Output::Cancel { vid: vid() }) && out.contains(&reports(Report::RolledBack)));
    // It may have got something ready meanwhile.
    assert_eq!(source.ended(Outcome::Failed { reason: "cancelled".into() }), [stays]);
    assert_eq!(source.copy(), [], "the move is over");

    let mut source = Source::new();
    source.copy();
    let out =
        source.0.handle(Input::Exited { vid: vid(), exit: moves::journal::Exit::Code(0) }, Duration::ZERO);
    assert!(out.contains(&Output::Cancel { vid: vid() }));
    assert_eq!(source.ended(Outcome::Copied { bytes: 5 }), []);
}

#[test]
fn source_refuses_suspend_without_precopy() {
    let mut source = Source::new();
    let out = source.told(Directive::Suspend { epoch: Epoch(0), destination: host(2).into() });
    let reason = "the node restarted during the move".into();
    assert_eq!(out, [reports(Report::Failed { reason })]);
}
