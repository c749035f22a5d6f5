//! Drains: no instance starts on a drained host any more, and its instances move away.
//!
//! A drain is a task that makes moves one by one, or several in parallel; it does not need a connected client. The store records which
//! hosts are drained. The remaining moves are computed from the current state, so a drain that the coordinator's end interrupted is simply requested again.

use std::collections::{BTreeSet, HashMap};
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
use planner::{Assignment, Goal, Leaving, Planned, Refusal, Talk, View};
use rpc::wire::{self, Answer, Question};
use store::Change;
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::client::Client;
use crate::core::{Cluster, Command, Owner, State};
use crate::drains::Drains;
use crate::follow::Events;
use crate::follows::Follows;
use crate::lifecycle::Lifecycle;
use crate::network::traffic;
use crate::{cooling, failure, hosts, loads, moving, planning};

/// Time limit for a host to report an instance's size, and the number of such questions in flight per host.
const WEIGH_LIMIT: Duration = Duration::from_secs(10);
const WEIGHED_AT_A_TIME: usize = 8;

/// Time after the coordinator's start in which some hosts may not have connected again.
pub const GATHERING: Duration = Duration::from_secs(10);

/// How often the coordinator checks meanwhile whether all hosts have connected.
pub const LOOK: Duration = Duration::from_millis(50);

/// Drains a host, or plans that on a dry run, and reports progress to the client. The drain goes on if the client disconnects.
///
/// # Errors
/// If sending to the client fails.
pub async fn make(cluster: &Arc<Cluster>, request: DrainRequest, client: &mut Client) -> io::Result<()> {
    tokio::select! {
        () = wait_for_hosts(cluster, &request) => {}
        () = client.gone() => return Ok(()),
    }
    match cluster.run(BeginDrain { cluster: cluster.clone(), request }).await {
        Ok(events) => moving::pass_on(events, client).await,
        Err(failure) => client.say(&Event::Failed(failure)).await,
    }
}

/// Begins a drain that nobody follows.
///
/// # Errors
/// If it is refused.
pub async fn begin(cluster: &Arc<Cluster>, request: DrainRequest) -> Result<(), Failure> {
    cluster.run(BeginDrain { cluster: cluster.clone(), request }).await.map(drop)
}

/// A drain, or its dry run.
struct BeginDrain {
    cluster: Arc<Cluster>,
    request: DrainRequest,
}

impl Command for BeginDrain {
    type Reply = Result<Events, Failure>;

    async fn run(self, owner: &mut Owner) -> Self::Reply {
        let Self { cluster, request } = self;
        let mut drain = Drain::new(&owner.view(), &request)?;
        let (user, events) = mpsc::unbounded_channel();
        if request.dry_run {
            tokio::spawn(drain.plan(cluster, user));
            return Ok(events);
        }
        owner.view().check_whole()?;
        let is_drained = owner.view().get::<Drains>().contains(&drain.host);
        if !is_drained {
            owner.ready().await?;
            set_drained(owner, &drain.host, true).await?;
        }
        drain.number = owner.edit(|state| state.get_mut::<Drains>().begin(&drain.host));
        let view = owner.view();
        let instances = view.instances_on(&drain.host);
        view.log().note(&Occurrence::DrainBegan { host: drain.host.to_string(), instances });
        // A previous drain of this host ends.
        view.signals().move_over.notify_waiters();
        tokio::spawn(drain.run(cluster, user));
        Ok(events)
    }
}

/// Waits for hosts that may reconnect after the coordinator has restarted.
async fn wait_for_hosts(cluster: &Cluster, request: &DrainRequest) {
    let are_there = |state: &State| {
        let drain = Drain::new(state, request);
        drain.is_ok_and(|drain| state.links().is_up(&drain.host) || drain.left(state).is_empty())
    };
    while cluster.now() < GATHERING && !are_there(&cluster.view()) {
        sleep(LOOK).await;
    }
}

/// Undrains a host, so that instances can start on it again. A drain in progress ends: its uncommitted moves are rolled back.
pub async fn undo(cluster: &Cluster, name: String) -> Result<Event, Failure> {
    cluster.run(Undrain { name }).await
}

struct Undrain {
    name: String,
}

impl Command for Undrain {
    type Reply = Result<Event, Failure>;

    async fn run(self, owner: &mut Owner) -> Self::Reply {
        let host = drained(&owner.view(), &self.name)?;
        set_drained(owner, &host, false).await?;
        owner.view().log().note(&Occurrence::Undrained { host: host.to_string() });
        let moves = owner.edit(|state| state.get_mut::<Drains>().remove(&host));
        for id in moves {
            // Moves that are committed or over are not rolled back.
            let _ = moving::cancel_for(owner, id, wire::reason(failure::CANCELLED, "")).await;
        }
        owner.view().signals().move_over.notify_waiters();
        Ok(Event::Done)
    }
}

