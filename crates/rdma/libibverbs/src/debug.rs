//! Messages of the library on standard error, where they do a program no harm.

use std::env;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// Writes one line if `TRANSHUME_DEBUG=1` asks for it.
pub(crate) fn say(message: impl FnOnce() -> String) {
    if env::var_os("TRANSHUME_DEBUG").is_some_and(|value| value == "1") {
        tell(&message());
    }
}

/// Writes one line, at the first call in the process only. Programs look for devices again and again, and
/// need the reason once.
pub(crate) fn complain_once(message: impl FnOnce() -> String) {
    static COMPLAINED: AtomicBool = AtomicBool::new(false);
    if COMPLAINED.swap(true, Ordering::Relaxed) {
        say(message);
    } else {
        tell(&message());
    }
}

/// Writes one line.
pub(crate) fn tell(message: &str) {
    // A program may have closed its standard error.
    let _ = writeln!(io::stderr(), "transhume: {message}");
}
