//! What the command line and the coordinator say to each other.
//!
//! The coordinator listens on a Unix socket ([`DEFAULT_SOCKET`]) that only its owner can open. A
//! connection carries one [`Request`] and the [`Event`]s that answer it, each a line of JSON. The
//! last event is the one of which [`Event::is_last`] is true, and then the connection ends.
//! A client keeps its side open until then. Closing it early changes nothing at the coordinator: a move is ended
//! by [`Request::Cancel`]. Only after [`Request::Exec`] does a client say more ([`ExecLine`]), and end something by closing. A
//! coordinator that dies closes all connections; to the next one a client says how far it was: [`Position`] in output, the
//! number of a move.
//!
//! ```text
//! CLI                         coordinator
//!  │ {"move": {...}} ─────────────▶│
//!  │◀──────── {"begun": {...}}     │
//!  │◀──────── {"phase": {...}} ... │
//!  │◀──────── {"moved": {...}}     │   or {"failed": {"message": ..., "help": ...}}
//! ```

mod client;
mod failure;
mod line;
mod log;
mod members;
mod network;
mod output;
mod report;
mod request;
mod words;

pub use client::{Client, ClientError, Speaker};
pub use failure::Failure;
pub use line::{LineError, MAX_LINE, from_line, to_line};
pub use log::{LoggedEvent, MoveFigures, Occurrence};
pub use members::{HostRemoved, Token, TokenState};
pub use network::{
    Carrier, DEFAULT_MTU, NetChange, NetDevice, NetDeviceKind, NetFlow, NetHost, NetHostState, NetLaid,
    NetLink, NetMac, NetStatus, NetSwitchedOff, NetTunnel, Network, Purpose, Shape,
};
pub use output::{Bytes, Position};
pub use report::{
    Copying, DrainReport, EnginePart, Errand, Fetching, GroupMove, MoveReport, NetworkPart, Outcome, Phase,
    PhaseTime, PlannedMove, Stayed,
};
pub use request::{
    CheckpointRequest, Container, ContainerImage, DrainRequest, ExecLine, ExecRequest, Host, INPUT_WINDOW,
    Instance, MAX_PARALLEL, MoveGroupRequest, MoveRequest, Request, RestoreRequest, RunRequest, State,
};
pub use words::in_words;

use fabric::attach::OutputStream;
use serde::{Deserialize, Serialize};

/// Where the coordinator listens if nothing else is said.
pub const DEFAULT_SOCKET: &str = "/run/transhume/coordinator.sock";

/// The environment variable that names another socket.
pub const SOCKET_VARIABLE: &str = "TRANSHUME_SOCKET";

