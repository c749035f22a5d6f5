//! A userfaultfd that CRIU has opened: `linux/userfaultfd.h`, `criu/uffd.c` of CRIU.

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::mem;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use fabric::seqpacket;

use crate::memory::PAGE;

/// The number that CRIU sends in place of a PID when all processes are restored.
pub const RESTORED: i32 = 0x5253_5446;

/// The features that CRIU requests of a userfaultfd: events for forks, and for moved, freed and unmapped memory.
const FEATURES: u64 = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 6;

const UFFD_API: u64 = 0xaa;
const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
const UFFDIO_WAKE: libc::c_ulong = 0x8010_aa02;
const UFFDIO_COPY: libc::c_ulong = 0xc028_aa03;
const UFFDIO_ZEROPAGE: libc::c_ulong = 0xc020_aa04;

/// Kinds of messages.
mod event {
    pub const FAULT: u64 = 0x12;
    pub const FORK: u64 = 0x13;
    pub const REMAP: u64 = 0x14;
    pub const REMOVE: u64 = 0x15;
    pub const UNMAP: u64 = 0x16;
}

/// `struct uffdio_copy`.
#[repr(C)]
struct Copy {
    to: u64,
    from: u64,
    length: u64,
    mode: u64,
    copied: i64,
}

/// `struct uffdio_range`.
#[repr(C)]
struct Range {
    start: u64,
    length: u64,
}

/// `struct uffdio_zeropage`.
#[repr(C)]
struct Zero {
    range: Range,
    mode: u64,
    zeroed: i64,
}

/// An event of a process.
pub enum Happened {
    /// A page fault at this page.
    Fault { page: u64 },
    /// A fork.
    Fork { child: OwnedFd },
    /// Moved pages (`mremap`).
    Moved { from: u64, to: u64, pages: u64 },
    /// Freed or unmapped pages.
    Dropped { page: u64, pages: u64 },
}

/// The result of filling pages.
pub enum Copied {
    /// This number of pages is filled.
    Pages(u64),
    /// The first page exists already.
    IsThere,
    /// The pages are not in one registered mapping.
    NotMapped,
    /// The process is changing its mappings: its events must be handled first.
    Changing,
    /// The process has ended, or runs another program.
    Gone,
}

/// A userfaultfd, and the pages for which threads wait.
pub struct Faults {
    descriptor: OwnedFd,
    waited_for: BTreeSet<u64>,
}

impl Faults {
    pub fn new(descriptor: OwnedFd) -> Self {
        Self { descriptor, waited_for: BTreeSet::new() }
    }

    pub fn as_raw_fd(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }

    /// Records that a thread waits for `page`.
    pub fn waits_for(&mut self, page: u64) {
        self.waited_for.insert(page);
    }

    /// The pages for which threads wait.
    pub fn waited_for(&self) -> Vec<u64> {
        self.waited_for.iter().copied().collect()
    }

    /// Removes the waits for these pages, and returns whether there were any.
    pub fn is_settled(&mut self, page: u64, pages: u64) -> bool {
        let settled: Vec<u64> = self.waited_for.range(page..page.saturating_add(pages)).copied().collect();
        settled.iter().for_each(|page| {
            self.waited_for.remove(page);
        });
        !settled.is_empty()
    }

    /// Wakes the threads that wait for these pages, which have been moved or unmapped: they fault again if needed.
    pub fn left(&mut self, page: u64, pages: u64) {
        if self.is_settled(page, pages) {
            self.wake(page, pages);
        }
    }

    /// Wakes the threads that wait for these pages.
    pub fn wake(&self, page: u64, pages: u64) {
        let range = Range { start: page * PAGE as u64, length: pages * PAGE as u64 };
        // SAFETY: the argument is live and of the request's type.
        unsafe { libc::ioctl(self.as_raw_fd(), UFFDIO_WAKE, &raw const range) };
    }

    /// Fills whole pages, and wakes the threads that wait for them.
    pub fn copy(&self, page: u64, data: &[u8]) -> io::Result<Copied> {
        let (to, from) = (page * PAGE as u64, data.as_ptr() as u64);
        let mut copy = Copy { to, from, length: data.len() as u64, mode: 0, copied: 0 };
        // SAFETY: the argument is live and of the request's type, and `from` is as long as it says.
        let result = unsafe { libc::ioctl(self.as_raw_fd(), UFFDIO_COPY, &raw mut copy) };
        self.filled(result, copy.copied)
    }

