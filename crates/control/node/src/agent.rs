//! Feeds events to the state machine of moves, and passes its outputs on one after the other.
//!
//! The agent is below all components that report events to it. The component that carries out its orders is above them: it implements
//! [`Performer`].

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::{Duration, Instant};

use fabric::{Epoch, Vid};
use moves::entry::{Entry, Role};
use moves::node::{AlreadyHere, Config, Input, NodeAgent, Operation, Output};
use moves::protocol::Location;
use moves::{HostName, MoveId, Side};
use rpc::Outbox;
use rpc::removed::Removed;
use rpc::wire::{self, FromNode};
use store::{NodeStore, StoreError};
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

use crate::cancel::Cancel;
use crate::directory::{Directory, Place};
use crate::lock::lock;
use crate::uplink::Uplink;

/// How long the coordinator may take to answer with the location of an instance.
const LOCATE_LIMIT: Duration = Duration::from_secs(2);

/// Carries out the orders of the state machine. It is called with the agent's lock held: the calls return at once, and do not call the
/// agent.
pub trait Performer: Send + Sync {
    /// Begins an operation, whose outcome becomes [`Input::Ended`].
    fn operate(self: Arc<Self>, order: Order);
    /// A move away from here is over, and the instance has stayed.
    fn stays(self: Arc<Self>, vid: Vid);
    /// The coordinator knows that an instance has ended: removes it.
    fn farewell(self: Arc<Self>, vid: Vid);
}

/// An order to carry out an operation.
pub struct Order {
    pub vid: Vid,
    pub operation: Operation,
    /// The move whose source is this host, with its destination, if there is one.
    pub leaving: Option<(MoveId, Side)>,
    /// Cancels the operation.
    pub cancel: Arc<Cancel>,
}

/// The state machine of moves with its records, and the receivers of its outputs.
pub struct Agent {
    began: Instant,
    inner: Mutex<Inner>,
    uplink: Arc<Uplink>,
    directory: Arc<Directory>,
    /// Weak, since it has this agent.
    performer: OnceLock<Weak<dyn Performer>>,
    /// Notified when the machine may want to wake at another time.
    changed: Notify,
    /// Notified when a record could not be written: the node must stop.
    broken: Notify,
}

struct Inner {
    machine: NodeAgent,
    store: NodeStore,
    /// The outputs of the machine until [`Agent::begin`].
    first: Vec<Output>,
    cancels: HashMap<Vid, Arc<Cancel>>,
    locating: HashMap<Vid, Vec<oneshot::Sender<Option<Location>>>>,
    failure: Option<StoreError>,
}

impl Agent {
    /// Makes the agent of `host` from the records in `store`.
    pub fn new(
        host: HostName,
        store: NodeStore,
        uplink: Arc<Uplink>,
        directory: Arc<Directory>,
    ) -> Result<Self, StoreError> {
        let (machine, first) = NodeAgent::new(host, Config::default(), store.load()?, Duration::ZERO);
        let inner =
            Inner { machine, store, first, cancels: HashMap::new(), locating: HashMap::new(), failure: None };
        Ok(Self {
            began: Instant::now(),
            inner: Mutex::new(inner),
            uplink,
            directory,
            performer: OnceLock::new(),
            changed: Notify::new(),
            broken: Notify::new(),
        })
    }

