//! The known hosts: all that have connected since the coordinator started, and all that its stored state refers to.

use std::collections::BTreeSet;

use api::Failure;
use moves::HostName;

use crate::cluster::Inner;
use crate::{failure, instances};

/// All known hosts, connected or not.
pub fn known(inner: &Inner) -> BTreeSet<HostName> {
    let image = inner.machine.image();
    let with_instances = image.instances.values().map(|instance| &instance.host);
    let with_moves = image.moves.values().flat_map(|record| record.hosts());
    let connected_once = inner.hosts.keys();
    // The certificate copy of a removed host may still exist.
    let enrolled = inner.enrolled.iter().filter(|host| !inner.members.is_removed(host));
    let named = connected_once.chain(enrolled).chain(with_instances).chain(with_moves);
    let named = named.chain(inner.drains.hosts()).chain(inner.network.plan().members());
    named.cloned().chain(inner.devices.hosts()).collect()
}

/// The host called `name`, connected or not.
pub fn find(inner: &Inner, name: &str) -> Result<HostName, Failure> {
    let host = HostName::new(name).ok().filter(|host| known(inner).contains(host));
    host.ok_or_else(|| failure::no_host(name))
}

/// All hosts as users see them, in the order of their names.
pub fn list(inner: &Inner) -> Vec<api::Host> {
    let describe = |name: &HostName| api::Host {
        name: name.to_string(),
        address: inner.hosts.get(name).map(ToString::to_string).unwrap_or_default(),
        up: inner.nodes.contains_key(name),
        drained: inner.drains.contains(name),
        draining: inner.drains.is_draining(name),
        instances: instances::instances_on(inner, name),
    };
    known(inner).iter().map(describe).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::cluster::Cluster;
    use crate::network::played::World;

    fn listed(cluster: &Cluster) -> Vec<(String, bool)> {
        list(&cluster.lock()).into_iter().map(|host| (host.name, host.up)).collect()
    }

    #[tokio::test]
    async fn hosts_that_are_down_are_listed_also_after_a_restart() {
        let world = World::new().await;
        let (mut h1, mut h2) = (world.node("h1").await, world.node("h2").await);
        world.lay(&mut [&mut h1, &mut h2]).await;
        world.lose("h2", h2).await;
        assert_eq!(listed(&world.cluster), [("h1".into(), true), ("h2".into(), false)]);
        // The store as a successor finds it after this coordinator was killed.
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("store");
        fs::copy(world.path("store"), &store).unwrap();
        let again = Cluster::open(&store).unwrap();
        assert_eq!(listed(&again), [("h1".into(), false), ("h2".into(), false)]);
        let inner = again.lock();
        assert!(find(&inner, "h2").is_ok());
        assert_eq!(find(&inner, "h3").unwrap_err().message, "there is no host `h3`");
    }
}
