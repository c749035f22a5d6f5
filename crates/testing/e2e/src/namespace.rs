//! Network namespaces of a test.

use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::program::Program;

/// How long a tool may take.
const LIMIT: Duration = Duration::from_secs(60);

/// A network namespace, gone with its last process and this.
pub struct Namespace(OwnedFd);

impl Namespace {
    /// A new one, with nothing in it.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn new() -> Result<Self> {
        Ok(Self(fabric::netns::create()?))
    }

    /// The file by which other programs know it, as long as this is there.
    #[must_use]
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// Calls `inside` in it: sockets that it makes belong there.
    ///
    /// # Errors
    /// If it cannot be entered.
    pub fn enter<T: Send>(&self, inside: impl FnOnce() -> T + Send) -> Result<T> {
        Ok(fabric::netns::enter(self.0.as_fd(), inside)?)
    }

    /// Starts a program in it.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(&self, command: &mut Command) -> Result<Program> {
        self.enter(|| Program::start(command))?
    }

    /// Runs `ip` in it with the words of `line`.
    ///
    /// # Errors
    /// If the command fails, with its message.
    pub fn ip(&self, line: &str) -> Result<()> {
        self.start(Command::new("ip").args(line.split(' ')))?.end(LIMIT)?.success().map(drop)
    }
}
