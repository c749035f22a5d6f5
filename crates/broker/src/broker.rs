use std::collections::{HashMap, HashSet};
use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fabric::attach::{LinkRefusal, NotStarted, Role, SOCKET_NAME, ToProcess};
use fabric::directory::{Answer, Due};
use fabric::link::LinkRequest;
use fabric::session::{SessionId, ToSession};
use fabric::{Epoch, InstanceId, ProcessId, netns, seqpacket};
use instance::{Carried, Chunk, Follower, Roster};
use tokio::sync::{Notify, Semaphore};
use tokio::time::{timeout, timeout_at};

use crate::instance::{Allowance, Arrival, Back, Instance, NotAdmitted, Outgoing, Phase, Seat};
use crate::namespace::Namespace;
use crate::peers::{Observer, Peers};
use crate::report::{ResumeReport, SuspendError, SuspendReport};
use crate::{connection, link};

/// How long a process may stay away once its instance runs again; after that it counts as ended.
const REATTACH_LIMIT: Duration = Duration::from_secs(10);

/// How often it is looked whether a follower that lags has been silent for too long.
const FOLLOWERS_CHECK: Duration = Duration::from_secs(1);

/// The most links that the processes of an instance may be waiting for at a time.
const MAX_WAITING_LINKS: usize = 1 << 14;

/// The instances of one host. Clones are the same broker.
#[derive(Clone)]
pub struct Broker {
    shared: Arc<Shared>,
}

/// An instance to take on.
#[derive(Debug)]
pub struct Config {
    /// Its identity.
    pub id: InstanceId,
    /// Its network namespace.
    pub network: OwnedFd,
    /// Its PID namespace. Without one whoever reaches the socket may attach, also a
    /// thread that has only come into the network namespace.
    pub pids: Option<Namespace>,
    /// What another broker knew of it, if there was one.
    pub carried: Carried,
}

/// The broker does not have such an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("instance {0} is not on this host")]
pub struct UnknownInstance(pub InstanceId);

