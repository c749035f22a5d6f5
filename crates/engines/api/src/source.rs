//! The source side of a move: the host that an instance leaves.

use std::path::PathBuf;
use std::sync::Arc;

use instance::ImageFile;

use crate::channels::Channels;
use crate::engine::Running;
use crate::error::Result;
use crate::memory::MemorySink;
use crate::needs::Report;
use crate::postcopy::LeftMemory;
use crate::watch::{Outage, Phases, Watch};

/// The source side of one instance's move. Opening it does not change the instance. A node that restarts opens another source side for the
/// same instance, in any state, and continues with that.
///
/// A move calls [`check`](Source::check), [`precopy`](Source::precopy), [`ready`](Source::ready) and [`suspend`](Source::suspend), in this
/// order, each of them for a running instance. The end of a move is [`resume`](Source::resume) after a rollback, and
/// [`Engine::destroy`](crate::Engine::destroy) after a commit.
///
/// Dropping it undoes its preparations of `check` and `ready` if the instance runs, and ends its channels. The instance and its images
/// stay. A dry run opens another source side beside an open one; it must not affect that.
pub trait Source: Send + Sync {
    /// Reports the blockers of the running instance, and its needs at the destination. Does not disturb it. If there is no blocker and
    /// `intent` says that the instance leaves, the engine starts to prepare [`Source::suspend`] in the background.
    ///
    /// # Errors
    /// If the instance cannot be inspected. A blocker is no error, but a part of the report.
    fn check(&self, intent: Intent) -> Result<Report>;

    /// Sends the present memory of the running instance, and returns when all of it is handed over. The instance runs on. With
    /// [`Driver::Node`](crate::Driver::Node), one call is one pre-copy round and gives one account to `to.memory`; the node repeats it. With
    /// [`Driver::Engine`](crate::Driver::Engine), the node makes one call, in which the engine does all rounds. The call takes as long as the
    /// network does: the timeout of `watch` does not apply.
    ///
    /// # Errors
    /// [`Error::NotTaken`](crate::Error::NotTaken) if `to` fails; [`Error::Cancelled`](crate::Error::Cancelled).
    fn precopy(&self, to: Outgoing<'_>, watch: &Watch<'_>) -> Result<()>;

    /// Whether the instance stands still already: an emulator may stop a guest that hardly writes once its memory is sent. Programs in it cannot let
    /// go of anything then.
    fn stands_still(&self) -> bool;

    /// Waits until [`Source::suspend`] can begin at once. The instance works meanwhile. This is the one wait before the blackout.
    ///
    /// # Errors
    /// If it takes longer than the timeout of `watch`; [`Error::Cancelled`](crate::Error::Cancelled).
    fn ready(&self, watch: &Watch<'_>) -> Result<()>;

    /// Cuts the link, stops the instance, and writes its image files. It gives the rest of the memory to `memory`; an engine that repeats
    /// its dump begins another account. Without `memory`, the image files contain the memory. The instance is
    /// [`State::Stopped`](crate::State::Stopped) afterwards. If the call fails or is cancelled, the instance runs on with its link up.
    ///
    /// # Errors
    /// [`Error::Failed`](crate::Error::Failed) with the engine's reason; [`Error::Pinned`](crate::Error::Pinned) if a blocker arose after
    /// the check; [`Error::NotTaken`](crate::Error::NotTaken) if `memory` fails; [`Error::Cancelled`](crate::Error::Cancelled).
    fn suspend(&self, memory: Option<&dyn MemorySink>, watch: &Watch<'_>) -> Result<Dump>;

    /// Lets the stopped instance run after a rollback, with its link up, and deletes its images. Succeeds if the instance runs already.
    ///
    /// # Errors
    /// [`Error::Lost`](crate::Error::Lost) if the stopped instance has ended for good; other errors if one of its processes has ended.
    fn resume(&self) -> Result<Running>;

    /// Returns access to the memory of the stopped instance, for the destination of a post-copy move.
    ///
    /// # Errors
    /// If the instance is not stopped, or its memory does not exist any more.
    fn left_memory(&self) -> Result<Arc<dyn LeftMemory>>;
}

/// The purpose of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intent {
    /// Whether the instance leaves if it has no blocker. A dry run leaves this unset.
    pub leaves: bool,
    /// Whether the instance is saved as a checkpoint: files of this host contain all its memory, and need room here.
    pub is_saved: bool,
}

/// The ways from [`Source::precopy`] to the destination.
#[derive(Clone, Copy)]
pub struct Outgoing<'a> {
    /// Accepts pages, which the node sends to the destination.
    pub memory: &'a dyn MemorySink,
    /// Byte channels, for the engine's own protocol.
    pub channels: &'a Arc<dyn Channels>,
}

/// The image files that [`Source::suspend`] has written. They stay until the instance runs again or is destroyed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dump {
    /// The directory of the image files.
    pub directory: PathBuf,
    /// The image files that the node sends or saves.
    pub images: Vec<ImageFile>,
    /// The parts of the dump, with their durations.
    pub phases: Phases,
    /// The outage of a virtual machine, until the end of the call.
    pub outage: Option<Outage>,
}
