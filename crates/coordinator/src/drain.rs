//! Drains: no instance starts on a drained host any more, and its instances move away.
//!
//! A drain is a task that makes moves one by one, or several in parallel; it does not need a connected client. The store records which
//! hosts are drained. The remaining moves are computed from the current state, so a drain that the coordinator's end interrupted is simply requested again.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use api::{
    DrainReport, DrainRequest, Event, Failure, MAX_PARALLEL, MoveReport, MoveRequest, Occurrence, Outcome,
    PlannedMove, Stayed,
};
use fabric::Vid;
use moves::journal::{MoveRecord, Stage};
use moves::{HostName, MoveId};
use planner::{Assignment, Goal, Leaving, Planned, View};
use rpc::wire::{self, Answer, Question};
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::cluster::{Cluster, Inner};
use crate::follow::Events;
use crate::server::Client;
use crate::{failure, hosts, instances, moving, planning};

/// Time limit for a host to report an instance's size, and the number of such questions in flight per host.
const WEIGH_LIMIT: Duration = Duration::from_secs(10);
const WEIGHED_AT_A_TIME: usize = 8;

/// Time after the coordinator's start in which some hosts may not have connected again.
const GATHERING: Duration = Duration::from_secs(10);

/// How often the coordinator checks meanwhile whether all hosts have connected.
const LOOK: Duration = Duration::from_millis(50);

/// The drained hosts.
#[derive(Default)]
pub struct Drains {
    hosts: BTreeMap<HostName, Progress>,
    last: u64,
}

/// Progress of the drain of a host.
#[derive(Default)]
struct Progress {
    /// Serial number of the drain; a new drain ends the previous one.
    number: u64,
    /// Whether the drain is in progress.
    goes_on: bool,
    /// Moves of the drain that are not over.
    moves: BTreeSet<MoveId>,
}

impl Drains {
    /// Loads the drained `hosts` from the store; no drain is in progress.
    pub fn load(hosts: Vec<String>) -> Self {
        let names = hosts.iter().filter_map(|host| HostName::new(host).ok());
        Self { hosts: names.map(|host| (host, Progress::default())).collect(), last: 0 }
    }

    /// Whether `host` is drained.
    pub fn contains(&self, host: &HostName) -> bool {
        self.hosts.contains_key(host)
    }

    /// All drained hosts.
    pub fn hosts(&self) -> impl Iterator<Item = &HostName> {
        self.hosts.keys()
    }

    fn begin(&mut self, host: &HostName) -> u64 {
        self.last += 1;
        let progress = self.hosts.entry(host.clone()).or_default();
        (progress.number, progress.goes_on) = (self.last, true);
        self.last
    }

    fn is_under_way(&self, host: &HostName, number: u64) -> bool {
        self.hosts.get(host).is_some_and(|progress| progress.number == number)
    }

    /// Whether a drain of `host` is in progress.
    pub fn is_draining(&self, host: &HostName) -> bool {
        self.hosts.get(host).is_some_and(|progress| progress.goes_on)
    }

    /// Ends the drain with this serial number.
    fn end(&mut self, host: &HostName, number: u64) {
        if let Some(progress) = self.hosts.get_mut(host).filter(|progress| progress.number == number) {
            progress.goes_on = false;
        }
    }

    fn note(&mut self, host: &HostName, id: MoveId) {
        if let Some(progress) = self.hosts.get_mut(host) {
            progress.moves.insert(id);
        }
    }

    fn forget(&mut self, host: &HostName, id: MoveId) {
        if let Some(progress) = self.hosts.get_mut(host) {
            progress.moves.remove(&id);
        }
    }
}

/// Drains a host, or plans that on a dry run, and reports progress to the client. The drain goes on if the client disconnects.
///
/// # Errors
/// If the client cannot be told.
pub async fn make(cluster: &Arc<Cluster>, request: DrainRequest, client: &mut Client) -> io::Result<()> {
    tokio::select! {
        () = wait_for_hosts(cluster, &request) => {}
        () = client.gone() => return Ok(()),
    }
    match begin(cluster, &request) {
        Ok(events) => moving::pass_on(events, client).await,
        Err(failure) => client.say(&Event::Failed(failure)).await,
    }
}