/// The drained host called `name`.
fn drained(state: &State, name: &str) -> Result<HostName, Failure> {
    let host = hosts::find(state, name)?;
    if !state.get::<Drains>().contains(&host) {
        return Err(failure::not_drained(&host));
    }
    state.check_whole()?;
    Ok(host)
}

/// Forgets a removed host. A drain of it that is in progress ends.
pub async fn forget(owner: &mut Owner, host: &HostName) -> Result<(), Failure> {
    let is_drained = owner.view().get::<Drains>().contains(host);
    if !is_drained {
        return Ok(());
    }
    set_drained(owner, host, false).await?;
    owner.edit(|state| state.get_mut::<Drains>().remove(host));
    owner.view().signals().move_over.notify_waiters();
    Ok(())
}

async fn set_drained(owner: &Owner, host: &HostName, is_drained: bool) -> Result<(), Failure> {
    owner.append(Change::Drained { host: host.to_string(), is_drained }).await
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
    /// The traffic when the drain began.
    talks: Vec<Talk>,
    failures: HashMap<Vid, Failure>,
}

/// As many moves as the limit allows beside those in progress.
struct BeginMoves {
    drain: Arc<Drain>,
    tried: Tried,
}

impl Command for BeginMoves {
    type Reply = (Tried, Vec<(Vid, MoveId, Events)>);

    async fn run(self, owner: &mut Owner) -> Self::Reply {
        let Self { drain, mut tried } = self;
        let mut begun = Vec::new();
        while let room @ 1.. = drain.parallel - tried.under_way.len() {
            let next = drain.next(&owner.view(), &tried, room);
            if next.is_empty() {
                break;
            }
            for (vid, name, to) in next {
                // A drain overrides the cool-down.
                let request = MoveRequest {
                    name,
                    host: to.to_string(),
                    dry_run: false,
                    force: true,
                    post_copy: false,
                    within_s: None,
                };
                tried.hosts.entry(vid).or_default().insert(to);
                match moving::begin(owner, &request).await {
                    Ok((id, events)) => {
                        owner.edit(|state| state.get_mut::<Drains>().note(&drain.host, id));
                        tried.under_way.insert(vid);
                        begun.push((vid, id, events));
                    }
                    Err(failure) => drop(tried.failures.insert(vid, failure)),
                }
            }
        }
        (tried, begun)
    }
}

impl Drain {
    /// Validates the request.
    fn new(state: &State, request: &DrainRequest) -> Result<Self, Failure> {
        let host = hosts::find(state, &request.host)?;
        let mut targets = BTreeSet::new();
        for target in &request.to {
            let target = planning::usable_host(state, target)?;
            if target == host {
                return Err(failure::drained_to_itself(&host));
            }
            targets.insert(target);
        }
        if !(1..=MAX_PARALLEL).contains(&request.parallel) {
            return Err(failure::wrong_parallel(request.parallel, MAX_PARALLEL));
        }
        let drain = Self { host, targets, parallel: request.parallel.into(), number: 0 };
        let is_stuck = || planning::view(state).destinations(&drain.host, &drain.targets).is_empty();
        if !drain.left(state).is_empty() && is_stuck() {
            return Err(failure::nowhere_to_go(&drain.host));
        }
        Ok(drain)
    }

