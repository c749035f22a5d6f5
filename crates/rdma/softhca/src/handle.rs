//! Handles by which callers name a device's objects. These are indices; applications see other numbers.

macro_rules! handle {
    ($(#[$doc:meta] $name:ident)*) => {$(
        #[$doc]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub u32);
    )*};
}

handle! {
    /// A protection domain.
    Pd
    /// A memory region.
    Mr
    /// A memory window.
    Mw
    /// A completion queue.
    Cq
    /// A shared receive queue.
    Srq
    /// A queue pair.
    Qp
    /// An address handle.
    Ah
    /// A domain of extended reliable connections.
    Xrcd
}

impl Pd {
    /// No domain.
    pub const NONE: Self = Self(u32::MAX);
}

impl Cq {
    /// No queue: nothing completes there.
    pub const NONE: Self = Self(u32::MAX);
}

/// How applications name a memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys {
    /// In their own work requests.
    pub lkey: u32,
    /// In work requests of their peers.
    pub rkey: u32,
}
