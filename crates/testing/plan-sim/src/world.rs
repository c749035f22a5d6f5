//! The whole cluster: events in the order of their times.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use controller::{Controller, Decision, Leaving, Memory, Observation, Settings, next_wave};
use fabric::Vid;
use moves::coordinator::{Input, MoveRequest, Output};
use moves::progress::{Event, Outcome};
use moves::{HostName, MoveId};
use planner::{Step, Talk};

use crate::cluster::{Cluster, Flow, vid};
use crate::drains::Drain;
use crate::nodes::{Answer, Nodes};
use crate::pattern::Pattern;
use crate::report::Tally;
use crate::rules::Rules;
use crate::state::State;

/// The time between two steps of the controller.
const TICK: Duration = Duration::from_secs(30);

/// How long a host that was emptied stays away.
const MAINTENANCE: Duration = Duration::from_secs(1200);

/// Why a move is made.
enum Errand {
    Planned,
    Drain(HostName),
}

/// The cluster with its coordinator.
pub struct World {
    state: State,
    pattern: Pattern,
    nodes: Nodes,
    controller: Controller,
    rules: Rules,
    now: Duration,
    answers: BTreeMap<(Duration, u64), Answer>,
    last_answer: u64,
    plan: Option<Vec<Vec<Step>>>,
    errands: BTreeMap<MoveId, Errand>,
    /// Moves that are over, until their consequences are drawn.
    over: Vec<(MoveId, Vid, Outcome)>,
    /// Drains in progress.
    drains: BTreeMap<HostName, Drain>,
    /// The figures so far.
    pub tally: Tally,
}

impl World {
    /// A cluster at rest.
    #[must_use]
    pub fn new(cluster: Cluster, pattern: Pattern, settings: Settings, steps: u64) -> Self {
        Self {
            nodes: Nodes::new(&cluster),
            controller: Controller::new(settings.clone(), Memory::default(), steps),
            rules: Rules::new(settings),
            state: State::new(cluster, |cluster| pattern.processors(cluster, Duration::ZERO)),
            pattern,
            now: Duration::ZERO,
            answers: BTreeMap::new(),
            last_answer: 0,
            plan: None,
            errands: BTreeMap::new(),
            over: Vec::new(),
            drains: BTreeMap::new(),
            tally: Tally::default(),
        }
    }

    /// So many hosts ask to be emptied, and come back some time after they are.
    pub fn ask_to_leave(&mut self, hosts: usize) {
        let hosts = self.state.cluster.hosts.iter().take(hosts).cloned();
        self.state.asking.extend(hosts.map(|host| (host, None)));
    }

    /// How many hosts wait to be emptied, or are away.
    #[must_use]
    pub fn leaving(&self) -> usize {
        self.state.asking.len()
    }

    /// The rules that were broken, in words.
    #[must_use]
    pub fn broken(&self) -> &[String] {
        &self.rules.broken
    }

    /// Lets so much time pass.
    ///
    /// # Errors
    /// If the coordinator refuses a planned move.
    pub fn run(&mut self, time: Duration) -> Result<()> {
        let end = self.now + time;
        let mut tick = self.now;
        while tick < end {
            self.now = tick;
            self.tick()?;
            tick += TICK;
            while let Some(at) = self.next_event().filter(|at| *at < tick) {
                self.now = at;
                self.event()?;
            }
        }
        self.now = end;
        Ok(())
    }

    fn next_event(&self) -> Option<Duration> {
        let answer = self.answers.keys().next().map(|(at, _)| *at);
        [answer, self.state.machine.wake_at()].into_iter().flatten().min()
    }

    /// A node answers, or a time limit of the coordinator is over.
    fn event(&mut self) -> Result<()> {
        let input = match self.answers.first_entry().filter(|first| first.key().0 <= self.now) {
            Some(first) => {
                let Answer { from, message, .. } = first.remove();
                Input::Message { from, message }
            }
            None => Input::Tick,
        };
        let outputs = self.state.machine.handle(input, self.now);
        self.perform(outputs);
        self.go_on()
    }

    fn perform(&mut self, outputs: Vec<Output>) {
        for output in outputs {
            match output {
                Output::Send { to, message } => {
                    for answer in self.nodes.receive(self.now, &to, message) {
                        self.last_answer += 1;
                        self.answers.insert((answer.at, self.last_answer), answer);
                    }
                }
                Output::Event { id, event: Event::Ended { outcome, .. } } => {
                    let vid = self.state.machine.snapshot().moves.get(&id).map(|record| record.vid);
                    self.over.extend(vid.map(|vid| (id, vid, outcome)));
                }
                Output::Event { id, event: Event::Cleaned } => self.nodes.forget(id),
                Output::Event { .. } | Output::Record(_) | Output::InstanceEnded(_) => {}
            }
        }
    }

