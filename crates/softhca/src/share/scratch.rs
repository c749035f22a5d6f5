//! Room for pages that are on their way.

use std::io;
use std::ops::Range;
use std::ptr;

use libc::c_void;

use super::PAGE;
use super::syscall::check;
use super::userfault::Handler;
use crate::mapping::{self, Source};

/// How often a program may lock or unlock pages that are being moved.
const MOST_LOCKS: u32 = 1000;

/// Room for pages, between two that nobody can touch.
///
/// Where the kernel likes, a window's pages may lie beside the window. The two mappings then become one, of which
/// the kernel (6.18) may drop the registration with the userfaultfd, where one half has none: stores to
/// the window wait no longer, and are lost.
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
    /// Those of the system calls.
    pub fn new(length: u64) -> io::Result<Self> {
        let guarded = (length + 2 * PAGE) as usize;
        let flags = libc::MAP_PRIVATE | libc::MAP_NORESERVE;
        // SAFETY: a fresh mapping where the kernel likes.
        let below =
            unsafe { mapping::map(ptr::null_mut(), guarded, libc::PROT_NONE, flags, Source::Anonymous)? };
        // SAFETY: the first page of what was just mapped is the lower guard.
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

    /// Moves the pages of `window` here, where their content can be read then. Says up to where, also if that is not all.
    ///
    /// # Errors
    /// Those of [`Handler::move_all`].
    pub fn take(&self, window: &Range<u64>, handler: &Handler) -> (u64, io::Result<()>) {
        let length = window.end - window.start;
        // Pages are moved only to where the userfaultfd is asked for them.
        let _held = match handler.hold_at_missing(&(self.address()..self.address() + length)) {
            Ok(held) => held,
            Err(error) => return (0, Err(error)),
        };
        self.move_all(handler, Direction::To, window.start, length)
    }

    /// Puts the first `moved` bytes back to `at`.
    ///
    /// # Safety
    /// They were taken from there, and there are no pages now.
    pub unsafe fn put_back(&self, at: *mut c_void, moved: u64, handler: &Handler) {
        let (back, result) = self.move_all(handler, Direction::From, at.expose_provenance() as u64, moved);
        if result.is_ok() {
            return;
        }
        // The program has changed the mapping meanwhile, as by mprotect. It gets another one then, with what it had.
        // SAFETY: what is mapped in place of the rest has no pages.
        if unsafe { self.replace(back, at.byte_add(back as usize), moved - back) }.is_err() {
            // The program would go on with zeros where its data was.
            std::process::abort();
        }
    }

    /// Moves `length` bytes from `offset` on over what is mapped at `to`.
    ///
    /// # Errors
    /// Those of the system call.
    ///
    /// # Safety
    /// What `to` holds is not needed.
    pub unsafe fn replace(&self, offset: u64, to: *mut c_void, length: u64) -> io::Result<()> {
        // SAFETY: the first range is the scratch's own; the caller vouches for the second.
        unsafe { mapping::remap(self.at(offset), to, length as usize, libc::MREMAP_DONTUNMAP) }
    }

    /// Moves pages to or from here, as [`Handler::move_all`]. Locked pages are moved only to where pages are locked, and others to
    /// where they are not; the program may lock or unlock its own at any time.
    fn move_all(
        &self,
        handler: &Handler,
        direction: Direction,
        other: u64,
        length: u64,
    ) -> (u64, io::Result<()>) {
        let mut done = 0;
        for turn in 0..MOST_LOCKS {
            let (own, theirs) = (self.address() + done, other + done);
            let (from, to) = match direction {
                Direction::To => (theirs, own),
                Direction::From => (own, theirs),
            };
            match handler.move_all(from, to, length - done) {
                (moved, Err(error)) if error.raw_os_error() == Some(libc::EINVAL) => done += moved,
                (moved, result) => return (done + moved, result),
            }
            if let Err(error) = self.set_locked(turn % 2 == 0) {
                return (done, Err(error));
            }
        }
        (done, Err(io::ErrorKind::ResourceBusy.into()))
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
    use crate::share::WINDOW;
    use crate::share::testing::Pages;

    /// The program may change its mapping in any way while pages are aside.
    #[test]
    fn what_cannot_go_back_as_it_came_is_not_lost() {
        let Ok(handler) = Handler::new() else { return eprintln!("skipped: no privilege for userfaultfd") };
        let pages = Pages::new(WINDOW);
        let aside = Scratch::new(WINDOW).unwrap();
        let held = handler.hold_at_missing(&pages.range()).unwrap();
        let (moved, taken) = aside.take(&pages.range(), &handler);
        taken.unwrap();
        // SAFETY: the pages are our own.
        assert_eq!(unsafe { libc::mprotect(pages.at(), WINDOW as usize, libc::PROT_READ) }, 0);
        // SAFETY: the window is aside.
        unsafe { aside.put_back(pages.at(), moved, &handler) };
        drop(held);
        assert!(pages.are_intact());
    }
}