    /// Fills a page that has never been touched with zeros.
    pub fn zero(&self, page: u64) -> io::Result<()> {
        let range = Range { start: page * PAGE as u64, length: PAGE as u64 };
        let mut zero = Zero { range, mode: 0, zeroed: 0 };
        // SAFETY: the argument is live and of the request's type.
        let result = unsafe { libc::ioctl(self.as_raw_fd(), UFFDIO_ZEROPAGE, &raw mut zero) };
        match self.filled(result, zero.zeroed)? {
            Copied::Pages(_) | Copied::Gone => {}
            // An existing page stays; for a page that has moved, or could not be filled, the thread faults again.
            Copied::IsThere | Copied::NotMapped | Copied::Changing => self.wake(page, 1),
        }
        Ok(())
    }

    /// The outcome of a request; `done` is the number of filled bytes, or an error.
    fn filled(&self, result: libc::c_int, done: i64) -> io::Result<Copied> {
        let error = io::Error::last_os_error();
        if let Ok(bytes) = u64::try_from(done)
            && bytes > 0
        {
            return Ok(Copied::Pages(bytes / PAGE as u64));
        }
        match error.raw_os_error() {
            _ if result == 0 => Ok(Copied::Changing),
            Some(libc::EEXIST) => Ok(Copied::IsThere),
            Some(libc::ENOENT | libc::EINVAL) => Ok(Copied::NotMapped),
            // The host has no free memory now: threads that need the page wait until it has.
            Some(libc::EAGAIN | libc::ENOMEM | libc::EINTR) => Ok(Copied::Changing),
            Some(libc::ESRCH) => Ok(Copied::Gone),
            _ => Err(error),
        }
    }

    /// The next event, if there is one.
    pub fn next(&self) -> io::Result<Option<Happened>> {
        // `struct uffd_msg`: the kind, and three numbers.
        let mut message = [0_u64; 4];
        let length = mem::size_of_val(&message);
        // SAFETY: the buffer is live, writable and as long as said.
        let read = unsafe { libc::read(self.as_raw_fd(), message.as_mut_ptr().cast(), length) };
        if read != length as isize {
            let error = io::Error::last_os_error();
            let nothing = read == -1 && matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR));
            return if nothing { Ok(None) } else { Err(error) };
        }
        let [kind, first, second, third] = message;
        let page = |address: u64| address / PAGE as u64;
        Ok(Some(match kind & 0xff {
            event::FAULT => Happened::Fault { page: page(second) },
            // SAFETY: the kernel has just made it for us.
            event::FORK => Happened::Fork { child: unsafe { OwnedFd::from_raw_fd(first as u32 as RawFd) } },
            event::REMAP => Happened::Moved { from: page(first), to: page(second), pages: page(third) },
            event::REMOVE | event::UNMAP => {
                Happened::Dropped { page: page(first), pages: page(second - first) }
            }
            _ => return Err(io::Error::other("the kernel reports an event that was not requested")),
        }))
    }
}

/// Checks that the kernel supports the required features.
pub fn are_available() -> io::Result<()> {
    // SAFETY: no memory is passed.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) };
    let fd = RawFd::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the kernel has just made it for us.
    let descriptor = unsafe { OwnedFd::from_raw_fd(fd) };
    // `struct uffdio_api`.
    let mut api = [UFFD_API, FEATURES, 0_u64];
    // SAFETY: the argument is live and as long as the request's type.
    let result = unsafe { libc::ioctl(descriptor.as_raw_fd(), UFFDIO_API, api.as_mut_ptr()) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The next message of CRIU: a PID in the instance with its userfaultfd, or a number alone. The stream carries a byte with each
/// descriptor.
pub fn from_criu(mut stream: &UnixStream) -> io::Result<(i32, Option<OwnedFd>)> {
    let mut number = [0; 4];
    stream.read_exact(&mut number)?;
    let number = i32::from_ne_bytes(number);
    if number < 0 || number == RESTORED {
        return Ok((number, None));
    }
    let packet = seqpacket::receive(stream.as_fd())?;
    let descriptor = packet.descriptors.into_iter().next();
    let descriptor = descriptor.ok_or_else(|| io::Error::other("CRIU has sent no userfaultfd"))?;
    Ok((number, Some(descriptor)))
}

/// Waits until at least one of `descriptors` is readable, and returns those that are.
pub fn wait(descriptors: &[RawFd]) -> io::Result<Vec<RawFd>> {
    let interest = |fd: &RawFd| libc::pollfd { fd: *fd, events: libc::POLLIN, revents: 0 };
    let mut polls: Vec<_> = descriptors.iter().map(interest).collect();
    // SAFETY: `polls` is live and as long as said.
    let result = unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as libc::nfds_t, -1) };
    match io::Error::last_os_error() {
        error if result == -1 && error.kind() != io::ErrorKind::Interrupted => Err(error),
        _ => Ok(polls.iter().filter(|poll| poll.revents != 0).map(|poll| poll.fd).collect()),
    }
}

/// Pauses briefly, so that a process reaches the point where its event arrives.
pub fn pause() {
    thread::sleep(Duration::from_micros(200));
}
