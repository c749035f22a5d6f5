//! Random runs determined by a seed: first with faults, then without, until everything has settled.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use fabric::Vid;

use super::random::Random;
use super::world::{Action, Envelope, World};
use super::{Sabotage, Tally};
use crate::HostName;
use crate::coordinator::MoveRequest;
use crate::due::Due;

/// The limit of actions for a run to settle without further faults.
const MAX_SETTLING: usize = 20_000;

/// A run that violated an invariant.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The run's seed: the same seed gives the same run.
    pub seed: u64,
    /// The violated invariant.
    pub what: String,
    /// Every action of the run, if traced.
    pub trace: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.trace {
            writeln!(f, "{line}")?;
        }
        write!(f, "{} (run it again with TRANSHUME_SEED={})", self.what, self.seed)
    }
}

/// Rates of events, in thousandths of the actions.
struct Rates {
    lose: usize,
    double: usize,
    fail: usize,
    crash: usize,
    cut: usize,
    begin: usize,
    cancel: usize,
    exit: usize,
    recover: usize,
}

impl Rates {
    fn draw(random: &mut Random) -> Self {
        let mut level = |most: [usize; 3]| most[random.below(3)];
        Self {
            lose: level([0, 20, 100]),
            double: level([0, 50, 200]),
            fail: level([0, 50, 200]),
            crash: level([0, 10, 40]),
            cut: level([0, 10, 30]),
            begin: level([20, 50, 100]),
            cancel: level([0, 5, 20]),
            exit: level([0, 0, 3]),
            recover: level([30, 100, 300]),
        }
    }
}

struct Run {
    world: World,
    random: Random,
    rates: Rates,
    trace: Option<Vec<String>>,
    /// Scale of the run: faults that end moves are this many times rarer, and each action takes this many times less time, because an event of
    /// one member of a large group affects all.
    crowd: usize,
}

/// Instances in the run of a large group.
const GROUP: usize = 100;

/// The run of `seed`. With `traced`, a failure lists every action.
///
/// # Errors
/// If an invariant is violated.
pub fn run_seed(seed: u64, sabotage: Sabotage, traced: bool) -> Result<Tally, Failure> {
    let mut random = Random::new(seed);
    let (hosts, instances) = (2 + random.below(3), 1 + random.below(3));
    let rates = Rates::draw(&mut random);
    let world = World::new(hosts, instances, sabotage);
    finish(seed, Run { world, random, rates, trace: traced.then(Vec::new), crowd: 1 })
}

/// The run of `seed` with a group of a hundred, which moves first.
///
/// # Errors
/// As [`run_seed`].
pub fn run_group(seed: u64, sabotage: Sabotage, traced: bool) -> Result<Tally, Failure> {
    let mut random = Random::new(seed);
    let hosts = 3 + random.below(6);
    let rates = Rates::draw(&mut random);
    let world = World::new(hosts, GROUP, sabotage);
    let mut run = Run { world, random, rates, trace: traced.then(Vec::new), crowd: GROUP };
    let destinations = run.world.vids.clone().into_iter().map(|vid| (vid, run.elsewhere(vid))).collect();
    run.world.perform(&Action::BeginTogether(destinations));
    finish(seed, run)
}

fn finish(seed: u64, mut run: Run) -> Result<Tally, Failure> {
    let result = run.with_faults().and_then(|()| run.settle());
    let trace = run.trace.unwrap_or_default();
    result.map(|()| run.world.tally).map_err(|what| Failure { seed, what, trace })
}

/// Settles `world` without further faults.
pub(super) fn settle_quietly(world: World) -> Result<Tally, String> {
    let mut random = Random::new(0);
    let rates = Rates::draw(&mut random);
    let mut run = Run { world, random, rates, trace: None, crowd: 1 };
    run.settle()?;
    Ok(run.world.tally)
}

