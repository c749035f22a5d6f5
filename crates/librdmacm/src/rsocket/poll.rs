//! `rpoll` and `rselect`: sockets and other descriptors together.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::{c_int, fd_set, pollfd, timeval};

use crate::errno::{INVALID, Result, last, number};

use super::find;
use super::socket::{Inner, Nap, Phase, Socket};

/// What is true of a socket now, of what is asked for.
fn state_of(inner: &Inner, number: RawFd, asked: i16) -> i16 {
    let mut found = 0;
    if inner.phase == Phase::Listening {
        return readable_now(number) & asked;
    }
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

/// `POLLIN` if the descriptor is readable.
fn readable_now(fd: RawFd) -> i16 {
    let mut entry = pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one live entry is passed.
    unsafe { libc::poll(&raw mut entry, 1, 0) };
    entry.revents & libc::POLLIN
}

/// The program's entries, each with its socket if it is one.
struct Watched<'a> {
    entries: &'a mut [pollfd],
    sockets: Vec<Option<Arc<Socket>>>,
}

impl Watched<'_> {
    /// Notes what is true of sockets; how many have something.
    fn look(&mut self) -> usize {
        let mut ready = 0;
        for (entry, socket) in self.entries.iter_mut().zip(&self.sockets) {
            if let Some(socket) = socket {
                entry.revents = state_of(&socket.now(), socket.number(), entry.events);
                ready += usize::from(entry.revents != 0);
            }
        }
        ready
    }

    /// What to sleep on: for a socket its descriptors, armed; for others themselves. And the sleep on each socket.
    fn fall_asleep(&self) -> (Vec<pollfd>, Vec<Nap>) {
        let (mut descriptors, mut naps) = (Vec::new(), Vec::new());
        for (entry, socket) in self.entries.iter().zip(&self.sockets) {
            match socket {
                Some(socket) => {
                    let mut inner = socket.now();
                    let mut armed = inner.arm(socket.number());
                    naps.push(inner.fall_asleep(&mut armed));
                    let watch = |fd| pollfd { fd, events: libc::POLLIN, revents: 0 };
                    descriptors.extend(armed.into_iter().map(watch));
                }
                None => descriptors.push(pollfd { revents: 0, ..*entry }),
            }
        }
        (descriptors, naps)
    }

    /// What [`Self::fall_asleep`] has begun is over.
    fn wake(&self, naps: &[Nap]) {
        self.sockets.iter().flatten().zip(naps).for_each(|(socket, nap)| socket.now().wake(nap));
    }

    /// Whether something may have happened to a socket of which its descriptors know nothing.
    fn is_restless(&self) -> bool {
        self.sockets.iter().flatten().any(|socket| socket.now().is_restless())
    }

    /// Notes what `descriptors` say of entries that are no sockets; how many have something.
    fn note_others(&mut self, descriptors: &[pollfd]) -> usize {
        let mut ready = 0;
        for (entry, socket) in self.entries.iter_mut().zip(&self.sockets) {
            if socket.is_none() {
                let same = |seen: &&pollfd| seen.fd == entry.fd && seen.events == entry.events;
                entry.revents = descriptors.iter().find(same).map_or(0, |seen| seen.revents);
                ready += usize::from(entry.revents != 0);
            }
        }
        ready
    }
}

fn poll(entries: &mut [pollfd], limit: Option<Duration>) -> Result<usize> {
    let deadline = limit.map(|limit| Instant::now() + limit);
    let sockets = entries.iter().map(|entry| find(entry.fd).ok()).collect();
    let mut watched = Watched { entries, sockets };
    loop {
        let mut ready = watched.look();
        let (mut descriptors, naps) = watched.fall_asleep();
        let limit = naps.iter().filter_map(|nap| nap.limit).min();
        ready = ready.max(watched.look());
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let left = if ready > 0 || watched.is_restless() { Some(Duration::ZERO) } else { left };
        let waited = wait(&mut descriptors, left.into_iter().chain(limit).min());
        watched.wake(&naps);
        waited?;
        let ready = watched.note_others(&descriptors) + watched.look();
        if ready > 0 || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Ok(ready);
        }
    }
}

fn wait(descriptors: &mut [pollfd], limit: Option<Duration>) -> Result<()> {
    let limit = limit.map(|limit| libc::timespec {
        tv_sec: limit.as_secs().cast_signed(),
        tv_nsec: limit.subsec_nanos().into(),
    });
    let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let count = descriptors.len() as libc::nfds_t;
    // SAFETY: `count` live entries and a live timeout, or none, are passed.
    if unsafe { libc::ppoll(descriptors.as_mut_ptr(), count, limit, std::ptr::null()) } == -1 {
        return Err(last());
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn rpoll(entries: *mut pollfd, count: libc::nfds_t, timeout: c_int) -> c_int {
    let Ok(count) = usize::try_from(count) else { return number(Err(INVALID)) };
    let entries: &mut [pollfd] = if count == 0 {
        &mut []
    } else {
        // SAFETY: the contract of `poll`: as many entries as stated.
        unsafe { std::slice::from_raw_parts_mut(entries, count) }
    };
    let limit = u64::try_from(timeout).ok().map(Duration::from_millis);
    number(poll(entries, limit).map(|ready| c_int::try_from(ready).unwrap_or(c_int::MAX)))
}

/// What `rselect` asks for a set, and what of the answer puts a descriptor into it.
const SETS: [(i16, i16); 3] = [
    (libc::POLLIN, libc::POLLIN | libc::POLLHUP | libc::POLLERR),
    (libc::POLLOUT, libc::POLLOUT | libc::POLLERR),
    (libc::POLLPRI, libc::POLLPRI),
];

/// # Safety
/// Each set is NULL or live.
unsafe fn select(count: c_int, sets: [*mut fd_set; 3], limit: Option<Duration>) -> Result<c_int> {
    let mut entries = Vec::new();
    for fd in 0..count.min(libc::FD_SETSIZE as c_int) {
        let mut events = 0;
        for (set, (asks, _)) in sets.iter().zip(SETS) {
            // SAFETY: the caller's promise; the descriptor is below the sets' size.
            if !set.is_null() && unsafe { libc::FD_ISSET(fd, *set) } {
                events |= asks;
            }
        }
        if events != 0 {
            entries.push(pollfd { fd, events, revents: 0 });
        }
    }
    poll(&mut entries, limit)?;
    let mut ready = 0;
    for entry in &entries {
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
    // SAFETY: the contract of `select`: NULL, or a live timeout.
    let limit = unsafe { timeout.as_ref() }.map(|timeout| {
        Duration::from_secs(timeout.tv_sec.unsigned_abs())
            + Duration::from_micros(timeout.tv_usec.unsigned_abs())
    });
    // SAFETY: the contract of `select`: NULL, or live sets.
    number(unsafe { select(count, [reads, writes, exceptions], limit) })
}
