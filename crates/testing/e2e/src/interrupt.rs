//! Removes a program's labs when it is interrupted.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lab::{Error, Lab, LabName};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

/// How long a lab may be in other hands: it may still be on its way up.
const LIMIT: Duration = Duration::from_secs(30);

/// Whether a signal has come.
static COME: AtomicBool = AtomicBool::new(false);

/// On a signal that ends this process, ends the labs with the name prefix `prefix` first. The first call counts.
///
/// # Errors
/// If signals cannot be watched.
pub fn removes_labs(prefix: String) -> io::Result<()> {
    static WATCHED: AtomicBool = AtomicBool::new(false);
    if WATCHED.swap(true, Ordering::Relaxed) {
        return Ok(());
    }
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM])?;
    thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            COME.store(true, Ordering::Relaxed);
            let ours = Lab::names().into_iter().filter(|name| name.as_str().starts_with(&prefix));
            ours.for_each(|name| remove(&name));
            let _ended = emulate_default_handler(signal);
        }
    });
    Ok(())
}

/// Returns unless a signal has come: a test that fails because its lab is being removed must not end the process before
/// the removal is done.
pub fn stand_still_if_it_has_come() {
    while COME.load(Ordering::Relaxed) {
        thread::park();
    }
}

fn remove(name: &LabName) {
    let deadline = Instant::now() + LIMIT;
    while let Err(error) = Lab::down(name) {
        if !matches!(error, Error::Busy { .. }) || Instant::now() > deadline {
            return eprintln!("lab {name} is left over: {error}");
        }
        thread::sleep(Duration::from_millis(20));
    }
}
