//! Direct mappings, the owner's side: shared regions, and the peers that may access them.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::attr::Access;
use crate::handle::Mr;
use crate::region::Region;
use crate::share::make_private::{make_private, renew};
use crate::share::make_shared::make_shared;
use crate::share::userfault::Handler;
use crate::share::{BLOCK, PAGE, maps, memfd};

/// Larger regions stay on the ring.
const LARGEST: u64 = 64 << 30;

/// More regions at a time stay on the ring: each takes a descriptor of the program's.
const MOST: usize = 128;

/// How often a block is tried that cannot be converted just now, and how long it is left alone in between.
const MOST_TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(10);

/// A memfd that shows a range of this process' memory.
pub(crate) struct Shared {
    /// Its name on links.
    pub id: u64,
    /// Whole pages of the region that it was made for. It also shows others of the same pages and the same rights.
    pub range: Range<u64>,
    memory: OwnedFd,
    /// Neighbours may write to it.
    pub writable: bool,
}

impl Shared {
    /// The memory for a neighbour.
    ///
    /// # Errors
    /// The errors of opening it again.
    pub fn memory(&self) -> io::Result<OwnedFd> {
        if self.writable { self.memory.try_clone() } else { memfd::read_only(self.memory.as_fd()) }
    }

    /// Makes the first `length` bytes private again, where the program has not unmapped them: one that keeps
    /// registrations (a registration cache) may deregister memory that is long gone, and has perhaps mapped something
    /// else there. Moved mappings (`mremap`) become private in their present place, and so do added ones.
    fn make_private(&self, length: u64) {
        // Without `/proc` it is at its first place, unless a mapping there is private.
        let mappings = maps::mappings(&self.memory).unwrap_or_else(|_| vec![(self.range.clone(), 0)]);
        let shown_once = maps::is_shown_once(&mappings);
        for (mapped, offset) in mappings {
            let end = |bytes: u64| mapped.end.min(mapped.start + bytes.saturating_sub(offset));
            make_part_private(mapped.start..end(length), self.memory.as_fd(), offset, shown_once);
            let added = end(self.length())..mapped.end;
            if !added.is_empty() {
                // SAFETY: a mapping that was made longer than the memory has no pages there: an access gets SIGBUS.
                let _ = unsafe { renew(&added) };
            }
        }
    }

    /// Whether it is the program's mapping at `range`. The program may have mapped something else there
    /// since.
    fn shows(&self, range: &Range<u64>) -> bool {
        let lies_within = self.range.start <= range.start && range.end <= self.range.end;
        lies_within && maps::shows(range, &self.memory, range.start - self.range.start)
    }

