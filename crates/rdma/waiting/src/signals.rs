//! Blocking of signals, which belong to the program.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr;

/// While this value exists, no signal handler runs in this thread, nor ever in a thread that it starts meanwhile.
#[derive(Debug)]
pub struct SignalsBlocked {
    before: libc::sigset_t,
    /// It is to be dropped by the thread that made it.
    _of_this_thread: PhantomData<*const ()>,
}

impl SignalsBlocked {
    /// Blocks all signals that can be blocked.
    #[must_use]
    pub fn new() -> Self {
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: both sets can be written; `sigfillset` and `pthread_sigmask` fill them.
        let before = unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            before.assume_init()
        };
        Self { before, _of_this_thread: PhantomData }
    }
}

impl Default for SignalsBlocked {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: the set is the one that was in force before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_blocked(signal: libc::c_int) -> bool {
        let mut now = MaybeUninit::uninit();
        // SAFETY: the set can be written; without a new one `pthread_sigmask` only fills it.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, ptr::null(), now.as_mut_ptr());
            libc::sigismember(now.as_ptr(), signal) == 1
        }
    }

    #[test]
    fn signals_are_blocked_by_the_guard_and_in_library_threads() {
        let before = is_blocked(libc::SIGUSR1);
        let blocked = SignalsBlocked::new();
        assert!(is_blocked(libc::SIGUSR1));
        let started = std::thread::spawn(|| is_blocked(libc::SIGUSR1));
        drop(blocked);
        assert_eq!(is_blocked(libc::SIGUSR1), before);
        assert!(started.join().unwrap());
    }
}
