//! Moves without faults, and requests of users: the sequence diagram of `moves::protocol`, executed.

mod cluster;
mod lost;
mod post_copy;
mod precopy;
mod restore;

use std::collections::BTreeMap;
use std::time::Duration;

use cluster::{Cluster, STEP, Step, host, instance, to, vid};
use fabric::{Epoch, Vid};
use moves::coordinator::{self, AddError, MoveRequest, Refusal, TooLate};
use moves::journal::{Exit, Record, Stage};
use moves::node::{self, Operation, Outcome};
use moves::progress::{self, Event, Phase, Silence};
use moves::protocol::{Directive, Report, ToCoordinator, ToNode};
use moves::{MoveId, NodeAgent};

#[test]
fn a_move_goes_as_in_the_diagram() {
    let mut cluster = Cluster::new();
    cluster.begin(to(2));
    cluster.run(None);
    let expected = [
        "● MoveBegan",
        "h1 ◀ CheckSource",
        "h1 ▶ Checked",
        "h2 ◀ Prepare",
        "h2 ▶ Prepared",
        "h1 ◀ Precopy",
        "h1 ▶ Copied",
        "h1 ◀ Suspend",
        "h1 ▶ Suspended",
        "h1 ▶ Sent",
        "h2 ▶ Ready",
        "● MovesCommitted",
        "h2 ◀ Resume",
        "h2 ▶ Running",
        "● MoveConfirmed",
        "h1 ◀ Destroy",
        "h1 ▶ Destroyed",
        "● MoveEnded",
    ];
    assert_eq!(cluster.wire, expected);
    let place = cluster.coordinator.locate(vid()).unwrap();
    assert_eq!((place.host, place.epoch, place.moving), (host(2), Epoch(1), false));
    assert!(cluster.nodes[&host(2)].runs(vid()) && cluster.nodes[&host(1)].entry(vid()).is_none());
}

#[test]
fn the_user_sees_every_phase_with_its_duration() {
    let mut cluster = Cluster::new();
    cluster.begin(to(2));
    cluster.run(None);
    assert_eq!(cluster.outcome(), &progress::Outcome::Moved);
    let phases = cluster.events.iter().find_map(|event| match event {
        Event::Ended { phases, .. } => Some(phases.clone()),
        _ => None,
    });
    let phases = phases.unwrap();
    let order: Vec<Phase> = phases.iter().map(|(phase, _)| *phase).collect();
    let expected =
        [Phase::Prepare, Phase::Precopy, Phase::Suspend, Phase::Transfer, Phase::Restore, Phase::Resume];
    assert_eq!(order, expected);
    assert!(phases.iter().all(|(_, duration)| *duration >= STEP), "{phases:?}");
    assert_eq!(cluster.events.last(), Some(&Event::Cleaned));
}

#[test]
fn a_refusal_is_reported_in_its_own_words_and_leaves_nothing() {
    let mut cluster = Cluster::new();
    cluster.refused = Some(("Prepare", "/opt/model.bin is not on this host: copy it there"));
    cluster.begin(to(2));
    cluster.run(None);
    let reasons = vec!["/opt/model.bin is not on this host: copy it there".into()];
    assert_eq!(cluster.outcome(), &progress::Outcome::RolledBack { reasons });
    assert!(cluster.nodes[&host(1)].runs(vid()) && cluster.nodes[&host(2)].entry(vid()).is_none());
    assert!(cluster.coordinator.snapshot().moves.is_empty());
}

#[test]
fn a_dry_run_only_checks() {
    let mut cluster = Cluster::new();
    cluster.begin(MoveRequest { dry_run: true, ..to(2) });
    let asks_for_a_dry_run = |step: &Step| {
        let Step::ToNode(_, ToNode::Move { directive, .. }) = step else { return false };
        *directive == Directive::CheckSource { destination: host(2).into(), dry_run: true }
    };
    assert!(cluster.queue.iter().any(asks_for_a_dry_run));
    cluster.run(None);
    assert_eq!(cluster.outcome(), &progress::Outcome::Feasible);
    assert!(!cluster.wire.iter().any(|line| line.contains("Prepare") || line.contains("Suspend")));
    assert!(cluster.nodes[&host(1)].runs(vid()));
    cluster.begin(to(2));
}