    /// Begins to pass orders to `performer`.
    pub fn begin(&self, performer: Weak<dyn Performer>) {
        let mut inner = self.lock();
        self.performer.get_or_init(|| performer);
        let first = std::mem::take(&mut inner.first);
        self.perform(&mut inner, first);
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

    /// The way to the coordinator.
    pub fn uplink(&self) -> &Uplink {
        &self.uplink
    }

    /// Feeds an event to the agent.
    pub fn input(&self, input: Input) {
        let mut inner = self.lock();
        let outputs = inner.machine.handle(input, self.now());
        self.perform(&mut inner, outputs);
        self.changed.notify_one();
    }

    /// Sets the connection to the coordinator, or `None` when it is lost.
    pub fn set_coordinator(&self, outbox: Option<Outbox<FromNode>>) {
        let input = if outbox.is_some() { Input::LinkUp } else { Input::LinkDown };
        self.uplink.set(outbox);
        self.input(input);
    }

    /// Records the hosts that this node does not trust any more.
    pub fn note_removed(&self, removed: &Removed) {
        let mut inner = self.lock();
        if let Err(error) = inner.store.set_removed(removed) {
            inner.failure = Some(error);
            self.broken.notify_one();
        }
    }

    /// Enters an instance that is about to be started.
    pub fn enter_instance(&self, vid: Vid) -> Result<(), AlreadyHere> {
        let mut inner = self.lock();
        let outputs = inner.machine.host_instance(vid, Epoch::default())?;
        self.perform(&mut inner, outputs);
        Ok(())
    }

    /// The location of `vid` according to the coordinator.
    ///
    /// # Errors
    /// If the coordinator cannot be reached, or does not answer in time.
    pub async fn ask_where(&self, vid: Vid) -> Result<Option<Place>, Unanswered> {
        let answer = {
            let mut inner = self.lock();
            if !self.uplink.is_connected() {
                return Err(Unanswered);
            }
            let (sender, answer) = oneshot::channel();
            inner.locating.entry(vid).or_default().push(sender);
            let outputs = inner.machine.locate(vid, self.now());
            self.perform(&mut inner, outputs);
            answer
        };
        self.changed.notify_one();
        let location = timeout(LOCATE_LIMIT, answer).await.map_err(|_| Unanswered)?;
        let location = location.map_err(|_| Unanswered)?;
        Ok(location.map(|location| Place { host: location.host, epoch: location.epoch }))
    }

    /// Wakes the agent at the times that it requests.
    pub async fn tick(self: Arc<Self>) {
        loop {
            let wake_at = self.lock().machine.wake_at();
            let changed = self.changed.notified();
            match wake_at {
                None => changed.await,
                Some(at) => {
                    let deadline = (self.began + at).into();
                    if tokio::time::timeout_at(deadline, changed).await.is_err() {
                        self.input(Input::Tick);
                    }
                }
            }
        }
    }

    fn perform(&self, inner: &mut Inner, outputs: Vec<Output>) {
        for output in outputs {
            if inner.failure.is_some() {
                return;
            }
            self.perform_one(inner, output);
        }
    }

    fn perform_one(&self, inner: &mut Inner, output: Output) {
        match output {
            Output::Record(record) => {
                if let Err(error) = inner.store.apply(&record) {
                    inner.failure = Some(error);
                    self.broken.notify_one();
                }
            }
            Output::Send(message) => self.uplink.send(&FromNode::Moves(message)),
            Output::Operate { vid, operation } => self.operate(inner, vid, operation),
            Output::Cancel { vid } => {
                if let Some(cancel) = inner.cancels.get(&vid) {
                    cancel.cancel();
                }
            }
            Output::Located { vid, location } => self.located(inner, vid, location),
            Output::Stays { vid } => self.order(|performer| performer.stays(vid)),
            Output::Farewell { vid } => self.order(|performer| performer.farewell(vid)),
        }
    }

    fn operate(&self, inner: &mut Inner, vid: Vid, operation: Operation) {
        let cancel = Arc::new(Cancel::default());
        inner.cancels.insert(vid, cancel.clone());
        let role = inner.machine.entry(vid).map(|entry| entry.role.clone());
        let leaving = match role {
            Some(Role::Source { id, destination }) => Some((id, destination)),
            _ => None,
        };
        self.order(|performer| performer.operate(Order { vid, operation, leaving, cancel }));
    }

    /// Passes an order on, unless the node is ending.
    fn order(&self, give: impl FnOnce(Arc<dyn Performer>)) {
        if let Some(performer) = self.performer.get().and_then(Weak::upgrade) {
            give(performer);
        }
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

/// The coordinator cannot be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unanswered;
