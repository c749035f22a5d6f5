//! Asymmetric fences: a compiler fence on the frequent side, `membarrier` on the rare side.
//!
//! Two sides that each store, fence, and load the other's word need a fence each, so that at least one of them sees the
//! other's store (store buffering). `membarrier` makes every running thread pass a fence at the moment of the call, so the
//! frequent side needs only a compiler fence.

use std::sync::atomic::{Ordering, compiler_fence};
use std::time::Duration;

// From linux/membarrier.h.
const GLOBAL_EXPEDITED: libc::c_int = 1 << 1;
const REGISTER_GLOBAL_EXPEDITED: libc::c_int = 1 << 2;
const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

/// The threads that the slow side's fence covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Among {
    /// The barriers of this process.
    Threads,
    /// The barriers of all processes that have registered.
    Processes,
}

impl Among {
    /// Announces that this process has a fast side. False if the kernel cannot do its part.
    #[must_use]
    pub fn register(self) -> bool {
        membarrier(match self {
            Self::Threads => REGISTER_PRIVATE_EXPEDITED,
            Self::Processes => REGISTER_GLOBAL_EXPEDITED,
        })
    }

    /// The slow side's fence: afterwards this thread sees the stores of fast sides before their fence, or they
    /// see its own stores.
    pub fn fence(self) {
        /// For a kernel to which the process was restored, and that has no `membarrier`: no store stays unseen
        /// this long.
        const AGES: Duration = Duration::from_millis(1);
        std::sync::atomic::fence(Ordering::SeqCst);
        let command = match self {
            Self::Threads => PRIVATE_EXPEDITED,
            Self::Processes => GLOBAL_EXPEDITED,
        };
        let passed = membarrier(command) || self.register() && membarrier(command);
        if !passed {
            std::thread::sleep(AGES);
        }
    }
}

/// The fast side's fence.
#[inline]
pub fn light_fence() {
    compiler_fence(Ordering::SeqCst);
}

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: no memory is passed.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}
