//! Feeds the state machine of the moves with what happens, and does what it says, in its order.

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

/// All that the coordinator's tasks share.
pub struct Cluster {
    began: Instant,
    inner: Mutex<Inner>,
    /// Told when the machine may want to be woken at another time.
    changed: Notify,
    /// Told when an instance has ended.
    pub ended: Notify,
    /// Told when an instance is no longer being started.
    pub started: Notify,
    /// Told when a move is over for its instance.
    pub move_over: Notify,
    /// Told when the overlay's rollout goes on.
    pub network_changed: Notify,
    /// Told when a node's connection has ended.
    pub link_ended: Notify,
    /// How machines join that have no certificate, if they can.
    pub admission: OnceLock<Admission>,
    /// What connections with nodes have to pass: the same as [`Members::list`].
    pub gate: Gate,
    broken: Notify,
}

/// What the lock of [`Cluster`] guards.
pub struct Inner {
    pub machine: Coordinator,
    pub store: Store,
    pub log: Arc<Log>,
    pub directory: Directory,
    /// Instances were there when the coordinator began. What they have published it hears again.
    pub has_inherited: bool,
    pub nodes: HashMap<HostName, NodeLink>,
    pub network: Rollout,
    pub devices: Devices,
    /// Commands that clients have started in instances, and wait for.
    pub sessions: Sessions,
    pub drains: Drains,
    pub cooling: Cooling,
    pub members: Members,
    pub checkpoints: Checkpoints,
    pub statistics: Statistics,
    pub experience: Experience,
    /// Devices that nodes ask for themselves.
    pub wishes: Wishes,
    /// How much hosts have told of their offloads.
    pub misbehaviour: Misbehaviour,
    /// Every host that has ever been connected since the coordinator began.
    pub hosts: BTreeMap<HostName, SocketAddr>,
    /// Those that have joined by a token.
    pub enrolled: BTreeSet<HostName>,
    /// Moves of which a user can still hear something.
    pub follows: HashMap<MoveId, Follow>,
    /// Instances whose host has not yet said that they run.
    pub starting: HashSet<Vid>,
    /// Instances that are being ended.
    pub endings: HashMap<Vid, Ending>,
    /// Instances that have ended, the latest last.
    pub ended: VecDeque<EndedInstance>,
    /// The machine's instances, so that what is known of one is still there when the machine forgets it.
    known: HashMap<Vid, Instance>,
    /// New places of which all nodes are to be told.
    news: Vec<Moved>,
    failure: Option<StoreError>,
    /// Nothing more may be decided.
    pub is_broken: bool,
}

/// Why a node's answer did not come.
pub enum AskError {
    /// It is not connected.
    Away(HostName),
    /// It did not answer, or its connection was lost before.
    Silent(HostName),
    /// It refused.
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

/// A node's connection.
#[derive(Clone)]
pub struct NodeLink {
    /// Which of its connections it is.
    pub serial: u64,
    pub runs_instances: bool,
    /// The key that it has shown.
    pub key: KeyId,
    pub outbox: Outbox<FromCoordinator>,
    pub pending: Pending<Result<Answer, String>>,
}

impl Cluster {
    /// The cluster as it is in the store at `path`. Moves that were not decided are rolled back.
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

    /// Lets machines join by tokens from now on.
    pub fn admit_by(&self, admission: Admission) {
        self.lock().enrolled = admission.enrolled();
        // Nobody else has set it.
        let _first = self.admission.set(admission);
    }

    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Tells the machine what happened.
    pub fn input(&self, input: Input) {
        self.input_to(&mut self.lock(), input);
    }

    /// As [`Cluster::input`], at once with what else changed under the same lock.
    pub fn input_to(&self, inner: &mut Inner, input: Input) {
        let outputs = inner.machine.handle(input, self.now());
        self.perform(inner, outputs);
    }

    /// Wakes the machine when it wants to be.
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

    /// Waits until a record cannot be written; then nothing more may be decided.
    pub async fn broken(&self) -> StoreError {
        loop {
            self.broken.notified().await;
            if let Some(error) = self.lock().failure.take() {
                return error;
            }
        }
    }

    /// Does what the machine says.
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
                // Who waits for it may go on, or for its instance to run.
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

    /// Nothing more may be decided: what the store holds is known when it is opened anew.
    pub fn break_off(&self, inner: &mut Inner, error: StoreError) {
        inner.failure = Some(error);
        inner.is_broken = true;
        self.broken.notify_one();
    }

    /// As [`Cluster::break_off`]. Returns the failure of what was to be written.
    pub fn not_written(&self, inner: &mut Inner, error: StoreError) -> Failure {
        let failure = failure::of_store(&error);
        self.break_off(inner, error);
        failure
    }

    /// The instance's host has said that it runs, or that it does not.
    pub fn is_started(&self, inner: &mut Inner, vid: Vid) {
        inner.starting.remove(&vid);
        self.started.notify_waiters();
    }

    /// What the node of `host` answers.
    pub async fn ask(
        &self,
        host: &HostName,
        question: Question,
        limit: Duration,
    ) -> Result<Answer, AskError> {
        self.ask_as(host, limit, |number| FromCoordinator::Ask { number, question }).await
    }

    /// What the node of `host` answers about the overlay.
    pub async fn ask_net(
        &self,
        host: &HostName,
        question: net::Question,
        limit: Duration,
    ) -> Result<Answer, AskError> {
        self.ask_as(host, limit, |number| FromCoordinator::AskNet { number, question }).await
    }

    /// What the node of `host` answers to the `message` that has the question.
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
    /// Checks that something may still be decided: what is known may not be what the store holds.
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
            // A connection that does not take it is lost, and found so by its reader.
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

    /// Tells everyone the new places of moved instances, after those who are to let them run: a thousand others must not come
    /// before these.
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

    /// Whether an instance called `name` has ended, as far as that is remembered.
    pub fn has_ended(&self, name: &str) -> bool {
        self.ended.iter().any(|ended| ended.instance.name == name)
    }

    /// Takes a measurement from a node that has part in the move.
    pub fn measured(&mut self, from: &HostName, id: MoveId, measurement: Measurement) {
        let takes_part = self.machine.image().moves.get(&id);
        let takes_part = takes_part.is_some_and(|record| record.hosts().any(|host| host == from));
        if let Some(follow) = self.follows.get_mut(&id).filter(|_| takes_part) {
            follow.measured(measurement);
        }
    }

    /// Tells those who follow a move of the instance that this has ended, or is to end.
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

    /// An instance has a new place, which everyone is to be told.
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