    fn length(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// How far a region is.
enum Progress {
    /// Pieces still to be converted, the next one last; how many bytes are.
    Converting {
        pieces: Vec<Range<u64>>,
        converted: u64,
        shared: Shared,
        handler: Handler,
        /// How often the next block was busy, and until when it is left alone.
        busy: Option<(u32, Instant)>,
    },
    Ready(Arc<Shared>),
    /// It stays on the ring.
    Never,
    /// So does this one. So many bytes were converted, and stay so until the region ends: the kernel may be reading into them just now.
    Stuck {
        converted: u64,
        shared: Shared,
    },
}

impl Progress {
    /// Converts the next block, unless that has to wait.
    fn turn_some(self) -> Self {
        let Self::Converting { mut pieces, converted, shared, handler, busy } = self else { return self };
        let Some(piece) = pieces.last_mut() else { return Self::complete(shared) };
        if busy.is_some_and(|(_, until)| Instant::now() < until) {
            return Self::Converting { pieces, converted, shared, handler, busy };
        }
        let block = piece.start..piece.end.min(piece.start + BLOCK);
        if holds_own_state(&block) {
            return Self::Stuck { converted, shared };
        }
        let offset = block.start - shared.range.start;
        // SAFETY: neither this thread's stack nor its thread-local storage is near the block.
        match unsafe { make_shared(&block, shared.memory.as_fd(), offset, &handler) } {
            Ok(()) => {
                piece.start = block.end;
                if piece.is_empty() {
                    pieces.pop();
                }
                let converted = offset + (block.end - block.start);
                Self::Converting { pieces, converted, shared, handler, busy: None }
            }
            Err(error) => {
                let tries = busy.map_or(0, |(tries, _)| tries) + 1;
                if error.kind() != io::ErrorKind::ResourceBusy || tries > MOST_TRIES {
                    return Self::Stuck { converted, shared };
                }
                let busy = Some((tries, Instant::now() + PAUSE));
                Self::Converting { pieces, converted, shared, handler, busy }
            }
        }
    }

    /// All blocks are converted.
    fn complete(shared: Shared) -> Self {
        match memfd::seal(shared.memory.as_fd(), shared.writable) {
            Ok(()) => Self::Ready(Arc::new(shared)),
            Err(_) => Self::Stuck { converted: shared.length(), shared },
        }
    }
}

/// The memory that a region's neighbours can get.
pub(crate) enum Answer {
    /// This memory shows the range.
    Ready(Arc<Shared>),
    /// Ask again after some more [`Sharing::turn_some`].
    NotYet,
    /// Nothing.
    Never,
}

/// The regions that are shared, or are on the way to it.
#[derive(Default)]
pub(crate) struct Sharing {
    regions: HashMap<Mr, Progress>,
    ids: u64,
    /// True if pages can be converted at all.
    pub allowed: bool,
}

/// The whole pages within `region`.
pub(crate) fn whole_pages(region: &Region) -> Range<u64> {
    let start = region.addr.next_multiple_of(PAGE);
    let end = (region.addr + region.length) / PAGE * PAGE;
    start..end.max(start)
}

impl Sharing {
    /// Asks for the memory of `mr`, and starts to convert it if that has not been done.
    pub fn want(&mut self, mr: Mr, region: &Region) -> Answer {
        if !self.allowed {
            return Answer::Never;
        }
        if !self.regions.contains_key(&mr) {
            // One at a time: memory that is plain now may be just the memory that the other thread converts.
            if self.is_converting() {
                return Answer::NotYet;
            }
            let progress = self.begin(region).unwrap_or(Progress::Never);
            self.regions.insert(mr, progress);
        }
        match self.regions.get(&mr) {
            Some(Progress::Ready(shared)) => Answer::Ready(Arc::clone(shared)),
            Some(Progress::Converting { .. }) => Answer::NotYet,
            _ => Answer::Never,
        }
    }

    fn is_converting(&self) -> bool {
        self.regions.values().any(|progress| matches!(progress, Progress::Converting { .. }))
    }

    fn begin(&mut self, region: &Region) -> Option<Progress> {
        let (range, writable) = (whole_pages(region), region.access.contains(Access::REMOTE_WRITE));
        if range.is_empty() || range.end - range.start > LARGEST || self.regions.len() >= MOST {
            return None;
        }
        let known = self.regions.values().find_map(|progress| match progress {
            Progress::Ready(shared) if shared.shows(&range) => Some(Arc::clone(shared)),
            _ => None,
        });
        if let Some(shared) = known {
            // A process with the descriptor has all of the memory.
            let is_the_same = shared.range == range && shared.writable == writable;
            return is_the_same.then_some(Progress::Ready(shared));
        }
        let mut pieces = maps::anonymous_pieces(&range)?;
        pieces.reverse();
        let memory = memfd::create(range.end - range.start).ok()?;
        let handler = Handler::new().ok()?;
        self.ids += 1;
        let shared = Shared { id: self.ids, range, memory, writable };
        Some(Progress::Converting { pieces, converted: 0, shared, handler, busy: None })
    }

    /// Converts one block of one region, unless that has to wait.
    pub fn turn_some(&mut self) {
        let converting =
            self.regions.values_mut().find(|progress| matches!(progress, Progress::Converting { .. }));
        if let Some(progress) = converting {
            *progress = std::mem::replace(progress, Progress::Never).turn_some();
        }
    }

    /// `mr` is about to be deregistered. No initiator may be inside. Neighbours may keep the memory that they got: other regions in it
    /// become private too, until they are asked for again.
    pub fn forget(&mut self, mr: Mr) {
        match self.regions.remove(&mr) {
            Some(Progress::Ready(shared)) => {
                let shows_it =
                    |progress: &Progress| matches!(progress, Progress::Ready(other) if other.id == shared.id);
                self.regions.retain(|_, progress| !shows_it(progress));
                shared.make_private(shared.length());
            }
            Some(Progress::Converting { converted, shared, .. } | Progress::Stuck { converted, shared }) => {
                shared.make_private(converted);
            }
            _ => {}
        }
    }

    /// True if neighbours may have been given memory of `mr`.
    pub fn is_shared(&self, mr: Mr) -> bool {
        matches!(self.regions.get(&mr), Some(Progress::Ready(_)))
    }

    /// Stops unfinished conversions: a userfaultfd cannot be checkpointed.
    pub fn pause(&mut self) {
        self.regions.retain(|_, progress| {
            let Progress::Converting { converted, shared, .. } = progress else { return true };
            shared.make_private(*converted);
            false
        });
    }

    /// Gives up memory that has changed since the process was restored.
    pub fn verify(&mut self) {
        self.regions.retain(|_, progress| {
            let Progress::Ready(shared) = progress else { return true };
            let is_shown = shared.shows(&shared.range);
            if !is_shown {
                shared.make_private(shared.length());
            }
            is_shown
        });
    }

    /// Makes all pages private again, for good: a program that forks once may do it often, and each conversion takes
    /// time. No initiator may be inside, or its stores are lost.
    pub fn make_all_private(&mut self) {
        for progress in self.regions.values_mut() {
            match std::mem::replace(progress, Progress::Never) {
                Progress::Ready(shared) => shared.make_private(shared.length()),
                Progress::Converting { converted, shared, .. } | Progress::Stuck { converted, shared } => {
                    shared.make_private(converted);
                }
                Progress::Never => {}
            }
        }
    }
}

/// Makes pages private again that show `memory` from `offset` on.
fn make_part_private(part: Range<u64>, memory: BorrowedFd<'_>, offset: u64, shown_once: bool) {
    if !part.is_empty() && !holds_own_state(&part) {
        // SAFETY: the part was converted, shows the memory still, and is not this thread's own.
        unsafe { make_private(&part, memory, offset, shown_once) };
    }
}

/// True if this thread's stack or thread-local storage may lie in `block`: to the kernel they are memory like any
/// other.
fn holds_own_state(block: &Range<u64>) -> bool {
    let mark = 0u8;
    // SAFETY: the call has no preconditions.
    let local = unsafe { libc::__errno_location() };
    let near = block.start.saturating_sub(BLOCK)..block.end.saturating_add(BLOCK);
    near.contains(&((&raw const mark).addr() as u64)) || near.contains(&(local.addr() as u64))
}
