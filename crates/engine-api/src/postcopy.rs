//! Memory that comes after the instance, which runs at the destination.
//!
//! ```text
//! destination's engine ──Wanted──▶ node ═══▶ the source's node ──▶ LeftMemory of its stopped instance
//!        ◀──supply───────────────       ◀═══                  ◀──
//! ```

use std::io;

use instance::Region;

use crate::error::Result;

/// The most pages that are wanted at a time.
pub const MAX_PAGES: u64 = 256;

/// The source's side: the memory of the stopped instance.
pub trait LeftMemory: Send + Sync {
    /// Reads whole pages.
    ///
    /// # Errors
    /// If there is no such memory, or not any more.
    fn read(&self, region: Region, address: u64, into: &mut [u8]) -> io::Result<()>;

    /// Whether the memory cannot be had any more.
    fn is_lost(&self) -> bool;
}

/// The destination's side. It outlives the node: the next node gets it again, and goes on.
pub trait Postcopy: Send + Sync {
    /// The source can be asked from now on. What was wanted before is wanted anew.
    ///
    /// # Errors
    /// If the instance has ended.
    fn begin(&self) -> io::Result<()>;

    /// Waits for what happens next; `None` if the instance has ended, or what gives it its memory.
    ///
    /// # Errors
    /// As for `None`.
    fn next(&self) -> io::Result<Option<PostcopyEvent>>;

    /// Gives the instance pages as they were at the source.
    ///
    /// # Errors
    /// If the instance has ended, or these are more pages than were wanted.
    fn supply(&self, region: Region, address: u64, pages: &[u8]) -> io::Result<()>;

    /// Nothing is missing any more, as the last event has said.
    ///
    /// # Errors
    /// If that cannot be written down.
    fn finish(&self) -> Result<()>;
}

/// What happens to an instance without all its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostcopyEvent {
    /// It wants these pages.
    Wanted(Wanted),
    /// How far it is.
    Progress(Fetched),
    /// Nothing is missing any more.
    Whole(Fetched),
}

/// Pages that an instance lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Of which region.
    pub region: Region,
    /// Where they were.
    pub address: u64,
    /// How many: at most [`MAX_PAGES`].
    pub pages: u64,
    /// Whether nobody waits for them yet.
    pub ahead: bool,
}

/// How much of an instance's memory has come after it, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fetched {
    /// What somebody waited for.
    pub demanded: u64,
    /// What came before anybody needed it.
    pub pushed: u64,
    /// What is missing still.
    pub left: u64,
}
