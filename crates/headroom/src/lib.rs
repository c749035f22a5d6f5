//! Memory that a library keeps for when its program has none left.
//!
//! Where Rust gets no memory it ends the process, which a library must not do to the program that has loaded it. Some is kept
//! therefore: addresses that cost nothing until they are used. Who gets none otherwise takes it, goes on, and what would need more
//! fails from then on by [`check`], until there is some to keep again.
//!
//! ```
//! #[global_allocator]
//! static ALLOCATOR: headroom::Allocator = headroom::Allocator;
//!
//! fn make_something() -> std::io::Result<Box<[u8; 64]>> {
//!     headroom::check()?;
//!     Ok(Box::new([0; 64]))
//! }
//! ```

use std::alloc::{GlobalAlloc, Layout, System};
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::c_void;

/// How much is kept, in bytes: tables of 100,000 objects double within it.
const BYTES: usize = 8 << 20;

/// What is kept, or null.
static KEPT: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Sees to it that some memory is kept: what takes memory for long begins with this.
///
/// # Errors
/// `OutOfMemory` (`ENOMEM`) if there is none to keep.
pub fn check() -> io::Result<()> {
    if !KEPT.load(Ordering::Relaxed).is_null() {
        return Ok(());
    }
    let (rights, kind) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
    // SAFETY: a fresh mapping where the kernel likes.
    let fresh = unsafe { libc::mmap(ptr::null_mut(), BYTES, rights, kind, -1, 0) };
    if fresh == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    give_up(KEPT.swap(fresh, Ordering::Relaxed));
    Ok(())
}

fn give_up(kept: *mut c_void) {
    if !kept.is_null() {
        // SAFETY: whoever takes the mapping out of `KEPT` owns it, and nobody has ever touched it.
        unsafe { libc::munmap(kept, BYTES) };
    }
}

/// The system's allocator, which takes what is kept when there is nothing else.
#[derive(Clone, Copy, Debug)]
pub struct Allocator;

/// What `allocate` returns, if need be the second time.
fn with_what_is_kept(allocate: impl Fn() -> *mut u8) -> *mut u8 {
    let memory = allocate();
    if !memory.is_null() {
        return memory;
    }
    give_up(KEPT.swap(ptr::null_mut(), Ordering::Relaxed));
    // Also if another thread has just taken it: there is more than it needs.
    allocate()
}

// SAFETY: all is done by the system's allocator.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is passed on.
        with_what_is_kept(|| unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is passed on.
        with_what_is_kept(|| unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise is passed on; one that fails leaves the memory as it was.
        with_what_is_kept(|| unsafe { System.realloc(memory, layout, size) })
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(memory, layout) };
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn who_gets_no_memory_takes_what_is_kept_and_it_is_kept_again() {
        check().unwrap();
        let attempts = Cell::new(0);
        let memory = with_what_is_kept(|| {
            attempts.set(attempts.get() + 1);
            let is_short = !KEPT.load(Ordering::Relaxed).is_null();
            if is_short { ptr::null_mut() } else { ptr::dangling_mut() }
        });
        assert_eq!((memory.is_null(), attempts.get()), (false, 2));
        check().unwrap();
        assert!(!KEPT.load(Ordering::Relaxed).is_null());
    }
}
