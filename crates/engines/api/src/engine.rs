//! The engine of a host, and one instance there.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use instance::{InstanceName, InstanceSpec, Kind};
use serde::{Deserialize, Serialize};

use crate::destination::Destination;
use crate::error::Result;
use crate::guest::Guest;
use crate::needs::Shortage;
use crate::source::Source;
use crate::watch::{Outage, Phases};

/// Runs instances of some kinds on this host. Instances outlive it: the next engine of this host finds them by [`Engine::recover`].
pub trait Engine: Send + Sync {
    /// The kinds of workload that it runs, and its way of pre-copy. The result never changes.
    fn capabilities(&self) -> Capabilities;

    /// Returns how this host runs virtual machines; `None` from engines of other kinds. Waits until that is known, for seconds at most.
    fn machines(&self) -> Option<MachineSupport> {
        None
    }

    /// Makes the network namespace of a new instance, with its link down. Nothing runs in it until [`Local::start`]. The instance is
    /// [`State::Prepared`] afterwards.
    ///
    /// # Errors
    /// If the host's network is missing, there is no room, or an instance of this name is on this host and has not ended.
    fn create(&self, spec: &InstanceSpec) -> Result<()>;

    /// Returns an instance of this host, in any state.
    ///
    /// # Errors
    /// If the instance is unknown on this host.
    fn local(self: Arc<Self>, name: &InstanceName) -> Result<Box<dyn Local>>;

    /// Kills the instance in any state; deletes its namespace, link and images. Succeeds if the instance is unknown on this host.
    ///
    /// # Errors
    /// If something cannot be deleted. The call may be repeated.
    fn destroy(&self, name: &InstanceName) -> Result<()>;

    /// Finds the instances that an earlier engine of this host has left: running ones, stopped ones that wait for the move's decision, and
    /// the remains of a crash. It verifies their PIDs. The node calls it once, before any other call.
    ///
    /// # Errors
    /// If the engine's records cannot be read, or are of another release.
    fn recover(&self) -> Result<Vec<Recovered>>;

    /// Opens the source side of a move for an instance of this host, in any state.
    ///
    /// # Errors
    /// If the instance is unknown on this host.
    fn source(self: Arc<Self>, name: &InstanceName) -> Result<Box<dyn Source>>;

    /// Opens the destination side of a move. The instance may be unknown on this host until [`Destination::prepare`].
    ///
    /// # Errors
    /// If the engine accepts no instances.
    fn destination(self: Arc<Self>, name: &InstanceName) -> Result<Box<dyn Destination>>;
}

/// An instance on its host.
pub trait Local: Send + Sync {
    /// Returns its network namespace, in which the node listens for its processes.
    ///
    /// # Errors
    /// If the instance has ended.
    fn network_namespace(&self) -> Result<OwnedFd>;

    /// Starts the workload of a [`State::Prepared`] instance, and brings its link up.
    ///
    /// # Errors
    /// If the workload does not start. The instance stays prepared.
    fn start(&self) -> Result<Running>;

    /// Waits until the instance has ended, for at most `timeout`; returns whether it has. Other calls for the instance may run meanwhile.
    ///
    /// # Errors
    /// If the instance is unknown on this host.
    fn wait(&self, timeout: Duration) -> Result<bool>;

    /// Tells the workload to end in an orderly way, and does not wait for that; returns whether workloads of this kind can be told.
    ///
    /// # Errors
    /// If it cannot be told now.
    fn power_down(&self) -> Result<bool> {
        Ok(false)
    }

    /// Returns how many of its processes the kernel has killed for lack of memory since it came to this host, as far as the engine knows.
    /// Does not wait for other calls.
    fn shortage(&self) -> Shortage;

    /// Returns the host's side of the agent in a running virtual machine; `None` for other kinds of workload. The result of an earlier call
    /// is closed before.
    ///
    /// # Errors
    /// If the machine does not run, or its port or network cannot be used.
    fn guest(&self) -> Result<Option<Guest>> {
        Ok(None)
    }
}

/// The capabilities of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The kinds of workload that it runs.
    pub kinds: &'static [Kind],
    /// Whether the node or the engine decides on pre-copy rounds.
    pub precopy: Driver,
}

/// How a host runs virtual machines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineSupport {
    /// The emulator with its version, or why there is none.
    pub emulator: std::result::Result<String, String>,
    /// Why KVM does not work, unless it does.
    pub kvm: std::result::Result<(), String>,
    /// The folder with the socket `NAME.vnc` of each machine with a display.
    pub displays: PathBuf,
}

/// Decides how many pre-copy rounds send the memory of a running instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// The node, which calls [`Source::precopy`] for each round.
    Node,
    /// The engine, in one call of [`Source::precopy`].
    Engine,
}

/// A running instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Running {
    /// The PID of its first process on this host, if its processes are processes of the host.
    pub pid: Option<i32>,
    /// The parts of the call, with their durations.
    pub phases: Phases,
    /// The outage of a virtual machine that a move has brought, from the begin of the call.
    pub outage: Option<Outage>,
}

/// An instance that [`Engine::recover`] has found.
#[derive(Clone, Debug)]
pub struct Recovered {
    /// Its specification.
    pub spec: InstanceSpec,
    /// Its state.
    pub state: State,
    /// The PID of its first process on this host, if it has one.
    pub pid: Option<i32>,
}

/// The state of an instance on one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// Its namespace exists, and nothing runs in it. It may have images.
    Prepared,
    /// It runs.
    Running,
    /// It is stopped and waits for the move's decision; its images are complete.
    Stopped,
    /// It is restored and waits for the move's decision.
    Held,
    /// It has ended without a call of the node.
    Ended,
}
