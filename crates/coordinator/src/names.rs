//! Distributes the names of instances to nodes, so that programs in containers can resolve them.

use fabric::Vid;
use moves::HostName;
use rpc::wire::{FromCoordinator, Names};

use crate::cluster::Inner;
use crate::instances;

/// Number of names per message; the limit keeps a message within the frame size.
const AT_A_TIME: usize = 10_000;

/// Sends the names of all instances to a node that has connected.
pub fn tell_all(inner: &Inner, host: &HostName) {
    let instances = &inner.machine.image().instances;
    let all: Vec<_> =
        instances.iter().map(|(vid, instance)| (instance.name.clone(), instances::address(*vid))).collect();
    let mut forget = true;
    // The first message also clears old names, so it is sent even if there are no instances.
    for added in all.chunks(AT_A_TIME).chain(all.is_empty().then_some(&[][..])) {
        let names = Names { forget, added: added.to_vec(), gone: None };
        inner.send(host, &FromCoordinator::Names(names));
        forget = false;
    }
}

/// Announces a new instance to all nodes.
pub fn added(inner: &Inner, vid: Vid, name: &str) {
    let added = vec![(name.to_owned(), instances::address(vid))];
    inner.send_all(&FromCoordinator::Names(Names { forget: false, added, gone: None }));
}

/// Announces the end of an instance to all nodes.
pub fn gone(inner: &Inner, name: &str) {
    let gone = Some(name.to_owned());
    inner.send_all(&FromCoordinator::Names(Names { forget: false, added: Vec::new(), gone }));
}
