//! The trait that every engine has.
//!
//! ```text
//! source                                   destination
//!    │ start ──▶ running                       │
//!    │ check ──▶ Report{needs} ───────────────▶│ verify(needs)           any blocker: no move
//!    │ arm                                     │ prepare(spec)           namespace, link down, room
//!    │ show_memory ──▶ pages ─────────────────▶│ (kept in image_directory)    it runs on
//!    │ suspend ──▶ stopped, pages, images ────▶│ (images arrive in image_directory)
//!    ┊                                         │ restore ──▶ held        nothing runs yet
//!    ┊            the move commits, or rolls back
//!    │ destroy  (committed)                    │ release ──▶ running
//!    │ resume   (rolled back) ──▶ running      │ abort
//! ```
//!
//! In a post-copy move the destination says [`Engine::await_memory`] before it arms, and a part of the pages stays at the source. From the
//! restore on they are fetched through [`Engine::pager`], and read by [`Engine::left_behind`] at the source, which keeps its stopped
//! instance until [`Engine::be_whole`].
//!
//! Every call blocks, for a bounded time, and may be made from any thread. Calls for different
//! instances run side by side; calls for one instance are the caller's to order. A call that the
//! instance's state does not allow is refused with [`Error::State`](crate::Error::State).

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use instance::{ImageFile, InstanceName, InstanceSpec};
use serde::{Deserialize, Serialize};

use crate::criu::pages::left_behind::LeftBehind;
use crate::error::Result;
use crate::instance::Blocker;
use crate::memory::MemorySink;
use crate::report::{Host, Needs, Report, Shortage};

/// Runs instances of one kind on this host, and moves them.
pub trait Engine: Send + Sync {
    /// What this host has to offer. Cached after the first call, except for its room.
    ///
    /// # Errors
    /// If the engine cannot work here at all (not root, no CRIU, `criu check` fails).
    fn host(&self) -> Result<Host>;

    /// Makes the instance's network namespace, with its link down. Nothing runs in it.
    /// Both for a first start and at the destination of a move. For the latter, `memory` is what
    /// [`Needs::images`] says of the source's report: images of that size must fit.
    ///
    /// # Errors
    /// If the bridge is missing, there is no room, or an instance of this name is here already.
    fn prepare(&self, spec: &InstanceSpec, memory: u64) -> Result<()>;

    /// The instance's network namespace, to listen in it: see [`fabric::netns::enter`].
    ///
    /// # Errors
    /// If the instance is unknown here or has ended.
    fn network_namespace(&self, name: &InstanceName) -> Result<OwnedFd>;

    /// Starts the prepared instance's command and brings its link up.
    ///
    /// # Errors
    /// If its directory or user does not allow it. The instance stays prepared.
    fn start(&self, name: &InstanceName) -> Result<Running>;

    /// Source: what pins the instance here, and what it needs elsewhere. Does not disturb it. `keeps_memory` says whether its memory
    /// is to be among the images, which then need room for that here: see [`Engine::suspend`].
    ///
    /// # Errors
    /// If it cannot be inspected; what pins it is in the report.
    fn check(&self, name: &InstanceName, keeps_memory: bool) -> Result<Report>;

    /// Destination: what of `needs` this host does not have.
    ///
    /// # Errors
    /// As [`Engine::host`].
    fn verify(&self, needs: &Needs) -> Result<Vec<Blocker>>;

    /// Source: does in advance what [`Engine::suspend`] would otherwise do in the blackout, and
    /// destination: what [`Engine::restore`] would. May be left out.
    ///
    /// # Errors
    /// If CRIU does not start.
    fn arm(&self, name: &InstanceName) -> Result<()>;

    /// Destination, before [`Engine::arm`] and [`Engine::restore`]: of the instance's memory a part will be fetched when it is needed.
    ///
    /// # Errors
    /// If it cannot be noted.
    fn await_memory(&self, name: &InstanceName) -> Result<()>;

    /// Destination: the connection to who asks for what memory is missing, from [`Engine::arm`] until [`Engine::be_whole`]; see
    /// [`crate::pager::wire`]. `None` if nothing is missing.
    ///
    /// # Errors
    /// If the instance is unknown here.
    fn pager(&self, name: &InstanceName) -> Result<Option<OwnedFd>>;

    /// Destination: nothing is missing any more, the pager has said so.
    ///
    /// # Errors
    /// If it cannot be noted.
    fn be_whole(&self, name: &InstanceName) -> Result<()>;

    /// Source, after [`Engine::suspend`]: the memory of the stopped instance.
    ///
    /// # Errors
    /// If it is not there any more.
    fn left_behind(&self, name: &InstanceName) -> Result<LeftBehind>;

    /// Source: takes back what [`Engine::arm`] and [`Engine::await_turn`] did, since the instance stays. Nothing to do is no error.
    ///
    /// # Errors
    /// If it cannot be noted.
    fn disarm(&self, name: &InstanceName) -> Result<()>;

