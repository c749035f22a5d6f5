//! The driver of the move state machine: feeds inputs to it and performs its outputs in order.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use api::Failure;
use fabric::InstanceId;
use fabric::Vid;
use fabric::directory::Directory;
use moves::coordinator::{Config, Coordinator, Input, Output};
use moves::journal::{Exit, Instance, Record};
use moves::progress::InstanceEnded;
use moves::{HostName, MoveId};
use rpc::removed::{Gate, KeyId};
use rpc::wire::{Answer, FromCoordinator, Measurement, Moved, Question};
use rpc::{CallError, Encoded, Outbox, Pending, net};
use store::{EndedInstance, MAX_ENDED_INSTANCES, Store, StoreError};
use tokio::sync::Notify;

use crate::admission::Admission;
use crate::checkpoint::Checkpoints;
use crate::cooling::Cooling;
use crate::drain::Drains;
use crate::ending::Ending;
use crate::estimate::Experience;
use crate::exec::Sessions;
use crate::failure;
use crate::follow::Follow;
use crate::log::{self, Log};
use crate::members::Members;
use crate::names;
use crate::network::{self, Devices, Misbehaviour, Rollout, Wishes};
use crate::statistics::Statistics;

/// State that all tasks of the coordinator share.
pub struct Cluster {
    began: Instant,
    inner: Mutex<Inner>,
    /// Notified when the machine's next deadline may have changed.
    changed: Notify,
    /// Notified when an instance has ended.
    pub ended: Notify,
    /// Notified when the start of an instance has completed or failed.
    pub started: Notify,
    /// Notified when a move no longer blocks its instance.
    pub move_over: Notify,
    /// Notified when the overlay's rollout progresses.
    pub network_changed: Notify,
    /// Notified when a node disconnects.
    pub link_ended: Notify,
    /// Admission of machines by join tokens, if enabled.
    pub admission: OnceLock<Admission>,
    /// Revocation list that connections of nodes are checked against; equal to [`Members::list`].
    pub gate: Gate,
    broken: Notify,
}

