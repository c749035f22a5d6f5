//! The task that owns the state machine and the journal.

use std::sync::Arc;
use std::time::Duration;

use api::Failure;
use moves::coordinator::{Coordinator, Input, Output};
use moves::progress::{Event, Phase};
use rpc::wire::FromCoordinator;
use store::{Change, Journal, StoreError};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use super::shared::{Shared, View};
use super::state::State;
use crate::failure;

/// Something that changes the cluster. The owner runs one command after the other, each to its end.
pub trait Command: Send + 'static {
    /// The reply to the sender of the command.
    type Reply: Send + 'static;

    /// Validates, decides, and changes the state.
    fn run(self, owner: &mut Owner) -> impl Future<Output = Self::Reply> + Send;
}

/// A command that waits for its turn.
pub(super) type Job = Box<dyn for<'a> FnOnce(&'a mut Owner) -> Turn<'a> + Send>;
type Turn<'a> = std::pin::Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// `command` as a job that sends its reply to `reply`.
pub(super) fn job<C: Command>(command: C, reply: Option<oneshot::Sender<C::Reply>>) -> Job {
    Box::new(move |owner| {
        Box::pin(async move {
            let result = command.run(owner).await;
            if let Some(reply) = reply {
                // The sender may have gone away.
                let _ = reply.send(result);
            }
        })
    })
}

/// The owner. Commands read the state with [`Owner::view`], decide with [`Owner::decide`], and change the state with [`Owner::edit`].
pub struct Owner {
    machine: Coordinator,
    journal: Box<dyn Journal>,
    shared: Arc<Shared>,
}

impl Owner {
    pub(super) fn new(machine: Coordinator, journal: Box<dyn Journal>, shared: Arc<Shared>) -> Self {
        Self { machine, journal, shared }
    }

    /// Performs the first `outputs`, and then commands, until the queue ends.
    pub(super) async fn serve(mut self, outputs: Vec<Output>, mut jobs: mpsc::UnboundedReceiver<Job>) {
        self.perform(outputs).await;
        loop {
            let next = match self.machine.wake_at() {
                Some(at) => timeout_at(self.shared.began + at, jobs.recv()).await,
                None => Ok(jobs.recv().await),
            };
            match next {
                Ok(Some(job)) => job(&mut self).await,
                Ok(None) => return,
                Err(_) => self.input(Input::Tick).await,
            }
        }
    }

    /// The state as all see it.
    pub fn view(&self) -> View<'_> {
        self.shared.view()
    }

    /// Changes the state.
    pub fn edit<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.shared.state_mut())
    }

    /// The state machine. Between commands it equals the state.
    pub fn machine(&self) -> &Coordinator {
        &self.machine
    }

    /// Lets the state machine decide, at the present time. The caller passes its outputs to [`Owner::perform`].
    pub fn decide<T>(&mut self, decide: impl FnOnce(&mut Coordinator, Duration) -> T) -> T {
        let now = self.shared.now();
        decide(&mut self.machine, now)
    }

    /// Checks that there is room in the journal for something new.
    ///
    /// # Errors
    /// If there is not.
    pub async fn ready(&self) -> Result<(), Failure> {
        self.journal.ready().await.map_err(|error| failure::of_store(&error))
    }

    /// Makes `change` durable.
    ///
    /// # Errors
    /// If it cannot be written; then nothing is decided any more.
    pub async fn append(&self, change: Change) -> Result<(), Failure> {
        self.view().check_whole()?;
        self.journal.append(change).await.map_err(|error| self.break_off(error))
    }

    /// After a failed write the durable state is unknown until the journal is read again. Returns the failure.
    fn break_off(&self, error: StoreError) -> Failure {
        let failure = failure::of_store(&error);
        self.edit(|state| state.base.is_broken = true);
        self.shared.break_off(error);
        failure
    }

    /// Gives the state machine an `input`, and performs its outputs.
    pub async fn input(&mut self, input: Input) {
        let outputs = self.decide(|machine, now| machine.handle(input, now));
        self.perform(outputs).await;
    }

    /// Performs outputs of the state machine in their order. Nothing behind a record is done before the record is durable.
    pub async fn perform(&mut self, outputs: Vec<Output>) {
        let (mut is_move_over, mut has_ended) = (false, false);
        for output in outputs {
            if self.view().check_whole().is_err() {
                return;
            }
            match output {
                Output::Record(record) => {
                    let began = Instant::now();
                    if self.append(Change::Record(record.clone())).await.is_err() {
                        return;
                    }
                    self.edit(|state| state.recorded(&record, began.elapsed(), &self.machine));
                }
                Output::Send { to, message } => {
                    self.view().links().send(&to, &FromCoordinator::Moves(message));
                }
                Output::Event { id, event } => {
                    // Tasks that wait for the move can proceed, or wait for the instance to run.
                    is_move_over |=
                        matches!(event, Event::Ended { .. } | Event::Phase { phase: Phase::Fetch, .. });
                    self.edit(|state| state.progressed(id, &event));
                }
                Output::InstanceEnded(ended) => {
                    tracing::info!("instance {} has ended: {:?}", ended.vid, ended.exit);
                    has_ended = true;
                }
            }
        }
        self.edit(|state| state.settle(&self.machine));
        let view = self.view();
        if is_move_over {
            view.signals().move_over.notify_waiters();
        }
        if has_ended {
            view.signals().ended.notify_waiters();
        }
    }
}
