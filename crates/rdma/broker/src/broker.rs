use std::collections::{HashMap, HashSet};
use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use fabric::attach::{LinkRefusal, NotStarted, Role, SOCKET_NAME, ToProcess};
use fabric::directory::{Answer, Due};
use fabric::link::LinkRequest;
use fabric::session::{Server, SessionId, ToSession};
use fabric::traffic::Traffic;
use fabric::{Epoch, InstanceId, ProcessId, Vid, netns, seqpacket};
use instance::{Carried, Chunk, Follower, Roster};
use rustix::io::ioctl_fionbio;
use tokio::sync::{Notify, Semaphore};
use tokio::time::{timeout, timeout_at};

use crate::instance::{Allowance, Arrival, Back, Instance, NotAdmitted, Phase, Seat};
use crate::lock::lock;
use crate::namespace::Namespace;
use crate::peers::{Observer, Peers};
use crate::report::{ResumeReport, SuspendError, SuspendReport};
use crate::traffic::{Flow, Matrix};
use crate::{connection, link};

/// How long a process may take to attach again once its instance runs; after that it counts as ended.
const REATTACH_LIMIT: Duration = Duration::from_secs(10);

/// How often to check whether a lagging follower has been silent for too long.
const FOLLOWERS_CHECK: Duration = Duration::from_secs(1);

/// The limit of links that the processes of an instance may be waiting for at a time.
const MAX_WAITING_LINKS: usize = 1 << 14;

/// The instances of one host. Clones are the same broker.
#[derive(Clone)]
pub struct Broker {
    shared: Arc<Shared>,
}

/// An instance to add.
#[derive(Debug)]
pub struct Config {
    /// Its identity.
    pub id: InstanceId,
    /// Its network namespace.
    pub network: OwnedFd,
    /// Its PID namespace. Without one, any process that reaches the socket may attach, even a
    /// thread that has only entered the network namespace.
    pub pids: Option<Namespace>,
    /// Its state from another broker, if there was one.
    pub carried: Carried,
}

/// The instance is not on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("instance {0} is not on this host")]
pub struct UnknownInstance(pub InstanceId);

