//! The side of a move to which an instance comes.

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

/// One instance that may come to its host. Opening it does nothing. A node that starts again opens another one for the same instance, and
/// goes on with that; dropping it ends what goes over its channels, and nothing else.
pub trait Destination: Send + Sync {
    /// What of `needs` this host does not have, for an instance that runs without all its memory at first if `is_postcopy`.
    ///
    /// # Errors
    /// If the engine cannot work here at all.
    fn verify(&self, needs: &Needs, is_postcopy: bool) -> Result<Vec<Blocker>>;

    /// Makes room and the instance's network namespace, with its link down, and gets ready for what comes. Nothing of the instance runs.
    ///
    /// # Errors
    /// If there is no room, or an instance of this name is here already.
    fn prepare(&self, coming: Coming<'_>) -> Result<()>;

    /// Takes memory and image files, once.
    ///
    /// # Errors
    /// If the instance is unknown here.
    fn sink(&self) -> Result<Box<dyn ImageSink>>;

    /// The instance's memory that comes after it, from [`Destination::prepare`] on. `None` if nothing is missing.
    ///
    /// # Errors
    /// If the instance is unknown here.
    fn postcopy(&self) -> Result<Option<Arc<dyn Postcopy>>>;

    /// Restores the instance up to the point where nothing but the last step is missing, and holds it there. If it is
    /// held already, nothing is done, in no phases.
    ///
    /// # Errors
    /// With the engine's reason in one sentence. What has come is kept for another try.
    fn restore(&self, watch: &Watch<'_>) -> Result<Phases>;

    /// Once the move is committed: brings the link up, tells the neighbours, and lets the instance run. It cannot be
    /// cancelled.
    ///
    /// # Errors
    /// [`Error::Lost`](crate::Error::Lost) if the instance may have run and is no more. With any other
    /// error nothing that it did has been seen outside: it is held still or gone here, what has come is kept, and
    /// [`Destination::restore`] may be called again.
    fn release(&self, watch: &Watch<'_>) -> Result<Running>;

    /// When the move is rolled back: ends what is held, deletes namespace, link and images. Nothing to do is no error.
    ///
    /// # Errors
    /// If something could not be deleted.
    fn abort(&self) -> Result<()>;
}

/// An instance that comes.
pub struct Coming<'a> {
    /// What it is.
    pub spec: &'a InstanceSpec,
    /// What the source's check has found.
    pub needs: &'a Needs,
    /// Whether it will run before all its memory is here.
    pub is_postcopy: bool,
    /// To the source; none if it comes from files.
    pub channels: Option<Arc<dyn Channels>>,
}

/// Takes what comes from the source: what its [`MemorySink`](crate::MemorySink) was told, as far as it is new, and then the image files.
pub trait ImageSink: Send {
    /// An account of memory begins: what those before it have said of layouts is void, and their pages stay.
    fn begin(&mut self);

    /// Takes whole pages that lie at `address`.
    ///
    /// # Errors
    /// If they are none, or cannot be written.
    fn write(&mut self, region: Region, address: u64, pages: &[u8]) -> io::Result<()>;

    /// Of which pages the region consists: more runs of them, by address and number, in rising order. There may be none.
    ///
    /// # Errors
    /// If there can be no such pages.
    fn lay_out(&mut self, region: Region, runs: &[(u64, u64)]) -> io::Result<()>;

    /// Which of these pages are fetched later, whatever has come of them.
    ///
    /// # Errors
    /// As [`ImageSink::lay_out`].
    fn leave(&mut self, region: Region, runs: &[(u64, u64)]) -> io::Result<()>;

    /// A new image file of this plain name.
    ///
    /// # Errors
    /// If there is one already, or it can be none.
    fn file(&mut self, name: &str) -> io::Result<File>;

    /// All has come.
    ///
    /// # Errors
    /// If it has not, or cannot be written.
    fn finish(self: Box<Self>) -> io::Result<()>;
}
