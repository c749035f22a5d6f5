//! Feeds events to the state machine of moves, and performs its outputs one after the other.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use fabric::{Epoch, Vid};
use moves::entry::{Entry, Role};
use moves::node::{AlreadyHere, Config, Input, NodeAgent, Operation, Output};
use moves::protocol::Location;
use moves::{HostName, MoveId};
use rpc::Outbox;
use rpc::removed::Removed;
use rpc::wire::{self, FromNode, Measurement};
use store::{NodeStore, StoreError};
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

use crate::cancel::Cancel;
use crate::directory::Place;
use crate::lock::lock;
use crate::node::Node;

/// How long the coordinator may take to answer with the location of an instance.
const LOCATE_LIMIT: Duration = Duration::from_secs(2);

/// The state machine of moves, and the receivers of its outputs.
pub struct Agent {
    began: Instant,
    inner: Mutex<Inner>,
    /// Notified when the machine may want to wake at another time.
    changed: Notify,
    /// Notified when a record could not be written: the node must stop.
    broken: Notify,
}

struct Inner {
    machine: NodeAgent,
    store: NodeStore,
    coordinator: Option<Outbox<FromNode>>,
    cancels: HashMap<Vid, Arc<Cancel>>,
    locating: HashMap<Vid, Vec<oneshot::Sender<Option<Location>>>>,
    failure: Option<StoreError>,
}

impl Agent {
    /// Makes the agent of `host` from the records in `store`; also returns its first outputs.
    pub fn new(host: HostName, store: NodeStore) -> Result<(Self, Vec<Output>), StoreError> {
        let (machine, outputs) = NodeAgent::new(host, Config::default(), store.load()?, Duration::ZERO);
        let inner = Inner {
            machine,
            store,
            coordinator: None,
            cancels: HashMap::new(),
            locating: HashMap::new(),
            failure: None,
        };
        let agent = Self {
            began: Instant::now(),
            inner: Mutex::new(inner),
            changed: Notify::new(),
            broken: Notify::new(),
        };
        Ok((agent, outputs))
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    /// The instances that this node has or is moving.
    pub fn here(&self) -> Vec<Vid> {
        self.lock().machine.entries().map(|(vid, _)| vid).collect()
    }

    pub fn entry(&self, vid: Vid) -> Option<Entry> {
        self.lock().machine.entry(vid).cloned()
    }

    /// Checks that there is room for the records of a new instance or move; the error includes a remedy.
    pub fn ready(&self) -> Result<(), String> {
        let ready = self.lock().store.ready();
        ready.map_err(|error| wire::reason(&error.to_string(), error.remedy()))
    }

    /// Waits until writing a record fails; the node must then stop.
    pub async fn broken(&self) -> StoreError {
        loop {
            self.broken.notified().await;
            if let Some(error) = self.lock().failure.take() {
                return error;
            }
        }
    }
}

impl Node {
    /// Performs the agent's first outputs.
    pub fn begin(self: &Arc<Self>, outputs: Vec<Output>) {
        let mut inner = self.agent.lock();
        self.perform(&mut inner, outputs);
    }

    /// Feeds an event to the agent.
    pub fn input(self: &Arc<Self>, input: Input) {
        let mut inner = self.agent.lock();
        let outputs = inner.machine.handle(input, self.agent.now());
        self.perform(&mut inner, outputs);
        self.agent.changed.notify_one();
    }

    /// Sets the connection to the coordinator, or `None` when it is lost.
    pub fn set_coordinator(self: &Arc<Self>, outbox: Option<Outbox<FromNode>>) {
        let input = if outbox.is_some() { Input::LinkUp } else { Input::LinkDown };
        self.agent.lock().coordinator = outbox;
        self.input(input);
    }

    /// The connection to the coordinator, if there is one.
    pub fn coordinator(&self) -> Option<Outbox<FromNode>> {
        self.agent.lock().coordinator.clone()
    }

    /// Sends a message to the coordinator, if it is connected.
    pub fn tell_coordinator(&self, message: &FromNode) {
        self.agent.lock().send(message);
    }

    /// Sends a measurement of a move to the coordinator.
    pub fn measured(&self, id: MoveId, measurement: Measurement) {
        self.tell_coordinator(&FromNode::Measured { id, measurement });
    }

    /// Records the hosts that this node does not trust any more.
    pub fn note_removed(&self, removed: &Removed) {
        let mut inner = self.agent.lock();
        if let Err(error) = inner.store.set_removed(removed) {
            inner.failure = Some(error);
            self.agent.broken.notify_one();
        }
    }

