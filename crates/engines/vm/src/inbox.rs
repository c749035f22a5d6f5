//! Frames that wait in the TAP until the emulator reads them.
//!
//! Frames that the emulator has not read when the guest stops stay on this host, and so are lost in a move.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

/// The device through which programs open TAPs.
const TUN: &str = "/dev/net/tun";

/// How long a guest may take to receive the frames that wait. It is deaf to new ones meanwhile.
const LIMIT: Duration = Duration::from_millis(5);

/// How often to check whether frames wait.
const LOOK: Duration = Duration::from_micros(50);

/// The emulator's end of the TAP.
pub struct Inbox(OwnedFd);

impl Inbox {
    /// The inbox of the emulator `pid`.
    ///
    /// # Errors
    /// If it has no TAP open.
    pub fn of(pid: i32) -> io::Result<Self> {
        let process =
            pidfd_open(Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?, PidfdFlags::empty())?;
        let is_tap = |number: &i32| {
            fs::read_link(format!("/proc/{pid}/fd/{number}")).is_ok_and(|target| target == Path::new(TUN))
        };
        let entries = fs::read_dir(format!("/proc/{pid}/fd"))?;
        let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let number = numbers.into_iter().find(is_tap).ok_or(io::ErrorKind::NotFound)?;
        Ok(Self(pidfd_getfd(process.as_fd(), number, PidfdGetfdFlags::empty())?))
    }

    /// Waits until no frame waits, unless that takes long.
    pub fn await_empty(&self) {
        let end = Instant::now() + LIMIT;
        while self.has_frames() && Instant::now() < end {
            thread::sleep(LOOK);
        }
    }

    fn has_frames(&self) -> bool {
        let mut looks = [PollFd::new(&self.0, PollFlags::IN)];
        poll(&mut looks, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
    }
}
