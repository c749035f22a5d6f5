//! The destination side of a move: the host that an instance comes to.

use std::fs::File;
use std::io;
use std::sync::Arc;

use instance::{Blocker, InstanceSpec, Region};

use crate::channels::Channels;
use crate::engine::Running;
use crate::error::Result;
use crate::needs::Needs;
use crate::postcopy::Postcopy;
use crate::watch::{Phases, Watch};

/// The destination side of one instance's move. Opening it changes nothing. A node that restarts opens another destination side for the same
/// instance, and continues with that. Dropping it ends its channels, and nothing else.
///
/// A move calls [`verify`](Destination::verify), [`prepare`](Destination::prepare), [`sink`](Destination::sink) and
/// [`restore`](Destination::restore), in this order. The end of a move is [`release`](Destination::release) after a commit, and
/// [`abort`](Destination::abort) after a rollback.
pub trait Destination: Send + Sync {
    /// Returns the blockers: the needs of the instance that this host does not meet. `is_postcopy` says that the instance will run here
    /// before all its memory has arrived. Changes nothing, and may be called at any time.
    ///
    /// # Errors
    /// If the engine cannot work on this host at all.
    fn verify(&self, needs: &Needs, is_postcopy: bool) -> Result<Vec<Blocker>>;

    /// Makes room for the images, and the instance's network namespace with its link down. Nothing of the instance runs. The instance is
    /// [`State::Prepared`](crate::State::Prepared) afterwards.
    ///
    /// # Errors
    /// If there is no room, or an instance of this name is on this host and has not ended.
    fn prepare(&self, coming: Coming<'_>) -> Result<()>;

    /// Returns the sink for the memory and the image files of the prepared instance. The node calls it once.
    ///
    /// # Errors
    /// If the instance is unknown on this host.
    fn sink(&self) -> Result<Box<dyn ImageSink>>;

    /// Returns the instance's requests for missing memory; `None` if no memory is missing. It may be called from [`Destination::prepare`]
    /// until [`Postcopy::finish`].
    ///
    /// # Errors
    /// If the instance is unknown on this host.
    fn postcopy(&self) -> Result<Option<Arc<dyn Postcopy>>>;

    /// Restores the prepared instance from its memory and image files up to the last step, and holds it there: none of its code runs, and its
    /// link is down. In a post-copy move it may wait for pages, so the node serves [`Postcopy`] meanwhile. The instance is
    /// [`State::Held`](crate::State::Held) afterwards. If it is held already, the call returns no phases.
    ///
    /// # Errors
    /// [`Error::Lost`](crate::Error::Lost) if a held copy has ended, and cannot be restored again. After any other error, such as
    /// [`Error::Failed`](crate::Error::Failed) with the engine's reason, the images stay, and the call may be repeated.
    fn restore(&self, watch: &Watch<'_>) -> Result<Phases>;

    /// Lets the held instance run after the commit: brings its link up, and announces its address to its neighbours. `watch` cannot cancel
    /// it.
    ///
    /// # Errors
    /// [`Error::Lost`](crate::Error::Lost) if the instance may have run, and has ended. After any other error, the instance has had no effect
    /// outside: it is still held, or it is prepared again with its images, and [`Destination::restore`] may be repeated.
    fn release(&self, watch: &Watch<'_>) -> Result<Running>;

    /// Removes the prepared or held instance after a rollback: kills it, and deletes its namespace, link and images. In any other state, it
    /// does nothing and succeeds.
    ///
    /// # Errors
    /// If something cannot be deleted. The call may be repeated.
    fn abort(&self) -> Result<()>;
}

/// An instance that comes to this host.
pub struct Coming<'a> {
    /// Its specification.
    pub spec: &'a InstanceSpec,
    /// Its needs, as the source's check has reported them.
    pub needs: &'a Needs,
    /// Whether it will run before all its memory has arrived.
    pub is_postcopy: bool,
    /// Channels to the source; `None` if the instance comes from a checkpoint.
    pub channels: Option<Arc<dyn Channels>>,
}

/// Accepts what the source has sent: first accounts of memory, then image files, and at last [`ImageSink::finish`].
///
/// Each account that the source gives to its [`MemorySink`](crate::MemorySink) begins with [`ImageSink::begin`]. Only pages that the
/// destination does not have yet arrive; the layouts list all pages. The last account is the memory of the instance. An instance from a
/// checkpoint comes as image files only. Images whose sink is dropped without `finish` are incomplete.
pub trait ImageSink: Send {
    /// Begins an account: the layouts of earlier accounts become void, and their pages stay.
    fn begin(&mut self);

    /// Writes consecutive whole pages that begin at `address`. They replace earlier pages at the same addresses.
    ///
    /// # Errors
    /// If `region`, `address` or the length is invalid, or the pages cannot be written.
    fn write(&mut self, region: Region, address: u64, pages: &[u8]) -> io::Result<()>;

    /// Adds runs of pages to the layout of `region` in this account. A run is an address and a number of pages; runs come in ascending order.
    /// An empty list announces a region without pages.
    ///
    /// # Errors
    /// If `region` or a run is invalid.
    fn lay_out(&mut self, region: Region, runs: &[(u64, u64)]) -> io::Result<()>;

    /// Marks runs of the layout as left at the source: [`Postcopy`] fetches these pages after the restore. Pages that have arrived for them
    /// are outdated.
    ///
    /// # Errors
    /// As [`ImageSink::lay_out`].
    fn leave(&mut self, region: Region, runs: &[(u64, u64)]) -> io::Result<()>;

    /// Creates an image file, into which the node writes. `name` is a plain file name without a directory.
    ///
    /// # Errors
    /// If the file exists already, or no image file of this kind may have this name.
    fn file(&mut self, name: &str) -> io::Result<File>;

    /// Completes the images: nothing more arrives.
    ///
    /// # Errors
    /// If a page of the last layouts has not arrived, or the images cannot be written.
    fn finish(self: Box<Self>) -> io::Result<()>;
}
