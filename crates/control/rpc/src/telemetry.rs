//! What hosts and instances use. All times and bytes count from some moment in the past, so rates are differences; a counter that is
//! smaller than before has begun anew.

use fabric::Vid;
use fabric::traffic::Volume;
use serde::{Deserialize, Serialize};

/// What a host and its instances have used until now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// When it was taken, in microseconds on the host's monotonic clock, which goes on when the node restarts.
    pub at_us: u64,
    /// The host.
    pub host: HostUse,
    /// Its running instances.
    pub instances: Vec<(Vid, InstanceUse)>,
    /// The RDMA traffic that processes on the host have counted: the largest flows with traffic in the last minutes, at most [`MOST_FLOWS`].
    pub rdma: Vec<RdmaFlow>,
}

/// The most flows in one sample.
pub const MOST_FLOWS: usize = 4096;

/// Payload of RDMA from one instance to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaFlow {
    /// The instance that has it before.
    pub from: Vid,
    /// The instance that has it afterwards.
    pub to: Vid,
    /// Its amount.
    pub volume: Volume,
}

/// What a host has and uses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostUse {
    /// Processors.
    pub processors: u32,
    /// The time that they have worked, in microseconds of all together.
    pub cpu_us: u64,
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes of memory that programs cannot get.
    pub memory_used: u64,
    /// The share of the last 10 s, in thousandths, in which some program waited, if the kernel tells it.
    pub pressure: Option<Pressure>,
    /// Bytes that it has sent and received over the device towards other hosts, if it is known.
    pub network: Option<u64>,
    /// Why it asks to be emptied, if it does.
    pub leaving: Option<String>,
}

/// Shares of time in which some program waited, in thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pressure {
    /// For a processor.
    pub cpu: u16,
    /// For memory.
    pub memory: u16,
    /// For a disk.
    pub io: u16,
}

/// What an instance uses, all its processes together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceUse {
    /// The time that processors have worked for it, in microseconds.
    pub cpu_us: u64,
    /// Bytes of memory of its own.
    pub memory: u64,
    /// Bytes that it has read from disks and written to them, if the kernel tells it.
    pub disk: Option<u64>,
    /// Bytes that it has sent and received over its network device, if the kernel tells it.
    pub network: Option<u64>,
}
