//! What instances need, what hosts have, and who talks to whom.

use std::collections::BTreeMap;

use fabric::Vid;
use moves::HostName;

/// An amount of each resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    /// Thousandths of a processor.
    pub cpu: u64,
    /// Bytes of memory.
    pub memory: u64,
}

/// What an instance needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// Its resources, as demanded by its user or as measured.
    pub amounts: Amounts,
    /// The bytes that a move copies.
    pub copied: u64,
    /// Why it stays on its host, if it does.
    pub pinned: Option<String>,
}

/// Traffic between two instances, in both directions together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Talk {
    /// One end.
    pub one: Vid,
    /// The other end.
    pub other: Vid,
    /// Bytes a second.
    pub rate: u64,
}

/// The loads of a cluster. An instance that is missing needs nothing. A host that is missing takes nobody, unless
/// all are missing: they have no bounds then.
#[derive(Clone, Debug, Default)]
pub struct Loads {
    /// By host: what its instances can use together.
    pub rooms: BTreeMap<HostName, Amounts>,
    /// By instance.
    pub needs: BTreeMap<Vid, Need>,
    /// The traffic.
    pub talks: Vec<Talk>,
}
