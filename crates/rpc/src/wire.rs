//! What the coordinator and the nodes say to each other, and nodes among themselves.
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
//! A receiver believes a message only as far as the sender's certificate goes: a node speaks for the
//! instances that it has, and only the coordinator orders.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};

use fabric::attach::{LinkRefusal, NotStarted};
use fabric::link::LinkRequest;
use fabric::session::{SessionId, ToSession, Word};
use fabric::{Epoch, ProcessId, Vid, directory};
use instance::{Carried, Chunk, Follower, ImageFile, Region};
use moves::protocol::{ToCoordinator, ToNode};
use moves::{HostName, MoveId};
use serde::{Deserialize, Serialize};

use crate::net;
use crate::removed::Removed;

/// Raised when a message changes its meaning or layout.
pub const VERSION: u16 = 28;

/// A reason in words with its way out, as the move protocol carries it.
#[must_use]
pub fn reason(what: &str, remedy: &str) -> String {
    format!("{what}\n{remedy}")
}

/// The words of a reason, and its way out if it has one.
#[must_use]
pub fn split_reason(reason: &str) -> (&str, Option<&str>) {
    match reason.split_once('\n') {
        Some((what, remedy)) => (what, Some(remedy)),
        None => (reason, None),
    }
}

/// From a node to the coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromNode {
    /// The first message.
    Hello {
        /// [`VERSION`] of the sender.
        version: u16,
        /// Where other nodes reach it. If the address is unspecified, it is the one it connects from.
        address: SocketAddr,
        /// Instances that it has to do with.
        here: Vec<Vid>,
        /// Whether it can run instances, or takes part in the overlay alone.
        runs_instances: bool,
    },
    /// About moves, ends and locations.
    Moves(ToCoordinator),
    /// The answer to [`FromCoordinator::Ask`].
    Answer {
        /// The question's number.
        number: u64,
        /// The answer, or why there is none, in words.
        answer: Result<Answer, String>,
    },
    /// How long part of a move took; sent before the report that the part is done.
    Measured {
        /// Which move.
        id: MoveId,
        /// What.
        measurement: Measurement,
    },
    /// The processes of an instance that use verbs; those that it does not name have ended. Said of each instance
    /// after [`FromNode::Hello`], and again when they change.
    Processes {
        /// Which instance.
        vid: Vid,
        /// Their indexes.
        indexes: BTreeSet<u8>,
    },
    /// A process asks the directory of its fabric.
    Directory {
        /// Who.
        process: ProcessId,
        /// The request's number.
        number: u64,
        /// The request.
        request: directory::Request,
    },
    /// Of an instance that has ended here, or has left, the kernel had ended processes for want of memory.
    OutOfMemory {
        /// Which instance.
        vid: Vid,
        /// How many.
        processes: u64,
        /// The instance's own limit in bytes, if it was that which was reached.
        limit: Option<u64>,
    },
    /// About the overlay.
    Net(net::FromNode),
    /// What an instance's sessions say.
    Sessions {
        /// Which instance's.
        vid: Vid,
        /// What they say.
        word: Word,
    },
}

/// From the coordinator to a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromCoordinator {
    /// The node is not accepted, and need not try again unchanged.
    Refused {
        /// Why, in words.
        reason: String,
    },
    /// Where all nodes are. Said to who connects, and again when one comes.
    Hosts(Vec<(HostName, SocketAddr)>),
    /// About moves, ends and locations.
    Moves(ToNode),
    /// Instances have other places from now on: all that were moved together.
    Moved(Vec<Moved>),
    /// How instances are called. The first is said of all, and changes follow.
    Names(Names),
    /// The answer to a process' [`FromNode::Directory`].
    Directory {
        /// Who asked.
        process: ProcessId,
        /// The request's number.
        number: u64,
        /// The answer.
        answer: directory::Answer,
    },
    /// About the overlay.
    Net(net::ToNode),
    /// Wants an [`FromNode::Answer`].
    Ask {
        /// The question's number.
        number: u64,
        /// The question.
        question: Question,
    },
    /// The same about the overlay. It is answered in order with [`Self::Net`], unless it only asks how things are.
    AskNet {
        /// The question's number.
        number: u64,
        /// The question.
        question: net::Question,
    },
    /// For a session of an instance.
    Session {
        /// Which instance's.
        vid: Vid,
        /// Which session.
        id: SessionId,
        /// What it is told.
        message: ToSession,
    },
    /// Whom the node is to believe no more: its connections with those end, and their keys are forgotten. The first message, and again
    /// when the list changes.
    Removed {
        /// Of the answer that is wanted, if one is, when all that is done.
        number: Option<u64>,
        /// The list.
        removed: Removed,
    },
    /// The node's own host was removed.
    Dismissed {
        /// That, with the way out, as [`reason`] makes it.
        reason: String,
    },
}

