//! Distributes the names of instances to nodes, so that programs in containers can resolve them.

use moves::HostName;
use moves::journal::Record;
use rpc::wire::{self, FromCoordinator};

use crate::address::address;
use crate::core::{Base, Feature, Recorded};

/// Number of names per message; the limit keeps a message within the frame size.
const AT_A_TIME: usize = 10_000;

/// Announces new and ended instances to all nodes.
pub struct Names;

/// Sends the names of all instances to a node that has connected.
pub fn tell_all(base: &Base, host: &HostName) {
    let instances = &base.snapshot().instances;
    let all: Vec<_> =
        instances.iter().map(|(vid, instance)| (instance.name.clone(), address(*vid))).collect();
    let mut forget = true;
    // The first message also clears old names, so it is sent even if there are no instances.
    for added in all.chunks(AT_A_TIME).chain(all.is_empty().then_some(&[][..])) {
        let names = wire::Names { forget, added: added.to_vec(), gone: None };
        base.links().send(host, &FromCoordinator::Names(names));
        forget = false;
    }
}

impl Feature for Names {
    fn recorded(&mut self, recorded: &Recorded<'_>, base: &Base) {
        match (recorded.record, &recorded.removed.instance) {
            (Record::InstanceAdded { vid, instance }, _) => {
                let added = vec![(instance.name.clone(), address(*vid))];
                tell(base, wire::Names { forget: false, added, gone: None });
            }
            (Record::InstanceEnded { .. }, Some(instance)) => {
                let gone = Some(instance.name.clone());
                tell(base, wire::Names { forget: false, added: Vec::new(), gone });
            }
            _ => {}
        }
    }
}

fn tell(base: &Base, names: wire::Names) {
    base.links().send_all(&FromCoordinator::Names(names));
}
