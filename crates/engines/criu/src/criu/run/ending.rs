//! Ends a run of CRIU, and waits for it.

use std::mem;
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::process::Child;
use std::time::{Duration, Instant};

use super::Criu;
use crate::criu::rpc::Request;

/// How long CRIU may take to undo its work before it is killed.
pub(super) const UNDO: Duration = Duration::from_secs(5);

impl Criu {
    /// Lets CRIU undo its work, and waits until it has ended.
    pub fn undo(&mut self) {
        if self.harmless {
            self.kill_group();
        }
        // SAFETY: no memory is passed. A closed other end is no problem.
        unsafe { libc::shutdown(self.socket.as_raw_fd(), libc::SHUT_RDWR) };
        self.take_no_pages();
        self.end_within(UNDO);
    }

    /// Refuses pages. A failing CRIU sends a last message to the receiver of the pages, and would wait for an answer for ever.
    pub(super) fn take_no_pages(&self) {
        let _closed = self.pages.as_ref().map(|pages| pages.shutdown(Shutdown::Write));
    }

    /// Kills CRIU and its children, which would wait for it for ever.
    fn kill_group(&self) {
        if !self.waited_for {
            // SAFETY: no memory is passed. The group is CRIU's own, and its number is taken until CRIU is reaped.
            unsafe { libc::kill(-self.id.pid, libc::SIGKILL) };
        }
    }

    /// Reaps the children of this process in the killed group.
    fn reap_group(&self) {
        let end = Instant::now() + UNDO;
        // SAFETY: a null status is permitted. The group's number is taken as long as the group has a member.
        while unsafe { libc::waitpid(-self.id.pid, std::ptr::null_mut(), libc::WNOHANG) } != -1 {
            if Instant::now() > end {
                break;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Whether CRIU has ended. It is not reaped, and its PID stays taken.
    pub(super) fn has_ended(&self) -> bool {
        // SAFETY: all-zero is a valid siginfo_t.
        let mut info: libc::siginfo_t = unsafe { mem::zeroed() };
        let look = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        // SAFETY: `info` is live and writable.
        let result = unsafe { libc::waitid(libc::P_PID, self.id.pid.unsigned_abs(), &raw mut info, look) };
        // SAFETY: the kernel has set the PID of the ended process, or 0.
        result == -1 || unsafe { info.si_pid() } != 0
    }

    fn ends_within(&self, time: Duration) -> bool {
        let end = Instant::now() + time;
        while !self.has_ended() {
            if Instant::now() > end {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// Waits for CRIU's end. Kills CRIU if it takes too long, and its guard likewise.
    pub(super) fn end_within(&mut self, time: Duration) {
        if self.waited_for {
            return;
        }
        if !self.ends_within(time) {
            let _gone = self.child.kill();
        }
        if !self.ends_within(UNDO)
            && let Some(guard) = &mut self.guard
        {
            let _gone = guard.kill();
            self.ends_within(UNDO);
        }
        let restores = matches!(self.request, Request::Restore { .. });
        if restores {
            // The root of a tree is in CRIU's group until it has a session of its own, and would wait for CRIU for ever.
            self.kill_group();
        }
        self.waited_for |= !matches!(self.child.try_wait(), Ok(None));
        if restores {
            self.reap_group();
        }
        if let Some(mut guard) = self.guard.take() {
            if !ended_within(&mut guard, UNDO) {
                let _gone = guard.kill();
            }
            let _reaped = guard.wait();
        }
    }
}

impl Drop for Criu {
    fn drop(&mut self) {
        self.undo();
    }
}

fn ended_within(child: &mut Child, time: Duration) -> bool {
    let end = Instant::now() + time;
    while let Ok(None) = child.try_wait() {
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}