impl Broker {
    /// A broker without instances.
    pub fn new(peers: impl Peers, observer: impl Observer) -> Self {
        let shared = Shared {
            instances: Mutex::default(),
            waiting_links: Mutex::default(),
            traffic: Mutex::default(),
            peers: Box::new(peers),
            observer: Box::new(observer),
            serials: AtomicU64::new(1),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Adds a suspended instance, replacing one of the same identity.
    pub fn add(&self, config: Config) {
        let instance = Instance {
            id: config.id,
            epoch: Epoch::default(),
            network: Arc::new(config.network),
            pids: config.pids,
            phase: Phase::Suspended,
            here: false,
            carried: config.carried,
            members: HashMap::new(),
            allowance: Allowance::default(),
            suspended: Vec::new(),
            back: Back::default(),
            changed: Arc::new(Notify::new()),
        };
        let old = self.shared.lock().insert(config.id, instance);
        end(old);
    }

    /// Sets the instance's PID namespace, if it was not known when the instance was added.
    pub fn set_pids(&self, id: InstanceId, pids: Namespace) {
        self.shared.with(id, |instance| instance.pids = Some(pids));
    }

    /// Removes an instance and disconnects its processes.
    pub fn remove(&self, id: InstanceId) {
        let old = self.shared.lock().remove(&id);
        end(old);
    }

    /// The instances of this host.
    #[must_use]
    pub fn instances(&self) -> Vec<InstanceId> {
        self.shared.lock().keys().copied().collect()
    }

    /// The roster of each instance.
    #[must_use]
    pub fn rosters(&self) -> Vec<(InstanceId, Roster)> {
        self.shared.lock().iter().map(|(id, instance)| (*id, instance.carried.roster.clone())).collect()
    }

    /// The RDMA traffic of instances as far as processes on this host count it, the largest flows first.
    #[must_use]
    pub fn traffic(&self) -> Vec<Flow> {
        lock(&self.shared.traffic).flows(Instant::now())
    }

    /// Delivers an answer of the directory. A process that is not attached asks again when it is.
    pub fn answer(&self, due: Due) {
        let Due { asker, number, answer } = due;
        self.shared.answer(asker.instance(), asker.process, number, answer);
    }

    /// Makes all processes repeat their publications and requests, and sessions their state, since the receiver may have lost
    /// them.
    pub fn ask_again(&self) {
        self.shared.lock().values().for_each(Instance::ask_again);
    }

    /// Sends the process that serves a session a message for it. The message is lost if the process is not attached or the
    /// instance is not here; the process reports the state of its sessions when it attaches again.
    pub fn tell_session(&self, instance: InstanceId, server: Server, id: SessionId, message: ToSession) {
        let message = ToProcess::Session { id, message };
        self.shared.with(instance, |instance| instance.tell_sessions(server, message));
    }

    /// Whether the instance runs here, and no process runs its commands.
    #[must_use]
    pub fn lacks_sessions(&self, id: InstanceId) -> bool {
        self.shared.with(id, |instance| instance.lacks_sessions()) == Some(true)
    }

    /// The state that another broker needs to take the instance over.
    #[must_use]
    pub fn carried(&self, id: InstanceId) -> Option<Carried> {
        self.shared.with(id, |instance| instance.carried.clone())
    }

    /// Output from position `from` on, at most about `limit` bytes; the position after it; and how the command
    /// ended, if it has.
    #[must_use]
    pub fn output(&self, id: InstanceId, from: u64, limit: usize) -> Option<(Vec<Chunk>, u64, Option<i32>)> {
        self.shared.with(id, |instance| {
            let (chunks, next) = instance.carried.output.read(from, limit);
            (chunks, next, instance.carried.exit)
        })
    }

    /// Waits until there is output after position `from`, or the command has ended, or the instance is gone.
    pub async fn output_after(&self, id: InstanceId, from: u64) {
        let arrived = |instance: &mut Instance| {
            let carried = &instance.carried;
            carried.output.end() > from || carried.exit.is_some()
        };
        let _ = self.shared.until(id, arrived).await;
    }

    /// Announces a follower: until it comes, for up to [`Output::PATIENCE`](instance::Output::PATIENCE), the broker keeps all output
    /// for it, and makes the command wait when the buffer is full.
    pub fn expect_follower(&self, id: InstanceId) {
        self.shared.with(id, |instance| instance.carried.output.expect_follower(Instant::now()));
    }

    /// Records that `follower` has received all output before position `next`. Later output is kept for it: the command waits
    /// when it lags, for up to [`Output::PATIENCE`](instance::Output::PATIENCE) after its last call.
    pub fn follow(&self, id: InstanceId, follower: Follower, next: u64) {
        self.shared.with(id, |instance| {
            instance.carried.output.follow(follower, next, Instant::now());
            instance.changed.notify_waiters();
        });
    }

    /// Removes `follower`.
    pub fn unfollow(&self, id: InstanceId, follower: Follower) {
        self.shared.with(id, |instance| {
            instance.carried.output.unfollow(follower);
            instance.changed.notify_waiters();
        });
    }

    /// Listens for the processes of a suspended instance, which has made `epoch` moves. Does nothing if the broker already listens
    /// for it.
    ///
    /// # Errors
    /// `NotFound` if the instance is unknown; otherwise errors of making the socket.
    pub async fn resume(&self, id: InstanceId, epoch: Epoch) -> io::Result<()> {
        if self.shared.with(id, |instance| matches!(instance.phase, Phase::Listening(_))) == Some(true) {
            return Ok(());
        }
        let (network, _) = self.shared.namespaces(id).ok_or_else(|| not_found(id))?;
        let listening = move || netns::enter(network.as_fd(), || seqpacket::listen(SOCKET_NAME))?;
        let listener = tokio::task::spawn_blocking(listening).await.map_err(io::Error::other)??;
        let listener = connection::watch(listener)?;
        let mut instances = self.shared.lock();
        let instance = instances.get_mut(&id).ok_or_else(|| not_found(id))?;
        let accepting = tokio::spawn(connection::accept(self.shared.clone(), id, listener));
        let round = instance.back.round + 1;
        instance.back = Back { round, ..Back::default() };
        instance.phase = Phase::Listening(accepting);
        instance.epoch = epoch;
        instance.here = true;
        instance.suspended.clear();
        self.give_up_missing_later(id, round);
        Ok(())
    }

    fn give_up_missing_later(&self, id: InstanceId, round: u64) {
        let shared = Arc::downgrade(&self.shared);
        tokio::spawn(async move {
            tokio::time::sleep(REATTACH_LIMIT).await;
            let Some(shared) = shared.upgrade() else { return };
            shared.with(id, |instance| {
                if instance.back.round == round && matches!(instance.phase, Phase::Listening(_)) {
                    instance.give_up_missing();
                    shared.observer.roster_changed(id, &instance.carried.roster);
                }
            });
        });
    }

    /// Connects a process in the virtual machine that is this instance, with its PID there, and in this role: [`Role::Sessions`] for the
    /// agent. Its packets pass over the returned socket, which does not block, as over a socket of the attach protocol.
    ///
    /// # Errors
    /// `ConnectionRefused` if the broker does not listen for the instance now; otherwise errors of making the socket.
    pub fn connect(&self, id: InstanceId, pid: i32, role: Role) -> io::Result<OwnedFd> {
        let listens = self.shared.with(id, |instance| matches!(instance.phase, Phase::Listening(_)));
        if listens != Some(true) {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let (outer, inner) = seqpacket::pair()?;
        ioctl_fionbio(&outer, true)?;
        ioctl_fionbio(&inner, true)?;
        tokio::spawn(connection::serve_inside(self.shared.clone(), id, inner, pid, role));
        Ok(outer)
    }

    /// Waits until every process with a seat has attached again and resumed, or counts as ended.
    ///
    /// # Errors
    /// If the instance is not, or no longer, on this host.
    pub async fn resumed(&self, id: InstanceId) -> Result<ResumeReport, UnknownInstance> {
        let all_back = |instance: &mut Instance| instance.still_away().is_empty();
        self.shared.until(id, all_back).await?;
        self.shared.with(id, |instance| resume_report(&instance.back)).ok_or(UnknownInstance(id))
    }

    /// Suspends every process of the instance within `limit`. When it returns, no process is attached, and
    /// none can attach.
    ///
    /// # Errors
    /// If the instance does not run here, some process is not attached (see [`Broker::whole`]), or some process does not suspend.
    /// In the last case [`Broker::resume`] rolls back; otherwise nothing has changed.
    pub async fn suspend(&self, id: InstanceId, limit: Duration) -> Result<SuspendReport, SuspendError> {
        let begin = Instant::now();
        let accepting = {
            let mut instances = self.shared.lock();
            let instance = instances.get_mut(&id).ok_or(SuspendError::Unknown)?;
            instance.must_be_whole()?;
            match std::mem::replace(&mut instance.phase, Phase::Suspending) {
                Phase::Listening(accepting) => accepting,
                other => {
                    instance.phase = other;
                    return Err(SuspendError::NotListening);
                }
            }
        };
        accepting.abort();
        let _ = accepting.await;
        self.shared.with(id, Instance::tell_to_suspend);
        let alone = |instance: &mut Instance| instance.members.is_empty();
        let waited = timeout_at((begin + limit).into(), self.shared.until(id, alone)).await;
        match waited {
            Ok(Ok(())) => self.suspended(id, begin),
            Ok(Err(_)) => Err(SuspendError::Unknown),
            Err(_) => Err(self.silent(id, limit)),
        }
    }

    /// Parts with the processes in the virtual machine `id` without their word: its guest stands still, so they cannot answer `Suspend`. They keep
    /// their seats. When they run again, here or on another host, they find their connections closed and attach again.
    pub fn part_without_word(&self, id: InstanceId) {
        self.shared.with(id, Instance::part_without_word);
    }

    /// Waits up to `limit` until all processes with a seat in a running instance are attached. A process that lost its attachment
    /// when the node restarted would not receive `Suspend`, and would keep its links to the old host.
    ///
    /// # Errors
    /// If the instance is not on this host, or some process stays unattached.
    pub async fn whole(&self, id: InstanceId, limit: Duration) -> Result<(), SuspendError> {
        let whole = |instance: &mut Instance| instance.must_be_whole().is_ok();
        match timeout(limit, self.shared.until(id, whole)).await {
            Ok(waited) => waited.map_err(|_| SuspendError::Unknown),
            Err(_) => {
                self.shared.with(id, |instance| instance.must_be_whole()).ok_or(SuspendError::Unknown)?
            }
        }
    }

    fn suspended(&self, id: InstanceId, begin: Instant) -> Result<SuspendReport, SuspendError> {
        let report = self.shared.with(id, |instance| {
            instance.phase = Phase::Suspended;
            let mut processes = std::mem::take(&mut instance.suspended);
            processes.sort_by_key(|report| report.process);
            SuspendReport { processes, elapsed: begin.elapsed() }
        });
        report.ok_or(SuspendError::Unknown)
    }

    fn silent(&self, id: InstanceId, limit: Duration) -> SuspendError {
        let silent = self.shared.with(id, |instance| {
            instance.phase = Phase::Suspended;
            instance.members.values().map(|member| format!("PID {}", member.pid)).collect()
        });
        silent.map_or(SuspendError::Unknown, |processes| SuspendError::Silent { processes, limit })
    }

    /// The epoch of the process at the other end of `request`, or why it cannot have links now; `None` if its
    /// instance is not here.
    #[must_use]
    pub fn reachable(&self, request: &LinkRequest) -> Option<Result<Epoch, LinkRefusal>> {
        self.shared.reachable(request)
    }

    /// Delivers its end of a link from another host to a process.
    ///
    /// # Errors
    /// If the process cannot have links now.
    pub fn deliver(&self, request: &LinkRequest, socket: TcpStream) -> Result<(), LinkRefusal> {
        link::deliver(&self.shared, request, socket)
    }

    /// Forwards a nudge from another host.
    ///
    /// # Errors
    /// If the process cannot have links now.
    pub fn nudge(&self, request: &LinkRequest) -> Result<(), LinkRefusal> {
        link::nudge(&self.shared, request)
    }
}

/// The result of [`Shared::begin_link`].
pub(crate) enum LinkBegun {
    Yes,
    /// The link is already being made.
    Already,
    /// The instance waits for [`MAX_WAITING_LINKS`] already.
    TooMany,
}

/// The state that the tasks of a broker share. Locks are held only briefly, never across an await.
pub(crate) struct Shared {
    instances: Mutex<HashMap<InstanceId, Instance>>,
    waiting_links: Mutex<HashMap<InstanceId, HashSet<LinkRequest>>>,
    traffic: Mutex<Matrix>,
    pub peers: Box<dyn Peers>,
    observer: Box<dyn Observer>,
    serials: AtomicU64,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, HashMap<InstanceId, Instance>> {
        lock(&self.instances)
    }

    pub fn next_serial(&self) -> u64 {
        self.serials.fetch_add(1, Ordering::Relaxed)
    }

    /// Calls `work` with the instance, if it is here.
    pub fn with<T>(&self, id: InstanceId, work: impl FnOnce(&mut Instance) -> T) -> Option<T> {
        self.lock().get_mut(&id).map(work)
    }

    pub fn epoch(&self, id: InstanceId) -> Option<Epoch> {
        self.with(id, |instance| instance.epoch)
    }

    pub fn namespaces(&self, id: InstanceId) -> Option<(Arc<OwnedFd>, Option<Namespace>)> {
        self.with(id, |instance| (instance.network.clone(), instance.pids))
    }

    pub fn reachable(&self, request: &LinkRequest) -> Option<Result<Epoch, LinkRefusal>> {
        let wanted = |instance: &mut Instance| instance.here.then(|| instance.reachable(request.to.index));
        self.with(request.to_instance(), wanted).flatten()
    }

    /// Records that a link is being made.
    pub fn begin_link(&self, request: LinkRequest) -> LinkBegun {
        let mut waiting = lock(&self.waiting_links);
        let waiting = waiting.entry(request.from_instance()).or_default();
        if waiting.len() >= MAX_WAITING_LINKS {
            LinkBegun::TooMany
        } else if waiting.insert(request) {
            LinkBegun::Yes
        } else {
            LinkBegun::Already
        }
    }

    pub fn end_link(&self, request: LinkRequest) {
        let mut waiting = lock(&self.waiting_links);
        let Some(of_instance) = waiting.get_mut(&request.from_instance()) else { return };
        of_instance.remove(&request);
        if of_instance.is_empty() {
            waiting.remove(&request.from_instance());
        }
    }

    pub fn count(&self, instance: InstanceId, report: &[(Vid, Traffic)]) {
        lock(&self.traffic).add(instance.vid, report, Instant::now());
    }

    pub fn answer(&self, instance: InstanceId, process: ProcessId, number: u64, answer: Answer) {
        let message = ToProcess::Directory { number, answer };
        self.with(instance, |instance| instance.post(process.index, message, Vec::new()));
    }

    /// Whether one more request may go to the directory for the instance now.
    pub fn may_ask(&self, id: InstanceId) -> bool {
        self.with(id, |instance| instance.allowance.directory.take(Instant::now())) == Some(true)
    }

    /// The semaphore for links that are being opened to other hosts for an instance.
    pub fn openings(&self, id: InstanceId) -> Option<Arc<Semaphore>> {
        self.with(id, |instance| instance.allowance.openings.clone())
    }

    pub fn admit(
        &self,
        id: InstanceId,
        arrival: Arrival,
        role: Role,
        resume: Option<ProcessId>,
    ) -> Result<Seat, NotAdmitted> {
        let mut instances = self.lock();
        let instance = instances.get_mut(&id).ok_or(NotAdmitted::Later)?;
        let seat = instance.admit(arrival, role, resume)?;
        self.observer.roster_changed(id, &instance.carried.roster);
        Ok(seat)
    }

    pub fn leave(&self, id: InstanceId, seat: Seat, serial: u64) {
        self.with(id, |instance| {
            if instance.leave(seat, serial) {
                self.observer.roster_changed(id, &instance.carried.roster);
            }
        });
    }

    pub fn keep_output(&self, id: InstanceId, chunk: Chunk) {
        self.with(id, |instance| {
            instance.carried.output.push(chunk);
            instance.changed.notify_waiters();
        });
    }

    /// Waits while a follower of the output lags. It does not wait for the last output of a first process that has received
    /// `Suspend` and writes no more: `parting`.
    pub async fn room_for_output(&self, id: InstanceId, parting: &AtomicBool) {
        let room = |instance: &mut Instance| {
            parting.load(Ordering::Relaxed) || instance.carried.output.has_room(Instant::now())
        };
        while timeout(FOLLOWERS_CHECK, self.until(id, room)).await.is_err() {}
    }

    pub fn exited(&self, id: InstanceId, code: i32) {
        self.with(id, |instance| {
            instance.carried.exit = Some(code);
            self.observer.exited(id, code);
            instance.dismiss();
        });
    }

    pub fn started(&self, id: InstanceId, start: Result<(), NotStarted>) {
        self.with(id, |instance| {
            let failed = start.is_err();
            self.observer.started(id, start);
            if failed {
                instance.dismiss();
            }
        });
    }

    /// Waits until `condition` holds for the instance.
    async fn until(
        &self,
        id: InstanceId,
        mut condition: impl FnMut(&mut Instance) -> bool,
    ) -> Result<(), UnknownInstance> {
        loop {
            let changed = self.with(id, |instance| instance.changed.clone()).ok_or(UnknownInstance(id))?;
            let mut notified = std::pin::pin!(changed.notified());
            notified.as_mut().enable();
            if self.with(id, &mut condition).ok_or(UnknownInstance(id))? {
                return Ok(());
            }
            notified.await;
        }
    }
}

fn resume_report(back: &Back) -> ResumeReport {
    let elapsed = match (back.first, back.last) {
        (Some(first), Some(last)) => last.saturating_duration_since(first),
        _ => Duration::ZERO,
    };
    ResumeReport { slowest_us: back.slowest_us, elapsed, missing: back.missing.clone() }
}

fn end(instance: Option<Instance>) {
    let Some(instance) = instance else { return };
    if let Phase::Listening(accepting) = &instance.phase {
        accepting.abort();
    }
    instance.changed.notify_waiters();
}

fn not_found(id: InstanceId) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, UnknownInstance(id))
}