fn begin(cluster: &Arc<Cluster>, request: &DrainRequest) -> Result<Events, Failure> {
    let mut inner = cluster.lock();
    let mut drain = Drain::new(&inner, request)?;
    let (user, events) = mpsc::unbounded_channel();
    if request.dry_run {
        tokio::spawn(drain.plan(cluster.clone(), user));
    } else {
        inner.check_whole()?;
        if !inner.drains.contains(&drain.host) {
            inner.store.ready().map_err(|error| failure::of_store(&error))?;
            set_drained(cluster, &mut inner, &drain.host, true)?;
        }
        drain.number = inner.drains.begin(&drain.host);
        let instances = instances::instances_on(&inner, &drain.host);
        inner.log.note(&Occurrence::DrainBegan { host: drain.host.to_string(), instances });
        // A previous drain of this host ends.
        cluster.move_over.notify_waiters();
        tokio::spawn(drain.run(cluster.clone(), user));
    }
    Ok(events)
}

/// Waits for hosts that may reconnect after the coordinator has restarted.
async fn wait_for_hosts(cluster: &Cluster, request: &DrainRequest) {
    let are_there = |inner: &Inner| {
        let drain = Drain::new(inner, request);
        drain.is_ok_and(|drain| inner.nodes.contains_key(&drain.host) || drain.left(inner).is_empty())
    };
    while cluster.now() < GATHERING && !are_there(&cluster.lock()) {
        sleep(LOOK).await;
    }
}

/// Undrains a host, so that instances can start on it again. A drain in progress ends: its uncommitted moves are rolled back.
pub fn undo(cluster: &Cluster, name: &str) -> Result<Event, Failure> {
    let mut inner = cluster.lock();
    let host = hosts::find(&inner, name)?;
    if !inner.drains.contains(&host) {
        return Err(failure::not_drained(&host));
    }
    inner.check_whole()?;
    set_drained(cluster, &mut inner, &host, false)?;
    inner.log.note(&Occurrence::Undrained { host: host.to_string() });
    let progress = inner.drains.hosts.remove(&host).unwrap_or_default();
    for id in progress.moves {
        // Moves that are committed or over are not rolled back.
        let _ = moving::cancel_for(cluster, &mut inner, id, wire::reason(failure::CANCELLED, ""));
    }
    cluster.move_over.notify_waiters();
    Ok(Event::Done)
}

/// Forgets a removed host. A drain of it that is in progress ends.
pub fn forget(cluster: &Cluster, inner: &mut Inner, host: &HostName) -> Result<(), Failure> {
    if !inner.drains.contains(host) {
        return Ok(());
    }
    set_drained(cluster, inner, host, false)?;
    inner.drains.hosts.remove(host);
    cluster.move_over.notify_waiters();
    Ok(())
}

fn set_drained(
    cluster: &Cluster,
    inner: &mut Inner,
    host: &HostName,
    is_drained: bool,
) -> Result<(), Failure> {
    let written = inner.store.set_drained(host.as_str(), is_drained);
    written.map_err(|error| cluster.not_written(inner, error))
}

/// A requested drain.
struct Drain {
    host: HostName,
    /// Allowed destinations; empty means any.
    targets: BTreeSet<HostName>,
    parallel: usize,
    number: u64,
}

/// Known sizes of instances: bytes that a move has to transfer.
type Weights = HashMap<Vid, u64>;

/// Attempts with instances that have not moved.
#[derive(Default)]
struct Tried {
    /// Instances whose moves have not ended.
    under_way: BTreeSet<Vid>,
    hosts: HashMap<Vid, BTreeSet<HostName>>,
    weights: Weights,
    failures: HashMap<Vid, Failure>,
}

impl Drain {
    /// Validates the request.
    fn new(inner: &Inner, request: &DrainRequest) -> Result<Self, Failure> {
        let host = hosts::find(inner, &request.host)?;
        let mut targets = BTreeSet::new();
        for target in &request.to {
            let target = planning::usable_host(inner, target)?;
            if target == host {
                return Err(failure::drained_to_itself(&host));
            }
            targets.insert(target);
        }
        if !(1..=MAX_PARALLEL).contains(&request.parallel) {
            return Err(failure::wrong_parallel(request.parallel, MAX_PARALLEL));
        }
        let drain = Self { host, targets, parallel: request.parallel.into(), number: 0 };
        let is_stuck = || planning::view(inner).destinations(&drain.host, &drain.targets).is_empty();
        if !drain.left(inner).is_empty() && is_stuck() {
            return Err(failure::nowhere_to_go(&drain.host));
        }
        Ok(drain)
    }

