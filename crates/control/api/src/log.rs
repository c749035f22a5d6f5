use fabric::Epoch;
use serde::{Deserialize, Serialize};

use crate::network::NetSwitchedOff;

/// An event of the coordinator's log: in JSON one object, with what happened as `event`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoggedEvent {
    /// Its number; numbers are consecutive, also across restarts of the coordinator.
    pub number: u64,
    /// When it happened by the coordinator's clock, in milliseconds since 1970.
    pub time_ms: u64,
    /// What happened.
    #[serde(flatten)]
    pub what: Occurrence,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Occurrence {
    /// The coordinator was started.
    CoordinatorStarted,
    /// A host's node has connected to the coordinator.
    HostConnected {
        /// The host.
        host: String,
        /// Where its node listens, as `address:port`.
        address: String,
    },
    /// The connection to a host's node is lost.
    HostLost {
        /// The host.
        host: String,
    },
    /// A user has removed a host and revoked its certificate.
    HostRemoved {
        /// The host.
        host: String,
    },
    /// A host has switched off a failing offload.
    OffloadSwitchedOff {
        /// The host.
        host: String,
        /// Which, where and why.
        #[serde(flatten)]
        off: NetSwitchedOff,
    },
    /// A drain of a host has begun; no instance starts on the host from now on.
    DrainBegan {
        /// The host.
        host: String,
        /// How many instances it has.
        instances: u32,
    },
    /// A drain has moved all instances that can move.
    Drained {
        /// The host.
        host: String,
        /// How many instances it has moved.
        moved: u32,
        /// How many could not be moved.
        stayed: u32,
    },
    /// A drain was ended before it was done, by a user or by another drain of the host.
    DrainEnded {
        /// The host.
        host: String,
        /// How many instances it has moved.
        moved: u32,
    },
    /// A host was undrained.
    Undrained {
        /// The host.
        host: String,
    },
    /// The loop that plans by itself was switched on or off.
    AutoSwitched {
        /// Which of both.
        is_on: bool,
    },
    /// A plan is being carried out.
    PlanBegan {
        /// The number of its moves.
        moves: u32,
        /// Why the loop has planned it; none if a user has asked for it.
        reason: Option<String>,
    },
    /// A plan was carried out, or given up.
    PlanEnded {
        /// How many moves were made.
        moved: u32,
        /// How many instances did not move.
        failed: u32,
        /// Why it was given up, if it was.
        given_up: Option<String>,
    },
    /// The effect of a plan of the loop was measured, in bytes a second.
    PlanMeasured {
        /// What was predicted.
        predicted: u64,
        /// What was gained.
        measured: u64,
    },
    /// The loop has stopped itself.
    AutoStopped {
        /// Why.
        reason: String,
    },
    /// A host asks to be emptied.
    HostLeaves {
        /// The host.
        host: String,
        /// Why, in its own words.
        reason: String,
    },
    /// An instance runs.
    Started {
        /// The instance.
        instance: String,
        /// Where.
        host: String,
        /// The group to which it belongs.
        group: Option<String>,
    },
    /// An instance could not be started.
    NotStarted {
        /// The instance.
        instance: String,
        /// Where.
        host: String,
    },
    /// An instance's command has ended.
    Exited {
        /// The instance.
        instance: String,
        /// Where.
        host: String,
        /// As a shell reports it.
        code: i32,
    },
    /// The kernel has ended processes of an instance, because memory was exhausted; logged when the instance has ended or left the host.
    OutOfMemory {
        /// The instance.
        instance: String,
        /// Where.
        host: String,
        /// How many.
        processes: u64,
        /// The instance's memory limit in bytes, if that was reached.
        limit_bytes: Option<u64>,
    },
    /// An instance is gone, and its exit was not observed.
    Lost {
        /// The instance.
        instance: String,
        /// Where it was.
        host: String,
        /// The known cause.
        reason: String,
    },
    /// A move has begun, or a checkpoint or restore, for which the directory of the images replaces a host.
    MoveBegan {
        /// The instance.
        instance: String,
        /// Where it is.
        from: String,
        /// Where it goes.
        to: String,
        /// The move's number.
        id: u64,
        /// The group with which it moves, if any.
        group: Option<String>,
    },
    /// An instance has moved.
    Moved {
        /// The instance.
        instance: String,
        /// Where it was.
        from: String,
        /// Where it is.
        to: String,
        /// The move's number.
        id: u64,
        /// The instance's epoch after it.
        epoch: Epoch,
        /// The measurements; none if the coordinator restarted during the move.
        figures: Option<MoveFigures>,
    },
    /// An instance was saved in a checkpoint, and continues to run.
    Saved {
        /// The instance.
        instance: String,
        /// Where it is.
        host: String,
        /// Where its images are.
        directory: String,
        /// The move's number.
        id: u64,
        /// The measurements; none if the coordinator restarted meanwhile.
        figures: Option<MoveFigures>,
    },
    /// An instance was restored from a checkpoint.
    Restored {
        /// The instance.
        instance: String,
        /// Where its images are.
        directory: String,
        /// Where it is.
        host: String,
        /// The move's number.
        id: u64,
        /// The measurements; none if the coordinator restarted meanwhile.
        figures: Option<MoveFigures>,
    },
    /// An instance has moved, and has ended because memory that was still on its source was lost.
    EndedInMove {
        /// The instance.
        instance: String,
        /// Where it was.
        from: String,
        /// Where it has ended.
        to: String,
        /// The move's number.
        id: u64,
        /// Why.
        reason: String,
    },
    /// A move was rolled back: its instance continues to run on the source, unless it has ended.
    MoveRolledBack {
        /// The instance.
        instance: String,
        /// Where it is.
        from: String,
        /// Where it should have gone.
        to: String,
        /// The move's number.
        id: u64,
        /// Why.
        reason: String,
        /// The measurements; none if the coordinator restarted during the move.
        figures: Option<MoveFigures>,
    },
}

/// Measurements of a move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveFigures {
    /// From the request to the last phase's end, in microseconds.
    pub total_us: u64,
    /// The blackout, in microseconds.
    pub blackout_us: u64,
    /// The size of its image files.
    pub image_bytes: u64,
    /// The share that was sent by pre-copy.
    #[serde(default)]
    pub precopied_bytes: u64,
    /// The bytes fetched after the resume.
    #[serde(default)]
    pub fetched_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_events_are_flat_objects() {
        let figures = Some(MoveFigures {
            total_us: 3,
            blackout_us: 2,
            image_bytes: 1,
            precopied_bytes: 1,
            fetched_bytes: 0,
        });
        let (instance, from, to) = ("a".into(), "h1".into(), "h2".into());
        let what = Occurrence::Moved { instance, from, to, id: 9, epoch: Epoch(1), figures };
        let event = LoggedEvent { number: 7, time_ms: 8, what };
        let json = serde_json::to_string(&event).unwrap();
        assert!(json.starts_with(r#"{"number":7,"time_ms":8,"event":"moved","instance":"a","#), "{json}");
        assert_eq!(serde_json::from_str::<LoggedEvent>(&json).unwrap(), event);
    }
}
