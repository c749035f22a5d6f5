//! The memory of an instance on its way out: while it runs, and at last when it stands still.

use std::io;

use instance::Region;

/// Bytes in a page.
pub const PAGE: usize = 4096;

/// Takes the memory of an instance, in accounts of which the last one counts. What the destination has already is not sent again.
pub trait MemorySink: Send + Sync {
    /// An account begins. What those before it have told may be void, and is still worth knowing.
    ///
    /// # Errors
    /// If the sink can take nothing.
    fn begin(&self) -> io::Result<()>;

    /// Says that there is this region, which may have no pages.
    ///
    /// # Errors
    /// As [`MemorySink::take`].
    fn open(&self, region: Region) -> io::Result<()>;

    /// Says how many bytes of pages the account will have, as far as that is known.
    fn expect(&self, bytes: u64);

    /// Takes whole pages that lie at `address`, one behind the other.
    ///
    /// # Errors
    /// If they are not taken; then nothing more is.
    fn take(&self, region: Region, address: u64, pages: &[u8]) -> io::Result<()>;

    /// Whether [`MemorySink::take_later`] leaves pages where they are.
    fn leaves_pages(&self) -> bool;

    /// As [`MemorySink::take`], of pages that an instance can be restored without: whoever touches one will wait for it.
    ///
    /// # Errors
    /// As [`MemorySink::take`].
    fn take_later(&self, region: Region, address: u64, pages: &[u8]) -> io::Result<()>;

    /// All of the account has been told.
    ///
    /// # Errors
    /// As [`MemorySink::take`].
    fn end(&self) -> io::Result<()>;
}