/// The new place of an instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// Which instance.
    pub vid: Vid,
    /// Its host.
    pub host: HostName,
    /// Its moves so far.
    pub epoch: Epoch,
}

/// A change in what instances are called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Names {
    /// What was said before holds no more.
    pub forget: bool,
    /// Names with their addresses.
    pub added: Vec<(String, Ipv4Addr)>,
    /// One that nobody has any more.
    pub gone: Option<String>,
}

/// What the coordinator asks of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Question {
    /// Start an instance.
    Start {
        /// Its identity.
        vid: Vid,
        /// Its [`Blueprint`](instance::Blueprint).
        blueprint: Vec<u8>,
        /// Whether somebody will follow its output from the begin.
        followed: bool,
    },
    /// What a command has written. For a follower the answer waits for up to [`OUTPUT_PATIENCE`](Self::OUTPUT_PATIENCE)
    /// until there is some.
    Output {
        /// Which instance.
        vid: Vid,
        /// From which chunk on.
        from: u64,
        /// Who has had everything before, and follows on: the answer waits, and so does the command if this lags.
        follower: Option<Follower>,
    },
    /// Somebody follows no more.
    Unfollow {
        /// Whose output.
        vid: Vid,
        /// Who.
        follower: Follower,
    },
    /// Remove what was saved of an instance in a checkpoint that was given up.
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
    },
    /// How much a move of an instance has to carry.
    Weigh {
        /// Which instance.
        vid: Vid,
    },
}

impl Question {
    /// How long a node waits for output before it answers that there is none.
    pub const OUTPUT_PATIENCE: std::time::Duration = std::time::Duration::from_secs(10);
}

/// What a node answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// It is done.
    Done,
    /// Some output.
    Output {
        /// What was written.
        chunks: Vec<Chunk>,
        /// Where to read on.
        next: u64,
        /// How the command ended, if it has.
        exit: Option<i32>,
    },
    /// How the overlay is on its host.
    Net(Box<api::NetHostState>),
    /// Where MACs are.
    Macs(Vec<api::NetMac>),
    /// The TAP that is there.
    Tap(Option<net::FoundTap>),
    /// Who has sent how much to whom.
    Flows(Vec<api::NetFlow>),
    /// The instance's command could not be started, and nothing of the instance is left.
    NotStarted(NotStarted),
    /// How much a move has to carry.
    Weight {
        /// Memory that is in use, and what a container has written.
        bytes: u64,
    },
}

/// How long part of a move took, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Measurement {
    /// It is this instance's turn to be dumped, for which it has waited so long, and worked meanwhile.
    Turn {
        /// In microseconds.
        waited_us: u64,
    },
    /// Processes let go of their links.
    Suspended {
        /// The slowest process' own time.
        slowest_us: u64,
        /// From the node's word to the last of them.
        round_us: u64,
        /// Processes that use RDMA.
        processes: u32,
        /// Their QPs.
        queue_pairs: u32,
        /// Their memory regions.
        memory_regions: u32,
    },
    /// Its memory is being sent while it runs.
    Precopying {
        /// How much it has, in bytes.
        memory: u64,
        /// What was sent.
        sent: u64,
        /// Which look at it this is, from 1.
        look: u32,
        /// How long that will go on, if it can be told.
        left_us: Option<u64>,
    },
    /// Its memory was sent while it ran.
    Precopied {
        /// What was sent.
        bytes: u64,
    },
    /// The instance was dumped.
    Dumped {
        /// The dump.
        dump_us: u64,
    },
    /// Its images were sent.
    Sent {
        /// From the dump's end until the destination had verified the last byte.
        transfer_us: u64,
        /// What was sent in all, before it was dumped and since.
        bytes: u64,
    },
    /// The instance was restored, and waits.
    Restored {
        /// The restore.
        restore_us: u64,
    },
    /// What memory it lacked was fetched while it ran.
    Fetched {
        /// Bytes for which somebody waited.
        demanded: u64,
        /// Bytes that came before that.
        pushed: u64,
    },
    /// The instance was let run, and its processes came back.
    Resumed {
        /// From the word to go on until its processes ran.
        release_us: u64,
        /// The slowest process' own time.
        slowest_us: u64,
        /// From the first process that came back to the last that had resumed.
        round_us: u64,
    },
}

