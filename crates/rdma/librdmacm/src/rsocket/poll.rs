//! `rpoll` and `rselect`: sockets and other descriptors together.

use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::{c_int, fd_set, pollfd, timeval};

use crate::errno::{Errno, INVALID, Result, number};

use super::find;
use super::socket::{Inner, Nap, Phase, Socket};
use waiting::{cancellable, keep, poll_or_nap};

/// The requested events that are ready now. A socket of the parent process is over.
fn state_of(socket: &Socket, asked: i16) -> i16 {
    socket.now().map_or(libc::POLLERR | libc::POLLHUP, |inner| state_in(&inner, asked))
}

fn state_in(inner: &Inner, asked: i16) -> i16 {
    let mut found = 0;
    if inner.is_readable() {
        found |= libc::POLLIN;
    }
    if inner.is_writable() {
        found |= libc::POLLOUT;
    }
    found &= asked;
    if inner.has_hung_up() && !inner.has_data() {
        found |= libc::POLLHUP;
    }
    if inner.phase == Phase::Over {
        found |= libc::POLLERR | libc::POLLHUP;
    }
    found
}

/// The sockets of the program's entries; `None` for entries of other kinds.
type Sockets = Vec<Option<Arc<Socket>>>;

/// Notes the present readiness; returns how many entries have something.
fn look(entries: &mut [pollfd], sockets: &Sockets) -> Result<usize> {
    if sockets.iter().any(Option::is_none) {
        waiting::poll(entries, Some(Duration::ZERO))?;
    }
    Ok(look_at_sockets(entries, sockets) + look_at_others(entries, sockets))
}

/// The kernel's result for a socket's number does not matter.
fn look_at_sockets(entries: &mut [pollfd], sockets: &Sockets) -> usize {
    let mut ready = 0;
    for (entry, socket) in entries.iter_mut().zip(sockets) {
        if let Some(socket) = socket {
            entry.revents = state_of(socket, entry.events);
            ready += usize::from(entry.revents != 0);
        }
    }
    ready
}

fn look_at_others(entries: &[pollfd], sockets: &Sockets) -> usize {
    entries.iter().zip(sockets).filter(|(entry, socket)| socket.is_none() && entry.revents != 0).count()
}

/// The descriptors to sleep on: a socket's own, armed; others themselves. And the sleep on each socket.
fn fall_asleep(entries: &[pollfd], sockets: &Sockets) -> (Vec<pollfd>, Vec<Nap>) {
    let (mut descriptors, mut naps) = (Vec::new(), Vec::new());
    for (entry, socket) in entries.iter().zip(sockets) {
        match socket {
            Some(socket) => {
                // A socket of the parent is not slept on.
                let Ok(mut inner) = socket.now() else { continue };
                // Connection requests are not awaited then, and no other thread takes them.
                if inner.phase != Phase::Listening || entry.events & libc::POLLIN != 0 {
                    descriptors.extend(inner.arm(socket.number()));
                }
                naps.push(Nap::on(socket, &mut inner, &mut descriptors));
            }
            None => descriptors.push(pollfd { revents: 0, ..*entry }),
        }
    }
    (descriptors, naps)
}

/// True if a socket may be ready without a wake-up of its descriptors.
fn is_restless(sockets: &Sockets) -> bool {
    sockets.iter().flatten().any(|socket| socket.now().is_ok_and(|inner| inner.is_restless()))
}

/// `None`: for as long as it takes.
fn poll(entries: &mut [pollfd], limit: Option<Duration>) -> Result<usize> {
    // A time beyond the clock counts as for ever.
    let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
    let sockets: Sockets = entries.iter().map(|entry| find(entry.fd).ok()).collect();
    keep(sockets, |sockets| {
        loop {
            let ready = look(entries, sockets)?;
            if ready > 0 || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(ready);
            }
            sleep(entries, sockets, deadline)?;
        }
    })
}

