//! The handle of the cluster that all tasks of the coordinator share.

use std::sync::Arc;
use std::time::Duration;

use api::Failure;
use moves::HostName;
use moves::coordinator::{Config, Coordinator, Input};
use moves::journal::Snapshot;
use rpc::wire::{Answer, FromCoordinator, Question};
use rpc::{CallError, net};
use store::{Journal, StoreError};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::base::{Base, Signals};
use super::ledger::Ledger;
use super::links::Links;
use super::log::Log;
use super::owner::{Command, Job, Owner, job};
use super::shared::{Shared, View};
use super::state::State;
use crate::failure;

/// The cluster, as all tasks of the coordinator share it: views of the state, and the queue of commands to the owner.
pub struct Cluster {
    shared: Arc<Shared>,
    jobs: mpsc::UnboundedSender<Job>,
    signals: Arc<Signals>,
}

/// Why a node's answer is missing.
pub enum AskError {
    /// The node is not connected.
    Away(HostName),
    /// The node did not answer in time, or disconnected before it answered.
    Silent(HostName),
    /// The node refused.
    Refused(Failure),
}

impl From<Failure> for AskError {
    fn from(failure: Failure) -> Self {
        Self::Refused(failure)
    }
}

impl From<AskError> for Failure {
    fn from(error: AskError) -> Self {
        match error {
            AskError::Away(host) => failure::host_down(&host),
            AskError::Silent(host) => failure::host_silent(&host),
            AskError::Refused(failure) => failure,
        }
    }
}

impl Cluster {
    /// Starts the cluster from `snapshot`, with the features that `add` adds. Undecided moves are rolled back. The owner runs on
    /// the current runtime.
    ///
    /// # Errors
    /// Errors of `add`.
    pub fn start(
        snapshot: Snapshot,
        journal: impl Journal,
        log: Arc<Log>,
        add: impl FnOnce(&mut State) -> Result<(), StoreError>,
    ) -> Result<Arc<Self>, StoreError> {
        let (began, signals) = (Instant::now(), Arc::new(Signals::default()));
        let base = Base {
            began,
            ledger: Ledger::new(snapshot.clone()),
            links: Links::default(),
            log,
            signals: signals.clone(),
            is_broken: false,
        };
        let mut state = State::new(base);
        add(&mut state)?;
        let (machine, outputs) = Coordinator::new(Config::default(), snapshot, Duration::ZERO);
        let shared = Arc::new(Shared::new(began, state));
        let (jobs, waiting) = mpsc::unbounded_channel();
        tokio::spawn(Owner::new(machine, Box::new(journal), shared.clone()).serve(outputs, waiting));
        Ok(Arc::new(Self { shared, jobs, signals }))
    }

    /// A view of the present state.
    pub fn view(&self) -> View<'_> {
        self.shared.view()
    }

    /// Lets the owner run `command`, and waits for the reply. The command runs even if its caller stops waiting.
    pub async fn run<C: Command>(&self, command: C) -> C::Reply {
        let (reply, done) = oneshot::channel();
        self.send(job(command, Some(reply)));
        match done.await {
            Ok(reply) => reply,
            // The coordinator is ending, and this task ends with it.
            Err(_) => std::future::pending().await,
        }
    }

    /// Queues `command` for the owner, without waiting.
    pub fn post<C: Command>(&self, command: C) {
        self.send(job(command, None));
    }

    fn send(&self, job: Job) {
        // Without an owner the coordinator ends.
        let _ = self.jobs.send(job);
    }

    /// Lets the owner change the state, and waits until it has.
    pub async fn edit<T: Send + 'static>(&self, change: impl FnOnce(&mut State) -> T + Send + 'static) -> T {
        self.run(Edit(change)).await
    }

    /// Gives the state machine an `input`, and waits until its consequences are done.
    pub async fn input(&self, input: Input) {
        self.run(Happened(input)).await;
    }

    /// The time since the coordinator began.
    pub fn now(&self) -> Duration {
        self.shared.now()
    }

    /// Changes that tasks wait for.
    pub fn signals(&self) -> &Signals {
        &self.signals
    }

    /// Waits until a change cannot be written; then the coordinator must not decide anything any more.
    pub async fn broken(&self) -> StoreError {
        self.shared.broken().await
    }

    /// Asks the node of `host`.
    pub async fn ask(
        &self,
        host: &HostName,
        question: Question,
        limit: Duration,
    ) -> Result<Answer, AskError> {
        self.ask_as(host, limit, |number| FromCoordinator::Ask { number, question }).await
    }

    /// Asks the node of `host` about the overlay.
    pub async fn ask_net(
        &self,
        host: &HostName,
        question: net::Question,
        limit: Duration,
    ) -> Result<Answer, AskError> {
        self.ask_as(host, limit, |number| FromCoordinator::AskNet { number, question }).await
    }

    /// Sends the node of `host` the question that `message` makes, and waits for the answer.
    pub async fn ask_as(
        &self,
        host: &HostName,
        limit: Duration,
        message: impl FnOnce(u64) -> FromCoordinator,
    ) -> Result<Answer, AskError> {
        let link = self.view().links().get(host).cloned();
        let Some(link) = link else { return Err(AskError::Away(host.clone())) };
        match link.pending.ask(limit, |number| link.outbox.send(&message(number))).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(reason)) => Err(AskError::Refused(failure::from_reason(&reason))),
            Err(CallError::Closed | CallError::TimedOut) => Err(AskError::Silent(host.clone())),
        }
    }
}

/// A change of the state that needs no decision.
struct Edit<F>(F);

impl<T: Send + 'static, F: FnOnce(&mut State) -> T + Send + 'static> Command for Edit<F> {
    type Reply = T;

    async fn run(self, owner: &mut Owner) -> T {
        owner.edit(self.0)
    }
}

/// An input for the state machine, as a command.
struct Happened(Input);

impl Command for Happened {
    type Reply = ();

    async fn run(self, owner: &mut Owner) {
        owner.input(self.0).await;
    }
}

#[cfg(test)]
mod tests;
