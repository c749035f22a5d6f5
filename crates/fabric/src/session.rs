//! Sessions: further commands that an instance's first process runs, for somebody at the coordinator.
//!
//! ```text
//! coordinator                  first process          both nodes and connections in between may change
//!    │ Open ───────────────────────▶│                 unless it is known already
//!    │◀───────────────────── State  │
//!    │ Input{offset} ──────────────▶│
//!    │◀────────────── Output{offset}│
//!    │ Taken{up_to} ───────────────▶│                 room for more output
//!    │◀───────────────────── State  │                 room for more input
//!    │◀───────────────────── Ended  │
//!    │ Leave ──────────────────────▶│                 forgotten; a command that runs yet is hung up
//! ```
//!
//! What is said is lost where it finds no connection. So the first process tells all of its sessions' [`State`] whenever
//! it has a new one, or the coordinator has; then both sides go on from what the other has had ([`crate::stream`]). An
//! `Open` that is missing in it is said again, and a session of which the coordinator does not know is left.

use serde::{Deserialize, Serialize};

use crate::attach::{NotStarted, OutputStream};

/// The most sessions of an instance at a time.
pub const MAX_SESSIONS: usize = 64;

/// The most bytes of one `Input` or `Output`.
pub const MAX_PIECE: usize = 16 * 1024;

/// A session: no other has its number, also none of a former coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SessionId(pub u64);

/// What to run in an instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// The program, found by `PATH`, and its arguments.
    pub command: Vec<String>,
    /// What differs from the instance's environment.
    pub environment: Vec<(String, String)>,
    /// The working directory, if it is not the instance's.
    pub directory: Option<String>,
    /// User and group, if they are not the instance's.
    pub user: Option<(u32, u32)>,
    /// Whether it has a standard input; else that is `/dev/null`.
    pub input: bool,
    /// A pseudo-terminal of this size for its standard input, output and error, which controls its session.
    pub terminal: Option<WindowSize>,
    /// No command is run: the input is for the standard input of the instance's own command, which ends with the session.
    pub for_own: bool,
}

/// The size of a terminal's window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowSize {
    /// Lines of text.
    pub rows: u16,
    /// Characters in a line.
    pub columns: u16,
}

impl Order {
    /// The most bytes of all text in it: a message has to hold it.
    pub const MAX: usize = 48 * 1024;

    /// How many bytes of text are in it, with what they take in a message.
    #[must_use]
    pub fn size(&self) -> usize {
        const BESIDE: usize = 4;
        let variables = self.environment.iter().flat_map(|(name, value)| [name, value]);
        let words = self.command.iter().chain(variables).chain(&self.directory);
        words.map(|word| word.len() + BESIDE).sum()
    }
}

/// To a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToSession {
    /// Start the command.
    Open(Order),
    /// For its standard input.
    Input {
        /// How many bytes come before.
        offset: u64,
        /// At most [`MAX_PIECE`].
        bytes: Vec<u8>,
    },
    /// The standard input ends.
    InputEnd {
        /// After so many bytes.
        length: u64,
    },
    /// Output has been taken.
    Taken {
        /// Of this stream.
        stream: OutputStream,
        /// Up to here.
        up_to: u64,
    },
    /// Send the command a signal.
    Signal {
        /// Counts the session's signals, from 1 on.
        number: u32,
        /// The signal.
        signal: i32,
    },
    /// Nobody is interested any more.
    Leave,
    /// The window of its terminal has this size now.
    Resize(WindowSize),
}

/// What the first process says of its sessions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Word {
    /// How far all of them are. The first word of a connection.
    All(Vec<(SessionId, State)>),
    /// What one says.
    One(SessionId, FromSession),
}

impl Word {
    /// Whether it is no larger than it may be.
    #[must_use]
    pub fn is_within_limits(&self) -> bool {
        match self {
            Self::All(sessions) => sessions.len() <= MAX_SESSIONS,
            Self::One(_, FromSession::Output { bytes, .. }) => bytes.len() <= MAX_PIECE,
            Self::One(..) => true,
        }
    }
}

/// From a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromSession {
    /// It is known, and has come so far.
    State(State),
    /// Output of the command.
    Output {
        /// Where the command wrote it.
        stream: OutputStream,
        /// How many bytes come before in this stream.
        offset: u64,
        /// At most [`MAX_PIECE`].
        bytes: Vec<u8>,
    },
    /// The command has ended, or was not started; it is said until the session is left.
    Ended {
        /// How.
        end: End,
        /// How many bytes it has written to standard output, and to standard error.
        lengths: [u64; 2],
    },
}

/// How far a session has come with what it was told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Bytes of input that the command has been given.
    pub input: u64,
    /// Signals.
    pub signals: u32,
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// As a shell reports it: the exit code, or 128 and the signal's number.
    Exited(i32),
    /// It could not be started.
    NotStarted(NotStarted),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_much_is_found() {
        let state = (SessionId(1), State::default());
        assert!(Word::All(vec![state; MAX_SESSIONS]).is_within_limits());
        assert!(!Word::All(vec![state; MAX_SESSIONS + 1]).is_within_limits());
        let output = |length| {
            let bytes = vec![0; length];
            Word::One(SessionId(1), FromSession::Output { stream: OutputStream::Stdout, offset: 0, bytes })
        };
        assert!(output(MAX_PIECE).is_within_limits() && !output(MAX_PIECE + 1).is_within_limits());
    }
    use crate::attach::{MAX_MESSAGE, ToProcess, encode};

    #[test]
    fn the_largest_order_fits_into_a_message() {
        let words = Order { command: vec![String::new(); Order::MAX / 4], ..Order::default() };
        let one = Order { command: vec!["x".repeat(Order::MAX - 4)], ..Order::default() };
        for order in [words, one] {
            assert_eq!(order.size(), Order::MAX);
            let message = ToProcess::Session { id: SessionId(u64::MAX), message: ToSession::Open(order) };
            assert!(encode(&message).len() <= MAX_MESSAGE);
        }
    }
}