    /// Makes moves until no instance is left that can move.
    async fn run(self, cluster: Arc<Cluster>, user: UnboundedSender<Event>) {
        let drain = Arc::new(self);
        let host = drain.host.clone();
        // Events for a client that has disconnected are dropped.
        let tell = |event| drop(user.send(event));
        tell(Event::Draining { instances: cluster.view().instances_on(&host) });
        let from = host.clone();
        for events in cluster.edit(move |state| leaving(state, &from)).await {
            let user = user.clone();
            tokio::spawn(async move { moving::last_of(events, &user).await });
        }
        let (weights, talks) = drain.measure(&cluster).await;
        let mut tried = Tried { weights, talks, ..Tried::default() };
        let (mut moved, mut under_way) = (0, JoinSet::new());
        let mut heard = Instant::now();
        loop {
            let signals = cluster.signals();
            let changes = [&signals.move_over, &signals.started, &signals.ended];
            let mut changes = changes.map(|change| Box::pin(change.notified()));
            for change in &mut changes {
                change.as_mut().enable();
            }
            let begun;
            (tried, begun) = cluster.run(BeginMoves { drain: drain.clone(), tried }).await;
            for (vid, id, events) in begun {
                let user = user.clone();
                under_way.spawn(async move { (vid, id, moving::last_of(events, &user).await) });
            }
            let is_there = cluster.view().links().is_up(&host);
            if is_there {
                heard = Instant::now();
            }
            // The host of a restarted node reconnects within moments.
            let is_over = !drain.is_awaited(&cluster.view()) || heard.elapsed() > GATHERING;
            if under_way.is_empty() && is_over {
                break;
            }
            let [move_over, started, ended] = &mut changes;
            tokio::select! {
                Some(Ok((vid, id, last))) = under_way.join_next() => {
                    tried.under_way.remove(&vid);
                    let from = host.clone();
                    cluster.edit(move |state| state.get_mut::<Drains>().forget(&from, id)).await;
                    let Some(Event::Moved(report)) = last else { continue };
                    match failure_of(&report) {
                        Some(failure) => drop(tried.failures.insert(vid, failure)),
                        None => moved += 1,
                    }
                    tell(Event::MoveOver(report));
                    tell(drain.remaining(&cluster.view(), &tried));
                }
                () = move_over => {}
                () = started => {}
                () = ended => {}
                () = sleep(LOOK), if !is_there => {}
            }
        }
        let over = move |state: &mut State| {
            // While the state is locked: a task that learns of the end finds it there.
            drop(user.send(drain.outcome(state, moved, tried)));
            state.get_mut::<Drains>().end(&drain.host, drain.number);
        };
        cluster.edit(over).await;
    }

    /// The next instances that can move now, at most `most`, each with a destination that was not tried yet.
    fn next(&self, state: &State, tried: &Tried, most: usize) -> Vec<(Vid, String, HostName)> {
        if !state.get::<Drains>().is_under_way(&self.host, self.number) || !state.links().is_up(&self.host) {
            return Vec::new();
        }
        let may_go = |vid: Vid| {
            let failure = tried.failures.get(&vid);
            is_free(state, vid)
                && !tried.under_way.contains(&vid)
                && failure.is_none_or(|why| why.message != failure::CANCELLED)
        };
        let free = self.in_order(state, &tried.weights).into_iter().filter(|(vid, _)| may_go(*vid));
        let (free, nowhere): (Vec<_>, _) = (free.collect(), BTreeSet::new());
        let leaving =
            |(vid, _): &(Vid, String)| Leaving { vid: *vid, avoid: tried.hosts.get(vid).unwrap_or(&nowhere) };
        let instances: Vec<_> = free.iter().map(leaving).collect();
        let goal = Goal::Evacuate { from: &self.host, to: &self.targets, instances: &instances, most };
        // Instances that can go nowhere are reported at the end.
        let loads = loads::measured(state, tried.talks.clone());
        let planned = planner::plan(&planning::view(state), &loads, &goal).unwrap_or_default();
        let next = |Assignment { which, to }| {
            let (vid, name) = free[which].clone();
            (vid, name, to)
        };
        planned.into_iter().map(next).collect()
    }

    /// The sizes of the instances on the host, and the traffic between all instances.
    async fn measure(&self, cluster: &Arc<Cluster>) -> (Weights, Vec<Talk>) {
        let talks = traffic::between_instances(cluster, traffic::WINDOW_S);
        tokio::join!(self.weigh(cluster), talks)
    }

