//! Messages between the coordinator and the nodes, and between nodes.
//!
//! ```text
//! node                        coordinator            node                              node
//!  │ Hello{address, here} ─────▶│                      │ Opening::Links ───────────────▶│
//!  │◀────── Removed, Hosts      │                      │ Open{request, nonce} ─────────▶│
//!  │◀──▶ Moves                  │                      │◀─────────────── Open{data port}│
//!  │◀─────────── Ask{question}  │                      │ ── nonce, over plain TCP ─────▶│
//!  │ Answer ───────────────────▶│                      │ Opening::Images{id} ──────────▶│
//!  │ Measured ─────────────────▶│                      │ Manifest, files, end ─────────▶│
//!  │◀──────────── Moved{epoch}  │                      │◀───────────────────── Received │
//!  │ Processes{vid} ───────────▶│
//!  │ Directory{request} ───────▶│
//!  │◀──────── Session{message}  │
//!  │ Sessions{word} ───────────▶│
//!  │◀──────── Directory{answer} │                      │ Opening::Tunnel ──────────────▶│
//!  │◀──▶ Net                    │                      │◀──▶ net::Hello                 │
//! ```
//!
//! A receiver trusts a message only as far as the sender's certificate authorises it: a node speaks for its
//! own instances, and only the coordinator gives orders.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};

use fabric::attach::{LinkRefusal, NotStarted};
use fabric::link::LinkRequest;
use fabric::session::{Server, SessionId, ToSession, Word};
use fabric::{Epoch, ProcessId, Vid, directory};
use instance::{Carried, Chunk, Follower, ImageFile, Region};
use moves::protocol::{ToCoordinator, ToNode};
use moves::{HostName, MoveId};
use serde::{Deserialize, Serialize};

use crate::net;
use crate::removed::Removed;
use crate::telemetry;

/// Incremented when a message changes its meaning or layout.
pub const VERSION: u16 = 31;

/// A reason with its remedy, as the move protocol carries it.
#[must_use]
pub fn reason(what: &str, remedy: &str) -> String {
    format!("{what}\n{remedy}")
}

/// The text of a reason, and its remedy if it has one.
#[must_use]
pub fn split_reason(reason: &str) -> (&str, Option<&str>) {
    match reason.split_once('\n') {
        Some((what, remedy)) => (what, Some(remedy)),
        None => (reason, None),
    }
}

/// A message from a node to the coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromNode {
    /// The first message.
    Hello {
        /// [`VERSION`] of the sender.
        version: u16,
        /// The address at which other nodes reach it. An unspecified address stands for the source address of the connection.
        address: SocketAddr,
        /// The instances that it hosts or moves.
        here: Vec<Vid>,
        /// Whether it can run instances, or only takes part in the overlay.
        runs_instances: bool,
    },
    /// About moves, ends of instances and locations.
    Moves(ToCoordinator),
    /// The answer to [`FromCoordinator::Ask`].
    Answer {
        /// The question's number.
        number: u64,
        /// The answer, or the reason for the failure.
        answer: Result<Answer, String>,
    },
    /// The duration of a part of a move; sent before the report that the part is done.
    Measured {
        /// Which move.
        id: MoveId,
        /// What.
        measurement: Measurement,
    },
    /// The processes of an instance that use verbs; processes that are not listed have ended. Sent for each instance
    /// after [`FromNode::Hello`], and at each change.
    Processes {
        /// Which instance.
        vid: Vid,
        /// Their indexes.
        indexes: BTreeSet<u8>,
    },
    /// A process queries the directory of its fabric.
    Directory {
        /// The process.
        process: ProcessId,
        /// The request's number.
        number: u64,
        /// The request.
        request: directory::Request,
    },
    /// The kernel has ended processes of an instance because memory was exhausted. Sent when the instance has ended or left.
    OutOfMemory {
        /// Which instance.
        vid: Vid,
        /// Number of processes.
        processes: u64,
        /// The instance's memory limit in bytes, if that was reached.
        limit: Option<u64>,
    },
    /// About the overlay.
    Net(net::FromNode),
    /// How the host runs virtual machines. Sent for each connection, once the node knows.
    Machines(api::MachineSupport),
    /// What the host and its instances have used.
    Sampled(telemetry::Sample),
    /// A message of an instance's sessions.
    Sessions {
        /// Which instance's.
        vid: Vid,
        /// Who serves them.
        server: Server,
        /// The message.
        word: Word,
    },
}

