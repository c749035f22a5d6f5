//! The memory limit of targets: a few bytes of input must not make a target take much.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The most memory that a target may hold for one input, in bytes.
const MOST: isize = 32 << 20;

/// The system's allocator, which counts for each thread.
struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    // An ended thread does not count any more.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(held.get())));
    });
}

// SAFETY: the system's allocator does all the work; counting takes no memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        // SAFETY: as for `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-layout.size().cast_signed());
        // SAFETY: as for `alloc`.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size.cast_signed() - layout.size().cast_signed());
        // SAFETY: as for `alloc`.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Does `work`.
///
/// # Panics
/// If it takes too much memory.
pub fn within_bounds(work: impl FnOnce()) {
    let before = HELD.get();
    PEAK.set(before);
    work();
    let taken = PEAK.get() - before;
    assert!(taken <= MOST, "{taken} bytes are held for one input");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_memory_is_counted_and_freed_memory_is_not() {
        within_bounds(|| (0..100).for_each(|_| drop(vec![0u8; 1 << 20])));
        let greedy = || within_bounds(|| drop(std::hint::black_box(vec![0u8; 33 << 20])));
        assert!(std::panic::catch_unwind(greedy).is_err());
    }
}
