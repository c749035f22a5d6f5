//! The options of a node.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use engine_api::Engine;
use overlay_io::offloads::Offloads;

use crate::network::{Device, Nics};
use crate::progress::Progress;

/// The file in the folder of a node's state that containers have as `/etc/hosts`.
pub const HOSTS: &str = "hosts";

/// The options of a node.
pub struct NodeOptions {
    /// The host's name: that of its certificate.
    pub name: String,
    /// The address at which it accepts other nodes.
    pub listen: SocketAddr,
    /// The coordinator's address.
    pub join: SocketAddr,
    /// The kernel offloads that the overlay may use, if they pass their tests.
    pub offloads: Offloads,
    /// The address at which Prometheus reads metrics, if enabled.
    pub metrics: Option<SocketAddr>,
    /// The directory with the host's certificate.
    pub pki: PathBuf,
    /// The directory for the node's records; used by this node alone.
    pub state: PathBuf,
    /// The engines for instances; none if this host only joins the overlay.
    pub engines: Vec<Arc<dyn Engine>>,
    /// How long to wait for an instance's first process to report that the command runs. After that the command counts as running.
    pub start_patience: Duration,
    /// The instances' devices on the overlay, which the engine attaches.
    pub nics: Nics,
    /// A network device to attach as soon as this host is part of the overlay. If that fails, the node fails.
    pub device: Option<Device>,
    /// How often the host and its instances are sampled.
    pub sample_interval: Duration,
    /// The limit of each pre-copy, in bytes a second.
    pub move_bandwidth: Option<u64>,
    /// Called with each event that a user may want to see.
    pub progress: Box<dyn Fn(Progress) + Send + Sync>,
}