/// Part of the answer to a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The instance runs: the last answer to [`Request::Run`].
    Started(Instance),
    /// The last answer to [`Request::List`], in the order of names.
    Instances(Vec<Instance>),
    /// The last answer to [`Request::Hosts`], in the order of names.
    Hosts(Vec<Host>),
    /// The first answer to [`Request::Network`].
    Network(Network),
    /// A host of the overlay; for [`Request::Network`], in the order of names.
    NetHost(Box<NetHost>),
    /// Some links; for [`Request::Network`], in the order of names.
    NetLinks(Vec<NetLink>),
    /// Some MACs that a host knows; for [`Request::Macs`], in ascending order.
    NetMacs {
        /// The host.
        host: String,
        /// The MACs.
        macs: Vec<NetMac>,
    },
    /// Some of what came in at a host; for [`Request::Matrix`], the most first.
    NetFlows {
        /// The host.
        host: String,
        /// From whom to whom, and how much.
        flows: Vec<NetFlow>,
    },
    /// Hosts that have not answered, if there are any: what they know is missing; for [`Request::Macs`] and [`Request::Matrix`],
    /// after all others.
    NetUnanswered {
        /// The hosts, in the order of names.
        hosts: Vec<String>,
    },
    /// Links are laid: the last answer to [`NetChange::Lay`], [`NetChange::AddLink`] and [`NetChange::RemoveLink`].
    NetLaid(NetLaid),
    /// A device is plugged in: the last answer to [`NetChange::Attach`].
    NetAttached {
        /// Its MAC.
        mac: String,
        /// Its MTU in bytes, but for a proxy's.
        mtu_bytes: Option<u32>,
        /// Whether it was there before.
        adopted: bool,
    },
    /// A station's device has moved: the last answer to [`NetChange::Move`].
    NetMoved {
        /// How long it carried nothing, in microseconds.
        pause_us: u64,
    },
    /// A device of a host that is away is the overlay's no more, and is taken away there when the host is back: the last answer to
    /// [`NetChange::Detach`].
    NetForgotten,
    /// The last answer to [`Request::NewToken`].
    Token {
        /// Its number, for [`Request::RevokeToken`].
        id: u64,
        /// One word; whoever has it can join.
        token: String,
        /// For how many seconds, from now on.
        lifetime_s: u64,
    },
    /// The last answer to [`Request::Tokens`], in the order in which they were made.
    Tokens(Vec<Token>),
    /// The last answer to [`Request::RevokeToken`]: how it is now.
    TokenRevoked(Token),
    /// The last answer to [`Request::RemoveHost`]: the coordinator and all nodes that could be told accept the host no more.
    HostRemoved(HostRemoved),
    /// A move has begun: the first answer to [`Request::Move`].
    Begun {
        /// Its number, for [`Request::FollowMove`].
        id: u64,
    },
    /// A move enters a phase.
    Phase {
        /// The phase that begins.
        phase: Phase,
        /// Microseconds since the move began.
        at_us: u64,
    },
    /// Memory goes to the destination while the instance runs. Said some times a second.
    Copying(Copying),
    /// How far the instance, which runs, has all its memory.
    Fetching(Fetching),
    /// Bytes of the instance's image that have arrived at the destination.
    Transferred {
        /// So far.
        bytes: u64,
        /// In all, once the dump has ended.
        total: Option<u64>,
    },
    /// A move, and what waits for its end, cannot go on before a host has answered. Said again every few seconds as long as that lasts.
    Waiting {
        /// The host.
        host: String,
        /// What is known about it, in words.
        why: String,
        /// What becomes of the move, in words.
        outlook: String,
    },
    /// What stands in the way of a move. Empty if it can be made: the last answer to a dry run.
    Checked {
        /// Each obstacle in words, with the way out.
        obstacles: Vec<Failure>,
    },
    /// The last answer to [`Request::Move`] and [`Request::FollowMove`]: it was made, or was not.
    Moved(Box<MoveReport>),
    /// The first answer to [`Request::Drain`].
    Draining {
        /// How many instances there are on the host.
        instances: u32,
    },
    /// One of the moves of a drain, or of a group, was made, or was not. A drain then tries another host.
    MoveOver(Box<MoveReport>),
    /// What a drain has still to do, after each of its moves.
    Remaining {
        /// How many instances are on the host.
        instances: u32,
        /// How long their moves will take by what the last moves have taken, in microseconds; nothing, if that cannot be said.
        time_us: Option<u64>,
    },
    /// Nothing is left that could be moved: the last answer to [`Request::Drain`].
    Drained(DrainReport),
    /// What would be done: the last answer to a dry run of a drain, in the order in which it would be, or of a group's move, in the order of
    /// names.
    Plan(Vec<PlannedMove>),
    /// Moves have begun that are made together: the first answer to [`Request::MoveGroup`].
    GroupBegun {
        /// In the order of their numbers; none, if there is nothing to move.
        moves: Vec<GroupMove>,
    },
    /// One of the event log, in the order of numbers; for [`Request::Events`].
    Logged(Box<LoggedEvent>),
    /// The move is being rolled back: the first answer to [`Request::Cancel`].
    Cancelling,
    /// Output of the instance's command.
    Output {
        /// Where the command wrote it.
        stream: OutputStream,
        /// What it wrote.
        #[serde(flatten)]
        bytes: Bytes,
        /// Where it ends, for [`Request::Logs`].
        position: Position,
    },
    /// Output that comes before the next is not kept any more: the client took nothing for too long, or the node that kept it
    /// has died.
    Dropped {
        /// In how many pieces the command wrote it; of those that are gone with a node that is not known.
        pieces: Option<u64>,
    },
    /// The command has ended, and what it has written last may be missing: for this reason its host could not be asked for it.
    Unread(Failure),
    /// Output of the command of [`Request::Exec`].
    Written {
        /// Where the command wrote it.
        stream: OutputStream,
        /// What it wrote.
        #[serde(flatten)]
        bytes: Bytes,
    },
    /// The command of [`Request::Exec`] has been given so much of its input.
    InputTaken {
        /// Since its begin.
        bytes: u64,
    },
    /// The last answer to [`Request::Logs`] without `follow`, to [`Request::Cancel`] when the instance runs on, to
    /// [`Request::Kill`] when it has ended, to [`Request::MoveGroup`], to [`Request::Undrain`], to [`Request::Events`] without `follow`, and to [`NetChange::Detach`] when it
    /// is done.
    Done,
    /// The command ended: the last answer to [`Request::Wait`], to `Logs` with `follow`, and to [`Request::Exec`].
    Exited {
        /// As a shell reports it.
        code: i32,
    },
    /// The last answer to [`Request::Run`] and [`Request::Exec`] if the command could not be started; in the former case there
    /// is no such instance then.
    NotStarted {
        /// As a shell reports it.
        code: u8,
        /// Why.
        failure: Failure,
    },
    /// The request was refused or has failed: the last answer.
    Failed(Failure),
}

impl Event {
    /// Whether no more events follow this one.
    #[must_use]
    pub fn is_last(&self) -> bool {
        match self {
            Self::Begun { .. }
            | Self::Phase { .. }
            | Self::Copying(_)
            | Self::Fetching(_)
            | Self::Transferred { .. }
            | Self::Waiting { .. }
            | Self::Network(_)
            | Self::NetHost(_)
            | Self::NetLinks(_)
            | Self::NetMacs { .. }
            | Self::NetFlows { .. }
            | Self::NetUnanswered { .. }
            | Self::Logged(_)
            | Self::Cancelling
            | Self::Draining { .. }
            | Self::Remaining { .. }
            | Self::GroupBegun { .. }
            | Self::MoveOver(_)
            | Self::Output { .. }
            | Self::Written { .. }
            | Self::InputTaken { .. }
            | Self::Dropped { .. }
            | Self::Unread(_) => false,
            Self::Started(_)
            | Self::Token { .. }
            | Self::Tokens(_)
            | Self::TokenRevoked(_)
            | Self::HostRemoved(_)
            | Self::Instances(_)
            | Self::Hosts(_)
            | Self::Checked { .. }
            | Self::Moved(_)
            | Self::Drained(_)
            | Self::Plan(_)
            | Self::NetLaid(_)
            | Self::NetAttached { .. }
            | Self::NetMoved { .. }
            | Self::NetForgotten
            | Self::Done
            | Self::Exited { .. }
            | Self::NotStarted { .. }
            | Self::Failed(_) => true,
        }
    }
}
