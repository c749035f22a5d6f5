//! What Ctrl-C and SIGTERM do to a command that waits.

use std::{io, process, thread};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Calls `action` on another thread at the first signal; the second ends the process, with the
/// code that a shell gives for it.
pub fn on_first(action: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    thread::spawn(move || {
        let mut arriving = signals.forever();
        if arriving.next().is_some() {
            thread::spawn(action);
        }
        if let Some(second) = arriving.next() {
            process::exit(128 + second);
        }
    });
    Ok(())
}