/// State that the lock of [`Cluster`] guards.
pub struct Inner {
    pub machine: Coordinator,
    pub store: Store,
    pub log: Arc<Log>,
    pub directory: Directory,
    /// Instances existed when the coordinator started. Their processes publish their directory entries again.
    pub has_inherited: bool,
    pub nodes: HashMap<HostName, NodeLink>,
    pub network: Rollout,
    pub devices: Devices,
    /// Sessions: commands that clients run in instances.
    pub sessions: Sessions,
    pub drains: Drains,
    pub cooling: Cooling,
    pub members: Members,
    pub checkpoints: Checkpoints,
    pub statistics: Statistics,
    pub experience: Experience,
    /// Devices that nodes request for themselves.
    pub wishes: Wishes,
    /// Rate limit of the offload failures that hosts report.
    pub misbehaviour: Misbehaviour,
    /// All hosts that have connected since the coordinator started.
    pub hosts: BTreeMap<HostName, SocketAddr>,
    /// Hosts that have joined by a token.
    pub enrolled: BTreeSet<HostName>,
    /// Moves of which a user can still get a report.
    pub follows: HashMap<MoveId, Follow>,
    /// Instances whose host has not yet confirmed their start.
    pub starting: HashSet<Vid>,
    /// Instances that are being ended.
    pub endings: HashMap<Vid, Ending>,
    /// Ended instances, the most recent last.
    pub ended: VecDeque<EndedInstance>,
    /// Copies of the machine's instances, for use after the machine has deleted one.
    known: HashMap<Vid, Instance>,
    /// New locations that still have to be sent to all nodes.
    news: Vec<Moved>,
    failure: Option<StoreError>,
    /// Set when a record could not be written: no further decision is allowed.
    pub is_broken: bool,
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

/// The connection of a node.
#[derive(Clone)]
pub struct NodeLink {
    /// Serial number of the connection.
    pub serial: u64,
    pub runs_instances: bool,
    /// The key in the node's certificate.
    pub key: KeyId,
    pub outbox: Outbox<FromCoordinator>,
    pub pending: Pending<Result<Answer, String>>,
}

impl Cluster {
    /// Opens the cluster from the store at `path`. Uncommitted moves are rolled back.
    pub fn open(path: &Path) -> Result<Arc<Self>, StoreError> {
        let store = Store::open(path)?;
        let log = Log::open(&path.with_file_name("events.redb"))?;
        let image = store.load()?;
        let known: HashMap<_, _> = image.instances.clone().into_iter().collect();
        let follows =
            image.moves.iter().filter_map(|(id, record)| Some((*id, Follow::again(&image, record)?)));
        let follows = follows.collect();
        let ended = store.ended_instances()?;
        let (network, devices) = (network::load(&store)?, Devices::load(&store)?);
        let drains = Drains::load(store.drained_hosts()?);
        let cooling = Cooling::load(store.last_moves()?);
        let members = Members::load(&store)?;
        let gate = Gate::default();
        gate.set(members.list());
        let (machine, outputs) = Coordinator::new(Config::default(), image, Duration::ZERO);
        let mut inner = Inner {
            machine,
            store,
            log,
            directory: Directory::default(),
            has_inherited: !known.is_empty(),
            nodes: HashMap::new(),
            network,
            devices,
            sessions: Sessions::default(),
            drains,
            cooling,
            members,
            checkpoints: Checkpoints::new(),
            statistics: Statistics::default(),
            experience: Experience::default(),
            wishes: Wishes::default(),
            misbehaviour: Misbehaviour::default(),
            hosts: BTreeMap::new(),
            enrolled: BTreeSet::new(),
            follows,
            starting: HashSet::new(),
            endings: HashMap::new(),
            ended: VecDeque::new(),
            known,
            news: Vec::new(),
            failure: None,
            is_broken: false,
        };
        ended.into_iter().for_each(|ended| inner.keep_ended(ended));
        log::catch_up(&mut inner)?;
        let cluster = Arc::new(Self {
            began: Instant::now(),
            inner: Mutex::new(inner),
            changed: Notify::new(),
            ended: Notify::new(),
            started: Notify::new(),
            move_over: Notify::new(),
            network_changed: Notify::new(),
            link_ended: Notify::new(),
            admission: OnceLock::new(),
            gate,
            broken: Notify::new(),
        });
        cluster.perform(&mut cluster.lock(), outputs);
        Ok(cluster)
    }

    /// Enables admission by join tokens.
    pub fn admit_by(&self, admission: Admission) {
        self.lock().enrolled = admission.enrolled();
        // `set` fails only if it is called twice.
        let _first = self.admission.set(admission);
    }

    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Feeds an input to the machine.
    pub fn input(&self, input: Input) {
        self.input_to(&mut self.lock(), input);
    }

    /// Like [`Cluster::input`], under a lock that the caller holds, so that both changes are atomic.
    pub fn input_to(&self, inner: &mut Inner, input: Input) {
        let outputs = inner.machine.handle(input, self.now());
        self.perform(inner, outputs);
    }

    /// Wakes the machine at its deadlines.
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

    /// Waits until writing a record fails; afterwards no further decision is allowed.
    pub async fn broken(&self) -> StoreError {
        loop {
            self.broken.notified().await;
            if let Some(error) = self.lock().failure.take() {
                return error;
            }
        }
    }

    /// Performs the machine's outputs.
    pub fn perform(&self, inner: &mut Inner, outputs: Vec<Output>) {
        for output in outputs {
            if inner.is_broken {
                return;
            }
            self.perform_one(inner, output);
        }
        inner.tell_news();
        self.changed.notify_one();
    }

