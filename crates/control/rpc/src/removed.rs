//! Revocation: the list of removed hosts, and the end of their connections.
//!
//! Certificates do not expire (see [`pki`](crate::pki)), so removed hosts are on a revocation list that the
//! coordinator maintains and all nodes have. It contains names, because several keys may have been certified for one name: a listed name is
//! revoked for all keys or, if it was assigned again, for all keys but one.
//!
//! The [`Gate`] of an endpoint checks each new connection against the list, and existing ones when
//! the list changes.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard};

use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;

/// Identifies a host's key: BLAKE3 of the public key in its certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyId([u8; 32]);

impl KeyId {
    /// The id of a public key in DER (`SubjectPublicKeyInfo`).
    #[must_use]
    pub fn of(public_key: &[u8]) -> Self {
        Self(*blake3::hash(public_key).as_bytes())
    }
}

/// The peer of a connection, from its certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The name.
    pub name: String,
    /// The key.
    pub key: KeyId,
}

/// The revocation list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removed(
    /// Revoked names with the key of their new owner; in lower case, because names are compared without regard to case.
    BTreeMap<String, Option<KeyId>>,
);

impl Removed {
    /// Revokes `name` for all keys, except the key of its `heir`.
    pub fn note(&mut self, name: &str, heir: Option<KeyId>) {
        self.0.insert(name.to_ascii_lowercase(), heir);
    }

    /// Whether `peer` is revoked.
    #[must_use]
    pub fn bars(&self, peer: &Peer) -> bool {
        let heir = self.0.get(&peer.name.to_ascii_lowercase());
        heir.is_some_and(|heir| *heir != Some(peer.key))
    }

    /// Whether `name` is revoked without a new owner.
    #[must_use]
    pub fn is_nobodys(&self, name: &str) -> bool {
        self.0.get(&name.to_ascii_lowercase()).is_some_and(Option::is_none)
    }
}

/// Checks an endpoint's connections against the revocation list. Clones share the state.
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
    /// Replaces the revocation list, and closes connections with revoked peers.
    pub fn set(&self, removed: Removed) {
        let mut state = self.lock();
        state.removed = removed;
        let barred = state.open.values().filter(|(peer, _)| state.removed.bars(peer));
        for (_, tcp) in barred {
            // SAFETY: the descriptor is open: its owner drops the pass first, which takes the lock that is held here.
            // Shutting down a connection that is already lost fails, which is harmless.
            let _ended = unsafe { libc::shutdown(*tcp, libc::SHUT_RDWR) };
        }
    }

    /// The revocation list.
    #[must_use]
    pub fn removed(&self) -> Removed {
        self.lock().removed.clone()
    }

    /// Whether `peer` is not revoked.
    #[must_use]
    pub fn admits(&self, peer: &Peer) -> bool {
        !self.lock().removed.bars(peer)
    }

    /// Registers the connection `tcp` with `peer`, revoked or not. The pass has to be dropped before `tcp`.
    pub(crate) fn note(&self, peer: Peer, tcp: &TcpStream) -> Pass {
        let mut state = self.lock();
        state.last += 1;
        let number = state.last;
        state.open.insert(number, (peer.clone(), tcp.as_raw_fd()));
        Pass { gate: self.clone(), number, peer }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no thread panics while it holds the lock")
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Gate").field(&self.lock().removed).finish()
    }
}

/// A registered connection.
#[derive(Debug)]
pub(crate) struct Pass {
    gate: Gate,
    number: u64,
    pub(crate) peer: Peer,
}

impl Pass {
    /// Whether the peer is not revoked.
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
    fn a_removed_name_is_revoked_except_for_its_heir() {
        let mut removed = Removed::default();
        assert!(!removed.bars(&peer("b", 1)) && !removed.is_nobodys("b"));
        removed.note("b", None);
        assert!(removed.bars(&peer("b", 1)) && removed.is_nobodys("b"));
        assert!(!removed.bars(&peer("c", 1)), "other names are not affected");
        removed.note("b", Some(KeyId([2; 32])));
        assert!(!removed.is_nobodys("b") && !removed.bars(&peer("b", 2)));
        assert!(removed.bars(&peer("b", 1)) && removed.bars(&peer("b", 3)));
    }

    #[test]
    fn revocation_ignores_case() {
        let mut removed = Removed::default();
        removed.note("Web-1", None);
        assert!(removed.bars(&peer("web-1", 1)) && removed.bars(&peer("WEB-1", 1)));
    }
}
