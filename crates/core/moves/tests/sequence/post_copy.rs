//! An instance runs before all its memory has arrived: until then, the source keeps its copy.

use moves::MoveId;
use moves::coordinator::{self, MoveRequest, Refusal};
use moves::entry::Role;
use moves::journal::Exit;
use moves::node::Outcome;
use moves::progress;

use crate::cluster::{Cluster, host, to, vid};

/// A cluster in which the instance has just reported missing memory; fetching it will end with `fetched`.
fn in_fetch(fetched: Outcome) -> Cluster {
    let mut cluster = Cluster::new();
    cluster.fetched = Some(fetched);
    cluster.begin(MoveRequest { post_copy: true, ..to(2) });
    cluster.run(Some("h2 ▶ Incomplete"));
    cluster
}

fn lost() -> Outcome {
    Outcome::Gone { exit: Exit::Lost { reason: "its memory is lost".into() } }
}

/// The directives to the source, and the records, since the commit.
fn since_commit(cluster: &Cluster) -> Vec<&str> {
    let lines = cluster.wire.iter().skip_while(|line| *line != "● MovesCommitted");
    lines.filter(|line| line.starts_with("h1 ◀") || line.starts_with('●')).map(String::as_str).collect()
}

#[test]
fn the_source_destroys_its_copy_when_all_memory_has_arrived() {
    let mut cluster = in_fetch(Outcome::Done);
    assert_eq!(since_commit(&cluster), ["● MovesCommitted"]);
    cluster.run(None);
    assert_eq!(
        since_commit(&cluster),
        ["● MovesCommitted", "● MoveConfirmed", "h1 ◀ Destroy", "● MoveEnded"]
    );
    assert_eq!(cluster.outcome(), &progress::Outcome::Moved);
}

#[test]
fn fetching_instance_is_located_but_cannot_move() {
    let mut cluster = in_fetch(Outcome::Done);
    let location = cluster.coordinator.locate(vid()).unwrap();
    assert_eq!((location.host, location.moving), (host(2), false));
    assert!(cluster.nodes[&host(2)].runs(vid()));
    let refused = cluster.coordinator.begin(to(1), cluster.now).unwrap_err();
    assert_eq!(refused, Refusal::Fetching { id: MoveId(1), host: host(1).into() });
    let too_late = cluster.coordinator.cancel(MoveId(1), "cancelled".into(), cluster.now);
    assert_eq!(too_late, Err(coordinator::TooLate::Committed(MoveId(1))));
}

#[test]
fn post_copy_survives_any_restart() {
    for who in 0..3 {
        let mut cluster = in_fetch(Outcome::Done);
        match who {
            0 => cluster.restart_coordinator(),
            number => cluster.restart_node(number),
        }
        let entry = cluster.nodes[&host(2)].entry(vid()).unwrap();
        assert!(matches!(&entry.role, Role::Host { memory_at: Some(source), .. } if *source == host(1)));
        cluster.run(None);
        cluster.tick_after(coordinator::Config::default().repeat);
        cluster.run(None);
        assert!(cluster.coordinator.snapshot().moves.is_empty(), "{who}: {:?}", cluster.wire);
        assert!(
            cluster.nodes[&host(2)].runs(vid()) && cluster.nodes[&host(1)].entry(vid()).is_none(),
            "{who}"
        );
    }
}

#[test]
fn instance_with_lost_memory_ends_with_the_reason() {
    let mut cluster = in_fetch(lost());
    cluster.run(None);
    assert_eq!(cluster.outcome(), &progress::Outcome::Bereft { reason: "its memory is lost".into() });
    assert_eq!(cluster.coordinator.locate(vid()), None);
    assert!(cluster.coordinator.snapshot().moves.is_empty());
    assert!([1, 2].iter().all(|number| cluster.nodes[&host(*number)].entry(vid()).is_none()));
}