    fn perform_one(&self, inner: &mut Inner, output: Output) {
        match output {
            Output::Record(record) => self.record(inner, &record),
            Output::Send { to, message } => inner.send(&to, &FromCoordinator::Moves(message)),
            Output::Event { id, event } => {
                use moves::progress::{Event, Phase};
                // Tasks that wait for this move, or for the start of its instance, may proceed.
                let is_settled =
                    matches!(event, Event::Ended { .. } | Event::Phase { phase: Phase::Fetch, .. });
                inner.tell_follower(id, event);
                if is_settled {
                    self.move_over.notify_waiters();
                }
            }
            Output::InstanceEnded(InstanceEnded { vid, exit }) => {
                tracing::info!("instance {vid} has ended: {exit:?}");
                self.ended.notify_waiters();
            }
        }
    }

    fn record(&self, inner: &mut Inner, record: &Record) {
        let began = Instant::now();
        if let Err(error) = inner.store.apply(record) {
            return self.break_off(inner, error);
        }
        match record {
            Record::InstanceAdded { vid, instance } => {
                inner.note(*vid, instance.clone());
                names::added(inner, *vid, &instance.name);
                inner.nic_is_placed(instance);
            }
            Record::InstanceEnded { vid, exit } => {
                let known = inner.known.remove(vid);
                if let Some(instance) = &known {
                    inner.end_in_directory(InstanceId { fabric: instance.fabric, vid: *vid });
                    names::gone(inner, &instance.name);
                    inner.sessions.end_of(*vid, &instance.name);
                    inner.nic_is_gone(instance);
                    if inner.starting.contains(vid) && *exit != Exit::NotStarted {
                        inner.log.note(&log::started(instance));
                    }
                    inner.log.note(&log::ended(instance, exit));
                }
                if let Some(instance) = known.filter(|_| *exit != Exit::NotStarted) {
                    inner.keep_ended(EndedInstance { vid: *vid, instance, exit: exit.clone() });
                }
                self.is_started(inner, *vid);
                inner.cooling.forget(*vid);
                inner.ends(*vid);
            }
            Record::MovesCommitted { ids } => ids.iter().for_each(|id| inner.committed(*id, began.elapsed())),
            Record::MovesSaved { ids } => inner.are_saved(ids),
            Record::MoveRolledBack { id, .. } => inner.is_not_saved(*id),
            _ => {}
        }
    }

    /// Stops all decisions: only reopening the store shows which state it holds.
    pub fn break_off(&self, inner: &mut Inner, error: StoreError) {
        inner.failure = Some(error);
        inner.is_broken = true;
        self.broken.notify_one();
    }

    /// Like [`Cluster::break_off`]. Returns the failure for the user.
    pub fn not_written(&self, inner: &mut Inner, error: StoreError) -> Failure {
        let failure = failure::of_store(&error);
        self.break_off(inner, error);
        failure
    }

    /// Records that the instance's host has confirmed or rejected its start.
    pub fn is_started(&self, inner: &mut Inner, vid: Vid) {
        inner.starting.remove(&vid);
        self.started.notify_waiters();
    }

    /// Asks the node of `host` a question.
    pub async fn ask(
        &self,
        host: &HostName,
        question: Question,
        limit: Duration,
    ) -> Result<Answer, AskError> {
        self.ask_as(host, limit, |number| FromCoordinator::Ask { number, question }).await
    }

    /// Asks the node of `host` a question about the overlay.
    pub async fn ask_net(
        &self,
        host: &HostName,
        question: net::Question,
        limit: Duration,
    ) -> Result<Answer, AskError> {
        self.ask_as(host, limit, |number| FromCoordinator::AskNet { number, question }).await
    }

    /// Sends `message`, which contains a question, to the node of `host` and returns the answer.
    pub async fn ask_as(
        &self,
        host: &HostName,
        limit: Duration,
        message: impl FnOnce(u64) -> FromCoordinator,
    ) -> Result<Answer, AskError> {
        let link = self.lock().nodes.get(host).cloned();
        let Some(link) = link else { return Err(AskError::Away(host.clone())) };
        match link.pending.ask(limit, |number| link.outbox.send(&message(number))).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(reason)) => Err(AskError::Refused(failure::from_reason(&reason))),
            Err(CallError::Closed | CallError::TimedOut) => Err(AskError::Silent(host.clone())),
        }
    }
}

