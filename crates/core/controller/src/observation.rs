//! The cluster at one moment, as the loop sees it.

use std::collections::BTreeMap;

use moves::HostName;
use planner::{Loads, View};

/// What programs on a host use, whether they belong to instances or not. All in thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The share of its processors in use.
    pub busy: u64,
    /// The share of time in which some program waited for a processor.
    pub cpu_pressure: u64,
    /// The share of time in which some program waited for memory.
    pub memory_pressure: u64,
}

/// A host that asks to be emptied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leaving {
    /// Why, in its own words.
    pub reason: String,
    /// Whether its drain is in progress.
    pub is_draining: bool,
}

/// The cluster at one moment.
#[derive(Clone, Debug, Default)]
pub struct Observation<'a> {
    /// Hosts and instances.
    pub view: View<'a>,
    /// What they have and need, and the traffic.
    pub loads: Loads,
    /// What is used on each host.
    pub usage: BTreeMap<HostName, Usage>,
    /// Hosts that ask to be emptied.
    pub leaving: BTreeMap<HostName, Leaving>,
    /// Whether moves of a plan are under way.
    pub is_applying: bool,
}
