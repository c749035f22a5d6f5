//! The configuration of the engine.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use engine_api::wiring::Wiring;

/// The configuration of the engine.
#[derive(Clone, Debug)]
pub struct Config {
    /// The emulator: a path, or a name that is found by `PATH`.
    pub emulator: PathBuf,
    /// Whether machines may run under KVM.
    pub kvm: bool,
    /// The directory for records of machines; used by this node alone.
    pub state: PathBuf,
    /// The bridge to which machines are linked, in the network namespace of this process.
    pub bridge: String,
    /// The overlay, if this host is part of one.
    pub overlay: Option<Arc<dyn Wiring>>,
    /// The folder with the tools for guests: the agent and the RDMA libraries.
    pub tools: Option<PathBuf>,
    /// The command that runs [`engine_criu::init::run`] with further arguments: the first process of a machine.
    pub init: Vec<OsString>,
}
