//! Handles Ctrl-C, SIGTERM and a closed terminal in commands that wait.

use std::time::{Duration, Instant};
use std::{fs, io, process, thread};

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGWINCH};
use signal_hook::iterator::Signals;

/// Signals within this time after the first one count as the same: `timeout` signals its child, and then its whole process group.
const MOMENT: Duration = Duration::from_millis(500);

/// Calls `action` on another thread at the first signal; the second ends the process, with the
/// code that a shell gives for it.
pub fn on_first(action: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    if !is_ignored(SIGHUP) {
        signals.add_signal(SIGHUP)?;
    }
    thread::spawn(move || {
        let mut arriving = signals.forever().map(|signal| (Instant::now(), signal));
        let Some((first, _)) = arriving.next() else { return };
        thread::spawn(action);
        if let Some(second) = second(first, arriving) {
            process::exit(128 + second);
        }
    });
    Ok(())
}

/// Calls `action` on another thread at each terminating signal, which is then ignored otherwise.
pub fn on_each(mut action: impl FnMut(i32) + Send + 'static) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGQUIT])?;
    if !is_ignored(SIGHUP) {
        signals.add_signal(SIGHUP)?;
    }
    thread::spawn(move || signals.forever().for_each(&mut action));
    Ok(())
}

/// Calls `action` on another thread when the size of the terminal window changes.
pub fn on_resize(mut action: impl FnMut() + Send + 'static) -> io::Result<()> {
    let mut signals = Signals::new([SIGWINCH])?;
    thread::spawn(move || signals.forever().for_each(|_| action()));
    Ok(())
}

/// Whether this process was started with the signal ignored, as `nohup` does.
fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask >> (signal - 1) & 1 != 0)
}

/// The next signal that is not a duplicate of the first.
fn second(first: Instant, mut arriving: impl Iterator<Item = (Instant, i32)>) -> Option<i32> {
    arriving.find(|(at, _)| at.duration_since(first) >= MOMENT).map(|(_, signal)| signal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicate_signals_count_once() {
        let first = Instant::now();
        let after = |ms, signal| (first + Duration::from_millis(ms), signal);
        assert_eq!(second(first, [after(0, SIGINT), after(400, SIGTERM)].into_iter()), None);
        let later = [after(1, SIGINT), after(600, SIGTERM), after(700, SIGINT)];
        assert_eq!(second(first, later.into_iter()), Some(SIGTERM));
    }
}
