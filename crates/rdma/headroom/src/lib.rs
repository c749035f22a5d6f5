//! A memory reserve for when a program has no memory left.
//!
//! Where Rust gets no memory it ends the process, which a library must not do to the program that has loaded it. So the library keeps a
//! reserve: address space that costs nothing until it is used. A failed allocation takes the reserve and succeeds; from then on calls that
//! would need more memory fail by [`check`], until a new reserve can be made.
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
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use libc::c_void;

/// How much is kept, in bytes: tables of 100,000 objects double within it.
const BYTES: usize = 8 << 20;

/// The reserve, or null.
static KEPT: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Threads that release the reserve at this moment, or make a new one.
static CHANGING: AtomicUsize = AtomicUsize::new(0);

/// Threads that have it lent to the C library.
static LENT: AtomicUsize = AtomicUsize::new(0);

/// How often a thread gives way to another that is giving it up, and gives up what another keeps just then.
const PATIENCE: u32 = 100_000;

/// Sees to it that some memory is kept: what takes memory for long begins with this.
///
/// # Errors
/// `OutOfMemory` (`ENOMEM`) if there is none to keep.
pub fn check() -> io::Result<()> {
    if !KEPT.load(Ordering::Relaxed).is_null() || LENT.load(Ordering::Acquire) != 0 {
        return Ok(());
    }
    CHANGING.fetch_add(1, Ordering::AcqRel);
    let kept = keep();
    CHANGING.fetch_sub(1, Ordering::AcqRel);
    if LENT.load(Ordering::Acquire) != 0 {
        // It was lent meanwhile.
        release_reserve();
    }
    match kept {
        // `RLIMIT_MEMLOCK` forbids more locked memory: that is not a shortage of memory.
        Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => Ok(()),
        kept => kept,
    }
}

/// In a child of `fork`, before anything else: of its parent's threads none goes on here that has it lent, or gives it up.
pub fn reset_in_child() {
    LENT.store(0, Ordering::Release);
    CHANGING.store(0, Ordering::Release);
}

/// Writable memory, since memory limits count only this kind; but a program that locks all of its own (`mlockall`) gets no
/// page for it.
fn keep() -> io::Result<()> {
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a fresh mapping where the kernel likes.
    let fresh = unsafe { libc::mmap(ptr::null_mut(), BYTES, libc::PROT_NONE, kind, -1, 0) };
    if fresh == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping was just made, and no other code knows it.
    let is_writable = unsafe {
        libc::munlock(fresh, BYTES);
        libc::mprotect(fresh, BYTES, libc::PROT_READ | libc::PROT_WRITE) == 0
    };
    if !is_writable {
        unmap(fresh);
        return Err(io::Error::from_raw_os_error(libc::ENOMEM));
    }
    unmap(KEPT.swap(fresh, Ordering::AcqRel));
    Ok(())
}

/// Does `work` while what is kept is there for the C library, which ends a process that gets no memory for a thread it starts.
pub fn lend<T>(work: impl FnOnce() -> T) -> T {
    LENT.fetch_add(1, Ordering::AcqRel);
    release_reserve();
    let result = work();
    LENT.fetch_sub(1, Ordering::AcqRel);
    // The next caller that needs a reserve reports the failure.
    let _ = check();
    result
}

fn release_reserve() {
    CHANGING.fetch_add(1, Ordering::AcqRel);
    unmap(KEPT.swap(ptr::null_mut(), Ordering::AcqRel));
    CHANGING.fetch_sub(1, Ordering::AcqRel);
}

fn unmap(kept: *mut c_void) {
    if !kept.is_null() {
        // SAFETY: the thread that takes the mapping out of `KEPT` owns it, and it was never touched.
        unsafe { libc::munmap(kept, BYTES) };
    }
}

/// The system's allocator, which takes what is kept when there is nothing else.
#[derive(Clone, Copy, Debug)]
pub struct Allocator;

/// The result of `allocate`, if need be of a second attempt.
fn with_reserve(allocate: impl Fn() -> *mut u8) -> *mut u8 {
    let memory = allocate();
    if !memory.is_null() {
        return memory;
    }
    release_reserve();
    for _ in 0..PATIENCE {
        // Another thread may have taken it, and there is more than that needs.
        if CHANGING.load(Ordering::Acquire) != 0 {
            // SAFETY: no memory is passed.
            unsafe { libc::sched_yield() };
            continue;
        }
        let memory = allocate();
        if !memory.is_null() || KEPT.load(Ordering::Acquire).is_null() {
            return memory;
        }
        // Or another has kept it again, before this one got any.
        release_reserve();
    }
    allocate()
}

// SAFETY: all is done by the system's allocator.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is passed on.
        with_reserve(|| unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is passed on.
        with_reserve(|| unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise is passed on; one that fails leaves the memory as it was.
        with_reserve(|| unsafe { System.realloc(memory, layout, size) })
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(memory, layout) };
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn allocations_use_the_reserve_which_is_refilled() {
        check().unwrap();
        let attempts = Cell::new(0);
        let memory = with_reserve(|| {
            attempts.set(attempts.get() + 1);
            let is_short = !KEPT.load(Ordering::Relaxed).is_null();
            if is_short { ptr::null_mut() } else { ptr::dangling_mut() }
        });
        assert_eq!((memory.is_null(), attempts.get()), (false, 2));
        check().unwrap();
        assert!(!KEPT.load(Ordering::Relaxed).is_null());
        lend(|| assert!(KEPT.load(Ordering::Relaxed).is_null()));
        assert!(!KEPT.load(Ordering::Relaxed).is_null());

        // Another thread has taken it, and not given it up yet.
        CHANGING.fetch_add(1, Ordering::AcqRel);
        let (fails, has_failed) = mpsc::channel();
        let other = thread::spawn(move || {
            has_failed.recv().unwrap();
            CHANGING.fetch_sub(1, Ordering::AcqRel);
        });
        let attempts = Cell::new(0);
        let memory = with_reserve(|| {
            attempts.set(attempts.get() + 1);
            let is_short = attempts.get() == 1 || CHANGING.load(Ordering::Acquire) != 0;
            if attempts.get() == 1 {
                fails.send(()).unwrap();
            }
            if is_short { ptr::null_mut() } else { ptr::dangling_mut() }
        });
        assert!(!memory.is_null());
        other.join().unwrap();

        // Another thread keeps it again, before this one gets any.
        let attempts = Cell::new(0);
        let memory = with_reserve(|| {
            attempts.set(attempts.get() + 1);
            if attempts.get() == 2 {
                check().unwrap();
            }
            let is_short = attempts.get() == 1 || !KEPT.load(Ordering::Relaxed).is_null();
            if is_short { ptr::null_mut() } else { ptr::dangling_mut() }
        });
        assert_eq!((memory.is_null(), attempts.get()), (false, 3));

        // A child has a thread's word that there is no need to keep any, and not the thread.
        LENT.fetch_add(1, Ordering::AcqRel);
        reset_in_child();
        check().unwrap();
        assert!(!KEPT.load(Ordering::Relaxed).is_null());
    }
}