    /// Makes moves until no instance is left that can move.
    async fn run(self, cluster: Arc<Cluster>, user: UnboundedSender<Event>) {
        // Events for a client that has disconnected are dropped.
        let tell = |event| drop(user.send(event));
        tell(Event::Draining { instances: instances::instances_on(&cluster.lock(), &self.host) });
        for events in leaving(&mut cluster.lock(), &self.host) {
            let user = user.clone();
            tokio::spawn(async move { moving::last_of(events, &user).await });
        }
        let weights = self.weigh(&cluster).await;
        let mut tried = Tried { weights, ..Tried::default() };
        let (mut moved, mut under_way) = (0, JoinSet::new());
        let mut heard = Instant::now();
        loop {
            let changes = [&cluster.move_over, &cluster.started, &cluster.ended];
            let mut changes = changes.map(|change| Box::pin(change.notified()));
            for change in &mut changes {
                change.as_mut().enable();
            }
            for (vid, id, events) in self.begin_moves(&cluster, &mut tried) {
                let user = user.clone();
                under_way.spawn(async move { (vid, id, moving::last_of(events, &user).await) });
            }
            let is_there = cluster.lock().nodes.contains_key(&self.host);
            if is_there {
                heard = Instant::now();
            }
            // The host of a restarted node reconnects within moments.
            let is_over = !self.is_awaited(&cluster.lock()) || heard.elapsed() > GATHERING;
            if under_way.is_empty() && is_over {
                break;
            }
            let [move_over, started, ended] = &mut changes;
            tokio::select! {
                Some(Ok((vid, id, last))) = under_way.join_next() => {
                    tried.under_way.remove(&vid);
                    cluster.lock().drains.forget(&self.host, id);
                    let Some(Event::Moved(report)) = last else { continue };
                    match failure_of(&report) {
                        Some(failure) => drop(tried.failures.insert(vid, failure)),
                        None => moved += 1,
                    }
                    tell(Event::MoveOver(report));
                    tell(self.remaining(&cluster.lock(), &tried));
                }
                () = move_over => {}
                () = started => {}
                () = ended => {}
                () = sleep(LOOK), if !is_there => {}
            }
        }
        let mut inner = cluster.lock();
        let outcome = self.outcome(&inner, moved, tried);
        inner.drains.end(&self.host, self.number);
        tell(outcome);
    }

    /// Begins as many moves as the limit allows beside those in progress.
    fn begin_moves(&self, cluster: &Cluster, tried: &mut Tried) -> Vec<(Vid, MoveId, Events)> {
        let mut inner = cluster.lock();
        let mut begun = Vec::new();
        while let room @ 1.. = self.parallel - tried.under_way.len() {
            let next = self.next(&inner, tried, room);
            if next.is_empty() {
                break;
            }
            for (vid, name, to) in next {
                // A drain overrides the cool-down.
                let request =
                    MoveRequest { name, host: to.to_string(), dry_run: false, force: true, post_copy: false };
                tried.hosts.entry(vid).or_default().insert(to);
                match moving::begin(&mut inner, cluster, &request) {
                    Ok((id, events)) => {
                        inner.drains.note(&self.host, id);
                        tried.under_way.insert(vid);
                        begun.push((vid, id, events));
                    }
                    Err(failure) => drop(tried.failures.insert(vid, failure)),
                }
            }
        }
        begun
    }

    /// The next instances that can move now, at most `most`, each with a destination that was not tried yet.
    fn next(&self, inner: &Inner, tried: &Tried, most: usize) -> Vec<(Vid, String, HostName)> {
        if !inner.drains.is_under_way(&self.host, self.number) || !inner.nodes.contains_key(&self.host) {
            return Vec::new();
        }
        let may_go = |vid: Vid| {
            let failure = tried.failures.get(&vid);
            is_free(inner, vid)
                && !tried.under_way.contains(&vid)
                && failure.is_none_or(|why| why.message != failure::CANCELLED)
        };
        let free = self.in_order(inner, &tried.weights).into_iter().filter(|(vid, _)| may_go(*vid));
        let (free, nowhere): (Vec<_>, _) = (free.collect(), BTreeSet::new());
        let leaving =
            |(vid, _): &(Vid, String)| Leaving { vid: *vid, avoid: tried.hosts.get(vid).unwrap_or(&nowhere) };
        let instances: Vec<_> = free.iter().map(leaving).collect();
        let goal = Goal::Evacuate { from: &self.host, to: &self.targets, instances: &instances, most };
        // Instances that can go nowhere are reported at the end.
        let planned = planner::plan(&planning::view(inner), &goal).unwrap_or_default();
        let next = |Assignment { which, to }| {
            let (vid, name) = free[which].clone();
            (vid, name, to)
        };
        planned.into_iter().map(next).collect()
    }

