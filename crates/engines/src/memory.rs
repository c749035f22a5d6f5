//! The memory of an instance on its way: from looks at it while it runs, and at last from its dump.

use std::io;

use serde::{Deserialize, Serialize};

/// Bytes in a page.
pub const PAGE: usize = 4096;

/// Whose pages they are, as CRIU's images call it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Owner {
    /// The process that has this PID in the instance; addresses are its own.
    Process(u32),
    /// Memory without a file that processes share, by its number; addresses count from its beginning.
    Shared(u64),
    /// The archive of a container's file system in memory, by the number of its device at the source; of its last page the rest is zeroes.
    Archive(u32),
}

/// Takes the memory of an instance, in accounts of which the last one counts.
pub trait MemorySink: Send + Sync {
    /// An account begins. What those before it have told may be void, and is still worth knowing.
    ///
    /// # Errors
    /// If the sink can take nothing.
    fn begin(&self) -> io::Result<()>;

    /// Says that there is this owner, which may have no pages.
    ///
    /// # Errors
    /// As [`MemorySink::take`].
    fn open(&self, owner: Owner) -> io::Result<()>;

    /// Whether it takes archives of file systems as well. Otherwise they are among the images.
    fn takes_archives(&self) -> bool {
        false
    }

    /// Says how many bytes of pages the account will have, as far as that is known.
    fn expect(&self, _bytes: u64) {}

    /// Takes whole pages that lie at `address`, one behind the other.
    ///
    /// # Errors
    /// If they are not taken; then nothing more is.
    fn take(&self, owner: Owner, address: u64, pages: &[u8]) -> io::Result<()>;

    /// Whether [`MemorySink::take_later`] leaves pages where they are.
    fn leaves_pages(&self) -> bool {
        false
    }

    /// As [`MemorySink::take`], of pages that an instance can be restored without: whoever touches one will wait for it.
    ///
    /// # Errors
    /// As [`MemorySink::take`].
    fn take_later(&self, owner: Owner, address: u64, pages: &[u8]) -> io::Result<()> {
        self.take(owner, address, pages)
    }

    /// All of the account has been told.
    ///
    /// # Errors
    /// As [`MemorySink::take`].
    fn end(&self) -> io::Result<()>;
}