#[test]
fn a_cancel_before_the_commit_rolls_back() {
    let mut cluster = Cluster::new();
    let id = cluster.begin(to(2));
    cluster.run(Some("h1 ◀ Suspend"));
    let out = cluster.coordinator.cancel(id, "cancelled".into(), cluster.now).unwrap();
    cluster.coordinator_does(out);
    cluster.run(None);
    assert!(matches!(cluster.outcome(), progress::Outcome::RolledBack { .. }));
    assert!(cluster.nodes[&host(1)].runs(vid()));
    assert_eq!(cluster.coordinator.cancel(id, "cancelled".into(), cluster.now), Err(TooLate::Over(id)));
}

/// Otherwise a user who waits for it would begin the next move too early.
#[test]
fn a_move_is_under_way_until_another_may_begin() {
    let mut cluster = Cluster::new();
    let id = cluster.begin(to(2));
    let is_under_way = |cluster: &Cluster| cluster.coordinator.moves().any(|view| view.is_under_way);
    cluster.run(Some("h1 ◀ Suspend"));
    let out = cluster.coordinator.cancel(id, "cancelled".into(), cluster.now).unwrap();
    assert!(is_under_way(&cluster), "given up, but the source has not let it run");
    assert!(cluster.coordinator.begin(to(2), cluster.now).is_err());
    cluster.coordinator_does(out);
    cluster.run(None);
    assert!(!is_under_way(&cluster));
    assert!(cluster.coordinator.begin(to(2), cluster.now).is_ok());
}

#[test]
fn a_cancel_after_the_commit_is_too_late() {
    let mut cluster = Cluster::new();
    let id = cluster.begin(to(2));
    cluster.run(Some("● MovesCommitted"));
    assert_eq!(cluster.coordinator.cancel(id, "cancelled".into(), cluster.now), Err(TooLate::Committed(id)));
    cluster.run(None);
    assert_eq!(cluster.outcome(), &progress::Outcome::Moved);
}

#[test]
fn impossible_moves_are_refused_with_the_reason() {
    let mut cluster = Cluster::new();
    let mut refusal = |request| cluster.coordinator.begin(request, Duration::ZERO).unwrap_err();
    let stranger = Vid::new(8).unwrap();
    assert_eq!(refusal(MoveRequest { vid: stranger, ..to(2) }), Refusal::UnknownInstance(stranger));
    assert_eq!(refusal(to(1)), Refusal::SameHost(host(1)));
    assert_eq!(refusal(to(3)), Refusal::NotConnected(host(3)));
    let id = cluster.begin(to(2));
    assert_eq!(cluster.coordinator.begin(to(2), cluster.now).unwrap_err(), Refusal::InProgress(id));
}

#[test]
fn names_and_vids_belong_to_one_instance() {
    let mut cluster = Cluster::new();
    let other = Vid::new(8).unwrap();
    let mut add = |vid, name| cluster.coordinator.add_instance(vid, instance(name)).unwrap_err();
    assert_eq!(add(vid(), "other"), AddError::VidTaken(vid()));
    assert_eq!(add(other, "job"), AddError::NameTaken("job".into()));
}

#[test]
fn a_host_that_goes_away_before_the_commit_ends_the_move_soon() {
    let mut cluster = Cluster::new();
    cluster.begin(to(2));
    cluster.run(Some("h1 ◀ CheckSource"));
    cluster.coordinator.handle(coordinator::Input::LinkDown(host(2)), cluster.now);
    let grace = coordinator::Config::default().unreachable;
    let out = cluster.coordinator.handle(coordinator::Input::Tick, cluster.now + grace);
    let reasons = vec!["host h2 is unreachable".into()];
    assert!(out.contains(&coordinator::Output::Record(Record::MoveRolledBack { id: MoveId(1), reasons })));
    // Nothing is overdue: the disconnected host gets no repeated questions.
    assert!(cluster.coordinator.wake_at() > Some(cluster.now + grace));
}

