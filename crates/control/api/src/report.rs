use fabric::Epoch;
use serde::{Deserialize, Serialize};

use crate::Failure;

/// The phases of a move, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Both hosts check for blockers, and the destination reserves resources.
    Prepare,
    /// The instance's memory goes to the destination while it runs.
    Precopy,
    /// The instance's processes close their links. The blackout begins.
    Suspend,
    /// The instance is stopped and its state is dumped.
    Dump,
    /// The rest of its state is sent to the destination.
    Transfer,
    /// The destination restores the instance, stopped.
    Restore,
    /// The new location is recorded: the point of no return.
    Commit,
    /// The instance runs again and reconnects its links. The blackout ends.
    Resume,
    /// The instance runs, and fetches memory that is still on the source.
    Fetch,
    /// The source ends its stopped copy.
    Destroy,
    /// The source resumes the instance; the remaining phases are skipped.
    RollBack,
}

/// The purpose of a move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Errand {
    /// Move to another host.
    #[default]
    Move,
    /// Save to a checkpoint.
    Save,
    /// Restore from a checkpoint.
    Restore,
}

/// The report of a move.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MoveReport {
    /// The instance.
    pub name: String,
    /// Its purpose.
    #[serde(default)]
    pub errand: Errand,
    /// The source; for a restore, the directory of the images.
    pub from: String,
    /// The destination; for a checkpoint, the directory of the images.
    pub to: String,
    /// Its epoch after the move.
    pub epoch: Epoch,
    /// How it ended.
    pub outcome: Outcome,
    /// The coordinator restarted meanwhile: earlier measurements are missing.
    pub restarted: bool,
    /// From the request to the last phase's end, in microseconds.
    pub total_us: u64,
    /// The blackout, from the order to suspend until the instance runs again and has requested its links, in microseconds,
    /// as the coordinator measures it.
    pub blackout_us: u64,
    /// Each phase that was entered, in order.
    pub phases: Vec<PhaseTime>,
    /// The share of the blackout that RDMA causes.
    pub network: NetworkPart,
    /// The share of the blackout that the processes' state causes.
    pub engine: EnginePart,
    /// The outage of a virtual machine; none for other instances.
    #[serde(default)]
    pub outage: Option<Outage>,
}

/// The outage of a virtual machine, which is a part of the blackout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outage {
    /// The time in which its processors were stopped, in microseconds.
    pub processors_us: u64,
    /// The time in which its link was cut, in microseconds.
    pub link_us: u64,
}

/// The progress of pre-copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copying {
    /// Total memory of the instance's processes; shared memory counts once per process.
    pub memory_bytes: u64,
    /// Bytes sent. The number may exceed the total, because changed pages are sent again.
    pub sent_bytes: u64,
    /// The pre-copy round, from 1. Each later round sends the pages that have changed since the previous one.
    pub look: u32,
    /// Estimated time until the instance is suspended, in microseconds, from the rates of reading, sending and changing
    /// memory so far; none if there is no estimate yet.
    pub left_us: Option<u64>,
}

/// Progress of fetching memory after post-copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetching {
    /// Bytes fetched.
    pub fetched_bytes: u64,
    /// Bytes still on the source.
    pub missing_bytes: u64,
}

/// The outcome of a move.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The instance runs at the destination.
    Moved,
    /// The instance was saved in a checkpoint, and continues to run on the source.
    Saved,
    /// The instance runs at the destination, from a checkpoint.
    Restored,
    /// The instance continues to run on the source; a failed restore leaves nothing.
    RolledBack(Failure),
    /// The instance has ended on the source, or is being ended there; or memory that it needed was lost after its move.
    Ended(Failure),
}

/// The report of a drain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainReport {
    /// The host.
    pub host: String,
    /// Number of instances that moved.
    pub moved: u32,
    /// Instances that are still there, in the order of names.
    pub stayed: Vec<Stayed>,
}

/// An instance that a drain did not move.
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

/// A planned move of a drain or of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedMove {
    /// The instance.
    pub name: String,
    /// The size of the move in bytes, if known.
    pub bytes: Option<u64>,
    /// Its estimated duration in microseconds; none if no past move was of a similar size.
    pub total_us: Option<u64>,
    /// Its estimated blackout.
    pub blackout_us: Option<u64>,
    /// The rest of the instance's cool-down in seconds, if any; a drain ignores the cool-down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cools_down_for_s: Option<u64>,
    /// The destination; none if there are blockers, in a group also blockers of other members.
    pub to: Option<String>,
    /// The blockers; those of a drain name their hosts.
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

/// The share of RDMA in the blackout, in microseconds; the slowest of several processes counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkPart {
    /// Closing links, unmapping neighbours' memory, freeing resources: as the processes measure it.
    pub suspend_us: u64,
    /// The same as the source's node measures it: from its order to the last confirmation.
    pub suspend_round_us: u64,
    /// Allocating resources, publishing handles, requesting links: as the processes measure it.
    pub resume_us: u64,
    /// The same as the destination's node measures it: from the first process that reconnects to the
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

/// The share of the processes' state in the blackout, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnginePart {
    /// Stopping and dumping the processes.
    pub dump_us: u64,
    /// From the dump's end until the last byte is verified on the destination.
    pub transfer_us: u64,
    /// Restoring the processes, up to where they wait for the commit.
    pub restore_us: u64,
    /// From the order to resume until the processes run.
    pub release_us: u64,
    /// Total bytes sent.
    pub image_bytes: u64,
    /// Bytes sent by pre-copy.
    #[serde(default)]
    pub precopied_bytes: u64,
    /// Bytes fetched on demand after the resume.
    #[serde(default)]
    pub demanded_bytes: u64,
    /// Bytes pushed after the resume before the instance needed them.
    #[serde(default)]
    pub pushed_bytes: u64,
}
