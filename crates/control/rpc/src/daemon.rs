//! What both daemons do.

use std::panic;
use std::process;

/// A panic on any thread ends the process as long as this lives.
#[must_use]
pub struct AbortOnPanic(());

/// Ends the process after the message of a panic, on whichever thread that is. A daemon survives being killed at any time, and a state
/// that a panic has left half changed does not survive.
pub fn abort_on_panic() -> AbortOnPanic {
    let tell = panic::take_hook();
    panic::set_hook(Box::new(move |why| {
        tell(why);
        process::abort();
    }));
    AbortOnPanic(())
}

impl Drop for AbortOnPanic {
    /// Threads that outlive their runtime may panic, and are of no consequence.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            drop(panic::take_hook());
        }
    }
}
