//! The attach protocol between a process of an instance and the node of its host.
//!
//! The node listens on the abstract Unix socket [`SOCKET_NAME`] of type `SOCK_SEQPACKET` *in the
//! instance's network namespace*: only processes of that instance can reach it, and it has the
//! same name on every host. Each packet is one message in postcard encoding, with
//! descriptors as ancillary data where the message says so.
//!
//! ```text
//! process                          node
//!    │ Hello ──────────────────────▶│            also again after a move, with `resume`
//!    │◀───────────────────── Welcome│            or Refused
//!    │ OpenLink{peer} ─────────────▶│            a QP needs its peer's process
//!    │◀────── LinkUp{peer} + streams│            or LinkRefused; the peer gets LinkUp as well
//!    │◀───────────────── Nudge{peer}│            the peer wants a link, and we are the one
//!    │                              │            of the pair that opens: the lower ProcessId
//!    │ Directory{request} ─────────▶│            see the module `directory`
//!    │◀──────────── Directory{answer}
//!    │◀───────────── DirectoryBack  │            the coordinator has restarted: publish and ask again
//!    │◀──────────────── Session{id} │            see the module `session`; the first process only
//!    │ Sessions{word} ─────────────▶│
//!    │◀──────────────────── SayAgain│            the coordinator may have missed messages of sessions
//!    │ Traffic ────────────────────▶│            now and then, and before `Suspended`
//!    │◀──────────────────── Suspend │            the instance will be frozen
//!    │ Suspended ──────────────────▶│            every link is closed, no neighbour's memory is
//!    │ (closes)                     │            mapped, and this socket is closed next
//!    ┊   frozen, copied, thawed     ┊
//!    │ Hello{resume} ──────────────▶│            at the destination, or here after a rollback
//!    │◀───────────────────── Welcome│
//!    │ Resumed ────────────────────▶│            handles are allocated again; links follow
//! ```
//!
//! Both sides refuse messages that they cannot decode. A process can only speak for itself: its
//! [`ProcessId`] is the one that the node sent in `Welcome`.

use serde::{Deserialize, Serialize};

use crate::directory::{Answer, Request};
use crate::session::{SessionId, ToSession, Word};
use crate::traffic::Traffic;
use crate::{Epoch, FabricId, ProcessId, Vid};

/// The abstract socket's name, after the leading NUL byte.
pub const SOCKET_NAME: &[u8] = b"transhume/node";

/// The environment variable that tells programs that they run in an instance, also while its node is away.
pub const INSTANCE_VARIABLE: &str = "TRANSHUME_INSTANCE";

/// The directory that tells programs that they run in a container, whatever their environment is.
pub const CONTAINER_FOLDER: &str = "/.transhume";

/// The protocol version, raised when a message changes its meaning or layout.
pub const VERSION: u16 = 8;

/// The oldest version that nodes accept. Processes that were started before do not send `Traffic`.
pub const OLDEST_VERSION: u16 = 7;

/// The most instances in one [`ToNode::Traffic`].
pub const MAX_INSTANCES: usize = 1024;

/// The largest message, in bytes.
pub const MAX_MESSAGE: usize = 64 * 1024;

/// The most descriptors beside one message.
pub const MAX_DESCRIPTORS: usize = 4;

/// The role of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// A process that opened the RDMA device.
    Verbs,
    /// The instance's first process, which runs the command and carries its output.
    Init,
    /// The same process, for sessions: so a slow reader of the command's output does not delay them.
    Sessions,
    /// The first process of a virtual machine, for sessions at the console. The agent in the machine has the role of sessions.
    Console,
}

/// From a process to its node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToNode {
    /// The first message of every connection.
    Hello {
        /// [`VERSION`] of the sender.
        version: u16,
        /// The role of the connection.
        role: Role,
        /// The identity of the process before it was suspended; `None` the first time.
        resume: Option<ProcessId>,
    },
    /// Asks for a link to `peer`.
    OpenLink {
        /// The process at the other end.
        peer: ProcessId,
    },
    /// All links are closed and no memory of a neighbour is mapped. The sender closes this connection next.
    Suspended {
        /// Microseconds from the arrival of `Suspend` to this message.
        elapsed_us: u64,
        /// The number of QPs of the process.
        queue_pairs: u32,
        /// The number of memory regions of the process.
        memory_regions: u32,
        /// Peers to which a connection has carried traffic since it connected or the peer last moved.
        active_peers: Vec<ProcessId>,
    },
    /// Handles are allocated again, and links to active peers have been asked for.
    Resumed {
        /// Microseconds from the arrival of `Welcome` to this message.
        elapsed_us: u64,
    },
    /// Output of the command ([`Role::Init`]).
    Output {
        /// Where the command wrote it.
        stream: OutputStream,
        /// At most [`MAX_OUTPUT`] bytes.
        bytes: Vec<u8>,
    },
    /// The command ended ([`Role::Init`]); the sender waits for [`ToProcess::Farewell`].
    Exited {
        /// As a shell reports it: the exit code, or 128 and the signal's number.
        code: i32,
    },
    /// The command runs ([`Role::Init`]). Sent once, before its output and exit.
    Started,
    /// The command could not be started ([`Role::Init`]); the sender waits for [`ToProcess::Farewell`].
    NotStarted(NotStarted),
    /// Asks the fabric's directory.
    Directory {
        /// The request's number, which comes back with the answer.
        number: u64,
        /// The request.
        request: Request,
    },
    /// A message of the sessions ([`Role::Sessions`], [`Role::Console`]).
    Sessions(Word),
    /// Payload exchanged with other instances since the last report.
    Traffic {
        /// Each once; at most [`MAX_INSTANCES`].
        instances: Vec<(Vid, Traffic)>,
    },
}