impl Run {
    fn with_faults(&mut self) -> Result<(), String> {
        for _ in 0..(100 + self.random.below(400)) * self.crowd {
            let step = Duration::from_millis(self.random.below(12) as u64) / self.crowd as u32;
            self.world.now = Due::after(self.world.now.0, step);
            let action = if self.crowd == 1 || self.random.below(self.crowd) == 0 {
                self.anything()
            } else {
                self.progress(true, false)
            };
            if let Some(action) = action {
                self.perform(&action)?;
            }
        }
        Ok(())
    }

    fn anything(&mut self) -> Option<Action> {
        if self.random.chance(self.rates.crash / 4) {
            self.world.crash_after = Some(self.random.below(4));
        }
        self.wish().or_else(|| self.fault()).or_else(|| self.progress(true, true))
    }

    /// No more faults: all parties come back, and the final invariants must hold.
    fn settle(&mut self) -> Result<(), String> {
        self.world.crash_after = None;
        let mut unsettled = None;
        for _ in 0..MAX_SETTLING * self.crowd {
            let quiet = self.world.network.is_empty() && self.under_way().is_empty();
            unsettled = self.world.unsettled();
            if quiet && unsettled.is_none() {
                return Ok(());
            }
            let action = self.recovery(1000).or_else(|| self.progress(false, false));
            match action {
                Some(action) => self.perform(&action)?,
                None => break,
            }
        }
        Err(unsettled.unwrap_or_else(|| "messages circulate for ever".into()))
    }

