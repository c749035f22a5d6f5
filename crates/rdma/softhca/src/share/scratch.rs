//! Scratch address space that holds pages while they are converted.

use std::io;
use std::ops::Range;
use std::ptr;

use libc::c_void;

use super::PAGE;
use super::syscall::check;
use super::userfault::{Handler, PageTable};
use crate::mapping::{self, Source};

/// How often a program may lock or unlock pages that are being moved.
const MOST_LOCKS: u32 = 1000;

/// Address space for pages, between two inaccessible guard pages.
///
/// At an address of the kernel's choice, a block's pages may lie beside the block. The two mappings then become
/// one. The kernel (6.18) may drop its registration with the userfaultfd, where one half has none: stores to
/// the block wait no longer, and are lost.
pub(super) struct Scratch {
    start: *mut c_void,
    length: u64,
}

/// Whether pages come to a [`Scratch`] or leave it.
#[derive(Clone, Copy)]
enum Direction {
    To,
    From,
}

impl Scratch {
    /// Room for `length` bytes, with no pages yet.
    ///
    /// # Errors
    /// The errors of the system calls.
    pub fn new(length: u64) -> io::Result<Self> {
        let guarded = (length + 2 * PAGE) as usize;
        let flags = libc::MAP_PRIVATE | libc::MAP_NORESERVE;
        // SAFETY: a fresh mapping where the kernel likes.
        let below =
            unsafe { mapping::map(ptr::null_mut(), guarded, libc::PROT_NONE, flags, Source::Anonymous)? };
        // SAFETY: the first page of the new mapping is the lower guard.
        let scratch = Self { start: unsafe { below.byte_add(PAGE as usize) }, length };
        // Where all that is mapped is locked, pages would be there as soon as they may be used.
        scratch.set_locked(false)?;
        // SAFETY: the range is part of the scratch.
        check(unsafe { libc::mprotect(scratch.start, length as usize, libc::PROT_READ | libc::PROT_WRITE) })?;
        Ok(scratch)
    }

    /// Where its byte `offset` is.
    pub fn at(&self, offset: u64) -> *mut c_void {
        self.start.wrapping_byte_add(offset as usize)
    }

    /// Moves the pages of `block`, which is as long as this, here, where their content can be read then. Pages may be here if it
    /// fails, too.
    ///
    /// # Errors
    /// The errors of [`Handler::move_all`].
    pub fn take(&self, block: &Range<u64>, handler: &Handler, pages: &PageTable) -> io::Result<()> {
        // Pages are moved only to where the userfaultfd is asked for them.
        let _held = handler.hold_at_missing(&(self.address()..self.address() + self.length))?;
        self.move_all(handler, pages, Direction::To, block.start, 0).1
    }

    /// Puts the pages that were taken from `at` back. Existing pages stay.
    ///
    /// # Safety
    /// Only a thread that has changed the mapping makes pages there meanwhile, and needs those.
    pub unsafe fn put_back(&self, at: *mut c_void, handler: &Handler, pages: &PageTable) {
        let to = at.expose_provenance() as u64;
        let mut back = 0;
        while back < self.length {
            match self.move_all(handler, pages, Direction::From, to, back) {
                (_, Ok(())) => return,
                (at, Err(error)) if error.kind() == io::ErrorKind::AlreadyExists => back = at + PAGE,
                (at, Err(_)) => {
                    back = at;
                    break;
                }
            }
        }
        // The program has changed the mapping meanwhile, as by mprotect. It gets another one then, with the former
        // content.
        while back < self.length {
            // SAFETY: the caller's promise.
            match unsafe { self.put_run_back(back, at, pages) } {
                Ok(end) => back = end,
                // The program would go on with zeros where its data was.
                Err(_) => std::process::abort(),
            }
        }
    }

    /// Puts the run of pages from `offset` on that exist only here to their places, if all begins at `at`, over any
    /// mapping there. Returns where to go on.
    ///
    /// # Errors
    /// The errors of the system calls.
    ///
    /// # Safety
    /// As for [`Self::put_back`].
    unsafe fn put_run_back(&self, offset: u64, at: *mut c_void, pages: &PageTable) -> io::Result<u64> {
        let to = at.expose_provenance() as u64;
        let mut end = offset;
        while end < self.length && pages.has(self.address() + end)? && !pages.has(to + end)? {
            end += PAGE;
        }
        if end == offset {
            return Ok(offset + PAGE);
        }
        // SAFETY: no pages exist, by the caller's promise.
        unsafe { self.replace(offset, at.byte_add(offset as usize), end - offset)? };
        Ok(end)
    }

    /// Moves `length` bytes from `offset` on over the mapping at `to`.
    ///
    /// # Errors
    /// The errors of the system call.
    ///
    /// # Safety
    /// The content of `to` is not needed.
    pub unsafe fn replace(&self, offset: u64, to: *mut c_void, length: u64) -> io::Result<()> {
        // SAFETY: the first range is the scratch's own; the caller vouches for the second.
        unsafe { mapping::remap(self.at(offset), to, length as usize, libc::MREMAP_DONTUNMAP) }
    }

