//! Removal of hosts: the revocation of a host's certificate.
//!
//! One record in the store is decisive (see [`members`](crate::members)); removing the host again repeats everything that follows from it.
//! A host that instances use is not removed, because only the host knows whether they run there. If the user declares the machine lost,
//! its instances are lost too, as soon as the other nodes reject the host.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use api::{Event, Failure, HostRemoved, Occurrence};
use moves::HostName;
use moves::coordinator::Input;
use rpc::COORDINATOR;
use rpc::wire::{FromCoordinator, reason};
use tokio::task::JoinSet;

use crate::cluster::{Cluster, Inner};
use crate::members::MOST_REMOVED;
use crate::{drain, failure, hosts, network};

/// Time limit for nodes to close their connections with the removed host.
const TELLING_LIMIT: Duration = Duration::from_secs(5);

/// Removes a host. When this returns, all connected nodes reject the host. `is_lost`: the machine is
/// gone for good.
pub async fn remove(cluster: &Arc<Cluster>, name: &str, is_lost: bool) -> Result<Event, Failure> {
    let (host, revoked_tokens) = dismiss(cluster, name, is_lost)?;
    let untold = tell_nodes(cluster).await;
    // Only afterwards: instances started as replacements must not have the lost ones as neighbours.
    let lost_instances = if is_lost { lose_instances(cluster, &host)? } else { Vec::new() };
    Ok(Event::HostRemoved(HostRemoved { host: host.to_string(), revoked_tokens, lost_instances, untold }))
}

/// Makes the changes at the coordinator. Returns the tokens that were revoked.
fn dismiss(cluster: &Arc<Cluster>, name: &str, is_lost: bool) -> Result<(HostName, Vec<u64>), Failure> {
    let _nobody_joins = cluster.admission.get().map(|admission| admission.pause());
    let inner = &mut *cluster.lock();
    let host = removable(cluster, inner, name, is_lost)?;
    let noted = cluster.admission.get().and_then(|admission| admission.key_of(&host));
    let shown = inner.nodes.get(&host).map(|node| node.key);
    let keys = noted.into_iter().chain(shown);
    let removed = inner.members.remove(&inner.store, &host, keys, SystemTime::now());
    let revoked = removed.map_err(|error| cluster.not_written(inner, error))?;
    tracing::info!("host {host} was removed");
    inner.log.note(&Occurrence::HostRemoved { host: host.to_string() });
    cut_off(cluster, inner, &host);
    inner.tell_removed(cluster);
    inner.enrolled.remove(&host);
    if let Some(admission) = cluster.admission.get() {
        admission.forget(&host);
    }
    drain::forget(cluster, inner, &host)?;
    network::leave(cluster, inner, &host)?;
    Ok((host, revoked))
}

/// Ends the instances of `host` as lost, and its part in moves. Returns the names of the instances.
fn lose_instances(cluster: &Cluster, host: &HostName) -> Result<Vec<String>, Failure> {
    let inner = &mut *cluster.lock();
    // Another machine has already joined with this name and reported that it does not know these instances.
    if inner.nodes.contains_key(host) {
        return Ok(Vec::new());
    }
    let here = inner.machine.image().instances.values().filter(|instance| instance.host == *host);
    let mut names: Vec<_> = here.map(|instance| instance.name.clone()).collect();
    names.sort();
    let outputs = inner.machine.lose(host, &format!("host {host} is gone for good"), cluster.now());
    cluster.perform(inner, outputs);
    inner.check_whole()?;
    // Its move was committed a moment ago.
    inner.machine.leaves(host).map_or(Ok(names), |id| Err(failure::still_leaving(host, id)))
}

/// The host called `name`, if it can be removed.
fn removable(cluster: &Cluster, inner: &Inner, name: &str, is_lost: bool) -> Result<HostName, Failure> {
    inner.check_whole()?;
    inner.store.ready().map_err(|error| failure::of_store(&error))?;
    let host = HostName::new(name).ok().filter(|_| name != COORDINATOR);
    let host = host.ok_or_else(|| failure::no_host(name))?;
    let admission = cluster.admission.get();
    if admission.is_some_and(|admission| *admission.center() == host) {
        return Err(failure::has_the_coordinator(&host));
    }
    if !hosts::known(inner).contains(&host) && !inner.members.is_removed(&host) {
        return Err(failure::no_host(name));
    }
    let instances = instances_of(inner, &host);
    if is_lost {
        check_lost(inner, &host)?;
    } else if !instances.is_empty() {
        return Err(failure::host_in_use(&host, &instances, inner.nodes.contains_key(&host)));
    }
    match inner.members.has_room(&host) {
        true => Ok(host),
        false => Err(failure::too_many_removed(MOST_REMOVED)),
    }
}

