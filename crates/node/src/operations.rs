//! The operations that the state machine of moves orders, carried out with the engine and the broker.
//!
//! * [`source`]: the operations of the host that an instance leaves; [`destination`]: the operations of the host that it comes to.

mod destination;
mod source;

use std::fmt::Display;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use engine_api::{Error, Watch};
use fabric::Vid;
use instance::{Blocker, BlueprintError};
use moves::journal::Exit;
use moves::node::{Input, Operation, Outcome};
use moves::{MoveId, Side};
use rpc::wire;

use crate::cancel::Cancel;
use crate::instances::Live;
use crate::node::Node;

/// How long a dump may take, and a restore.
const ENGINE_LIMIT: Duration = Duration::from_secs(300);

/// How often to report the progress of a pre-copy.
pub const PROGRESS: Duration = Duration::from_millis(250);

/// The reason why an operation failed, in words.
pub struct Reason(pub String);

impl<E: Display> From<E> for Reason {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

pub type Result<T> = std::result::Result<T, Reason>;

impl Node {
    /// Performs `operation`; `leaving` is the move whose source is this host, if there is one.
    pub async fn perform_operation(
        self: &Arc<Self>,
        vid: Vid,
        operation: Operation,
        leaving: Option<(MoveId, Side)>,
        cancel: &Arc<Cancel>,
    ) -> Outcome {
        let done = match operation {
            Operation::CheckSource { destination, dry_run } => {
                self.check_source(vid, &destination, dry_run, cancel).await
            }
            Operation::CheckDestination { spec, facts, post_copy } => {
                self.check_destination((&spec, &facts), post_copy).await
            }
            Operation::Prepare { id, source, spec, facts, post_copy, .. } => {
                self.prepare(vid, (id, source), (&spec, &facts), post_copy, cancel).await
            }
            Operation::Receive { id } => self.receive(vid, id, cancel).await,
            Operation::Restore { id } => self.restore(vid, id, cancel).await,
            Operation::Release { id, epoch } => self.release(vid, id, epoch).await,
            Operation::Precopy { id, destination, post_copy } => {
                self.precopy(vid, id, (destination, post_copy), cancel).await
            }
            Operation::Fetch { id, source } => self.fetch(vid, id, source, cancel).await,
            Operation::Suspend => self.suspend(vid, leaving, cancel).await,
            Operation::Send { id, destination: Side::Host(host) } => self.send(vid, id, host, cancel).await,
            Operation::Send { id, destination: Side::Images(directory) } => {
                self.save(vid, id, directory, cancel).await
            }
            Operation::Continue { epoch } => self.carry_on(vid, epoch).await,
            Operation::Abort { id } => self.abort(vid, id).await,
            Operation::Destroy { .. } => self.destroy(vid).await,
        };
        done.unwrap_or_else(|Reason(reason)| Outcome::Failed { reason })
    }

    pub fn known(&self, vid: Vid) -> Result<Live> {
        self.live(vid).ok_or_else(|| Reason(format!("instance {vid} is not on host {}", self.host)))
    }

    /// The exit of an instance of which the node has an entry and nothing else. Nothing of the instance runs: the former node ended
    /// before it started the instance, or the node has lost its files.
    fn nothing_left(&self) -> Outcome {
        let host = &self.host;
        let reason =
            format!("host {host} restarted before it had started the instance, or has lost its files");
        Outcome::Gone { exit: Exit::Lost { reason } }
    }

    /// The refusal, if this host has no room for the records of a move.
    fn no_room(&self) -> Option<Outcome> {
        self.agent.ready().err().map(|reason| Outcome::Refused { reasons: vec![self.at_home(&reason)] })
    }

    /// `reason`, prefixed with this host's name.
    pub fn at_home(&self, reason: &str) -> String {
        format!("host {}: {reason}", self.host)
    }

    /// Reports the progress of copying images, which continues until it is cancelled.
    fn telling(self: &Arc<Self>, vid: Vid, cancel: &Arc<Cancel>) -> impl Fn(u64, u64) -> bool + Send + use<> {
        let (node, cancelled) = (self.clone(), cancel.clone());
        move |bytes, total| {
            node.agent.input(Input::Progress { vid, bytes, total });
            !cancelled.is_cancelled()
        }
    }

    /// The failure to record the instance's state.
    fn not_noted(&self, error: &io::Error) -> Reason {
        let what = format!("host {} cannot write its records of the instance: {error}", self.host);
        Reason(wire::reason(&what, "make room there, or choose another host"))
    }

    /// The engine's error, with the remedy.
    pub fn in_words(&self, error: &Error) -> Reason {
        Reason(self.engine_failed(error))
    }

    /// The engine's error, with the remedy.
    pub fn engine_failed(&self, error: &Error) -> String {
        let what = error.on_host(self.host.as_str());
        match error.remedy() {
            Some(remedy) => wire::reason(&what, remedy),
            None => what,
        }
    }

    fn forget(&self, vid: Vid) {
        self.stop_fetching(vid);
        tokio::spawn(self.close_sides(vid));
        self.lives().remove(&vid);
        self.files.remove(vid);
    }
}

pub fn watch<'a>(cancelled: &'a (dyn Fn() -> bool + Sync)) -> Watch<'a> {
    Watch { cancelled, timeout: ENGINE_LIMIT, ..Watch::QUIET }
}

/// The reason why a blueprint cannot be decoded, with the remedy.
pub fn unreadable(error: &BlueprintError) -> String {
    wire::reason(&error.to_string(), error.remedy())
}

fn refused(blockers: &[Blocker]) -> Outcome {
    let reason = |blocker: &Blocker| wire::reason(&blocker.what, &blocker.remedy);
    Outcome::Refused { reasons: blockers.iter().map(reason).collect() }
}

pub fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