    /// Moves the pages from `offset` on to or from here, as [`Handler::move_all`]; the first byte of all belongs at
    /// `other`. Returns up to which offset it has come. Locked pages are moved only to where pages are locked, and
    /// others to where they are not; the program may lock or unlock its own at any time.
    fn move_all(
        &self,
        handler: &Handler,
        pages: &PageTable,
        direction: Direction,
        other: u64,
        mut offset: u64,
    ) -> (u64, io::Result<()>) {
        for turn in 0..MOST_LOCKS {
            let (own, theirs) = (self.address() + offset, other + offset);
            let (from, to) = match direction {
                Direction::To => (theirs, own),
                Direction::From => (own, theirs),
            };
            match handler.move_all(pages, from, to, self.length - offset) {
                (moved, Err(error)) if error.raw_os_error() == Some(libc::EINVAL) => offset += moved,
                (moved, result) => return (offset + moved, result),
            }
            if let Err(error) = self.set_locked(turn % 2 == 0) {
                return (offset, Err(error));
            }
        }
        (offset, Err(io::ErrorKind::ResourceBusy.into()))
    }

    /// Has pages that come be locked, or not.
    fn set_locked(&self, locked: bool) -> io::Result<()> {
        let (length, on_fault) = (self.length as usize, libc::MLOCK_ONFAULT as libc::c_uint);
        // SAFETY: no memory is changed.
        let result = unsafe {
            if locked {
                libc::mlock2(self.start, length, on_fault)
            } else {
                libc::munlock(self.start, length)
            }
        };
        check(result).map(drop)
    }

    fn address(&self) -> u64 {
        self.start.expose_provenance() as u64
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: the range and its guards are the scratch's own.
        unsafe { mapping::unmap(self.start.byte_sub(PAGE as usize), (self.length + 2 * PAGE) as usize) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::share::BLOCK;
    use crate::share::testing::Pages;

    /// The program may change its mapping in any way while pages are aside.
    #[test]
    fn pages_that_cannot_be_moved_back_are_not_lost() {
        let Ok(handler) = Handler::new() else { return test_support::skip("no privilege for userfaultfd") };
        let (pages, table) = (Pages::new(BLOCK), PageTable::open().unwrap());
        let aside = Scratch::new(BLOCK).unwrap();
        let held = handler.hold_at_missing(&pages.range()).unwrap();
        aside.take(&pages.range(), &handler, &table).unwrap();
        // SAFETY: the pages are our own.
        assert_eq!(unsafe { libc::mprotect(pages.at(), BLOCK as usize, libc::PROT_READ) }, 0);
        // SAFETY: the block is aside.
        unsafe { aside.put_back(pages.at(), &handler, &table) };
        drop(held);
        assert!(pages.are_intact());
    }

    /// As when the kernel has reported fewer pages than it has moved.
    #[test]
    fn pages_moved_beyond_the_reported_count_are_not_lost() {
        let Ok(handler) = Handler::new() else { return test_support::skip("no privilege for userfaultfd") };
        let (pages, table) = (Pages::new(BLOCK), PageTable::open().unwrap());
        let aside = Scratch::new(BLOCK).unwrap();
        let held = handler.hold_at_missing(&pages.range()).unwrap();
        let (own, theirs) = (aside.address(), pages.range().start);
        let move_some = |from: u64, to: u64, first: u64| {
            let _held = handler.hold_at_missing(&(own..own + BLOCK)).unwrap();
            handler.move_all(&table, from + first * PAGE, to + first * PAGE, 50 * PAGE).1.unwrap();
        };
        for locks in [false, true] {
            move_some(theirs, own, 100);
            aside.take(&pages.range(), &handler, &table).unwrap();
            assert!(!table.has(theirs + 100 * PAGE).unwrap());
            move_some(own, theirs, 20);
            if locks {
                // SAFETY: the pages are our own.
                assert_eq!(unsafe { libc::mprotect(pages.at(), BLOCK as usize, libc::PROT_READ) }, 0);
            }
            // SAFETY: missing pages are aside.
            unsafe { aside.put_back(pages.at(), &handler, &table) };
            assert!(!table.has(own).unwrap());
        }
        drop(held);
        assert!(pages.are_intact());
    }

    /// A thread that reads all memory of the process makes pages wherever it is mapped.
    #[test]
    fn a_page_already_at_the_destination_replaces_none() {
        let Ok(handler) = Handler::new() else { return test_support::skip("no privilege for userfaultfd") };
        let (pages, table) = (Pages::new(BLOCK), PageTable::open().unwrap());
        let aside = Scratch::new(BLOCK).unwrap();
        let held = handler.hold_at_missing(&pages.range()).unwrap();
        // SAFETY: the scratch is mapped.
        unsafe { aside.at(77 * PAGE).cast::<u8>().write(1) };
        let taken = aside.take(&pages.range(), &handler, &table);
        assert_eq!(taken.unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        // SAFETY: missing pages are aside.
        unsafe { aside.put_back(pages.at(), &handler, &table) };
        drop(held);
        assert!(pages.are_intact());
    }
}
