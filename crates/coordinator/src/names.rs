//! Tells nodes the names of instances, by which programs in containers find each other.

use fabric::Vid;
use moves::HostName;
use rpc::wire::{FromCoordinator, Names};

use crate::cluster::Inner;
use crate::instances;

/// So many go into a message, which has room for them.
const AT_A_TIME: usize = 10_000;

/// Tells a node that has come of all instances.
pub fn tell_all(inner: &Inner, host: &HostName) {
    let instances = &inner.machine.image().instances;
    let all: Vec<_> =
        instances.iter().map(|(vid, instance)| (instance.name.clone(), instances::address(*vid))).collect();
    let mut forget = true;
    // One that says only what to forget, if there are none.
    for added in all.chunks(AT_A_TIME).chain(all.is_empty().then_some(&[][..])) {
        let names = Names { forget, added: added.to_vec(), gone: None };
        inner.send(host, &FromCoordinator::Names(names));
        forget = false;
    }
}

/// Tells all nodes of a new instance.
pub fn added(inner: &Inner, vid: Vid, name: &str) {
    let added = vec![(name.to_owned(), instances::address(vid))];
    inner.send_all(&FromCoordinator::Names(Names { forget: false, added, gone: None }));
}

/// Tells all nodes of an instance that has ended.
pub fn gone(inner: &Inner, name: &str) {
    let gone = Some(name.to_owned());
    inner.send_all(&FromCoordinator::Names(Names { forget: false, added: Vec::new(), gone }));
}