/// A message from the coordinator to a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromCoordinator {
    /// The node is rejected, and need not retry unchanged.
    Refused {
        /// The reason.
        reason: String,
    },
    /// The addresses of all nodes. Sent to each node that connects, and again when another one does.
    Hosts(Vec<(HostName, SocketAddr)>),
    /// About moves, ends of instances and locations.
    Moves(ToNode),
    /// New locations of instances: all that were moved together.
    Moved(Vec<Moved>),
    /// The names of instances. The first message contains all names, the following ones changes.
    Names(Names),
    /// The answer to a process's [`FromNode::Directory`].
    Directory {
        /// The process.
        process: ProcessId,
        /// The request's number.
        number: u64,
        /// The answer.
        answer: directory::Answer,
    },
    /// About the overlay.
    Net(net::ToNode),
    /// A question; the node replies with [`FromNode::Answer`].
    Ask {
        /// The question's number.
        number: u64,
        /// The question.
        question: Question,
    },
    /// A question about the overlay. It is processed in order with [`Self::Net`], unless it only reads the present state.
    AskNet {
        /// The question's number.
        number: u64,
        /// The question.
        question: net::Question,
    },
    /// A message for a session of an instance.
    Session {
        /// The instance.
        vid: Vid,
        /// Who serves it.
        server: Server,
        /// The session.
        id: SessionId,
        /// The message.
        message: ToSession,
    },
    /// The revocation list: the node closes its connections with these hosts and drops their keys. Sent as the first message, and again
    /// when the list changes.
    Removed {
        /// The number of the requested confirmation, if any.
        number: Option<u64>,
        /// The list.
        removed: Removed,
    },
    /// The node's own host was removed.
    Dismissed {
        /// The reason and the remedy, as [`reason`] makes it.
        reason: String,
    },
}

/// The new location of an instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// Which instance.
    pub vid: Vid,
    /// Its host.
    pub host: HostName,
    /// Its epoch.
    pub epoch: Epoch,
}

/// A change of the names of instances.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Names {
    /// All earlier names are void.
    pub forget: bool,
    /// New names with their addresses.
    pub added: Vec<(String, Ipv4Addr)>,
    /// A name that is no longer in use.
    pub gone: Option<String>,
}

/// A question of the coordinator to a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Question {
    /// Start an instance.
    Start {
        /// Its identity.
        vid: Vid,
        /// Its [`Blueprint`](instance::Blueprint).
        blueprint: Vec<u8>,
        /// Whether a client will follow its output from the beginning.
        followed: bool,
    },
    /// Output of a command. For a follower, the answer waits for up to [`OUTPUT_PATIENCE`](Self::OUTPUT_PATIENCE)
    /// until there is some.
    Output {
        /// Which instance.
        vid: Vid,
        /// The first chunk.
        from: u64,
        /// A client that has received everything before: the answer waits for output, and the command is throttled if the client lags.
        follower: Option<Follower>,
    },
    /// A client stops following.
    Unfollow {
        /// The instance.
        vid: Vid,
        /// The follower.
        follower: Follower,
    },
    /// Delete the images of an instance in a failed checkpoint.
    DiscardImages {
        /// Which instance.
        vid: Vid,
        /// The directory of its images.
        images: String,
    },
    /// End an instance.
    Kill {
        /// Which instance.
        vid: Vid,
        /// How long it may take to end in an orderly way, in seconds, if its workload can be told to: a virtual machine powers down.
        grace_s: u64,
    },
    /// The size of a move of an instance.
    Weigh {
        /// Which instance.
        vid: Vid,
    },
}

impl Question {
    /// How long a node waits for output before it answers that there is none.
    pub const OUTPUT_PATIENCE: std::time::Duration = std::time::Duration::from_secs(10);
}

/// An answer of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// It is done.
    Done,
    /// Some output.
    Output {
        /// What was written.
        chunks: Vec<Chunk>,
        /// The next chunk.
        next: u64,
        /// The exit status of the command, if it has ended.
        exit: Option<i32>,
    },
    /// The state of the overlay on the host.
    Net(Box<api::NetHostState>),
    /// The locations of MACs.
    Macs(Vec<api::NetMac>),
    /// The existing TAP.
    Tap(Option<net::FoundTap>),
    /// Devices that can be attached.
    Available(Vec<api::NetAvailable>),
    /// Flows of the traffic matrix.
    Flows(Vec<api::NetFlow>),
    /// The instance's command could not be started, and the instance was removed.
    NotStarted(NotStarted),
    /// The size of a move.
    Weight {
        /// Memory in use, and the files that a container has written.
        bytes: u64,
    },
}

