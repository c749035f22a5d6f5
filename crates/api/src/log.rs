use fabric::Epoch;
use serde::{Deserialize, Serialize};

use crate::network::NetSwitchedOff;

/// An event of the coordinator's log: in JSON one object, with what happened as `event`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoggedEvent {
    /// Its number: each has the one after that of the event before, also when the coordinator was restarted meanwhile.
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
    /// A user has taken a host's right to take part away.
    HostRemoved {
        /// The host.
        host: String,
    },
    /// An offload of a host was found to misbehave, and is used no more.
    OffloadSwitchedOff {
        /// The host.
        host: String,
        /// Which, where and why.
        #[serde(flatten)]
        off: NetSwitchedOff,
    },
    /// A host is to be drained: nothing is started on it from now on.
    DrainBegan {
        /// The host.
        host: String,
        /// How many instances it has.
        instances: u32,
    },
    /// A drain has nothing left that it could move.
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
    /// Instances may be started on a host again.
    Undrained {
        /// The host.
        host: String,
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
    /// The kernel has ended processes of an instance for want of memory; told when that has ended, or has left the host.
    OutOfMemory {
        /// The instance.
        instance: String,
        /// Where.
        host: String,
        /// How many.
        processes: u64,
        /// The instance's own limit in bytes, if it was that which was reached.
        limit_bytes: Option<u64>,
    },
    /// An instance is gone, and nobody saw it end.
    Lost {
        /// The instance.
        instance: String,
        /// Where it was.
        host: String,
        /// What is known of it.
        reason: String,
    },
    /// A move has begun, or a checkpoint or restore, which has the directory of its images in the place of a host.
    MoveBegan {
        /// The instance.
        instance: String,
        /// Where it is.
        from: String,
        /// Where it goes.
        to: String,
        /// The move's number.
        id: u64,
        /// The group with which it moves together, if it does.
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
        /// What was measured; not known of a move during which the coordinator was restarted.
        figures: Option<MoveFigures>,
    },
    /// An instance is saved in a checkpoint, and runs on.
    Saved {
        /// The instance.
        instance: String,
        /// Where it is.
        host: String,
        /// Where its images are.
        directory: String,
        /// The move's number.
        id: u64,
        /// What was measured; not known if the coordinator was restarted meanwhile.
        figures: Option<MoveFigures>,
    },
    /// An instance runs again, from a checkpoint.
    Restored {
        /// The instance.
        instance: String,
        /// Where its images are.
        directory: String,
        /// Where it is.
        host: String,
        /// The move's number.
        id: u64,
        /// What was measured; not known if the coordinator was restarted meanwhile.
        figures: Option<MoveFigures>,
    },
    /// An instance was moved, and has ended since memory that it had left behind was lost.
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
    /// A move was given up: its instance runs on where it was, unless it has ended.
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
        /// What was measured; not known of a move during which the coordinator was restarted.
        figures: Option<MoveFigures>,
    },
}

/// What was measured of a move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveFigures {
    /// From the request to the last phase's end, in microseconds.
    pub total_us: u64,
    /// How long the instance did not run, in microseconds.
    pub blackout_us: u64,
    /// The size of its image.
    pub image_bytes: u64,
    /// What of it was sent while the instance ran.
    #[serde(default)]
    pub precopied_bytes: u64,
    /// What was fetched after it ran again.
    #[serde(default)]
    pub fetched_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_flat_object() {
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