    /// Draws the consequences of moves that are over: further moves of plans and drains.
    fn go_on(&mut self) -> Result<()> {
        for (id, vid, outcome) in std::mem::take(&mut self.over) {
            let is_moved = outcome == Outcome::Moved;
            match self.errands.remove(&id) {
                Some(Errand::Planned) => {
                    self.rules.over(vid);
                    self.tally.moves += 1;
                    if !is_moved {
                        self.rules.failed(self.now, vid, &format!("{outcome:?}"));
                        self.controller.note_failure(vid);
                        self.plan = None;
                    }
                }
                Some(Errand::Drain(_)) if is_moved => self.tally.drained += 1,
                Some(Errand::Drain(_)) => self.tally.refused += 1,
                None => {}
            }
        }
        self.carry_out()?;
        self.drain();
        Ok(())
    }

    /// Begins the next wave of the plan, if none is under way.
    fn carry_out(&mut self) -> Result<()> {
        let planned = |errand: &Errand| matches!(errand, Errand::Planned);
        if self.plan.is_none() || self.errands.values().any(planned) {
            return Ok(());
        }
        let Some(waves) = self.plan.take() else { return Ok(()) };
        let next = next_wave(&waves, &self.state.view(), &self.state.loads(&[]));
        let next = next.map(|wave| wave.into_iter().cloned().collect::<Vec<_>>());
        match next {
            Ok(wave) if wave.is_empty() => {}
            Ok(wave) => {
                for step in wave {
                    self.rules.begin(self.now, step.vid, &step.to, &self.state, &self.nodes);
                    self.begin(step.vid, &step.to, Errand::Planned)?;
                }
                self.plan = Some(waves);
            }
            Err(blocked) => {
                self.tally.blocked += 1;
                self.controller.note_failure(blocked.vid);
            }
        }
        Ok(())
    }

    fn begin(&mut self, vid: Vid, to: &HostName, errand: Errand) -> Result<()> {
        let from = self.state.machine.snapshot().instances[&vid].host.clone();
        let request = MoveRequest { vid, destination: to.clone(), dry_run: false, post_copy: false };
        let begun = self.state.machine.begin(request, self.now);
        let (id, outputs) = begun.with_context(|| format!("{vid} to {to} at {:?}", self.now))?;
        self.rules.left(self.now, vid, &from);
        self.errands.insert(id, errand);
        self.perform(outputs);
        Ok(())
    }

    /// Goes on with all drains: one move at a time each.
    fn drain(&mut self) {
        for (host, mut drain) in std::mem::take(&mut self.drains) {
            let is_busy =
                self.errands.values().any(|errand| matches!(errand, Errand::Drain(of) if *of == host));
            let next =
                if is_busy { None } else { drain.next(&self.state.view(), &self.state.loads(&[]), &host) };
            let begun = next.map(|(vid, to)| self.begin(vid, &to, Errand::Drain(host.clone())));
            if is_busy || matches!(begun, Some(Ok(()))) {
                self.drains.insert(host, drain);
            } else if self.state.is_empty(&host) {
                self.state.asking.insert(host, Some(self.now));
            }
        }
    }

    fn tick(&mut self) -> Result<()> {
        let is_away = |since: &Option<Duration>| since.is_none_or(|since| self.now - since < MAINTENANCE);
        self.state.asking.retain(|_, since| is_away(since));
        let rates = self.pattern.rates(&self.state.cluster, self.now);
        let used = self.pattern.processors(&self.state.cluster, self.now);
        self.state.use_processors(&used);
        let talk =
            |(flow, rate): (&Flow, &u64)| Talk { one: vid(flow.one), other: vid(flow.other), rate: *rate };
        let talks = self.state.cluster.flows.iter().zip(&rates).filter(|(_, rate)| **rate > 0).map(talk);
        let leaving = |host: &HostName| {
            let is_draining = self.drains.contains_key(host);
            (host.clone(), Leaving { reason: "maintenance".into(), is_draining })
        };
        let seen = Observation {
            view: self.state.view(),
            loads: self.state.loads(&talks.collect::<Vec<_>>()),
            usage: self.state.usage(&used),
            leaving: self.state.asking.keys().map(leaving).collect(),
            is_applying: self.plan.is_some(),
        };
        self.tally.look(self.now, &seen);
        let began = Instant::now();
        let decisions = self.controller.step(self.now, &seen);
        self.tally.decided(&decisions, began.elapsed());
        for decision in decisions {
            match decision {
                Decision::Apply { waves, .. } => self.plan = Some(waves),
                Decision::Drain { host, .. } => {
                    self.drains.insert(host, Drain::default());
                }
                Decision::Measured(_) | Decision::Stopped { .. } => {}
            }
        }
        self.go_on()
    }
}
