//! The standard input of the instance's own command, until a session takes it.
//!
//! The client that started the instance opens that session at once. If the client is killed before that, no session ever comes: then the
//! input ends after a timeout, so that the command does not wait for ever. The timeout runs only while a session can come: not before the
//! node has answered, nor while it is away. It restarts when the node or the coordinator is back.
//!
//! The input of an emulator is the console of its guest. It never ends, and each session gives it back.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::process::ChildStdin;
use std::time::{Duration, Instant};

/// How long a session may take to open.
const PATIENCE: Duration = Duration::from_secs(10);

/// The standard input of the command until a session takes it.
pub struct OwnInput {
    stdin: Option<File>,
    /// Whether it lasts without a session.
    is_console: bool,
    /// The time at which it ends.
    deadline: Option<Instant>,
}

impl OwnInput {
    /// The write end of the command's standard input, if it has one; `is_console` says that the command is an emulator.
    pub fn new(stdin: Option<ChildStdin>, is_console: bool) -> Self {
        Self { stdin: stdin.map(OwnedFd::from).map(File::from), is_console, deadline: None }
    }

    /// Takes the input for a session.
    pub fn take(&mut self) -> Option<File> {
        self.deadline = None;
        self.stdin.take()
    }

    /// Takes the input back from a session that is over.
    pub fn give_back(&mut self, stdin: Option<File>) {
        self.stdin = stdin.or_else(|| self.stdin.take());
    }

    /// Starts the timeout: from now on a session can come.
    pub fn may_be_asked_for(&mut self, now: Instant) {
        self.deadline = (self.stdin.is_some() && !self.is_console).then(|| now + PATIENCE);
    }

    /// Stops the timeout: no session can come for now.
    pub fn cannot_be_asked_for(&mut self) {
        self.deadline = None;
    }

    /// The end of the timeout.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Closes the input if no session has come in time.
    pub fn end_overdue(&mut self, now: Instant) {
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            *self = Self::new(None, self.is_console);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    fn waiting() -> (Child, OwnInput) {
        let mut cat = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let input = OwnInput::new(cat.stdin.take(), false);
        (cat, input)
    }

    #[test]
    fn it_ends_if_no_session_comes_in_time() {
        let (mut cat, mut input) = waiting();
        let start = Instant::now();
        input.end_overdue(start + 9 * PATIENCE);
        input.may_be_asked_for(start);
        input.cannot_be_asked_for();
        input.end_overdue(start + 9 * PATIENCE);
        input.may_be_asked_for(start + PATIENCE);
        assert_eq!(input.deadline(), Some(start + 2 * PATIENCE));
        input.end_overdue(start + PATIENCE);
        assert!(input.stdin.is_some() && cat.try_wait().unwrap().is_none());
        input.end_overdue(start + 2 * PATIENCE);
        assert!(cat.wait().unwrap().success());
        assert!(input.deadline().is_none() && input.take().is_none());
    }

    #[test]
    fn the_input_of_an_emulator_lasts_and_serves_one_session_after_the_other() {
        let mut cat = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let mut input = OwnInput::new(cat.stdin.take(), true);
        let now = Instant::now();
        input.may_be_asked_for(now);
        input.end_overdue(now + 9 * PATIENCE);
        let taken = input.take();
        assert!(taken.is_some() && input.take().is_none());
        input.give_back(taken);
        assert!(input.take().is_some());
        assert!(cat.wait().unwrap().success());
    }

    #[test]
    fn a_session_keeps_the_input_without_a_timeout() {
        let (mut cat, mut input) = waiting();
        let now = Instant::now();
        input.may_be_asked_for(now);
        let taken = input.take();
        input.may_be_asked_for(now);
        assert!(taken.is_some() && input.deadline().is_none());
        drop(taken);
        assert!(cat.wait().unwrap().success());
    }
}
