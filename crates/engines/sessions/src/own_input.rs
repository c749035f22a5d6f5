//! The standard input of the instance's own command, until a session takes it.
//!
//! The client that started the instance opens that session at once. If the client is killed before that, no session ever comes: then the
//! input ends after a timeout, so that the command does not wait for ever. The timeout runs only while a session can come: not before the
//! node has answered, nor while it is away. It restarts when the node or the coordinator is back.

use std::process::ChildStdin;
use std::time::{Duration, Instant};

/// How long a session may take to open.
const PATIENCE: Duration = Duration::from_secs(10);

/// The standard input of the command until a session takes it.
pub struct OwnInput {
    stdin: Option<ChildStdin>,
    /// The time at which it ends.
    deadline: Option<Instant>,
}

impl OwnInput {
    /// The write end of the command's standard input, if it has one.
    pub fn new(stdin: Option<ChildStdin>) -> Self {
        Self { stdin, deadline: None }
    }

    /// Takes the input for a session.
    pub fn take(&mut self) -> Option<ChildStdin> {
        self.deadline = None;
        self.stdin.take()
    }

    /// Starts the timeout: from now on a session can come.
    pub fn may_be_asked_for(&mut self, now: Instant) {
        self.deadline = self.stdin.is_some().then(|| now + PATIENCE);
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
            *self = Self::new(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    fn waiting() -> (Child, OwnInput) {
        let mut cat = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let input = OwnInput::new(cat.stdin.take());
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