    fn perform(&mut self, action: &Action) -> Result<(), String> {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>9.3?} {action:?}", self.world.now.0));
        }
        self.world.perform(action);
        self.world.violation.take().map_or(Ok(()), Err)
    }

    /// Actions of users and programs.
    fn wish(&mut self) -> Option<Action> {
        let vid = self.world.vids[self.random.below(self.world.vids.len())];
        let node = self.random.below(self.world.nodes.len());
        if self.random.chance(self.rates.begin) {
            match self.random.below(10) {
                0..3 => return Some(Action::BeginTogether(self.destinations())),
                3 => return Some(Action::Save(self.destinations().into_keys().collect())),
                _ => {}
            }
            if self.world.can_restore(vid) {
                let destinations = self.destinations().into_iter();
                return Some(Action::Restore(
                    destinations.filter(|(vid, _)| self.world.can_restore(*vid)).collect(),
                ));
            }
            let destination = self.world.nodes[node].name.clone();
            let dry_run = self.random.chance(100);
            let post_copy = self.random.chance(400);
            return Some(Action::Begin(MoveRequest { vid, destination, dry_run, post_copy }));
        }
        if self.random.chance(self.rates.cancel) {
            return self.random.pick(self.world.store.moves.keys()).map(|id| Action::Cancel(*id));
        }
        if self.random.chance(20) && self.world.nodes[node].agent.is_some() {
            return Some(Action::Locate { node, vid });
        }
        // Instances that can be restored end more often.
        let exit = self.rates.exit + if self.world.saved.contains_key(&vid) { 20 } else { 0 };
        if self.random.chance(exit) && self.world.can_exit().contains(&(node, vid)) {
            return Some(Action::Exit { node, vid });
        }
        None
    }

    /// A destination for each of some instances.
    fn destinations(&mut self) -> BTreeMap<Vid, HostName> {
        let count = 2 + self.random.below(self.world.vids.len());
        let vids = self.world.vids.clone().into_iter().take(count);
        vids.map(|vid| (vid, if self.crowd == 1 { self.anywhere() } else { self.elsewhere(vid) })).collect()
    }

    fn anywhere(&mut self) -> HostName {
        self.world.nodes[self.random.below(self.world.nodes.len())].name.clone()
    }

    /// A host where `vid` is not. A group in which one member is already at its destination does not move.
    fn elsewhere(&mut self, vid: Vid) -> HostName {
        loop {
            let host = self.anywhere();
            if self.world.store.instances.get(&vid).is_none_or(|instance| instance.host != host) {
                return host;
            }
        }
    }

    fn fault(&mut self) -> Option<Action> {
        let node = self.random.below(self.world.nodes.len());
        if self.random.chance(self.rates.crash) {
            return Some(match self.random.below(3) {
                0 if self.world.nodes[node].agent.is_some() => {
                    Action::CrashNode { node, done: self.random.chance(500) }
                }
                1 if self.world.coordinator.is_some() => Action::CrashCoordinator,
                _ => Action::CrashEngine(node),
            });
        }
        if self.random.chance(self.rates.exit) {
            let needed = self.world.needed();
            if let Some((node, vid)) = self.random.pick(needed.iter()) {
                return Some(Action::LoseMemory { node: *node, vid: *vid });
            }
        }
        if self.random.chance(self.rates.cut) {
            return Some(Action::Cut(node));
        }
        self.recovery(self.rates.recover)
    }

    /// A party that is down comes back, with a probability of `per_mille`.
    fn recovery(&mut self, per_mille: usize) -> Option<Action> {
        if !self.random.chance(per_mille) {
            return None;
        }
        if self.world.coordinator.is_none() {
            return Some(Action::RestartCoordinator);
        }
        let down = self.world.nodes.iter().position(|node| node.agent.is_none());
        let cut = || self.world.nodes.iter().position(|node| !node.linked);
        down.map(Action::RestartNode).or_else(|| cut().map(Action::Connect))
    }

    /// Something in progress continues, unless messages get lost or operations fail; if nothing is in progress, the next timer fires.
    fn progress(&mut self, losses: bool, failures: bool) -> Option<Action> {
        if let Some(tick) = self.due_timer() {
            return Some(tick);
        }
        let messages: Vec<&Envelope> =
            self.world.network.iter().filter(|envelope| self.world.can_deliver(envelope)).collect();
        let operations = self.under_way();
        match self.random.below((messages.len() + operations.len()).max(1)) {
            place if place < messages.len() => {
                let envelope = messages[place].clone();
                if losses && self.random.chance(self.rates.lose) {
                    return Some(Action::Lose(envelope));
                }
                let again = losses && self.random.chance(self.rates.double);
                Some(Action::Deliver { envelope, again })
            }
            place if place < messages.len() + operations.len() => {
                let (node, vid, can_succeed) = operations[place - messages.len()];
                let well = can_succeed && !(failures && self.random.chance(self.rates.fail));
                Some(Action::Finish { node, vid, well })
            }
            _ => self.next_timer(),
        }
    }

    /// Operations that can end now, and whether they can succeed.
    fn under_way(&self) -> Vec<(usize, Vid, bool)> {
        let mut found = Vec::new();
        for (place, node) in self.world.nodes.iter().enumerate() {
            for (vid, under_way) in &node.engine.under_way {
                let can_succeed = self.world.can_succeed(place, *vid, &under_way.operation);
                if can_succeed || under_way.cancelled {
                    found.push((place, *vid, can_succeed));
                }
            }
        }
        found
    }

    fn timers(&self) -> impl Iterator<Item = (Duration, Action)> {
        let coordinator = self.world.coordinator.iter().filter_map(|it| it.wake_at());
        let nodes = self.world.nodes.iter().enumerate();
        let nodes = nodes
            .filter_map(|(place, node)| Some((node.agent.as_ref()?.wake_at()?, Action::TickNode(place))));
        coordinator.map(|at| (at, Action::TickCoordinator)).chain(nodes)
    }

    fn due_timer(&self) -> Option<Action> {
        self.timers().find(|(at, _)| *at <= self.world.now.0).map(|(_, action)| action)
    }

    fn next_timer(&mut self) -> Option<Action> {
        let (at, action) = self.timers().min_by_key(|(at, _)| *at)?;
        self.world.now = Due(at);
        Some(action)
    }
}