    /// Source: waits for other dumps on this machine, so that [`Engine::suspend`] need not. None begins until that is over, or
    /// [`Engine::disarm`] gives the turn back.
    ///
    /// # Errors
    /// If it takes longer than `watch` allows; [`Error::Cancelled`](crate::Error::Cancelled).
    fn await_turn(&self, name: &InstanceName, watch: &Watch<'_>) -> Result<()>;

    /// Source: shows the memory of the instance as it is just now, in one account. It runs on, undisturbed. This takes as long as
    /// `memory` does, whatever `watch` says of time.
    ///
    /// # Errors
    /// [`Error::NotTaken`](crate::Error::NotTaken); [`Error::Cancelled`](crate::Error::Cancelled).
    fn show_memory(&self, name: &InstanceName, memory: &dyn MemorySink, watch: &Watch<'_>) -> Result<()>;

    /// Source: cuts the link, dumps the instance and leaves it stopped. If it fails or is
    /// cancelled, the instance runs on and its link is up. Its memory is told to `memory`, more than once if the dump is
    /// begun anew; without that it is among the images.
    ///
    /// # Errors
    /// With the engine's reason in one sentence; [`Error::NotTaken`](crate::Error::NotTaken);
    /// [`Error::Cancelled`](crate::Error::Cancelled).
    fn suspend(
        &self,
        name: &InstanceName,
        memory: Option<&dyn MemorySink>,
        watch: &Watch<'_>,
    ) -> Result<Dump>;

    /// Where the instance's images lie at the source after [`Engine::suspend`], and where they are
    /// to be put at the destination before [`Engine::restore`].
    ///
    /// # Errors
    /// If the instance is unknown here.
    fn image_directory(&self, name: &InstanceName) -> Result<PathBuf>;

    /// Destination: restores the instance from its images up to the point where nothing but the
    /// last step is missing, and holds it there. Held, it dies with this process. If it is held already, nothing
    /// is done, in no phases.
    ///
    /// # Errors
    /// With the engine's reason in one sentence. The images are kept for another try.
    fn restore(&self, name: &InstanceName, watch: &Watch<'_>) -> Result<Phases>;

    /// Destination, once the move is committed: brings the link up, tells the neighbours, and lets
    /// the instance run. The images are deleted. It cannot be cancelled.
    ///
    /// # Errors
    /// [`Error::Lost`](crate::Error::Lost) if the instance may have run and is no more. With any other
    /// error nothing that it did has been seen outside: it is held still or gone here, its images are kept, and
    /// [`Engine::restore`] may be called again.
    fn release(&self, name: &InstanceName, watch: &Watch<'_>) -> Result<Running>;

    /// Source, once the move is rolled back: brings the link up and lets the stopped instance run.
    /// The images are deleted. One that runs on already is no error, nor is a record that cannot be written: it must
    /// not stand still for that.
    ///
    /// # Errors
    /// If a process of the instance is gone.
    fn resume(&self, name: &InstanceName) -> Result<Running>;

    /// Destination, when the move is rolled back: kills what is held, deletes namespace, link and
    /// images. Nothing to do is no error.
    ///
    /// # Errors
    /// If something could not be deleted.
    fn abort(&self, name: &InstanceName) -> Result<()>;

    /// Kills the instance, whatever its state; deletes namespace, link and images. Nothing to do is
    /// no error.
    ///
    /// # Errors
    /// If something could not be deleted.
    fn destroy(&self, name: &InstanceName) -> Result<()>;

    /// Waits until the instance's first process has ended; `false` if `timeout` came first.
    ///
    /// # Errors
    /// If the instance is unknown here.
    fn wait(&self, name: &InstanceName, timeout: Duration) -> Result<bool>;

    /// What the kernel has ended of the instance for want of memory since it came to this host, as far as that is known: of
    /// one that is no container nothing is. Does not wait for other calls.
    fn shortage(&self, name: &InstanceName) -> Shortage;

    /// What is here, for a node that has just started: instances that run on, stopped ones that
    /// wait for a decision, and what a crash has left. Each has its PIDs verified.
    ///
    /// # Errors
    /// If the state directory cannot be read.
    fn recover(&self) -> Result<Vec<Recovered>>;
}

/// An instance that runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Running {
    /// Its first process, as this host numbers it.
    pub pid: i32,
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

/// How a caller follows a long call, and ends it early.
pub struct Watch<'a> {
    /// Asked whenever the engine can stop; `true` cancels.
    pub cancelled: &'a (dyn Fn() -> bool + Sync),
    /// Told when a phase ends.
    pub progress: &'a (dyn Fn(&Phase) + Sync),
    /// The longest that the call may take.
    pub timeout: Duration,
}

impl Watch<'static> {
    /// Neither cancels nor listens.
    pub const QUIET: Self =
        Self { cancelled: &|| false, progress: &|_| {}, timeout: Duration::from_secs(60) };
}

/// A part of a call, and how long it took.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phase {
    /// What was done, in a word or two.
    pub name: String,
    /// How long it took, in microseconds.
    pub elapsed_us: u64,
}

/// The parts of a call, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phases(pub Vec<Phase>);

/// A stopped instance's images.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dump {
    /// The images in [`Engine::image_directory`], in order of their names.
    pub images: Vec<ImageFile>,
    /// How long the dump's parts took.
    pub phases: Phases,
}
