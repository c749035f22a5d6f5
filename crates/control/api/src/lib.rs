//! The protocol between the command line and the coordinator.
//!
//! The coordinator listens on a Unix socket ([`DEFAULT_SOCKET`]) that only its owner can open. A
//! connection carries one [`Request`] and the [`Event`]s that answer it, each as a line of JSON. The
//! last event is the one for which [`Event::is_last`] holds; then the coordinator closes the connection.
//! A client keeps its side open until then. Closing it early does not end the operation: a move, for example, is ended
//! by [`Request::Cancel`]. Only [`Request::Exec`] is followed by further lines of the client ([`ExecLine`]), and ends when the client closes. A
//! coordinator that fails closes all connections; the client then resumes with the next one, from a [`Position`] in output or by the
//! number of a move.
//!
//! ```text
//! CLI                         coordinator
//!  │ {"move": {...}} ─────────────▶│
//!  │◀──────── {"begun": {...}}     │
//!  │◀──────── {"phase": {...}} ... │
//!  │◀──────── {"moved": {...}}     │   or {"failed": {"message": ..., "help": ...}}
//! ```

mod auto;
mod client;
mod failure;
mod improve;
mod line;
mod log;
mod members;
mod network;
mod output;
mod report;
mod request;
mod top;
mod words;

pub use auto::{AutoEffect, AutoGoal, AutoRequest, AutoSettings, AutoState, AutoStatus};
pub use client::{Client, ClientError, Speaker};
pub use failure::Failure;
pub use improve::{Aim, ImproveRequest, Improvement, ImprovementStep, PlacementFigures, PlanReport, Stays};
pub use line::{LineError, MAX_LINE, from_line, to_line};
pub use log::{LoggedEvent, MoveFigures, Occurrence};
pub use members::{HostRemoved, Token, TokenState};
pub use network::{
    Carrier, DEFAULT_MTU, NetAvailable, NetAvailableKind, NetChange, NetDevice, NetDeviceKind, NetFlow,
    NetHost, NetHostState, NetLaid, NetLink, NetMac, NetStatus, NetSwitchedOff, NetTunnel, Network, Purpose,
    Shape,
};
pub use output::{Bytes, Position};
pub use report::{
    Copying, DrainReport, EnginePart, Errand, Fetching, GroupMove, MoveReport, NetworkPart, Outage, Outcome,
    Phase, PhaseTime, PlannedMove, Stayed,
};
pub use request::{
    Accelerator, Boot, CheckpointRequest, Container, ContainerImage, Demand, Disk, DiskFormat, DrainRequest,
    ExecLine, ExecRequest, Host, INPUT_WINDOW, Instance, MAX_PARALLEL, MachineSupport, MoveGroupRequest,
    MoveRequest, Request, RestoreRequest, RunRequest, Seed, State, Vm,
};
pub use top::{Top, TopHost, TopInstance, TopLink, TopRate, TopTalk};
pub use words::in_words;

use fabric::attach::OutputStream;
use serde::{Deserialize, Serialize};

/// The default socket of the coordinator.
pub const DEFAULT_SOCKET: &str = "/run/transhume/coordinator.sock";

/// The environment variable that selects another socket.
pub const SOCKET_VARIABLE: &str = "TRANSHUME_SOCKET";

