//! What hosts and instances use at present.

use serde::{Deserialize, Serialize};

/// The answer to [`Request::Top`](crate::Request::Top). A figure is missing until two samples have been taken.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Top {
    /// The connected hosts, in the order of names.
    pub hosts: Vec<TopHost>,
    /// The instances, those that use the most processor time first.
    pub instances: Vec<TopInstance>,
    /// The traffic between instances on the overlay and by RDMA, the highest rates first.
    pub talks: Vec<TopTalk>,
    /// The links of the overlay in both directions, as far as the sending host answers.
    pub links: Vec<TopLink>,
}

/// A host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopHost {
    /// Its name.
    pub name: String,
    /// Its processors.
    pub processors: u32,
    /// The thousandths of one processor that are in use.
    pub cpu_milli: Option<u32>,
    /// Its memory.
    pub memory_bytes: u64,
    /// The memory that programs cannot get.
    pub memory_used_bytes: u64,
    /// The shares of the last 10 s in which some program waited for a processor, for memory, and for a disk, in thousandths.
    pub pressure_permille: Option<[u16; 3]>,
    /// What it sends and receives over the device towards other hosts.
    pub network_bytes_per_second: Option<u64>,
    /// The number of its instances.
    pub instances: u32,
}

/// An instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopInstance {
    /// Its name.
    pub name: String,
    /// Its host.
    pub host: String,
    /// The thousandths of one processor that it uses.
    pub cpu_milli: Option<u32>,
    /// The most that it has used within the last hour.
    pub cpu_peak_milli: Option<u32>,
    /// Its memory.
    pub memory_bytes: Option<u64>,
    /// What it reads from disks and writes to them.
    pub disk_bytes_per_second: Option<u64>,
    /// What it sends and receives.
    pub network_bytes_per_second: Option<u64>,
}

/// Traffic between two instances, in both directions together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopTalk {
    /// The instances.
    pub ends: [String; 2],
    /// The mean of the last minute, over all networks.
    pub bytes_per_second: u64,
    /// Frames on the overlay.
    pub overlay: TopRate,
    /// Payload of RDMA, also between instances on one host.
    pub rdma: TopRate,
    /// The bytes of that payload since the coordinator has known of it, across moves.
    pub rdma_bytes: u64,
    /// Its messages.
    pub rdma_messages: u64,
}

/// One direction of a link of the overlay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopLink {
    /// The sending host.
    pub from: String,
    /// The receiving host.
    pub to: String,
    /// The recent round trip time of a datagram.
    pub round_trip_us: Option<u64>,
    /// Datagrams sent, as far as the receiving host has reported.
    pub sent: u64,
    /// Those of them that were lost.
    pub lost: u64,
    /// The highest available rate that was measured in the last minute.
    pub available_bits_per_second: Option<u64>,
}

/// The mean of the last minute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopRate {
    /// Bytes.
    pub bytes_per_second: u64,
    /// Messages, or frames.
    pub messages_per_second: u64,
}