    /// Enters an instance that is about to be started.
    pub fn enter_instance(self: &Arc<Self>, vid: Vid) -> Result<(), AlreadyHere> {
        let mut inner = self.agent.lock();
        let outputs = inner.machine.host_instance(vid, Epoch::default())?;
        self.perform(&mut inner, outputs);
        Ok(())
    }

    /// The location of `vid` according to the coordinator.
    ///
    /// # Errors
    /// If the coordinator cannot be reached, or does not answer in time.
    pub async fn ask_where(self: &Arc<Self>, vid: Vid) -> Result<Option<Place>, Unanswered> {
        let answer = {
            let mut inner = self.agent.lock();
            if inner.coordinator.is_none() {
                return Err(Unanswered);
            }
            let (sender, answer) = oneshot::channel();
            inner.locating.entry(vid).or_default().push(sender);
            let outputs = inner.machine.locate(vid, self.agent.now());
            self.perform(&mut inner, outputs);
            answer
        };
        self.agent.changed.notify_one();
        let location = timeout(LOCATE_LIMIT, answer).await.map_err(|_| Unanswered)?;
        let location = location.map_err(|_| Unanswered)?;
        Ok(location.map(|location| Place { host: location.host, epoch: location.epoch }))
    }

    /// Wakes the agent at the times that it requests.
    pub async fn tick(self: Arc<Self>) {
        loop {
            let wake_at = self.agent.lock().machine.wake_at();
            let changed = self.agent.changed.notified();
            match wake_at {
                None => changed.await,
                Some(at) => {
                    let deadline = (self.agent.began + at).into();
                    if tokio::time::timeout_at(deadline, changed).await.is_err() {
                        self.input(Input::Tick);
                    }
                }
            }
        }
    }

    fn perform(self: &Arc<Self>, inner: &mut Inner, outputs: Vec<Output>) {
        for output in outputs {
            if inner.failure.is_some() {
                return;
            }
            self.perform_one(inner, output);
        }
    }

    fn perform_one(self: &Arc<Self>, inner: &mut Inner, output: Output) {
        match output {
            Output::Record(record) => {
                if let Err(error) = inner.store.apply(&record) {
                    inner.failure = Some(error);
                    self.agent.broken.notify_one();
                }
            }
            Output::Send(message) => inner.send(&FromNode::Moves(message)),
            Output::Operate { vid, operation } => self.operate(inner, vid, operation),
            Output::Cancel { vid } => {
                if let Some(cancel) = inner.cancels.get(&vid) {
                    cancel.cancel();
                }
            }
            Output::Located { vid, location } => self.located(inner, vid, location),
            Output::Stays { vid } => {
                // At once: later events may belong to the next move.
                self.drop_courier(vid);
                tokio::spawn(self.close_sides(vid));
            }
            Output::Farewell { vid } => {
                self.drop_courier(vid);
                let Some(live) = self.live(vid) else { return };
                self.departing.begin(live.name.clone());
                let node = self.clone();
                tokio::spawn(async move {
                    node.farewell(vid, &live).await;
                    node.departing.end(&live.name);
                });
            }
        }
    }

    fn operate(self: &Arc<Self>, inner: &mut Inner, vid: Vid, operation: Operation) {
        let cancel = Arc::new(Cancel::default());
        inner.cancels.insert(vid, cancel.clone());
        let role = inner.machine.entry(vid).map(|entry| entry.role.clone());
        let source_of = match role {
            Some(Role::Source { id, destination }) => Some((id, destination)),
            _ => None,
        };
        let node = self.clone();
        tokio::spawn(async move {
            tracing::debug!("{vid}: {operation:?} begins");
            let outcome = node.perform_operation(vid, operation, source_of, &cancel).await;
            tracing::debug!("{vid}: {outcome:?}");
            node.input(Input::Ended { vid, outcome });
        });
    }

    fn located(&self, inner: &mut Inner, vid: Vid, location: Option<Location>) {
        match &location {
            Some(location) => {
                self.directory.note(vid, Place { host: location.host.clone(), epoch: location.epoch });
            }
            None => self.directory.forget(vid),
        }
        for waiter in inner.locating.remove(&vid).unwrap_or_default() {
            let _ = waiter.send(location.clone());
        }
    }
}

impl Inner {
    fn send(&self, message: &FromNode) {
        if let Some(coordinator) = &self.coordinator {
            // If the connection fails to accept it, the reader of the connection notices the loss.
            let _ = coordinator.send(message);
        }
    }
}

/// The coordinator cannot be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unanswered;
