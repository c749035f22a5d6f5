use std::sync::Arc;
use std::time::Duration;

use fabric::Vid;
use moves::HostName;
use moves::coordinator::MoveView;
use moves::journal::{Instance, Snapshot};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::ledger::Ledger;
use super::links::Links;
use super::log::Log;
use crate::failure;

/// The part of the state that no feature owns, and that all can read.
pub struct Base {
    pub(super) began: Instant,
    pub(super) ledger: Ledger,
    pub(super) links: Links,
    pub(super) log: Arc<Log>,
    pub(super) signals: Arc<Signals>,
    /// A change could not be written: no further decision is allowed.
    pub(super) is_broken: bool,
}

/// Changes that tasks wait for.
#[derive(Default)]
pub struct Signals {
    /// An instance has ended.
    pub ended: Notify,
    /// The start of an instance has completed or failed.
    pub started: Notify,
    /// A move no longer blocks its instance.
    pub move_over: Notify,
    /// A node has disconnected.
    pub link_ended: Notify,
    /// The overlay's rollout has progressed.
    pub network_changed: Notify,
}

impl Base {
    /// The instances and moves.
    pub fn snapshot(&self) -> &Snapshot {
        self.ledger.snapshot()
    }

    /// All moves that are not over.
    pub fn moves(&self) -> impl Iterator<Item = MoveView<'_>> {
        self.ledger.moves()
    }

    /// The instance called `name`.
    pub fn find(&self, name: &str) -> Option<(Vid, &Instance)> {
        self.ledger.find(name)
    }

    /// The number of instances on `host`.
    pub fn instances_on(&self, host: &HostName) -> u32 {
        let here = self.snapshot().instances.values().filter(|instance| instance.host == *host);
        u32::try_from(here.count()).unwrap_or(u32::MAX)
    }

    /// The nodes' connections.
    pub fn links(&self) -> &Links {
        &self.links
    }

    /// The event log.
    pub fn log(&self) -> &Arc<Log> {
        &self.log
    }

    /// Changes that tasks wait for.
    pub fn signals(&self) -> &Signals {
        &self.signals
    }

    /// The time since the coordinator began.
    pub fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Checks that something may still be decided: the known state may differ from the journal's.
    ///
    /// # Errors
    /// If a change could not be written.
    pub fn check_whole(&self) -> Result<(), api::Failure> {
        match self.is_broken {
            false => Ok(()),
            true => Err(failure::coordinator_ends()),
        }
    }
}