    /// The sizes of the instances on the host.
    async fn weigh(&self, cluster: &Arc<Cluster>) -> Weights {
        let left = self.left(&cluster.lock());
        let (mut weights, mut asked) = (Weights::new(), JoinSet::new());
        let mut waiting = left.into_iter();
        loop {
            while asked.len() < WEIGHED_AT_A_TIME
                && let Some((vid, _)) = waiting.next()
            {
                let (cluster, host) = (cluster.clone(), self.host.clone());
                asked.spawn(
                    async move { (vid, cluster.ask(&host, Question::Weigh { vid }, WEIGH_LIMIT).await) },
                );
            }
            match asked.join_next().await {
                Some(Ok((vid, Ok(Answer::Weight { bytes })))) => drop(weights.insert(vid, bytes)),
                // A failure here shows again, with its reason, in the move.
                Some(_) => {}
                None => return weights,
            }
        }
    }

    /// Estimate of the remaining moves, if none fails.
    fn remaining(&self, inner: &Inner, tried: &Tried) -> Event {
        let left = self.left(inner);
        let time = |vid| Some(inner.experience.estimate(*tried.weights.get(vid)?)?.total_us);
        let times: Option<Vec<u64>> = left.iter().map(|(vid, _)| time(vid)).collect();
        // `parallel` moves run at a time, but the total is not shorter than the slowest move.
        let time_us = times.map(|times| {
            let all: u64 = times.iter().sum();
            (all / self.parallel as u64).max(times.into_iter().max().unwrap_or_default())
        });
        Event::Remaining { instances: left.len() as u32, time_us }
    }

    /// Whether the drain has to wait for operations that it did not start itself.
    fn is_awaited(&self, inner: &Inner) -> bool {
        let is_away = || !inner.nodes.contains_key(&self.host);
        inner.drains.is_under_way(&self.host, self.number)
            && (self.left(inner).iter().any(|(vid, _)| !is_free(inner, *vid) || is_away())
                || coming(inner, &self.host) > 0
                || !moves_from(inner, &self.host).is_empty())
    }

    /// The final report after `moved` instances have moved.
    fn outcome(&self, inner: &Inner, moved: u32, mut tried: Tried) -> Event {
        if !inner.drains.is_under_way(&self.host, self.number) {
            inner.log.note(&Occurrence::DrainEnded { host: self.host.to_string(), moved });
            return Event::Failed(failure::drain_ended(&self.host, moved));
        }
        let mut stayed = Vec::new();
        for (vid, name) in self.left(inner) {
            stayed.push(Stayed {
                name,
                why: tried.failures.remove(&vid).unwrap_or_else(|| self.why_left(inner, vid)),
            });
        }
        let (host, left) = (self.host.to_string(), stayed.len() as u32);
        inner.log.note(&Occurrence::Drained { host, moved, stayed: left });
        Event::Drained(DrainReport { host: self.host.to_string(), moved, stayed })
    }

    /// Why no move of an instance was begun.
    fn why_left(&self, inner: &Inner, vid: Vid) -> Failure {
        if !inner.nodes.contains_key(&self.host) {
            return failure::host_down(&self.host);
        }
        let view = planning::view(inner);
        let destinations = view.destinations(&self.host, &self.targets);
        let mut refused = destinations.iter().filter_map(|host| view.check_move(vid, host).err());
        refused.next().map_or_else(|| failure::nowhere_to_go(&self.host), planning::refused)
    }

