//! Hosts that were removed from the cluster, and the connections that end with them.
//!
//! A certificate says for ever who somebody is (see [`pki`](crate::pki)). Who takes no part any more is on a list that the
//! coordinator keeps and all nodes have. It has names, since nobody knows of how many keys a certificate was issued for one: a name on it is
//! nobody's, or, when it was given again, that of one key alone.
//!
//! The [`Gate`] of an endpoint holds the list against each connection that is made, and against those that there are when
//! the list changes.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;

/// By what a host's key is known: BLAKE3 of the public key, as a certificate has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyId([u8; 32]);

impl KeyId {
    /// That of a public key in DER (`SubjectPublicKeyInfo`).
    #[must_use]
    pub fn of(public_key: &[u8]) -> Self {
        Self(*blake3::hash(public_key).as_bytes())
    }
}

/// Who is at the other end of a connection, as its certificate says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The name.
    pub name: String,
    /// The key.
    pub key: KeyId,
}

/// The names that were removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removed(
    /// With who has them by now; in small letters, since certificates are compared so.
    BTreeMap<String, Option<KeyId>>,
);

impl Removed {
    /// Nobody has `name` any more, or only who has the key of its `heir`.
    pub fn note(&mut self, name: &str, heir: Option<KeyId>) {
        self.0.insert(name.to_ascii_lowercase(), heir);
    }

    /// Whether `peer` takes no part any more.
    #[must_use]
    pub fn bars(&self, peer: &Peer) -> bool {
        let heir = self.0.get(&peer.name.to_ascii_lowercase());
        heir.is_some_and(|heir| *heir != Some(peer.key))
    }

    /// Whether nobody has `name`.
    #[must_use]
    pub fn is_nobodys(&self, name: &str) -> bool {
        self.0.get(&name.to_ascii_lowercase()).is_some_and(Option::is_none)
    }
}

/// What an endpoint's connections have to pass. Clones are the same.
#[derive(Clone, Default)]
pub struct Gate(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    removed: Removed,
    /// Connections, each as long as its [`Pass`] lives.
    open: HashMap<u64, (Peer, RawFd)>,
    last: u64,
}

impl Gate {
    /// From now on `removed` is the list. Connections with whom it bars end.
    pub fn set(&self, removed: Removed) {
        let mut state = self.lock();
        state.removed = removed;
        let barred = state.open.values().filter(|(peer, _)| state.removed.bars(peer));
        for (_, tcp) in barred {
            // SAFETY: the descriptor is open: its owner drops the pass before, for which the lock is taken that is held here.
            // One that is lost already cannot be shut down, and need not be.
            let _ended = unsafe { libc::shutdown(*tcp, libc::SHUT_RDWR) };
        }
    }

    /// The list.
    #[must_use]
    pub fn removed(&self) -> Removed {
        self.lock().removed.clone()
    }

    /// Whether `peer` may take part.
    #[must_use]
    pub fn admits(&self, peer: &Peer) -> bool {
        !self.lock().removed.bars(peer)
    }

    /// Notes the connection `tcp` with `peer`, which may take part or not. The pass has to be dropped before `tcp` is.
    pub(crate) fn note(&self, peer: Peer, tcp: &TcpStream) -> Pass {
        let mut state = self.lock();
        state.last += 1;
        let number = state.last;
        state.open.insert(number, (peer.clone(), tcp.as_raw_fd()));
        Pass { gate: self.clone(), number, peer }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Gate").field(&self.lock().removed).finish()
    }
}

/// A connection that the gate knows.
#[derive(Debug)]
pub(crate) struct Pass {
    gate: Gate,
    number: u64,
    pub(crate) peer: Peer,
}

impl Pass {
    /// Whether the other end may take part.
    pub(crate) fn is_good(&self) -> bool {
        self.gate.admits(&self.peer)
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.gate.lock().open.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(name: &str, key: u8) -> Peer {
        Peer { name: name.into(), key: KeyId([key; 32]) }
    }

    #[test]
    fn a_name_that_was_removed_is_nobodys_until_one_key_has_it() {
        let mut removed = Removed::default();
        assert!(!removed.bars(&peer("b", 1)) && !removed.is_nobodys("b"));
        removed.note("b", None);
        assert!(removed.bars(&peer("b", 1)) && removed.is_nobodys("b"));
        assert!(!removed.bars(&peer("c", 1)), "nobody else is meant");
        removed.note("b", Some(KeyId([2; 32])));
        assert!(!removed.is_nobodys("b") && !removed.bars(&peer("b", 2)));
        assert!(removed.bars(&peer("b", 1)) && removed.bars(&peer("b", 3)));
    }

    #[test]
    fn a_name_is_the_same_in_other_letters() {
        let mut removed = Removed::default();
        removed.note("Web-1", None);
        assert!(removed.bars(&peer("web-1", 1)) && removed.bars(&peer("WEB-1", 1)));
    }
}
