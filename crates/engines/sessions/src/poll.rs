//! Waits for descriptors.

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

/// Sleeps until one of the descriptors is ready for its events, a signal arrives, or `patience` ends; for ever without one. Returns the
/// descriptors that are ready.
///
/// # Errors
/// Those of `poll`.
pub fn poll(
    interest: impl Iterator<Item = (RawFd, libc::c_short)>,
    patience: Option<Duration>,
) -> io::Result<Vec<RawFd>> {
    let mut polls: Vec<_> = interest.map(|(fd, events)| libc::pollfd { fd, events, revents: 0 }).collect();
    // Rounded up: a timeout of less than a millisecond must not cause repeated polls.
    let patience = patience.map_or(-1, |time| time.as_micros().div_ceil(1000) as libc::c_int);
    // SAFETY: `polls` is live and as long as said.
    let result = unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as libc::nfds_t, patience) };
    match io::Error::last_os_error() {
        error if result == -1 && error.kind() != io::ErrorKind::Interrupted => Err(error),
        _ => Ok(polls.iter().filter(|poll| poll.revents != 0).map(|poll| poll.fd).collect()),
    }
}