impl Broker {
    /// A broker without instances.
    pub fn new(peers: impl Peers, observer: impl Observer) -> Self {
        let shared = Shared {
            instances: Mutex::default(),
            waiting_links: Mutex::default(),
            peers: Box::new(peers),
            observer: Box::new(observer),
            serials: AtomicU64::new(1),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Takes an instance on, in place of one of the same identity. It is suspended.
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

    /// Says which PID namespace the instance has, if it was not known when the instance was added.
    pub fn set_pids(&self, id: InstanceId, pids: Namespace) {
        self.shared.with(id, |instance| instance.pids = Some(pids));
    }

    /// Forgets an instance and cuts its processes off.
    pub fn remove(&self, id: InstanceId) {
        let old = self.shared.lock().remove(&id);
        end(old);
    }

    /// The instances of this host.
    #[must_use]
    pub fn instances(&self) -> Vec<InstanceId> {
        self.shared.lock().keys().copied().collect()
    }

    /// Who has a seat in each of the instances.
    #[must_use]
    pub fn rosters(&self) -> Vec<(InstanceId, Roster)> {
        self.shared.lock().iter().map(|(id, instance)| (*id, instance.carried.roster.clone())).collect()
    }

    /// Hands a process what the directory has answered. One that is away asks again when it is back.
    pub fn answer(&self, due: Due) {
        let Due { asker, number, answer } = due;
        self.shared.answer(asker.instance(), asker.process, number, answer);
    }

    /// Makes all processes publish and ask again, and sessions say again: who hears them may have forgotten it, or missed it.
    pub fn ask_again(&self) {
        self.shared.lock().values().for_each(Instance::ask_again);
    }

    /// Hands an instance's first process a message for a session. It is lost if the process is away, and if the instance
    /// is; its first word when it is back tells what it has.
    pub fn tell_session(&self, instance: InstanceId, id: SessionId, message: ToSession) {
        let message = ToProcess::Session { id, message };
        self.shared.with(instance, |instance| instance.tell_sessions(message));
    }

    /// What another broker has to know to take the instance over.
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

    /// A follower will come: until then, for up to [`Output::PATIENCE`](instance::Output::PATIENCE), the command waits
    /// rather than that its output is dropped.
    pub fn expect_follower(&self, id: InstanceId) {
        self.shared.with(id, |instance| instance.carried.output.expect_follower(Instant::now()));
    }

    /// `follower` has had all output before position `next`, and what comes then is kept for it: the command waits
    /// when it lags, for up to [`Output::PATIENCE`](instance::Output::PATIENCE) after its last word.
    pub fn follow(&self, id: InstanceId, follower: Follower, next: u64) {
        self.shared.with(id, |instance| {
            instance.carried.output.follow(follower, next, Instant::now());
            instance.changed.notify_waiters();
        });
    }

    /// `follower` reads no more.
    pub fn unfollow(&self, id: InstanceId, follower: Follower) {
        self.shared.with(id, |instance| {
            instance.carried.output.unfollow(follower);
            instance.changed.notify_waiters();
        });
    }

    /// Listens for the processes of a suspended instance, which has made `epoch` moves. One that is listened
    /// for already stays as it is.
    ///
    /// # Errors
    /// `NotFound` if there is no such instance; otherwise those of making the socket.
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

    /// Waits until every process that had a seat is back and has resumed, or has been given up.
    ///
    /// # Errors
    /// If the instance is not on this host, or no more.
    pub async fn resumed(&self, id: InstanceId) -> Result<ResumeReport, UnknownInstance> {
        let all_back = |instance: &mut Instance| instance.still_away().is_empty();
        self.shared.until(id, all_back).await?;
        self.shared.with(id, |instance| resume_report(&instance.back)).ok_or(UnknownInstance(id))
    }

    /// Makes every process of the instance let go within `limit`. When it returns, nobody is attached and
    /// nobody can attach.
    ///
    /// # Errors
    /// If the instance is not running here, some process is away, which [`Broker::whole`] waits for, or does not let go. In the
    /// last case [`Broker::resume`] undoes what has been done; otherwise nothing has been.
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
        self.shared.with(id, tell_all_to_suspend);
        let alone = |instance: &mut Instance| instance.members.is_empty();
        let waited = timeout_at((begin + limit).into(), self.shared.until(id, alone)).await;
        match waited {
            Ok(Ok(())) => self.suspended(id, begin),
            Ok(Err(_)) => Err(SuspendError::Unknown),
            Err(_) => Err(self.silent(id, limit)),
        }
    }

    /// Waits until no process of a running instance is away, for as long as `limit`: one that a node before this has lost would
    /// not hear that it moves, and would speak for where it was.
    ///
    /// # Errors
    /// If the instance is not on this host, or some process is away all the time.
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

    /// Whether the process that `request` wants can have links now, and its epoch; `None` if its
    /// instance is not here.
    #[must_use]
    pub fn reachable(&self, request: &LinkRequest) -> Option<Result<Epoch, LinkRefusal>> {
        self.shared.reachable(request)
    }

    /// Hands the wanted process its end of a link from another host.
    ///
    /// # Errors
    /// If it cannot have links now.
    pub fn deliver(&self, request: &LinkRequest, socket: TcpStream) -> Result<(), LinkRefusal> {
        link::deliver(&self.shared, request, socket)
    }

    /// Passes on a wish from another host.
    ///
    /// # Errors
    /// If the wanted process cannot have links now.
    pub fn nudge(&self, request: &LinkRequest) -> Result<(), LinkRefusal> {
        link::nudge(&self.shared, request)
    }
}

/// Whether a link may be made now.
pub(crate) enum LinkBegun {
    Yes,
    /// It is being made.
    Already,
    /// [`MAX_WAITING_LINKS`] of the instance are.
    TooMany,
}

/// What the tasks of a broker share. The locks are held for short work only, never across an await.
pub(crate) struct Shared {
    instances: Mutex<HashMap<InstanceId, Instance>>,
    waiting_links: Mutex<HashMap<InstanceId, HashSet<LinkRequest>>>,
    pub peers: Box<dyn Peers>,
    observer: Box<dyn Observer>,
    serials: AtomicU64,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, HashMap<InstanceId, Instance>> {
        self.instances.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn next_serial(&self) -> u64 {
        self.serials.fetch_add(1, Ordering::Relaxed)
    }

    /// What `work` returns for the instance, if there is such an instance.
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

    /// Notes that a link is being made.
    pub fn begin_link(&self, request: LinkRequest) -> LinkBegun {
        let mut waiting = self.waiting_links.lock().unwrap_or_else(PoisonError::into_inner);
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
        let mut waiting = self.waiting_links.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(of_instance) = waiting.get_mut(&request.from_instance()) else { return };
        of_instance.remove(&request);
        if of_instance.is_empty() {
            waiting.remove(&request.from_instance());
        }
    }

    pub fn answer(&self, instance: InstanceId, process: ProcessId, number: u64, answer: Answer) {
        let message = ToProcess::Directory { number, answer };
        self.with(instance, |instance| instance.post(process.index, message, Vec::new()));
    }

    /// Whether one more request may go to the directory for the instance now.
    pub fn may_ask(&self, id: InstanceId) -> bool {
        self.with(id, |instance| instance.allowance.directory.take(Instant::now())) == Some(true)
    }

    /// What may be opened to other hosts for an instance at a time.
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

    /// Waits while a follower of the output lags, but not for the last words of a first process that has been told to
    /// suspend, and writes no more: `parting`.
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

fn tell_all_to_suspend(instance: &mut Instance) {
    instance.suspended.clear();
    // A process whose queue is full does not read: it will be found silent.
    for member in instance.members.values() {
        let _ = member.queue.try_send(Outgoing::bare(ToProcess::Suspend));
    }
    instance.changed.notify_waiters();
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
