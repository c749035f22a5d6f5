//! The memory of an instance that leaves its host: first while the instance runs, at last when it is stopped.

use std::io;

use instance::Region;

/// The size of a page, in bytes.
pub const PAGE: usize = 4096;

/// Accepts the memory of an instance in accounts. An account describes the whole memory at one moment; the last account is the memory
/// that the destination restores. The node sends only pages that the destination does not have already.
///
/// An account is [`begin`](MemorySink::begin), any number of the calls for regions and pages, and [`end`](MemorySink::end). An account without
/// `end` is void; the engine may begin another one.
pub trait MemorySink: Send + Sync {
    /// Begins an account. Pages of earlier accounts may be outdated, and remain useful: the node compares new pages with them.
    ///
    /// # Errors
    /// If the sink can accept nothing.
    fn begin(&self) -> io::Result<()>;

    /// Announces a region, which may have no pages.
    ///
    /// # Errors
    /// As [`MemorySink::take`].
    fn open(&self, region: Region) -> io::Result<()>;

    /// Announces how many bytes of pages the account will have, as far as the engine knows. It serves the display of progress.
    fn expect(&self, bytes: u64);

    /// Accepts consecutive whole pages of `region` that begin at `address`.
    ///
    /// # Errors
    /// If the pages cannot be sent. The sink then accepts nothing more, and the engine's call returns
    /// [`Error::NotTaken`](crate::Error::NotTaken).
    fn take(&self, region: Region, address: u64, pages: &[u8]) -> io::Result<()>;

    /// Whether [`MemorySink::take_later`] leaves pages at the source, as in a post-copy move.
    fn leaves_pages(&self) -> bool;

    /// Like [`MemorySink::take`], for pages that may arrive after the restore: a process that touches one waits for it.
    ///
    /// # Errors
    /// As [`MemorySink::take`].
    fn take_later(&self, region: Region, address: u64, pages: &[u8]) -> io::Result<()>;

    /// Ends the account, which is complete.
    ///
    /// # Errors
    /// As [`MemorySink::take`].
    fn end(&self) -> io::Result<()>;
}
