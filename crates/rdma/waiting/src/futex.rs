//! Futexes: sleep until a word changes, and wake sleepers.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Sleeps while `word` is `expected`, until woken, at most for `timeout`; may also return without a reason.
pub fn wait(word: &AtomicU32, expected: u32, timeout: Duration) {
    let timeout =
        libc::timespec { tv_sec: timeout.as_secs().cast_signed(), tv_nsec: timeout.subsec_nanos().into() };
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word and the time are live.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, expected, &raw const timeout) };
}

/// Wakes a thread that waits on `word`.
#[cold]
pub fn wake(word: &AtomicU32) {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word is live.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, 1) };
}