/// Why a command could not be started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotStarted {
    /// As a shell reports it: 127 for a command that does not exist, 126 for one that cannot be run.
    pub code: u8,
    /// The reason, with the command's name.
    pub what: String,
    /// The remedy.
    pub remedy: String,
}

/// The most bytes in one [`ToNode::Output`].
pub const MAX_OUTPUT: usize = 16 * 1024;

/// The command's output streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OutputStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// From a node to a process of an instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToProcess {
    /// The answer to `Hello`.
    Welcome {
        /// The identity of the process, which it keeps when it resumes.
        process: ProcessId,
        /// The fabric of its instance.
        fabric: FabricId,
        /// The number of moves of its instance so far.
        epoch: Epoch,
    },
    /// The connection is refused; it closes next.
    Refused {
        /// The reason.
        reason: String,
    },
    /// A link to `peer` is ready. The descriptors beside it depend on `transport`.
    LinkUp {
        /// The process at the other end.
        peer: ProcessId,
        /// The peer's epoch, as its node knows it.
        epoch: Epoch,
        /// The kind of the descriptors.
        transport: Transport,
    },
    /// No link to `peer` for now.
    LinkRefused {
        /// The process at the other end.
        peer: ProcessId,
        /// The reason, which determines how to proceed.
        reason: LinkRefusal,
    },
    /// `peer` wants a link to this process, which is the one of the two that opens it.
    Nudge {
        /// The process at the other end.
        peer: ProcessId,
    },
    /// Suspend: close links and all other resources outside the instance.
    Suspend,
    /// The exit code is recorded; the instance's first process may end.
    Farewell,
    /// The directory's answer.
    Directory {
        /// The request's number.
        number: u64,
        /// The answer.
        answer: Answer,
    },
    /// The coordinator may have restarted, and lost all values and requests: publish and ask again.
    DirectoryBack,
    /// For a session ([`Role::Sessions`], [`Role::Console`]).
    Session {
        /// The session.
        id: SessionId,
        /// The message.
        message: ToSession,
    },
    /// The coordinator may have missed messages of the sessions ([`Role::Sessions`], [`Role::Console`]).
    SayAgain,
}

/// How the two ends of a link reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Transport {
    /// One descriptor: a connected TCP socket of the hosts' network.
    Stream,
    /// Four descriptors: a sealed memfd with a ring for each direction, a Unix stream socket whose bytes wake this
    /// process, a second one to which this process writes bytes to wake the peer, and a third one that carries
    /// descriptors and whose end of file means that the peer is gone. The process with the lower
    /// [`ProcessId`] sends through the first ring.
    SharedMemory,
}

/// Why there is no link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LinkRefusal {
    /// There is no such instance or process, or it has ended: requests to it fail as with a
    /// peer that does not answer.
    Gone,
    /// The peer is being moved: ask again when its links come back, or after a while.
    Moving,
    /// The peer's host or the coordinator cannot be reached: ask again after a while.
    Unreachable,
}

/// A message that cannot be decoded.
#[derive(Debug, thiserror::Error)]
#[error("malformed message of {length} bytes between an instance and its node")]
pub struct Malformed {
    length: usize,
}

/// The packet for `message`.
///
/// # Panics
/// Never for messages of this module: they all encode.
#[must_use]
pub fn encode<M: Serialize>(message: &M) -> Vec<u8> {
    postcard::to_stdvec(message).expect("messages hold nothing that postcard cannot encode")
}

/// The message in `packet`.
///
/// # Errors
/// If the packet is not exactly one message.
pub fn decode<'a, M: Deserialize<'a>>(packet: &'a [u8]) -> Result<M, Malformed> {
    match postcard::take_from_bytes(packet) {
        Ok((message, [])) => Ok(message),
        _ => Err(Malformed { length: packet.len() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::Volume;

    #[test]
    fn a_decoded_message_equals_the_encoded_one() {
        let peer = ProcessId { vid: Vid::new(5).unwrap(), index: 2 };
        let message = ToProcess::LinkUp { peer, epoch: Epoch(3), transport: Transport::Stream };
        assert_eq!(decode::<ToProcess>(&encode(&message)).unwrap(), message);
    }

    #[test]
    fn the_longest_report_of_traffic_fits_into_a_message() {
        let most = Volume { bytes: u64::MAX, messages: u64::MAX };
        let report = (Vid::new(0xbfff).unwrap(), Traffic { sent: most, fetched: most });
        let message = ToNode::Traffic { instances: vec![report; MAX_INSTANCES] };
        assert!(encode(&message).len() <= MAX_MESSAGE);
    }

    #[test]
    fn trailing_bytes_and_noise_are_refused() {
        let mut packet = encode(&ToNode::Exited { code: 1 });
        packet.push(0);
        assert!(decode::<ToNode>(&packet).is_err());
        assert!(decode::<ToNode>(&[0xff; 9]).is_err());
        assert!(decode::<ToNode>(&[]).is_err());
    }
}
