//! The side of a move that an instance leaves.

use std::path::PathBuf;
use std::sync::Arc;

use instance::ImageFile;

use crate::channels::Channels;
use crate::engine::Running;
use crate::error::Result;
use crate::memory::MemorySink;
use crate::needs::Report;
use crate::postcopy::LeftMemory;
use crate::watch::{Phases, Watch};

/// One instance that may leave its host. Opening it does nothing to the instance, whatever that does. A node that starts again opens another
/// one for the same instance, and goes on with that.
///
/// Dropping it takes back what it has got ready, if the instance runs, and ends what goes over its channels. Neither the instance nor
/// its images end with it.
pub trait Source: Send + Sync {
    /// What pins the instance here, and what it needs elsewhere. Does not disturb it. If nothing pins it and `intent` is to leave, the
    /// engine gets ready for [`Source::suspend`] from now on, while the caller goes on.
    ///
    /// # Errors
    /// If it cannot be inspected; what pins it is in the report.
    fn check(&self, intent: Intent) -> Result<Report>;

    /// Sends the memory of the instance as it is now, and returns when that is handed over. The instance runs on. If
    /// [`Driver::Node`](crate::Driver) drives pre-copy, this is one round, in one account; else it is all of them.
    ///
    /// # Errors
    /// [`Error::NotTaken`](crate::Error::NotTaken); [`Error::Cancelled`](crate::Error::Cancelled).
    fn precopy(&self, to: Outgoing<'_>, watch: &Watch<'_>) -> Result<()>;

    /// Waits until [`Source::suspend`] can begin at once, while the instance still works.
    ///
    /// # Errors
    /// If it takes longer than `watch` allows; [`Error::Cancelled`](crate::Error::Cancelled).
    fn ready(&self, watch: &Watch<'_>) -> Result<()>;

    /// Cuts the link, stops the instance, and tells the rest of its memory to `memory`, more than once if that is begun anew;
    /// without `memory` it is among the image files. If this fails or is cancelled, the instance runs on and its link is up.
    ///
    /// # Errors
    /// With the engine's reason in one sentence; [`Error::NotTaken`](crate::Error::NotTaken);
    /// [`Error::Cancelled`](crate::Error::Cancelled).
    fn suspend(&self, memory: Option<&dyn MemorySink>, watch: &Watch<'_>) -> Result<Dump>;

    /// Lets the stopped instance run, with its link up, once the move is rolled back. Its images are deleted. One that runs on
    /// already is no error.
    ///
    /// # Errors
    /// If the instance is gone.
    fn resume(&self) -> Result<Running>;

    /// The memory of the stopped instance, for a destination where it runs without all of it.
    ///
    /// # Errors
    /// If it is not there any more.
    fn left_memory(&self) -> Result<Arc<dyn LeftMemory>>;
}

/// What a check is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intent {
    /// Whether the instance leaves if nothing pins it.
    pub leaves: bool,
    /// Whether all of it stays in files of this host, which need room here.
    pub is_saved: bool,
}

/// Where a source's memory goes while the instance runs.
#[derive(Clone, Copy)]
pub struct Outgoing<'a> {
    /// Pages, which the node sends on.
    pub memory: &'a dyn MemorySink,
    /// For what the engine sends by itself.
    pub channels: &'a Arc<dyn Channels>,
}

/// What [`Source::suspend`] leaves in files. They stay until the instance runs again or is destroyed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dump {
    /// Where the image files are.
    pub directory: PathBuf,
    /// These.
    pub images: Vec<ImageFile>,
    /// How long the dump's parts took.
    pub phases: Phases,
}
