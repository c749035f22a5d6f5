//! The memory of an instance in transfer: from pre-copy rounds while it runs, and at last from its dump.

use std::io;

use serde::{Deserialize, Serialize};

/// Bytes in a page.
pub const PAGE: usize = 4096;

/// The owner of pages, as CRIU's images name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Owner {
    /// The process that has this PID in the instance; addresses are its own.
    Process(u32),
    /// Anonymous shared memory, by its number; addresses count from its beginning.
    Shared(u64),
    /// The archive of a container's file system in memory, by its device number at the source; the rest of its last page is zero.
    Archive(u32),
}

/// Receives the memory of an instance in accounts. The last account is the complete one.
pub trait MemorySink: Send + Sync {
    /// Begins an account. Pages of earlier accounts may be outdated, but remain useful for comparison.
    ///
    /// # Errors
    /// If the sink can accept nothing.
    fn begin(&self) -> io::Result<()>;

    /// Announces an owner, which may have no pages.
    ///
    /// # Errors
    /// As [`MemorySink::take`].
    fn open(&self, owner: Owner) -> io::Result<()>;

    /// Whether it accepts archives of file systems too. Otherwise they are among the images.
    fn takes_archives(&self) -> bool {
        false
    }

    /// Announces how many bytes of pages to expect in the account, as far as that is known.
    fn expect(&self, _bytes: u64) {}

    /// Accepts consecutive whole pages that begin at `address`.
    ///
    /// # Errors
    /// If it does not accept them. It then accepts nothing more.
    fn take(&self, owner: Owner, address: u64, pages: &[u8]) -> io::Result<()>;

    /// Whether [`MemorySink::take_later`] leaves pages at the source.
    fn leaves_pages(&self) -> bool {
        false
    }

    /// Like [`MemorySink::take`], for pages that can arrive after the restore: a process that touches one waits for it.
    ///
    /// # Errors
    /// As [`MemorySink::take`].
    fn take_later(&self, owner: Owner, address: u64, pages: &[u8]) -> io::Result<()> {
        self.take(owner, address, pages)
    }

    /// Ends the account.
    ///
    /// # Errors
    /// As [`MemorySink::take`].
    fn end(&self) -> io::Result<()>;
}