/// Checks that `host` shows no sign of life and that no move depends on it.
fn check_lost(inner: &Inner, host: &HostName) -> Result<(), Failure> {
    if inner.nodes.contains_key(host) {
        return Err(failure::host_not_lost(host));
    }
    match inner.machine.leaves(host) {
        Some(id) => Err(failure::still_leaving(host, id)),
        None => Ok(()),
    }
}

/// The instances that are on `host`, or move to it or away from it.
fn instances_of(inner: &Inner, host: &HostName) -> Vec<String> {
    let image = inner.machine.image();
    let moving = image.moves.values().filter(|record| record.hosts().any(|other| other == host));
    let moving: BTreeSet<_> = moving.map(|record| record.vid).collect();
    let instances = image.instances.iter();
    let here = instances.filter(|(vid, instance)| instance.host == *host || moving.contains(vid));
    let mut names: Vec<_> = here.map(|(_, instance)| instance.name.clone()).collect();
    names.sort();
    names
}

/// Drops the node's connection and ignores its queued messages.
fn cut_off(cluster: &Cluster, inner: &mut Inner, host: &HostName) {
    inner.hosts.remove(host);
    let Some(link) = inner.nodes.remove(host) else { return };
    link.pending.close();
    inner.network.disconnected(host);
    cluster.input_to(inner, Input::LinkDown(host.clone()));
}

impl Inner {
    /// Sends the revocation list to all nodes, and closes connections with removed hosts.
    pub fn tell_removed(&self, cluster: &Cluster) {
        let removed = self.members.list();
        self.send_all(&FromCoordinator::Removed { number: None, removed: removed.clone() });
        cluster.gate.set(removed);
    }
}

/// Waits until all nodes confirm the current revocation list. Returns the hosts that have not confirmed it.
async fn tell_nodes(cluster: &Arc<Cluster>) -> Vec<String> {
    let (nodes, mut untold) = {
        let inner = cluster.lock();
        let known = inner.hosts.keys().chain(inner.network.plan().members());
        let known: BTreeSet<HostName> = known.cloned().collect();
        (inner.nodes.keys().cloned().collect::<Vec<_>>(), known)
    };
    let mut telling = JoinSet::new();
    for host in nodes {
        let cluster = cluster.clone();
        telling.spawn(async move {
            let removed = cluster.lock().members.list();
            let message = |number| FromCoordinator::Removed { number: Some(number), removed };
            let told = cluster.ask_as(&host, TELLING_LIMIT, message).await;
            told.is_ok().then_some(host)
        });
    }
    while let Some(told) = telling.join_next().await {
        if let Ok(Some(host)) = told {
            untold.remove(&host);
        }
    }
    untold.iter().map(HostName::to_string).collect()
}

/// The reason that the node of a removed host gets.
pub fn farewell(cluster: &Cluster, host: &str) -> String {
    let remedy = match cluster.admission.get() {
        Some(admission) => {
            format!("to join again, {} and use it with `transhume net up --join`", admission.way_to_a_token())
        }
        None => {
            "issue a certificate for another name with `transhume pki`, and restart the node with it".into()
        }
    };
    reason(&format!("host `{host}` was removed from the cluster"), &remedy)
}

#[cfg(test)]
mod tests {
    use fabric::{Epoch, FabricId};
    use moves::journal::Instance;
    use moves::placement::Placement;
    use rpc::removed::{KeyId, Peer};

    use super::*;
    use crate::network::played::World;

    fn host(name: &str) -> HostName {
        HostName::new(name).unwrap()
    }

    async fn removed(world: &World, name: &str) -> HostRemoved {
        match remove(&world.cluster, name, false).await {
            Ok(Event::HostRemoved(removed)) => removed,
            other => panic!("{other:?}"),
        }
    }

    /// Starts an instance on `host`.
    fn start(world: &World, name: &str, host: &str) {
        let inner = &mut *world.cluster.lock();
        let vid = inner.store.allocate_vid(|_| true).unwrap();
        let instance = Instance {
            name: name.into(),
            fabric: FabricId(1),
            group: None,
            placement: Placement::default(),
            host: self::host(host),
            epoch: Epoch::default(),
            spec: Vec::new(),
        };
        let outputs = inner.machine.add_instance(vid, instance).unwrap();
        world.cluster.perform(inner, outputs);
    }