/// The first message from one node to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Opening {
    /// [`LinkQuestion`]s follow, each with its [`LinkAnswer`].
    Links,
    /// The images of an instance follow.
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
    /// The host where an instance runs asks for memory of it that was left behind: [`MemoryQuestion`]s follow, each with its
    /// [`MemoryAnswer`], and first those for which somebody waits.
    Memory {
        /// By which move.
        id: MoveId,
        /// Which instance.
        vid: Vid,
    },
    /// A tunnel of the overlay: both sides say [`net::Hello`], and keep the connection.
    Tunnel,
}

/// Which memory an instance lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryQuestion {
    /// Of which region.
    pub region: Region,
    /// Where it was.
    pub address: u64,
    /// How many pages, at most as many as an engine asks for at a time.
    pub pages: u64,
    /// Whether nobody waits for them yet.
    pub ahead: bool,
}

/// The memory that was left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemoryAnswer {
    /// The pages are in the next frame.
    Pages {
        /// As asked.
        region: Region,
        /// As asked.
        address: u64,
    },
    /// It is not there any more, and nowhere else.
    Lost,
}

/// What a node asks another about links.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LinkQuestion {
    /// Make a link: a connection that brings `nonce` is its other end.
    Open {
        /// Between whom.
        request: LinkRequest,
        /// Used once.
        nonce: [u8; 16],
    },
    /// Tell the wanted process to open the link.
    Nudge(LinkRequest),
    /// An instance that comes to the asked host, from the asking one, has links to processes of `peers`, and will want them again.
    Expect {
        /// Which instance.
        vid: Vid,
        /// With whom it talks.
        peers: BTreeSet<Vid>,
    },
}

/// What a node answers about links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LinkAnswer {
    /// It awaits the connection.
    Open {
        /// The wanted instance's epoch.
        epoch: Epoch,
        /// The port, at the address at which the node was asked.
        data_port: u16,
    },
    /// The process has been told.
    Nudged,
    /// The node gets ready for these peers, if the instance comes.
    Expected,
    /// Not now, or never.
    Refused(LinkRefusal),
    /// The wanted instance is not on this host.
    NotHere,
}

/// What comes on a connection with images.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ImageMessage {
    /// An account of memory begins: what those before it have said of layouts is void, and their pages stay.
    Begin,
    /// Pages of memory, which are in the next frame, one behind the other.
    Pages {
        /// The region.
        region: Region,
        /// The address of each run of them, and how many it has.
        runs: Vec<(u64, u32)>,
    },
    /// Of which pages memory consists: more of what has come of it. All of them have come.
    Layout {
        /// The region.
        region: Region,
        /// The address of each run of them, and how many it has, in rising order.
        runs: Vec<(u64, u64)>,
    },
    /// Which of these pages are to be fetched later, whatever has come of them.
    Left {
        /// The region.
        region: Region,
        /// The address of each run of them, and how many it has, in rising order.
        runs: Vec<(u64, u64)>,
    },
    /// That was all of the memory. The other images follow, in parts of a frame each.
    Rest(Manifest),
}

/// All images but those of memory, and what else belongs to them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// What the source's broker knew.
    pub carried: Carried,
    /// The files, in the order in which they follow.
    pub images: Vec<ImageFile>,
}

/// The destination's answer to images: at their end, or as soon as it cannot take them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Received {
    /// It has them.
    Whole {
        /// Of all pages and files, one after the other.
        digest: [u8; 32],
    },
    /// It cannot take them, and reads no more than it must.
    Refused {
        /// Why, as [`reason`] makes it.
        reason: String,
    },
}
