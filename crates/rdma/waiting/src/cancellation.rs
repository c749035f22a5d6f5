//! Cancellation of threads (pthreads(7)), by which a program ends a waiting thread.
//!
//! A cancelled thread ends within its system call, without unwinding frames that have values to drop: locks that it holds
//! stay locked, and if such frames refuse forced unwinding, the process is aborted. Hardware providers make such
//! calls only where a program waits, and programs rely on it.
//!
//! So a thread can be cancelled only in [`cancellable`], and only where no frame between that and the program has values to drop: values
//! that are needed meanwhile are kept with [`keep`].

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::thread;
use std::time::Duration;

use libc::{c_int, c_void, nfds_t, pollfd, sigset_t, size_t, ssize_t, timespec};

/// From bits/pthread.h of the C library.
const PTHREAD_CANCEL_ENABLE: c_int = 0;
const PTHREAD_CANCEL_DISABLE: c_int = 1;
const PTHREAD_CANCEL_DEFERRED: c_int = 0;

// A thread may be cancelled in these.
unsafe extern "C-unwind" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    fn pthread_setcanceltype(kind: c_int, before: *mut c_int) -> c_int;
    pub(crate) fn read(fd: c_int, to: *mut c_void, length: size_t) -> ssize_t;
    pub(crate) fn ppoll(
        entries: *mut pollfd,
        count: nfds_t,
        timeout: *const timespec,
        signals: *const sigset_t,
    ) -> c_int;
}

/// Returns the state before.
#[inline]
fn set_state(state: c_int) -> c_int {
    let mut before = 0;
    // SAFETY: the state before can be written.
    unsafe { pthread_setcancelstate(state, &raw mut before) };
    before
}

/// Returns the previous cancellation type: deferred, or asynchronous.
fn set_type(kind: c_int) -> c_int {
    let mut before = 0;
    // SAFETY: the type before can be written.
    unsafe { pthread_setcanceltype(kind, &raw mut before) };
    before
}

/// While this value exists, this thread is not cancelled.
#[derive(Debug)]
pub struct Uncancelled {
    before: c_int,
    /// It is to be dropped by the thread that made it.
    _of_this_thread: PhantomData<*const ()>,
}

impl Uncancelled {
    /// Defers cancellation until this is dropped, and the thread makes another cancellable call.
    #[inline]
    #[must_use]
    pub fn new() -> Self {
        Self { before: set_state(PTHREAD_CANCEL_DISABLE), _of_this_thread: PhantomData }
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
        set_state(self.before);
    }
}

/// Sleeps, uncancelled.
pub fn sleep(time: Duration) {
    let _whole = Uncancelled::new();
    thread::sleep(time);
}

thread_local! {
    /// Whether this thread is in [`uncancelled`], which the program called where it may be cancelled.
    static PUT_OFF: Cell<bool> = const { Cell::new(false) };
    /// Whether this thread is in [`cancellable`].
    static WAITS: Cell<bool> = const { Cell::new(false) };
    static KEPT: Kept = const { Kept(RefCell::new(Vec::new())) };
}

/// Does the work of one of the program's calls, in which the thread is cancelled nowhere but in [`cancellable`].
pub fn uncancelled<R>(work: impl FnOnce() -> R) -> R {
    // A guard would be something to drop.
    let before = set_state(PTHREAD_CANCEL_DISABLE);
    let outer = PUT_OFF.replace(before == PTHREAD_CANCEL_ENABLE);
    let result = work();
    PUT_OFF.set(outer);
    set_state(before);
    result
}

/// Makes a system call that waits, in which the thread may be cancelled if the program lets it.
pub fn cancellable<R>(wait: impl FnOnce() -> R) -> R {
    let outer = WAITS.replace(true);
    let result = if PUT_OFF.get() { enabled(wait) } else { wait() };
    WAITS.set(outer);
    result
}

fn enabled<R>(wait: impl FnOnce() -> R) -> R {
    let kind = set_type(PTHREAD_CANCEL_DEFERRED);
    set_state(PTHREAD_CANCEL_ENABLE);
    let result = wait();
    set_state(PTHREAD_CANCEL_DISABLE);
    set_type(kind);
    result
}

/// The values that this thread keeps, the newest last.
struct Kept(RefCell<Vec<*mut dyn Any>>);

impl Drop for Kept {
    fn drop(&mut self) {
        // A handler of a signal may end the process anywhere, also where locks are held that are needed to drop what is kept.
        if !WAITS.get() {
            return;
        }
        while let Some(kept) = self.0.get_mut().pop() {
            // SAFETY: it came from `Box::into_raw`, and `keep`, which would free it, was left for ever.
            drop(unsafe { Box::from_raw(kept) });
        }
    }
}

/// Does `work` with `kept`, which is dropped afterwards; if the thread is cancelled meanwhile, when it ends.
pub fn keep<T: 'static, R>(kept: T, work: impl FnOnce(&mut T) -> R) -> R {
    let kept = Box::into_raw(Box::new(kept));
    // A thread that has dropped its own is ending, and not cancelled any more; or it ends the process, and kept values do not matter.
    let _ = KEPT.try_with(|all| all.0.borrow_mut().push(kept));
    // SAFETY: no other code uses it before it is freed.
    let result = work(unsafe { &mut *kept });
    let _ = KEPT.try_with(|all| all.0.borrow_mut().pop());
    // It may be the last owner of descriptors, and closing one is a place to be cancelled.
    let _whole = Uncancelled::new();
    // SAFETY: it came from `Box::into_raw`, and is not used again.
    drop(unsafe { Box::from_raw(kept) });
    result
}
