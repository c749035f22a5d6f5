//! The nodes that this one speaks to.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use overlay::topology::NodeId;

use crate::peer::Peer;

/// See the module.
#[derive(Default)]
pub(crate) struct Peers {
    index: RwLock<Index>,
}

#[derive(Default)]
struct Index {
    by_node: HashMap<NodeId, Arc<Peer>>,
    by_session: HashMap<u32, Arc<Peer>>,
}

impl Peers {
    pub fn of_node(&self, node: NodeId) -> Option<Arc<Peer>> {
        self.read().by_node.get(&node).cloned()
    }

    pub fn of_session(&self, session: u32) -> Option<Arc<Peer>> {
        self.read().by_session.get(&session).cloned()
    }

    pub fn all(&self) -> Vec<Arc<Peer>> {
        self.read().by_node.values().cloned().collect()
    }

    /// Adds `peer`, in the place of what was known of its node.
    pub fn insert(&self, peer: Peer) {
        let peer = Arc::new(peer);
        let mut index = self.write();
        index.remove(peer.node);
        index.by_session.insert(peer.session, peer.clone());
        index.by_node.insert(peer.node, peer);
    }

    pub fn remove(&self, node: NodeId) {
        self.write().remove(node);
    }

    fn read(&self) -> RwLockReadGuard<'_, Index> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Index> {
        self.index.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Index {
    fn remove(&mut self, node: NodeId) {
        if let Some(before) = self.by_node.remove(&node) {
            self.by_session.remove(&before.session);
        }
    }
}
