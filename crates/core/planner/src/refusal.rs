use moves::HostName;

use crate::Amounts;

/// A resource of hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// In thousandths.
    Processors,
    /// In bytes.
    Memory,
}

impl Resource {
    /// This resource's amount.
    #[must_use]
    pub fn of(self, amounts: &Amounts) -> u64 {
        match self {
            Self::Processors => amounts.cpu,
            Self::Memory => amounts.memory,
        }
    }
}

/// Why a goal cannot be reached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The host's node is not connected.
    #[error("host {0} is not connected")]
    NotConnected(HostName),
    /// The host has joined the overlay alone.
    #[error("host {0} runs no instances")]
    RunsNoInstances(HostName),
    /// The host accepts no instances.
    #[error("host {0} is drained")]
    Drained(HostName),
    /// The instance needs the overlay, and the host has not joined it.
    #[error("host {0} is not joined to the overlay")]
    NotOnOverlay(HostName),
    /// The instance is kept apart from another one by a label.
    #[error("`{other}` is on host {host}, and instances with {key}={value} are kept apart")]
    KeptApart {
        /// The other instance.
        other: String,
        /// The label's key.
        key: String,
        /// The label's value, which both have.
        value: String,
        /// The host that they would share.
        host: HostName,
    },
    /// The instance is kept together with another one by a label.
    #[error("`{other}` is on host {there}, and instances with {key}={value} are kept together")]
    KeptTogether {
        /// The other instance.
        other: String,
        /// The label's key.
        key: String,
        /// The label's value, which both have.
        value: String,
        /// The host of the other instance.
        there: HostName,
        /// The host that they would not share.
        host: HostName,
    },
    /// Labels keep the instance together with another one, and apart from it.
    #[error("`{other}` is kept together with it by {together}, and apart from it by {apart}")]
    Contradiction {
        /// The other instance.
        other: String,
        /// The label with its value that keeps them together.
        together: String,
        /// The label with its value that keeps them apart.
        apart: String,
    },
    /// The host has not as much left as the instance demands.
    #[error("host {host} has {free} of {has} left, and {demanded} are demanded ({resource:?})")]
    NoRoom {
        /// The host.
        host: HostName,
        /// The resource.
        resource: Resource,
        /// The demand.
        demanded: u64,
        /// What others do not demand.
        free: u64,
        /// What the host has.
        has: u64,
    },
    /// The instance demands more than any host has.
    #[error("{demanded} are demanded, and the largest host {largest} has {has} ({resource:?})")]
    TooLarge {
        /// The resource.
        resource: Resource,
        /// The demand.
        demanded: u64,
        /// The host that has the most.
        largest: HostName,
        /// What it has.
        has: u64,
    },
    /// No host is connected that runs instances and is not drained.
    #[error("no host is usable")]
    NoUsableHost,
    /// The goal names no destination.
    #[error("no destination is named")]
    NoDestination,
    /// No host can take the instances of this one.
    #[error("the instances of host {0} cannot go anywhere")]
    NowhereToGo(HostName),
}
