//! The state of a lab.

use std::net::Ipv4Addr;

use serde::Serialize;

use crate::{Host, Place};

/// The result of [`crate::Lab::status`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Status {
    /// The lab's name.
    pub name: String,
    /// The coordinator's socket.
    pub socket: String,
    /// The coordinator.
    pub coordinator: DaemonStatus,
    /// The hosts, in the order of their numbers.
    pub hosts: Vec<HostStatus>,
    /// The partitions.
    pub cuts: Vec<(Place, Place)>,
}

/// A host and its node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostStatus {
    /// The host.
    pub name: Host,
    /// Its node.
    #[serde(flatten)]
    pub node: DaemonStatus,
    /// Whether the coordinator has a connection to the node; `None` if it does not answer.
    pub registered: Option<bool>,
    /// How many instances it has; `None` if the coordinator does not answer.
    pub instances: Option<u32>,
}

/// A daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DaemonStatus {
    /// The address of its place.
    pub address: Ipv4Addr,
    /// Its network namespace.
    pub namespace: String,
    /// Its PID, if it runs.
    pub pid: Option<i32>,
}
