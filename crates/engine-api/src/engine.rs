//! The engine of a host, and one instance there.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use instance::{InstanceName, InstanceSpec, Kind};
use serde::{Deserialize, Serialize};

use crate::destination::Destination;
use crate::error::Result;
use crate::needs::Shortage;
use crate::source::Source;
use crate::watch::Phases;

/// Runs instances of some kinds on this host. Instances outlive it: the next engine of this host finds them again.
pub trait Engine: Send + Sync {
    /// What it can do. It never changes.
    fn capabilities(&self) -> Capabilities;

    /// Makes a place for an instance that is to be started here: its network namespace, with its link down. Nothing runs in it.
    ///
    /// # Errors
    /// If the host's network is missing, there is no room, or an instance of this name is here already.
    fn create(&self, spec: &InstanceSpec) -> Result<()>;

    /// An instance that is here.
    ///
    /// # Errors
    /// If it is unknown here.
    fn local(self: Arc<Self>, name: &InstanceName) -> Result<Box<dyn Local>>;

    /// Kills the instance, whatever its state; deletes namespace, link and images. Nothing to do is
    /// no error.
    ///
    /// # Errors
    /// If something could not be deleted.
    fn destroy(&self, name: &InstanceName) -> Result<()>;

    /// What is here, for a node that has just started: instances that run on, stopped ones that
    /// wait for a decision, and what a crash has left. Each has its PIDs verified.
    ///
    /// # Errors
    /// If it cannot be found out.
    fn recover(&self) -> Result<Vec<Recovered>>;

    /// The side of a move that an instance leaves.
    ///
    /// # Errors
    /// If it is unknown here.
    fn source(self: Arc<Self>, name: &InstanceName) -> Result<Box<dyn Source>>;

    /// The side of a move to which an instance comes. It need not be here yet.
    ///
    /// # Errors
    /// If the engine takes no instances.
    fn destination(self: Arc<Self>, name: &InstanceName) -> Result<Box<dyn Destination>>;
}

/// An instance that is on its host.
pub trait Local: Send + Sync {
    /// Its network namespace, to listen in it.
    ///
    /// # Errors
    /// If it has ended.
    fn network_namespace(&self) -> Result<OwnedFd>;

    /// Starts what it runs, and brings its link up.
    ///
    /// # Errors
    /// If that is not possible. The instance stays created.
    fn start(&self) -> Result<Running>;

    /// Waits until it has ended; `false` if `timeout` came first.
    ///
    /// # Errors
    /// If it is unknown here.
    fn wait(&self, timeout: Duration) -> Result<bool>;

    /// What the kernel has ended of it for want of memory since it came to this host, as far as that is known. Does not wait
    /// for other calls.
    fn shortage(&self) -> Shortage;
}

/// What an engine can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The kinds of workload that it runs.
    pub kinds: &'static [Kind],
    /// What decides on pre-copy rounds.
    pub precopy: Driver,
}

/// What decides how often memory is sent while the instance runs, and when that is enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// The node, which calls [`Source::precopy`] for each round.
    Node,
    /// The engine, in one call of [`Source::precopy`].
    Engine,
}

/// An instance that runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Running {
    /// Its first process, as this host numbers it, if its processes are the host's.
    pub pid: Option<i32>,
    /// How long the call's parts took.
    pub phases: Phases,
}

/// An instance that was found by [`Engine::recover`].
#[derive(Clone, Debug)]
pub struct Recovered {
    /// Its description.
    pub spec: InstanceSpec,
    /// What it does.
    pub state: State,
    /// Its first process, as this host numbers it, if it has any.
    pub pid: Option<i32>,
}

/// What an instance does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// Its namespace is made; nothing runs in it. May have images.
    Prepared,
    /// It runs.
    Running,
    /// It is stopped and waits for the move's decision; its images are complete.
    Stopped,
    /// It is restored and waits for the move's decision.
    Held,
    /// It ended while nobody looked.
    Ended,
}