/// The duration of a part of a move, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Measurement {
    /// The instance's turn for the dump has come, after a wait in which it still ran.
    Turn {
        /// In microseconds.
        waited_us: u64,
    },
    /// The processes have closed their links.
    Suspended {
        /// The slowest process's own measurement.
        slowest_us: u64,
        /// From the node's order to the last confirmation.
        round_us: u64,
        /// Processes that use RDMA.
        processes: u32,
        /// Their QPs.
        queue_pairs: u32,
        /// Their memory regions.
        memory_regions: u32,
    },
    /// Its memory is being sent in pre-copy.
    Precopying {
        /// Its memory, in bytes.
        memory: u64,
        /// Bytes sent.
        sent: u64,
        /// The pre-copy round, from 1.
        look: u32,
        /// The estimated rest of pre-copy, if known.
        left_us: Option<u64>,
    },
    /// Pre-copy has ended.
    Precopied {
        /// Bytes sent.
        bytes: u64,
    },
    /// The instance was dumped.
    Dumped {
        /// The dump.
        dump_us: u64,
    },
    /// Its image files were sent.
    Sent {
        /// From the dump's end until the destination had verified the last byte.
        transfer_us: u64,
        /// Total bytes sent, including pre-copy.
        bytes: u64,
    },
    /// The instance was restored, and is held.
    Restored {
        /// The restore.
        restore_us: u64,
    },
    /// The missing memory was fetched after the resume.
    Fetched {
        /// Bytes fetched on demand.
        demanded: u64,
        /// Bytes pushed before they were needed.
        pushed: u64,
    },
    /// A part of the outage of a virtual machine: on the source until the dump's end, or on the destination from the order to resume.
    Outage {
        /// The time in which its processors were stopped.
        processors_us: u64,
        /// The time in which its link was cut.
        link_us: u64,
    },
    /// The instance was resumed, and its processes have reconnected.
    Resumed {
        /// From the order to resume until its processes ran.
        release_us: u64,
        /// The slowest process's own measurement.
        slowest_us: u64,
        /// From the first process that reconnected to the last that had resumed.
        round_us: u64,
    },
}

/// The first message from one node to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Opening {
    /// [`LinkQuestion`]s follow, each with its [`LinkAnswer`].
    Links,
    /// The image files of an instance follow.
    Images {
        /// For which move.
        id: MoveId,
        /// Which instance.
        vid: Vid,
    },
    /// A channel between the engines of a move: from here on, bytes both ways that only they understand.
    Channel {
        /// Of which move.
        id: MoveId,
        /// Of which instance.
        vid: Vid,
        /// The channel's name in that move.
        name: String,
    },
    /// The destination fetches memory that was left on the source: [`MemoryQuestion`]s follow, each with its
    /// [`MemoryAnswer`]; pages that a thread waits for come first.
    Memory {
        /// By which move.
        id: MoveId,
        /// Which instance.
        vid: Vid,
    },
    /// A tunnel of the overlay: both sides send [`net::Hello`], and keep the connection.
    Tunnel,
}

/// Pages that an instance lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryQuestion {
    /// Of which region.
    pub region: Region,
    /// Where it was.
    pub address: u64,
    /// How many pages, at most as many as an engine asks for at a time.
    pub pages: u64,
    /// Whether no thread waits for them yet.
    pub ahead: bool,
}

/// Pages that were left on the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemoryAnswer {
    /// The pages are in the next frame.
    Pages {
        /// As asked.
        region: Region,
        /// As asked.
        address: u64,
    },
    /// The pages are lost.
    Lost,
}

/// A question about links between nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LinkQuestion {
    /// Make a link: a connection that brings `nonce` is its other end.
    Open {
        /// The requested link.
        request: LinkRequest,
        /// Identifies the connection; used once.
        nonce: [u8; 16],
    },
    /// Tell the requested process to open the link.
    Nudge(LinkRequest),
    /// An instance that moves from the asking host to the asked one has links to processes of `peers`, and will request them again.
    Expect {
        /// Which instance.
        vid: Vid,
        /// Its peers.
        peers: BTreeSet<Vid>,
    },
}

/// An answer about links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LinkAnswer {
    /// The node awaits the connection.
    Open {
        /// The wanted instance's epoch.
        epoch: Epoch,
        /// The port, at the address at which the node was asked.
        data_port: u16,
    },
    /// The process has been told.
    Nudged,
    /// The node prepares links to these peers, in case the instance arrives.
    Expected,
    /// The link is refused, now or for good.
    Refused(LinkRefusal),
    /// The requested instance is not on this host.
    NotHere,
}

/// A message of an image transfer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ImageMessage {
    /// A new description of memory begins: earlier layouts are void, but received pages stay.
    Begin,
    /// Pages of memory; the next frame contains them consecutively.
    Pages {
        /// The region.
        region: Region,
        /// The address of each run of them, and how many it has.
        runs: Vec<(u64, u32)>,
    },
    /// A part of the layout of memory: all these pages have been sent.
    Layout {
        /// The region.
        region: Region,
        /// The address of each run of them, and how many it has, in rising order.
        runs: Vec<(u64, u64)>,
    },
    /// Pages that will be fetched later, even if an earlier version was sent.
    Left {
        /// The region.
        region: Region,
        /// The address of each run of them, and how many it has, in rising order.
        runs: Vec<(u64, u64)>,
    },
    /// The end of memory. The other image files follow, split into frames.
    Rest(Manifest),
}

/// All image files except memory, and their metadata.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The state of the source's broker.
    pub carried: Carried,
    /// The files, in the order in which they follow.
    pub images: Vec<ImageFile>,
}

/// The destination's answer to an image transfer: at the end, or as soon as it fails.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Received {
    /// The destination has received everything.
    Whole {
        /// The digest of all pages and files, in order.
        digest: [u8; 32],
    },
    /// The destination cannot accept the images, and reads no more than necessary.
    Refused {
        /// The reason, as [`reason`] makes it.
        reason: String,
    },
}
