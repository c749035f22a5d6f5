//! A host is gone for good, at each moment of a move.

use std::time::Duration;

use moves::MoveId;
use moves::journal::Exit;

use super::cluster::{Cluster, host, to, vid};

/// A cluster in which a move has gone so many steps; `None` if it was over before.
fn after(steps: usize, cancelled: bool) -> Option<Cluster> {
    let mut cluster = Cluster::new();
    let id = cluster.begin(to(2));
    for step in 0..steps {
        if cancelled && step == steps / 2 {
            let out = cluster.coordinator.cancel(id, "cancelled".into(), cluster.now).unwrap_or_default();
            cluster.coordinator_does(out);
        }
        if !cluster.step() {
            return None;
        }
    }
    Some(cluster)
}

/// The host is lost, and nothing that was under way to it or from it arrives.
fn lose(cluster: &mut Cluster, number: u8) {
    let now = cluster.now;
    cluster.coordinator.handle(moves::coordinator::Input::LinkDown(host(number)), now);
    let out = cluster.coordinator.lose(&host(number), "it burnt down", now);
    cluster.forget_host(number);
    cluster.coordinator_does(out);
}

/// All that is under way comes to its end, with directives that are sent again.
fn settle(cluster: &mut Cluster) {
    for _ in 0..3 {
        cluster.run(None);
        cluster.tick_after(Duration::from_secs(1));
    }
}

/// Loses the host at each moment, and checks that everything settles then.
fn lose_at_each_moment(number: u8, cancelled: bool) -> [usize; 2] {
    let (mut lost, mut kept) = (0, 0);
    for steps in 0.. {
        let Some(mut cluster) = after(steps, cancelled) else { return [lost, kept] };
        if cluster.coordinator.leaves(&host(number)).is_some() {
            // It goes forward, and the host is not lost before.
            assert_eq!(number, 1);
            cluster.run(Some("● MoveConfirmed"));
            assert_eq!(cluster.coordinator.leaves(&host(number)), None);
        }
        let before = cluster.coordinator.locate(vid()).unwrap();
        lose(&mut cluster, number);
        let is_lost = before.host == host(number);
        assert_eq!(cluster.coordinator.locate(vid()).is_none(), is_lost, "{:?}", cluster.wire);
        settle(&mut cluster);
        let image = cluster.coordinator.snapshot();
        assert!(image.moves.is_empty(), "after {steps}: {:?}, {:?}", image.moves, cluster.wire);
        let other = 3 - number;
        assert_eq!(cluster.nodes[&host(other)].runs(vid()), !is_lost, "after {steps}: {:?}", cluster.wire);
        assert_eq!(cluster.nodes[&host(other)].entry(vid()).is_none(), is_lost, "after {steps}");
        *(if is_lost { &mut lost } else { &mut kept }) += 1;
    }
    unreachable!()
}

#[test]
fn losing_a_host_loses_only_its_instances() {
    for number in [1, 2] {
        let [lost, kept] = lose_at_each_moment(number, false);
        assert!(lost > 5 && kept > 5, "{lost} + {kept}");
        // The instance stays on its host.
        let [lost, kept] = lose_at_each_moment(number, true);
        let [at_source, elsewhere] = if number == 1 { [lost, kept] } else { [kept, lost] };
        assert!(at_source > 10 && elsewhere == 0, "{at_source} + {elsewhere}");
    }
}

#[test]
fn the_exit_of_a_lost_instance_has_the_reason() {
    let mut cluster = Cluster::new();
    let out = cluster.coordinator.lose(&host(1), "it burnt down", cluster.now);
    let exit = Exit::Lost { reason: "it burnt down".into() };
    let ended = moves::progress::InstanceEnded { vid: vid(), exit };
    assert!(out.contains(&moves::coordinator::Output::InstanceEnded(ended)), "{out:?}");
    // Once is enough.
    assert_eq!(cluster.coordinator.lose(&host(1), "it burnt down", cluster.now), []);
}

#[test]
fn a_move_that_is_committed_goes_forward_without_its_source() {
    let mut cluster = Cluster::new();
    cluster.begin(to(2));
    cluster.run(Some("● MovesCommitted"));
    assert_eq!(cluster.coordinator.leaves(&host(1)), Some(MoveId(1)));
    assert_eq!(cluster.coordinator.leaves(&host(2)), None);
}

/// Such as a virtual machine, whose memory comes once.
#[test]
fn an_instance_ends_if_its_copy_is_gone_for_good_after_the_commit() {
    let mut cluster = Cluster::new();
    cluster.begin(to(2));
    cluster.run(Some("● MovesCommitted"));
    cluster.is_gone = true;
    let exit = Exit::Code(137);
    cluster.tell(&host(2), moves::node::Input::Exited { vid: vid(), exit });
    cluster.run(None);
    assert_eq!(cluster.coordinator.locate(vid()), None, "{:?}", cluster.wire);
    settle(&mut cluster);
    assert!(cluster.coordinator.snapshot().moves.is_empty(), "{:?}", cluster.wire);
    for number in [1, 2] {
        assert_eq!(cluster.nodes[&host(number)].entry(vid()), None, "{:?}", cluster.wire);
    }
}