#[test]
fn a_node_speaks_for_its_own_part_only() {
    let mut cluster = Cluster::new();
    let id = cluster.begin(to(2));
    cluster.run(Some("h1 ◀ Suspend"));
    let ready = ToCoordinator::Move { id, vid: vid(), report: Report::Ready };
    let exited = ToCoordinator::Exited { vid: vid(), epoch: Epoch(0), exit: Exit::Code(0) };
    for message in [ready, exited] {
        let out =
            cluster.coordinator.handle(coordinator::Input::Message { from: host(3), message }, cluster.now);
        assert!(!out.iter().any(|output| matches!(output, coordinator::Output::Record(_))), "{out:?}");
    }
}

#[test]
fn a_restarted_node_waits_for_the_decision() {
    let mut cluster = Cluster::new();
    let id = cluster.begin(to(2));
    cluster.run(Some("h1 ◀ Suspend"));
    let entries: BTreeMap<_, _> =
        cluster.nodes[&host(1)].entries().map(|(vid, entry)| (vid, entry.clone())).collect();
    let (mut agent, out) = NodeAgent::new(host(1), node::Config::default(), entries, cluster.now);
    assert_eq!(out, []);
    for _ in 0..10 {
        let Some(at) = agent.wake_at() else { break };
        let out = agent.handle(node::Input::Tick, at);
        assert!(!out.iter().any(|output| matches!(output, node::Output::Operate { .. })), "{out:?}");
    }
    let directive = Directive::RollBack;
    let message = node::Input::Message(ToNode::Move { id, vid: vid(), directive });
    let out = agent.handle(message, cluster.now);
    let operation = Operation::Continue { epoch: Epoch(0) };
    assert_eq!(out.last(), Some(&node::Output::Operate { vid: vid(), operation }));
}

#[test]
fn a_move_back_waits_until_nothing_is_left_of_the_one_before() {
    let mut cluster = Cluster::new();
    cluster.begin(to(2));
    cluster.run(Some("● MoveConfirmed"));
    let end = cluster.queue.drain(..).collect::<Vec<_>>();
    let id = cluster.begin(to(1));
    cluster.run(None);
    assert_eq!(cluster.wire.last().unwrap(), "h2 ▶ Checked");
    cluster.events.clear();
    cluster.tick_after(Duration::from_secs(2));
    let silence = Silence::CleaningUp(MoveId(1));
    assert!(cluster.events.contains(&Event::Waiting { host: host(1), silence }));
    cluster.queue.extend(end);
    cluster.run(None);
    assert_eq!(cluster.outcome(), &progress::Outcome::Moved);
    assert_eq!((id, cluster.coordinator.locate(vid()).unwrap().epoch), (MoveId(2), Epoch(2)));
    assert!(cluster.nodes[&host(1)].runs(vid()) && cluster.coordinator.snapshot().moves.is_empty());
}

#[test]
fn a_move_back_does_not_wait_for_ever() {
    let mut cluster = Cluster::new();
    cluster.begin(to(2));
    cluster.run(Some("● MoveConfirmed"));
    cluster.queue.clear();
    cluster.begin(to(1));
    cluster.run(None);
    cluster.events.clear();
    cluster.tick_after(coordinator::Config::default().prepare);
    cluster.queue.retain(|step| !matches!(step, Step::ToNode(to, _) if *to == host(1)));
    cluster.run(None);
    let progress::Outcome::RolledBack { reasons } = cluster.outcome() else { panic!("it is over") };
    assert!(reasons[0].contains("h1 has not yet cleaned up after move 1"), "{reasons:?}");
    assert!(cluster.nodes[&host(2)].runs(vid()));
}