    /// The sizes of the instances on the host.
    async fn weigh(&self, cluster: &Arc<Cluster>) -> Weights {
        let left = self.left(&cluster.view());
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
    fn remaining(&self, state: &State, tried: &Tried) -> Event {
        let left = self.left(state);
        let time = |vid| Some(state.get::<Follows>().estimate(*tried.weights.get(vid)?)?.total_us);
        let times: Option<Vec<u64>> = left.iter().map(|(vid, _)| time(vid)).collect();
        // `parallel` moves run at a time, but the total is not shorter than the slowest move.
        let time_us = times.map(|times| {
            let all: u64 = times.iter().sum();
            (all / self.parallel as u64).max(times.into_iter().max().unwrap_or_default())
        });
        Event::Remaining { instances: left.len() as u32, time_us }
    }

    /// Whether the drain has to wait for operations that it did not start itself.
    fn is_awaited(&self, state: &State) -> bool {
        let is_away = || !state.links().is_up(&self.host);
        state.get::<Drains>().is_under_way(&self.host, self.number)
            && (self.left(state).iter().any(|(vid, _)| !is_free(state, *vid) || is_away())
                || coming(state, &self.host) > 0
                || !moves_from(state, &self.host).is_empty())
    }

    /// The final report after `moved` instances have moved.
    fn outcome(&self, state: &State, moved: u32, mut tried: Tried) -> Event {
        if !state.get::<Drains>().is_under_way(&self.host, self.number) {
            state.log().note(&Occurrence::DrainEnded { host: self.host.to_string(), moved });
            return Event::Failed(failure::drain_ended(&self.host, moved));
        }
        let mut stayed = Vec::new();
        for (vid, name) in self.left(state) {
            stayed.push(Stayed {
                name,
                why: tried.failures.remove(&vid).unwrap_or_else(|| self.why_left(state, vid)),
            });
        }
        let (host, left) = (self.host.to_string(), stayed.len() as u32);
        state.log().note(&Occurrence::Drained { host, moved, stayed: left });
        Event::Drained(DrainReport { host: self.host.to_string(), moved, stayed })
    }

    /// The reason why an instance was not moved.
    fn why_left(&self, state: &State, vid: Vid) -> Failure {
        if !state.links().is_up(&self.host) {
            return failure::host_down(&self.host);
        }
        let destinations = self.destinations(state, vid, &Planned::new(), Vec::new());
        let mut refused = destinations.into_iter().filter_map(|(_, allowed)| allowed.err());
        refused.next().map_or_else(|| failure::nowhere_to_go(&self.host), planning::refused)
    }

    /// Dry run: reports for each instance its destination, or the blockers at all destinations.
    async fn plan(self, cluster: Arc<Cluster>, user: UnboundedSender<Event>) {
        let (mut planned, mut plan) = (Planned::new(), Vec::new());
        let (weights, talks) = self.measure(&cluster).await;
        let left = self.in_order(&cluster.view(), &weights);
        for (vid, name) in left {
            moving::wait_for_start(&cluster, &name).await;
            let (mut to, mut obstacles) = (None, Vec::new());
            let destinations = self.destinations(&cluster.view(), vid, &planned, talks.clone());
            for (host, allowed) in destinations {
                let found = match allowed {
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
            let estimate = bytes.and_then(|bytes| cluster.view().get::<Follows>().estimate(bytes));
            let cools_down_for_s = cooling::cools_down_for(&cluster.view(), vid);
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
    fn left(&self, state: &State) -> Vec<(Vid, String)> {
        let here = state.snapshot().instances.iter().filter(|(_, instance)| instance.host == self.host);
        let mut left: Vec<_> = here.map(|(vid, instance)| (*vid, instance.name.clone())).collect();
        left.sort_by(|(_, one), (_, other)| one.cmp(other));
        left
    }

    /// The same instances in the order of their moves: smallest first, so that most leave early; unknown sizes last.
    fn in_order(&self, state: &State, weights: &Weights) -> Vec<(Vid, String)> {
        let mut left = self.left(state);
        // Sizes are compared in MiB.
        left.sort_by_key(|(vid, _)| weights.get(vid).map_or(u64::MAX, |bytes| bytes >> 20));
        left
    }

    /// Possible destinations of an instance, the best one first, as if the `planned` moves had been made. Then the others, with their reasons.
    fn destinations(
        &self,
        state: &State,
        vid: Vid,
        planned: &Planned,
        talks: Vec<Talk>,
    ) -> Vec<(HostName, Result<(), Refusal>)> {
        let view = View { planned: planned.clone(), ..planning::view(state) };
        planner::destinations(&view, &loads::measured(state, talks), vid, &self.targets)
    }
}

/// Number of instances that are moving to `host`. Committed moves do not count: their instances are there.
fn coming(state: &State, host: &HostName) -> u32 {
    let is_coming =
        |record: &MoveRecord| record.destination.is(host) && record.stage == Stage::Began && !record.dry_run;
    state.moves().filter(|view| is_coming(view.record)).count() as u32
}

/// Moves in progress with `host` as their source, including those that no drain has begun.
fn moves_from(state: &State, host: &HostName) -> Vec<MoveId> {
    let is_one = |record: &MoveRecord| record.source.is(host) && !record.dry_run;
    state.moves().filter(|view| view.is_under_way && is_one(view.record)).map(|view| view.id).collect()
}

/// Event streams of these moves. A previous coordinator may have begun them, so nobody may follow them yet.
fn leaving(state: &mut State, host: &HostName) -> Vec<Events> {
    let moves = moves_from(state, host);
    moves.into_iter().map(|id| state.get_mut::<Follows>().listen_to(Some(id))).collect()
}

/// Whether no other operation blocks a move of the instance.
fn is_free(state: &State, vid: Vid) -> bool {
    !state.get::<Lifecycle>().is_starting(vid)
        && !state.get::<Lifecycle>().is_ending(vid)
        && moving::under_way(state, vid).is_none()
}

fn failure_of(report: &MoveReport) -> Option<Failure> {
    match &report.outcome {
        Outcome::Moved | Outcome::Saved | Outcome::Restored => None,
        Outcome::RolledBack(why) | Outcome::Ended(why) => Some(why.clone()),
    }
}