    #[tokio::test]
    async fn a_host_that_was_removed_is_part_of_nothing_and_told_so_when_it_comes_again() {
        let world = World::new().await;
        let (mut h1, mut h2) = (world.node("h1").await, world.node("h2").await);
        world.lay(&mut [&mut h1, &mut h2]).await;
        world.attach("h2", "tap1", &mut h2).await;
        let (h1, h2) = (tokio::spawn(h1.believe()), tokio::spawn(h2.believe()));
        assert_eq!(removed(&world, "h2").await.untold, Vec::<String>::new());
        h2.await.unwrap();
        {
            let inner = world.cluster.lock();
            let present: Vec<_> =
                inner.hosts.keys().chain(inner.nodes.keys()).map(HostName::as_str).collect();
            assert_eq!(present, ["h1", "h1"]);
            assert!(!inner.network.plan().is_member(&host("h2")) && inner.devices.count(&host("h2")) == 0);
        }
        let Some(FromCoordinator::Dismissed { reason }) = world.refused("h2").await else {
            panic!("the removed host was accepted")
        };
        assert!(reason.contains("host `h2` was removed") && reason.contains("`transhume pki`"), "{reason}");
        assert!(!world.cluster.lock().hosts.contains_key(&host("h2")));
        // Repeating the removal is harmless: it completes unfinished steps.
        assert_eq!(removed(&world, "h2").await.revoked_tokens, Vec::<u64>::new());
        let list = world.cluster.lock().members.list();
        assert!(list.bars(&Peer { name: "h2".into(), key: KeyId::of(b"any") }));
        h1.abort();
    }

    #[tokio::test]
    async fn hosts_that_are_away_are_named_and_told_when_they_are_back() {
        let world = World::new().await;
        let (h1, h2, h3) = (world.node("h1").await, world.node("h2").await, world.node("h3").await);
        world.lose("h3", h3).await;
        let believing = [h1, h2].map(|node| tokio::spawn(node.believe()));
        assert_eq!(removed(&world, "h2").await.untold, ["h3"]);
        let peer = |name: &str| Peer { name: name.into(), key: KeyId::of(b"any") };
        let told = world.node("h3").await.hear_removed().await.unwrap();
        assert!(told.bars(&peer("h2")) && !told.bars(&peer("h1")), "{told:?}");
        believing.iter().for_each(tokio::task::JoinHandle::abort);
    }

    #[tokio::test]
    async fn a_host_with_instances_stays_whether_it_is_there_or_not() {
        let world = World::new().await;
        let node = world.node("h1").await;
        start(&world, "job1", "h1");
        let refused = remove(&world.cluster, "h1", false).await.unwrap_err();
        assert!(
            refused.message.contains("`job1`") && refused.remedy.contains("`transhume drain h1`"),
            "{refused:?}"
        );
        world.lose("h1", node).await;
        let refused = remove(&world.cluster, "h1", false).await.unwrap_err();
        assert!(
            refused.message.contains("`job1`") && refused.remedy.contains("may still run there"),
            "{refused:?}"
        );
        assert!(!world.cluster.lock().members.is_removed(&host("h1")));
        assert!(refused.remedy.contains("`transhume host remove h1 --lost`"), "{refused:?}");
        assert!(remove(&world.cluster, "h9", false).await.unwrap_err().message.contains("no host `h9`"));
    }

    async fn lost(world: &World, name: &str) -> HostRemoved {
        match remove(&world.cluster, name, true).await {
            Ok(Event::HostRemoved(removed)) => removed,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn a_host_that_is_lost_takes_its_instances_with_it() {
        let world = World::new().await;
        let (h1, h2) = (world.node("h1").await, world.node("h2").await);
        for (name, host) in [("job2", "h1"), ("job1", "h1"), ("job3", "h2")] {
            start(&world, name, host);
        }
        let refused = remove(&world.cluster, "h1", true).await.unwrap_err();
        assert!(refused.message.contains("not lost"), "{refused:?}");
        world.lose("h1", h1).await;
        let believing = tokio::spawn(h2.believe());
        let removed = lost(&world, "h1").await;
        assert_eq!(removed.lost_instances, ["job1", "job2"]);
        {
            let inner = world.cluster.lock();
            let left: Vec<_> = inner.machine.image().instances.values().map(|it| it.name.as_str()).collect();
            assert_eq!(left, ["job3"]);
            assert!(inner.has_ended("job1") && !inner.hosts.contains_key(&host("h1")));
        }
        // The host comes back and is told that it was removed.
        assert!(matches!(world.refused("h1").await, Some(FromCoordinator::Dismissed { .. })));
        // The record of a name's former owner does not affect its current owner.
        start(&world, "job1", "h2");
        assert_eq!(lost(&world, "h1").await.lost_instances, Vec::<String>::new());
        assert!(world.cluster.lock().find("job1").is_some());
        believing.abort();
    }
}
