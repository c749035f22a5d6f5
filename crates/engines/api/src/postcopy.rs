//! Post-copy: the instance runs at the destination, and missing pages follow on demand.
//!
//! ```text
//! destination's engine ──Wanted──▶ node ═══▶ the source's node ──▶ LeftMemory of its stopped instance
//!        ◀──supply───────────────       ◀═══                  ◀──
//! ```

use std::io;

use instance::Region;

use crate::error::Result;

/// The number of pages that one request may ask for.
pub const MAX_PAGES: u64 = 256;

/// The source's end of post-copy: the memory of the stopped instance. Several threads may read at the same time.
pub trait LeftMemory: Send + Sync {
    /// Reads whole pages of `region` that begin at `address`, and fills `into` with them.
    ///
    /// # Errors
    /// If the pages do not exist, or not any more: see [`LeftMemory::is_lost`].
    fn read(&self, region: Region, address: u64, into: &mut [u8]) -> io::Result<()>;

    /// Whether the memory is lost: the stopped instance has ended.
    fn is_lost(&self) -> bool;
}

/// The destination's end of post-copy: the requests of one instance for missing pages. The requests outlive the node: after a restart, the
/// node opens them again with [`Destination::postcopy`](crate::Destination::postcopy), and continues.
///
/// One thread calls [`next`](Postcopy::next), while others call the other methods.
pub trait Postcopy: Send + Sync {
    /// Says that a connection to the source is open. The engine repeats all requests that were not supplied. The node calls this for each
    /// new connection.
    ///
    /// # Errors
    /// If the instance has ended.
    fn begin(&self) -> io::Result<()>;

    /// Waits for the next event, without a time limit; `None` if the instance or its pager has ended.
    ///
    /// # Errors
    /// If the connection to the pager fails, with the same meaning as `None`.
    fn next(&self) -> io::Result<Option<PostcopyEvent>>;

    /// Gives the instance requested pages, with their contents at the source.
    ///
    /// # Errors
    /// If the instance has ended, or these are more pages than it may request at once.
    fn supply(&self, region: Region, address: u64, pages: &[u8]) -> io::Result<()>;

    /// Ends post-copy after [`PostcopyEvent::Whole`]: the engine records durably that no page is missing.
    ///
    /// # Errors
    /// If the record cannot be written.
    fn finish(&self) -> Result<()>;
}

/// An event of an instance that lacks a part of its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostcopyEvent {
    /// It requests these pages.
    Wanted(Wanted),
    /// Its progress.
    Progress(Fetched),
    /// No page is missing any more. This is the last event.
    Whole(Fetched),
}

/// A request for consecutive missing pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Their region.
    pub region: Region,
    /// The address of the first page in the region.
    pub address: u64,
    /// The number of pages, at most [`MAX_PAGES`].
    pub pages: u64,
    /// Whether no process waits for them: the engine prefetches them. Other requests precede.
    pub ahead: bool,
}

/// The progress of post-copy, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fetched {
    /// Pages that a process waited for.
    pub demanded: u64,
    /// Pages that arrived before a process needed them.
    pub pushed: u64,
    /// Pages that are still missing.
    pub left: u64,
}