    /// Dry run: reports for each instance its destination, or the blockers at all destinations.
    async fn plan(self, cluster: Arc<Cluster>, user: UnboundedSender<Event>) {
        let (mut planned, mut plan) = (Planned::new(), Vec::new());
        let weights = self.weigh(&cluster).await;
        let left = self.in_order(&cluster.lock(), &weights);
        for (vid, name) in left {
            moving::wait_for_start(&cluster, &name).await;
            let (mut to, mut obstacles) = (None, Vec::new());
            let destinations = self.destinations(&cluster.lock(), &planned);
            for host in destinations {
                let place = View { planned: planned.clone(), ..planning::view(&cluster.lock()) }
                    .check_move(vid, &host);
                let found = match place {
                    Ok(()) => moving::check(&cluster, &name, &host, true).await,
                    Err(refusal) => vec![planning::refused(refusal)],
                };
                if found.is_empty() {
                    planned.insert(vid, host.clone());
                    (to, obstacles) = (Some(host.to_string()), Vec::new());
                    break;
                }
                let of_host =
                    |found: Failure| Failure::new(format!("{host}: {}", found.message), found.remedy);
                obstacles.extend(found.into_iter().map(of_host));
            }
            let bytes = weights.get(&vid).copied();
            let estimate = bytes.and_then(|bytes| cluster.lock().experience.estimate(bytes));
            let cools_down_for_s = cluster.lock().cools_down_for(vid);
            plan.push(PlannedMove {
                name,
                cools_down_for_s,
                bytes,
                total_us: estimate.map(|estimate| estimate.total_us),
                blackout_us: estimate.map(|estimate| estimate.blackout_us),
                to,
                obstacles,
            });
        }
        // Events for a client that has disconnected are dropped.
        let _ = user.send(Event::Plan(plan));
    }

    /// The instances on the host, in the order of their names.
    fn left(&self, inner: &Inner) -> Vec<(Vid, String)> {
        let here = inner.machine.image().instances.iter().filter(|(_, instance)| instance.host == self.host);
        let mut left: Vec<_> = here.map(|(vid, instance)| (*vid, instance.name.clone())).collect();
        left.sort_by(|(_, one), (_, other)| one.cmp(other));
        left
    }

    /// The same instances in the order of their moves: smallest first, so that most leave early; unknown sizes last.
    fn in_order(&self, inner: &Inner, weights: &Weights) -> Vec<(Vid, String)> {
        let mut left = self.left(inner);
        // Sizes are compared in MiB.
        left.sort_by_key(|(vid, _)| weights.get(vid).map_or(u64::MAX, |bytes| bytes >> 20));
        left
    }

    /// Possible destinations, the emptiest host first, as if the `planned` moves had been made.
    fn destinations(&self, inner: &Inner, planned: &Planned) -> Vec<HostName> {
        let view = View { planned: planned.clone(), ..planning::view(inner) };
        view.destinations(&self.host, &self.targets)
    }
}

/// Number of instances that are moving to `host`. Committed moves do not count: their instances are there.
fn coming(inner: &Inner, host: &HostName) -> u32 {
    let is_coming =
        |record: &MoveRecord| record.destination.is(host) && record.stage == Stage::Began && !record.dry_run;
    inner.machine.moves().filter(|view| is_coming(view.record)).count() as u32
}

/// Moves in progress with `host` as their source, including those that no drain has begun.
fn moves_from(inner: &Inner, host: &HostName) -> Vec<MoveId> {
    let is_one = |record: &MoveRecord| record.source.is(host) && !record.dry_run;
    inner
        .machine
        .moves()
        .filter(|view| view.is_under_way && is_one(view.record))
        .map(|view| view.id)
        .collect()
}

/// Event streams of these moves. A previous coordinator may have begun them, so nobody may follow them yet.
fn leaving(inner: &mut Inner, host: &HostName) -> Vec<Events> {
    let moves = moves_from(inner, host);
    moves.into_iter().map(|id| moving::listen(inner, Some(id))).collect()
}

/// Whether no other operation blocks a move of the instance.
fn is_free(inner: &Inner, vid: Vid) -> bool {
    !inner.starting.contains(&vid)
        && !inner.endings.contains_key(&vid)
        && moving::under_way(inner, vid).is_none()
}

fn failure_of(report: &MoveReport) -> Option<Failure> {
    match &report.outcome {
        Outcome::Moved | Outcome::Saved | Outcome::Restored => None,
        Outcome::RolledBack(why) | Outcome::Ended(why) => Some(why.clone()),
    }
}
