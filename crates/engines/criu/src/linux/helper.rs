//! A helper program that does a part of a call's work, such as `tar`. It ends when this process ends, when the time runs out, or
//! when the call is cancelled.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Doing, Error, Result};

/// A running helper program. Dropping it kills the program.
pub struct Helper {
    child: Option<Child>,
    /// The file with its standard error, which may be long.
    complaints: PathBuf,
    is_harmless: fn(&str) -> bool,
}

impl Helper {
    /// Starts `command`, whose standard error goes to the file `complaints`.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn begin(command: &mut Command, complaints: PathBuf) -> io::Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&complaints)?);
        // SAFETY: between fork and exec, one system call.
        unsafe { command.pre_exec(end_with_the_node) };
        Ok(Self { child: Some(command.spawn()?), complaints, is_harmless: |_| false })
    }

    /// Accepts exit status 1 if all lines of standard error are harmless.
    pub fn forgiven(mut self, is_harmless: fn(&str) -> bool) -> Self {
        self.is_harmless = is_harmless;
        self
    }

    /// Waits until it succeeds.
    ///
    /// # Errors
    /// The first line of its standard error, for the operation `what`; [`Error::Cancelled`].
    pub fn succeed(
        mut self,
        limit: Duration,
        cancelled: &dyn Fn() -> bool,
        what: impl FnOnce() -> String,
    ) -> Result<()> {
        let Some(child) = self.child.take() else { return Ok(()) };
        let (why, may_be_forgiven) = match ended_within(child, limit, cancelled) {
            Ok(status) if status.success() => return Ok(()),
            Ok(status) => (format!("it ended with {status}"), status.code() == Some(1)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Err(Error::Cancelled),
            Err(error) => (error.to_string(), false),
        };
        let said = fs::read_to_string(&self.complaints).unwrap_or_default();
        match said.lines().find(|line| !(self.is_harmless)(line)) {
            Some(complaint) => Err(io::Error::other(complaint)).doing(what),
            None if may_be_forgiven && !said.is_empty() => Ok(()),
            None => Err(io::Error::other(why)).doing(what),
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ended = child.kill();
            let _reaped = child.wait();
        }
    }
}

/// Lets the kernel kill this process when the node ends, since a restarted node does not expect a running helper.
pub fn end_with_the_node() -> io::Result<()> {
    // SAFETY: no memory is passed.
    let result = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Waits for the end of `child`. Kills it after the timeout or, with `Interrupted`, on cancellation.
///
/// # Errors
/// If it was killed.
pub fn ended_within(
    mut child: Child,
    limit: Duration,
    cancelled: &dyn Fn() -> bool,
) -> io::Result<ExitStatus> {
    let end = Instant::now() + limit;
    let mut pause = Duration::from_micros(200);
    loop {
        let reason = match child.try_wait()? {
            Some(status) => return Ok(status),
            None if Instant::now() > end => io::ErrorKind::TimedOut,
            None if cancelled() => io::ErrorKind::Interrupted,
            None => {
                thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(5));
                continue;
            }
        };
        child.kill()?;
        child.wait()?;
        return Err(reason.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(words: &[&str], limit: Duration, cancelled: bool) -> String {
        let folder =
            std::env::temp_dir().join(format!("helper-{}-{cancelled}-{}", std::process::id(), words.len()));
        let mut command = Command::new("sh");
        let helper = Helper::begin(command.arg("-c").args(words), folder.clone()).unwrap();
        let helper = helper.forgiven(|line| line == "nothing");
        let ended = helper.succeed(limit, &|| cancelled, || "helping".into());
        fs::remove_file(folder).unwrap();
        ended.map_or_else(|error| error.to_string(), |()| "well".into())
    }

    #[test]
    fn a_helper_ends_well_or_says_why_not() {
        const LONG: Duration = Duration::from_secs(60);
        assert_eq!(ends(&["true"], LONG, false), "well");
        assert_eq!(ends(&["echo ill >&2; exit 1", "x"], LONG, false), "helping: ill");
        assert_eq!(ends(&["exit 3", "x"], LONG, false), "helping: it ended with exit status: 3");
        assert_eq!(ends(&["exec sleep 60", "x", "x"], LONG, true), "cancelled");
        assert!(ends(&["exec sleep 60", "x", "x", "x"], Duration::ZERO, false).contains("timed out"));
    }

    #[test]
    fn only_harmless_complaints_are_forgiven() {
        for (words, outcome) in [
            ("echo nothing >&2; exit 1", "well"),
            ("echo nothing >&2; exit 2", "helping: it ended with exit status: 2"),
            ("echo nothing >&2; kill -KILL $$", "helping: it ended with signal: 9 (SIGKILL)"),
            ("echo nothing >&2; echo ill >&2; exit 1", "helping: ill"),
            ("exit 1", "helping: it ended with exit status: 1"),
        ] {
            assert_eq!(ends(&[words; 5], Duration::from_secs(60), false), outcome, "{words}");
        }
    }
}