impl Inner {
    /// Checks that decisions are still allowed: after a failed write, memory and store may differ.
    ///
    /// # Errors
    /// If a record could not be written.
    pub fn check_whole(&self) -> Result<(), Failure> {
        match self.is_broken {
            false => Ok(()),
            true => Err(failure::coordinator_ends()),
        }
    }

    /// Sends a message to a node, if it is connected.
    pub fn send(&self, to: &HostName, message: &FromCoordinator) {
        if let Some(node) = self.nodes.get(to) {
            // If the outbox is closed, the reader of the connection detects the loss.
            let _ = node.outbox.send(message);
        }
    }

    /// Sends a message to every node.
    pub fn send_all(&self, message: &FromCoordinator) {
        let Ok(message) = Encoded::new(message) else { return };
        for node in self.nodes.values() {
            // As in `send`.
            let _ = node.outbox.send_encoded(&message);
        }
    }

    /// Broadcasts the new locations of moved instances. The resume orders go out first, so that messages to a thousand other nodes
    /// do not delay them.
    fn tell_news(&mut self) {
        if !self.news.is_empty() {
            let news = std::mem::take(&mut self.news);
            self.send_all(&FromCoordinator::Moved(news));
        }
    }

    /// The instance called `name`.
    pub fn find(&self, name: &str) -> Option<(Vid, &Instance)> {
        let found = self.machine.image().instances.iter().find(|(_, instance)| instance.name == name);
        found.map(|(vid, instance)| (*vid, instance))
    }

    /// Whether an instance called `name` is among the remembered ended instances.
    pub fn has_ended(&self, name: &str) -> bool {
        self.ended.iter().any(|ended| ended.instance.name == name)
    }

    /// Records a measurement from a node that takes part in the move.
    pub fn measured(&mut self, from: &HostName, id: MoveId, measurement: Measurement) {
        let takes_part = self.machine.image().moves.get(&id);
        let takes_part = takes_part.is_some_and(|record| record.hosts().any(|host| host == from));
        if let Some(follow) = self.follows.get_mut(&id).filter(|_| takes_part) {
            follow.measured(measurement);
        }
    }

    /// Marks the moves of an instance as ending with the instance.
    pub fn ends(&mut self, vid: Vid) {
        self.follows.values_mut().for_each(|follow| follow.ends(vid));
    }

    fn tell_follower(&mut self, id: MoveId, event: moves::progress::Event) {
        if let Some(follow) = self.follows.get_mut(&id)
            && follow.tell(event)
        {
            if let Some(report) = follow.report() {
                self.log.note(&log::move_over(id, report));
                self.statistics.moved(report);
                self.experience.learn_from(report);
            }
            self.follows.remove(&id);
        }
    }

    /// Queues the new location of an instance for all nodes.
    fn committed(&mut self, id: MoveId, took: Duration) {
        if let Some(follow) = self.follows.get_mut(&id) {
            follow.committed(took);
        }
        let image = self.machine.image();
        if let Some(record) = image.moves.get(&id).filter(|record| record.is_between_hosts()) {
            self.cooling.has_moved(record.vid);
        }
        let moved =
            image.moves.get(&id).and_then(|record| Some((record.vid, image.instances.get(&record.vid)?)));
        let Some((vid, instance)) = moved else { return };
        let instance = instance.clone();
        let (host, epoch) = (instance.host.clone(), instance.epoch);
        self.nic_is_placed(&instance);
        self.note(vid, instance);
        self.news.push(Moved { vid, host, epoch });
    }

    fn note(&mut self, vid: Vid, instance: Instance) {
        self.known.insert(vid, instance);
    }

    fn keep_ended(&mut self, instance: EndedInstance) {
        self.ended.retain(|ended| ended.instance.name != instance.instance.name);
        self.ended.push_back(instance);
        if self.ended.len() as u64 > MAX_ENDED_INSTANCES {
            self.ended.pop_front();
        }
    }
}