#[test]
fn silent_hosts_are_reported_repeatedly() {
    let mut cluster = Cluster::new();
    let id = cluster.begin(to(2));
    cluster.run(Some("h1 ▶ Sent"));
    let out = cluster.coordinator.cancel(id, "cancelled".into(), cluster.now).unwrap();
    cluster.coordinator_does(out);
    cluster.coordinator.handle(coordinator::Input::LinkDown(host(1)), cluster.now);
    cluster.queue.retain(|step| !matches!(step, Step::ToNode(to, _) if *to == host(1)));
    cluster.run(None);
    cluster.events.clear();
    cluster.tick_after(Duration::from_millis(900));
    assert_eq!(cluster.events, []);
    let waiting = Event::Waiting { host: host(1), silence: Silence::NotConnected };
    for _ in 0..3 {
        cluster.tick_after(Duration::from_millis(1100));
        assert_eq!(cluster.events.pop(), Some(waiting.clone()));
    }
}

#[test]
fn prepared_resources_are_freed_when_the_move_is_over() {
    let mut agent = NodeAgent::new(host(1), node::Config::default(), BTreeMap::new(), Duration::ZERO).0;
    agent.host_instance(vid(), Epoch(0)).unwrap();
    let mut tell = |directive| {
        let message = ToNode::Move { id: MoveId(1), vid: vid(), directive };
        agent.handle(node::Input::Message(message), Duration::ZERO)
    };
    tell(Directive::CheckSource { destination: host(2).into(), dry_run: false });
    let stays = node::Output::Stays { vid: vid() };
    assert!(tell(Directive::RollBack).contains(&stays));
    // The check under way may still get something ready.
    let outcome = Outcome::Checked { facts: Vec::new() };
    let out = agent.handle(node::Input::Ended { vid: vid(), outcome }, Duration::ZERO);
    assert!(out.contains(&stays));
}

#[test]
fn group_rollback_names_the_failed_member_once() {
    let mut cluster = Cluster::new();
    let other = Vid::new(77).unwrap();
    cluster.coordinator.add_instance(other, instance("other")).unwrap();
    let together = [(vid(), host(2).into()), (other, host(2).into())].into();
    let (ids, _) = cluster.coordinator.begin_together(together, cluster.now).unwrap();
    let reasons = ["a is open", "b is open"].map(String::from).to_vec();
    let id = *ids.iter().find(|id| cluster.coordinator.snapshot().moves[*id].vid == vid()).unwrap();
    let message = ToCoordinator::Move { id, vid: vid(), report: Report::Refused { reasons } };
    cluster.coordinator.handle(coordinator::Input::Message { from: host(1), message }, cluster.now);
    let moves = &cluster.coordinator.snapshot().moves;
    let of_other = moves.values().find(|record| record.vid == other).unwrap();
    let expected = ["job, which moves with it, was not moved: a is open", "b is open"].map(String::from);
    assert_eq!(of_other.stage, Stage::RolledBack { reasons: expected.to_vec() });
}

/// It is no instance any more by then.
#[test]
fn group_rollback_names_the_ended_member() {
    let mut cluster = Cluster::new();
    let other = Vid::new(77).unwrap();
    cluster.coordinator.add_instance(other, instance("other")).unwrap();
    let together = [(vid(), host(2).into()), (other, host(2).into())].into();
    cluster.coordinator.begin_together(together, cluster.now).unwrap();
    let message = ToCoordinator::Exited { vid: vid(), epoch: Epoch(0), exit: Exit::Code(7) };
    cluster.coordinator.handle(coordinator::Input::Message { from: host(1), message }, cluster.now);
    let moves = &cluster.coordinator.snapshot().moves;
    let of_other = moves.values().find(|record| record.vid == other).unwrap();
    let expected = "job, which moves with it, was not moved: the instance has ended".to_owned();
    assert_eq!(of_other.stage, Stage::RolledBack { reasons: vec![expected] });
}

#[test]
fn a_source_that_is_to_suspend_may_wait_for_others() {
    let mut cluster = Cluster::new();
    cluster.begin(to(2));
    cluster.run(Some("h1 ◀ Suspend"));
    cluster.forget_host(1);
    cluster.tick_after(Duration::from_secs(2));
    let waiting = Event::Waiting { host: host(1), silence: Silence::MayQueue };
    assert!(cluster.events.contains(&waiting), "{:?}", cluster.events);
}
