//! Restores that are given up.

use std::collections::BTreeMap;
use std::time::Duration;

use fabric::Vid;
use moves::coordinator::SavedInstance;
use moves::journal::Instance;
use moves::progress::{Event, Outcome};

use super::cluster::{Cluster, host, instance};

fn saved() -> (Vid, SavedInstance) {
    let instance = Instance { host: host(2), ..instance("saved") };
    (Vid::new(8).unwrap(), SavedInstance { instance, images: "/checkpoint/saved".into(), facts: Vec::new() })
}

/// A cluster in which the restore of [`saved`] was cancelled, and no node knows it yet.
fn given_up() -> Cluster {
    let mut cluster = Cluster::new();
    let now = cluster.now;
    let (ids, out) = cluster.coordinator.restore_together(BTreeMap::from([saved()]), now).unwrap();
    cluster.coordinator_does(out);
    cluster.run(Some("h2 ◀ Prepare"));
    let out = cluster.coordinator.cancel(ids[0], "cancelled".into(), now).unwrap();
    cluster.coordinator_does(out);
    cluster
}

fn is_told(cluster: &Cluster) -> bool {
    let tells = |event: &&Event| matches!(event, Event::Ended { outcome: Outcome::RolledBack { .. }, .. });
    cluster.events.iter().filter(tells).count() == 1
}

/// Otherwise a user who repeats it at once would find its remains.
#[test]
fn restore_failure_is_reported_after_cleanup() {
    let mut cluster = given_up();
    let left = |cluster: &Cluster| cluster.nodes[&host(2)].entry(saved().0).is_some();
    while cluster.step() {
        assert!(!is_told(&cluster) || !left(&cluster), "{:?}", cluster.wire);
    }
    assert!(is_told(&cluster));
    let again = cluster.coordinator.restore_together(BTreeMap::from([saved()]), cluster.now);
    assert!(again.is_ok());
}

#[test]
fn a_host_that_does_not_answer_is_not_waited_for() {
    let mut cluster = given_up();
    cluster.forget_host(2);
    cluster.tick_after(Duration::from_millis(900));
    assert!(!is_told(&cluster));
    cluster.tick_after(Duration::from_millis(200));
    assert!(is_told(&cluster));
    cluster.tick_after(Duration::from_secs(2));
    assert!(is_told(&cluster), "once");
}