/// Part of the answer to a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The instance runs: the last answer to [`Request::Run`].
    Started(Box<Instance>),
    /// The last answer to [`Request::List`], in the order of names.
    Instances(Vec<Instance>),
    /// The last answer to [`Request::Top`].
    Top(Top),
    /// The last answer to [`Request::Improve`].
    Improvement(Improvement),
    /// A plan is being carried out: the first answer to [`Request::Apply`], and again after it was planned anew.
    Applying {
        /// Its number, for [`Request::FollowPlan`].
        number: u64,
        /// The plan.
        plan: Improvement,
    },
    /// The last answer to [`Request::Apply`] and [`Request::FollowPlan`].
    Applied(PlanReport),
    /// The last answer to [`Request::Auto`].
    Auto(AutoStatus),
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
    /// Network devices of a host that can be attached; for [`Request::Available`].
    NetAvailable {
        /// The host.
        host: String,
        /// The devices, in the order of names.
        devices: Vec<NetAvailable>,
    },
    /// Flows that entered the overlay at a host; for [`Request::Matrix`], the largest first.
    NetFlows {
        /// The host.
        host: String,
        /// Traffic between pairs of MACs.
        flows: Vec<NetFlow>,
    },
    /// Hosts that have not answered, if any: their entries are missing; for [`Request::Macs`], [`Request::Matrix`] and [`Request::Available`], after all
    /// other events.
    NetUnanswered {
        /// The hosts, in the order of names.
        hosts: Vec<String>,
    },
    /// The topology has changed: the last answer to [`NetChange::Lay`], [`NetChange::AddLink`] and [`NetChange::RemoveLink`].
    NetLaid(NetLaid),
    /// A device is attached: the last answer to [`NetChange::Attach`].
    NetAttached {
        /// Its MAC.
        mac: String,
        /// Its MTU in bytes; none for a proxy.
        mtu_bytes: Option<u32>,
        /// Whether it is an existing TAP that was adopted.
        adopted: bool,
    },
    /// A station's device has moved: the last answer to [`NetChange::Move`].
    NetMoved {
        /// The blackout, in microseconds.
        pause_us: u64,
    },
    /// A device of an unreachable host is detached, and the host removes it when it reconnects: the last answer to
    /// [`NetChange::Detach`].
    NetForgotten,
    /// The last answer to [`Request::NewToken`].
    Token {
        /// Its number, for [`Request::RevokeToken`].
        id: u64,
        /// The token; anyone who has it can join.
        token: String,
        /// Its lifetime in seconds.
        lifetime_s: u64,
    },
    /// The last answer to [`Request::Tokens`], in the order of creation.
    Tokens(Vec<Token>),
    /// The last answer to [`Request::RevokeToken`]: the token's new state.
    TokenRevoked(Token),
    /// The last answer to [`Request::RemoveHost`]: the coordinator and all reachable nodes reject the host.
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
    /// Pre-copy progress, sent several times per second.
    Copying(Copying),
    /// Progress of fetching memory after post-copy.
    Fetching(Fetching),
    /// Bytes of the image files that have arrived at the destination.
    Transferred {
        /// So far.
        bytes: u64,
        /// Total bytes, known once the dump has ended.
        total: Option<u64>,
    },
    /// A move, or an operation that waits for it, waits for a host. Repeated every few seconds while that lasts.
    Waiting {
        /// The host.
        host: String,
        /// The known cause, as text.
        why: String,
        /// What will happen to the move, as text.
        outlook: String,
    },
    /// The blockers of a move: the last answer to a dry run. Empty if the move is possible.
    Checked {
        /// Each blocker with its remedy.
        obstacles: Vec<Failure>,
    },
    /// The last answer to [`Request::Move`] and [`Request::FollowMove`]: the move has ended, successfully or not.
    Moved(Box<MoveReport>),
    /// The first answer to [`Request::Drain`].
    Draining {
        /// Number of instances on the host.
        instances: u32,
    },
    /// A move of a drain, of a plan or of a group has ended, successfully or not. After a failed move, a drain tries another host.
    MoveOver(Box<MoveReport>),
    /// The remaining work of a drain, after each of its moves.
    Remaining {
        /// Number of instances on the host.
        instances: u32,
        /// Estimated duration of their moves, in microseconds; none if past moves allow no estimate.
        time_us: Option<u64>,
    },
    /// No instance is left that can move: the last answer to [`Request::Drain`].
    Drained(DrainReport),
    /// The planned moves: the last answer to a dry run of a drain, in the order of execution, or of a group's move, in the order of
    /// names.
    Plan(Vec<PlannedMove>),
    /// The moves of a group have begun: the first answer to [`Request::MoveGroup`].
    GroupBegun {
        /// In the order of their numbers; empty if there is nothing to move.
        moves: Vec<GroupMove>,
    },
    /// An entry of the event log, in the order of numbers; for [`Request::Events`].
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
        /// The position after it, for [`Request::Logs`].
        position: Position,
    },
    /// Output before the next event was dropped, because the client read nothing for too long, or the node that stored it
    /// has failed.
    Dropped {
        /// Number of dropped pieces; unknown if they were lost with a node.
        pieces: Option<u64>,
    },
    /// The command has ended, but its host could not be asked for its last output.
    Unread(Failure),
    /// Output of the command of [`Request::Exec`].
    Written {
        /// Where the command wrote it.
        stream: OutputStream,
        /// What it wrote.
        #[serde(flatten)]
        bytes: Bytes,
    },
    /// The command of [`Request::Exec`] has consumed this much input.
    InputTaken {
        /// Total bytes.
        bytes: u64,
    },
    /// The last answer to [`Request::Logs`] without `follow`, to [`Request::Cancel`] when the instance runs again, to
    /// [`Request::Kill`] when it has ended, to [`Request::MoveGroup`], to [`Request::Undrain`], to [`Request::CancelPlan`], to [`Request::Events`] without `follow`, and to [`NetChange::Detach`] when it
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
            | Self::NetAvailable { .. }
            | Self::NetUnanswered { .. }
            | Self::Logged(_)
            | Self::Cancelling
            | Self::Draining { .. }
            | Self::Remaining { .. }
            | Self::GroupBegun { .. }
            | Self::Applying { .. }
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
            | Self::Improvement(_)
            | Self::Applied(_)
            | Self::Auto(_)
            | Self::Top(_)
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
