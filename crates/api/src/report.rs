use fabric::Epoch;
use serde::{Deserialize, Serialize};

use crate::Failure;

/// The phases of a move, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Both hosts look for what stands in the way, and the destination makes room.
    Prepare,
    /// The instance's memory goes to the destination while it runs.
    Precopy,
    /// The instance's processes let go of their links. The blackout begins.
    Suspend,
    /// The instance is stopped and its state is written out.
    Dump,
    /// What is left of its state goes to the destination.
    Transfer,
    /// The destination makes the instance again, stopped.
    Restore,
    /// The location is written: there is no way back from here.
    Commit,
    /// The instance runs again and its links are made again. The blackout ends.
    Resume,
    /// The instance runs, and fetches what it has left at the source of its memory.
    Fetch,
    /// The source ends its stopped copy.
    Destroy,
    /// The source runs the instance on, instead of the phases that are left.
    RollBack,
}

/// What a move is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Errand {
    /// The instance goes to another host.
    #[default]
    Move,
    /// It is saved in a checkpoint.
    Save,
    /// It is restored from one.
    Restore,
}

/// How a move went.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MoveReport {
    /// The instance.
    pub name: String,
    /// What it was for.
    #[serde(default)]
    pub errand: Errand,
    /// Where it was; of a restore, where its images are.
    pub from: String,
    /// Where it should go; of a checkpoint, where its images are.
    pub to: String,
    /// Its epoch after the move.
    pub epoch: Epoch,
    /// How it ended.
    pub outcome: Outcome,
    /// The coordinator was restarted meanwhile: what was measured before is missing below.
    pub restarted: bool,
    /// From the request to the last phase's end, in microseconds.
    pub total_us: u64,
    /// From the order to suspend until the instance runs again with its links asked for, in microseconds,
    /// as the coordinator sees it.
    pub blackout_us: u64,
    /// Each phase that was entered, in order.
    pub phases: Vec<PhaseTime>,
    /// The part of the blackout that RDMA costs.
    pub network: NetworkPart,
    /// The part of the blackout that the processes' state costs.
    pub engine: EnginePart,
}

/// How far a pre-copy is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copying {
    /// How much memory the instance's processes have; what several share counts for each.
    pub memory_bytes: u64,
    /// How much was sent. It can become more than there is: what changes is sent again.
    pub sent_bytes: u64,
    /// Which look at the memory this is, from 1. Each but the first sends what has changed since the one before.
    pub look: u32,
    /// How long it will be until the instance is suspended, in microseconds, by how fast memory was read and sent and how much of it has
    /// changed so far; nothing, if that cannot be said yet.
    pub left_us: Option<u64>,
}

/// How far an instance has all its memory that runs without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetching {
    /// How much has come.
    pub fetched_bytes: u64,
    /// How much is at the source still.
    pub missing_bytes: u64,
}

/// How a move ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The instance runs at the destination.
    Moved,
    /// The instance is saved in a checkpoint, and runs on at the source.
    Saved,
    /// The instance runs at the destination, from a checkpoint.
    Restored,
    /// The instance runs on at the source, or, if it was to be restored, nowhere.
    RolledBack(Failure),
    /// The instance has ended at the source, or is being ended there; or it had been moved, and memory that it needed was lost.
    Ended(Failure),
}

/// How a drain went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainReport {
    /// The host.
    pub host: String,
    /// How many instances have moved.
    pub moved: u32,
    /// Those that are still there, in the order of names.
    pub stayed: Vec<Stayed>,
}

/// An instance that a drain has not moved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stayed {
    /// Its name.
    pub name: String,
    /// Why.
    pub why: Failure,
}

/// A move of a member of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupMove {
    /// The instance.
    pub name: String,
    /// The move's number, for [`Request::FollowMove`](crate::Request::FollowMove).
    pub id: u64,
    /// Where it goes.
    pub to: String,
}

/// A move that a drain, or a group, would make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedMove {
    /// The instance.
    pub name: String,
    /// How much the move would carry, in bytes, where that is known.
    pub bytes: Option<u64>,
    /// How long it would take by what the last moves have taken, in microseconds; nothing, if none was of such a size.
    pub total_us: Option<u64>,
    /// How long the instance would not run, likewise.
    pub blackout_us: Option<u64>,
    /// For how many seconds ordinary moves leave the instance alone, if they do; a drain moves it nevertheless.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cools_down_for_s: Option<u64>,
    /// Where it would go; nowhere, if there are obstacles, in a group those of any.
    pub to: Option<String>,
    /// These; those of a drain each with its host.
    pub obstacles: Vec<Failure>,
}

/// When a phase was, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseTime {
    /// The phase.
    pub phase: Phase,
    /// Its begin, from the begin of the move.
    pub at_us: u64,
    /// How long it took.
    pub elapsed_us: u64,
}

/// The time that RDMA adds to a blackout, in microseconds; of several processes the slowest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkPart {
    /// Links closed, neighbours' memory unmapped, resources freed: what processes say themselves.
    pub suspend_us: u64,
    /// The same as the source's node sees it: from its word to the last process that let go.
    pub suspend_round_us: u64,
    /// Resources allocated again, handles published, links asked for: what processes say themselves.
    pub resume_us: u64,
    /// The same as the destination's node sees it: from the first process that came back to the
    /// last that has resumed.
    pub resume_round_us: u64,
    /// Processes that use RDMA.
    pub processes: u32,
    /// Their QPs.
    pub queue_pairs: u32,
    /// Their memory regions.
    pub memory_regions: u32,
}

impl NetworkPart {
    /// The whole network part, in microseconds.
    #[must_use]
    pub fn total_us(&self) -> u64 {
        self.suspend_round_us + self.resume_round_us
    }
}

/// The time that the processes' state adds to a blackout, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnginePart {
    /// Processes stopped and written out.
    pub dump_us: u64,
    /// From the dump's end until the last byte is verified at the destination.
    pub transfer_us: u64,
    /// Processes made again, up to where they wait for the commit.
    pub restore_us: u64,
    /// From the word to go on until the processes run.
    pub release_us: u64,
    /// What was sent in all.
    pub image_bytes: u64,
    /// What of it was sent while the instance ran.
    #[serde(default)]
    pub precopied_bytes: u64,
    /// What was fetched after that because the instance waited for it.
    #[serde(default)]
    pub demanded_bytes: u64,
    /// What came after that before the instance needed it.
    #[serde(default)]
    pub pushed_bytes: u64,
}
