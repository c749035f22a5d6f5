//! Sessions: further commands that an instance's first process runs for a client of the coordinator.
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
//! A message is lost while there is no connection. So the first process sends the [`State`] of all its sessions whenever it
//! or the coordinator has a new connection; then both sides resume at the position that the other has received
//! ([`crate::stream`]). The coordinator repeats an `Open` whose session is missing there, and leaves a session that it does
//! not know.
//!
//! The first process of a virtual machine stays behind in a move. It sends the state of a console in `Parted`; the coordinator opens
//! the session again, from that state, with the first process at the destination. A session that is missing there without `Parted` fails.

use serde::{Deserialize, Serialize};

use crate::attach::{NotStarted, OutputStream};

/// The most sessions of an instance at a time.
pub const MAX_SESSIONS: usize = 64;

/// The number of terminals that CRIU opens at most to reach a given number: it could not restore a higher one after lower ones have
/// been closed.
pub const MOST_TERMINALS: u32 = 32;

/// The most bytes of one `Input` or `Output`.
pub const MAX_PIECE: usize = 16 * 1024;

/// The number of a session, unique even across restarts of the coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SessionId(pub u64);

/// The process that serves a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Server {
    /// The one that runs commands: the instance's first process, or the agent in a virtual machine.
    Commands,
    /// The first process of a virtual machine, which feeds its console.
    Console,
}

/// A command to run in an instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// The program, found by `PATH`, and its arguments.
    pub command: Vec<String>,
    /// Variables that differ from the instance's environment.
    pub environment: Vec<(String, String)>,
    /// The working directory, if it is not the instance's.
    pub directory: Option<String>,
    /// User and group, if they are not the instance's.
    pub user: Option<(u32, u32)>,
    /// Whether it has a standard input; otherwise that is `/dev/null`.
    pub input: bool,
    /// A pseudo-terminal of this size for its standard input, output and error, which controls its session.
    pub terminal: Option<WindowSize>,
    /// Runs no command: the session feeds the standard input of the instance's own command, which ends with the session. The input of
    /// an emulator is the console of its guest: it does not end, and another session may follow.
    pub for_own: bool,
    /// The position of the first byte of its input: what is before it was received by the first process at the instance's last host,
    /// which has [parted](FromSession::Parted).
    pub input_from: u64,
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
    /// The most bytes of text in an order, so that a message can hold it.
    pub const MAX: usize = 48 * 1024;

    /// The bytes of its text, with their overhead in a message.
    #[must_use]
    pub fn size(&self) -> usize {
        const BESIDE: usize = 4;
        let variables = self.environment.iter().flat_map(|(name, value)| [name, value]);
        let words = self.command.iter().chain(variables).chain(&self.directory);
        words.map(|word| word.len() + BESIDE).sum()
    }
}

/// A message to a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToSession {
    /// Start the command.
    Open(Order),
    /// Bytes for its standard input.
    Input {
        /// The position of the first byte.
        offset: u64,
        /// At most [`MAX_PIECE`].
        bytes: Vec<u8>,
    },
    /// The standard input ends.
    InputEnd {
        /// The length of the input.
        length: u64,
    },
    /// Acknowledges output.
    Taken {
        /// The stream.
        stream: OutputStream,
        /// The position up to which it was received.
        up_to: u64,
    },
    /// Send the command a signal.
    Signal {
        /// The signal's sequence number in the session, from 1 on.
        number: u32,
        /// The signal.
        signal: i32,
    },
    /// The client has left: end the session.
    Leave,
    /// The window of its terminal has this size now.
    Resize(WindowSize),
}

/// A message of the first process about its sessions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Word {
    /// The state of all sessions. The first message of a connection.
    All(Vec<(SessionId, State)>),
    /// A message of one session.
    One(SessionId, FromSession),
}

impl Word {
    /// Whether the message is within the limits.
    #[must_use]
    pub fn is_within_limits(&self) -> bool {
        match self {
            Self::All(sessions) => sessions.len() <= MAX_SESSIONS,
            Self::One(_, FromSession::Output { bytes, .. }) => bytes.len() <= MAX_PIECE,
            Self::One(..) => true,
        }
    }
}

/// A message from a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromSession {
    /// The session exists, and is in this state.
    State(State),
    /// Output of the command.
    Output {
        /// Where the command wrote it.
        stream: OutputStream,
        /// The position of the first byte in this stream.
        offset: u64,
        /// At most [`MAX_PIECE`].
        bytes: Vec<u8>,
    },
    /// The last message before a move of an instance whose first process does not travel along. The one at the destination can
    /// continue the session from this state.
    Parted(State),
    /// The command has ended, or was not started; repeated until the client leaves.
    Ended {
        /// How it ended.
        end: End,
        /// The bytes that it has written to standard output, and to standard error.
        lengths: [u64; 2],
    },
}

/// The progress of a session with its input and signals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Bytes of input that the command has received.
    pub input: u64,
    /// The sequence number of the last signal.
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
    fn messages_beyond_the_limits_are_detected() {
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
