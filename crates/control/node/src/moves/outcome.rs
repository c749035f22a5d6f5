//! What the operations of moves have in common: their failures, limits and reports.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use engine_api::{Outage, Watch};
use fabric::Vid;
use instance::Blocker;
use moves::journal::Exit;
use moves::node::{Input, Outcome};
use moves::{HostName, MoveId};
use rpc::wire::{self, Measurement};

use crate::agent::Agent;
use crate::cancel::Cancel;

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

/// Reports the progress of copying images, which continues until it is cancelled.
pub fn report_progress(
    agent: &Arc<Agent>,
    vid: Vid,
    cancel: &Arc<Cancel>,
) -> impl Fn(u64, u64) -> bool + Send + use<> {
    let (agent, cancelled) = (agent.clone(), cancel.clone());
    move |bytes, total| {
        agent.input(Input::Progress { vid, bytes, total });
        !cancelled.is_cancelled()
    }
}

/// Reports the part of a virtual machine's outage that a call of its engine has seen.
pub fn report_outage(agent: &Agent, id: MoveId, outage: Option<Outage>) {
    let Some(Outage { processors, link }) = outage else { return };
    let (processors_us, link_us) = (micros(processors), micros(link));
    agent.uplink().measured(id, Measurement::Outage { processors_us, link_us });
}

/// The exit of an instance of which the node has an entry and nothing else. Nothing of the instance runs: the former node ended
/// before it started the instance, or the node has lost its files.
pub fn nothing_left(host: &HostName) -> Outcome {
    let reason = format!("host {host} restarted before it had started the instance, or has lost its files");
    Outcome::Gone { exit: Exit::Lost { reason } }
}

pub fn watch<'a>(cancelled: &'a (dyn Fn() -> bool + Sync)) -> Watch<'a> {
    Watch { cancelled, timeout: ENGINE_LIMIT, ..Watch::QUIET }
}

/// The refusal of a move with these blockers.
pub fn refused(blockers: &[Blocker]) -> Outcome {
    let reason = |blocker: &Blocker| wire::reason(&blocker.what, &blocker.remedy);
    Outcome::Refused { reasons: blockers.iter().map(reason).collect() }
}

pub fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