/// Sleeps until something may have happened.
fn sleep(entries: &mut [pollfd], sockets: &Sockets, deadline: Option<Instant>) -> Result<()> {
    keep(fall_asleep(entries, sockets), |(descriptors, naps)| {
        // Events before the arming do not wake.
        if look_at_sockets(entries, sockets) > 0 || is_restless(sockets) {
            return Ok(());
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let limit = naps.iter().filter_map(|nap| nap.limit).chain(left).min();
        cancellable(|| poll_or_nap(descriptors, limit))?;
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn rpoll(entries: *mut pollfd, count: libc::nfds_t, timeout: c_int) -> c_int {
    let Ok(count) = usize::try_from(count) else { return number(|| Err(INVALID)) };
    let entries: &mut [pollfd] = if count == 0 {
        &mut []
    } else {
        // SAFETY: the contract of `poll`: as many entries as stated.
        unsafe { std::slice::from_raw_parts_mut(entries, count) }
    };
    let limit = u64::try_from(timeout).ok().map(Duration::from_millis);
    number(|| poll(entries, limit).map(|ready| c_int::try_from(ready).unwrap_or(c_int::MAX)))
}

/// The events that `rselect` requests for a set, and the results that set a bit.
const SETS: [(i16, i16); 3] = [
    (libc::POLLIN, libc::POLLIN | libc::POLLHUP | libc::POLLERR),
    (libc::POLLOUT, libc::POLLOUT | libc::POLLERR),
    (libc::POLLPRI, libc::POLLPRI),
];

fn duration(of: &timeval) -> Result<Duration> {
    let part = |part: i64| u64::try_from(part).map_err(|_| INVALID);
    Ok(Duration::from_secs(part(of.tv_sec)?).saturating_add(Duration::from_micros(part(of.tv_usec)?)))
}

/// # Safety
/// Each set is NULL or live.
unsafe fn select(count: c_int, sets: [*mut fd_set; 3], limit: Option<Duration>) -> Result<c_int> {
    if count < 0 {
        return Err(INVALID);
    }
    // Not on the heap, as the thread may be cancelled.
    let mut entries = [pollfd { fd: -1, events: 0, revents: 0 }; libc::FD_SETSIZE];
    let mut asked = 0;
    for fd in 0..count.min(libc::FD_SETSIZE as c_int) {
        let mut events = 0;
        for (set, (asks, _)) in sets.iter().zip(SETS) {
            // SAFETY: the caller's promise; the descriptor is below the sets' size.
            if !set.is_null() && unsafe { libc::FD_ISSET(fd, *set) } {
                events |= asks;
            }
        }
        if events != 0 {
            entries[asked] = pollfd { fd, events, revents: 0 };
            asked += 1;
        }
    }
    let entries = &mut entries[..asked];
    poll(entries, limit)?;
    if entries.iter().any(|entry| entry.revents & libc::POLLNVAL != 0) {
        return Err(Errno(libc::EBADF));
    }
    let mut ready = 0;
    for entry in entries {
        for (set, (asks, takes)) in sets.iter().zip(SETS).filter(|(set, _)| !set.is_null()) {
            let is_in = entry.events & asks != 0 && entry.revents & takes != 0;
            // SAFETY: as above.
            unsafe { if is_in { libc::FD_SET(entry.fd, *set) } else { libc::FD_CLR(entry.fd, *set) } }
            ready += c_int::from(is_in);
        }
    }
    Ok(ready)
}

pub(crate) unsafe extern "C" fn rselect(
    count: c_int,
    reads: *mut fd_set,
    writes: *mut fd_set,
    exceptions: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    number(|| {
        // SAFETY: the contract of `select`: NULL, or a live timeout.
        let limit = unsafe { timeout.as_ref() }.map(duration).transpose()?;
        // SAFETY: the contract of `select`: NULL, or live sets.
        unsafe { select(count, [reads, writes, exceptions], limit) }
    })
}
