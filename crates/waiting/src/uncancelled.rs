//! Cancellation of threads (pthreads(7)), by which a program ends one that waits.

use std::marker::PhantomData;
use std::thread;
use std::time::Duration;

use libc::c_int;

/// From bits/pthread.h of the C library.
const PTHREAD_CANCEL_DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// This thread is not cancelled as long as this lives.
///
/// A cancelled thread ends within the system call that it makes, without a way back through frames that have something to drop: what it
/// has locked stays locked, and where such frames refuse to be left so, the process is aborted. Providers for hardware make no such
/// calls but where a program waits for events, and programs rely on it.
#[derive(Debug)]
pub struct Uncancelled {
    before: c_int,
    /// It is to be dropped by the thread that made it.
    _of_this_thread: PhantomData<*const ()>,
}

impl Uncancelled {
    /// Puts off what comes until this is dropped, and the thread makes another such call.
    #[inline]
    #[must_use]
    pub fn new() -> Self {
        let mut before = 0;
        // SAFETY: the state can be written.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut before) };
        Self { before, _of_this_thread: PhantomData }
    }
}

impl Default for Uncancelled {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Uncancelled {
    #[inline]
    fn drop(&mut self) {
        let mut ours = 0;
        // SAFETY: the state can be written; the one that is set was in force before.
        unsafe { pthread_setcancelstate(self.before, &raw mut ours) };
    }
}

/// Sleeps, uncancelled.
pub fn sleep(time: Duration) {
    let _whole = Uncancelled::new();
    thread::sleep(time);
}
