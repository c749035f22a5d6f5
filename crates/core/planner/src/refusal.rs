use moves::HostName;

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
