//! One step of the loop.
//!
//! The loop plans only if a load has lasted, and one plan at a time: while its moves are under way, and until their effect is measured, it plans no
//! other. If moves gain less than half of their promise several times in a row, the loop stops itself.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fabric::Vid;
use moves::HostName;
use planner::{Amounts, Bounds, Improvement, Loads, Score, Step, View, improve};
use serde::{Deserialize, Serialize};

use crate::backoff::Backoff;
use crate::effect::{Change, gain};
use crate::history::{History, Moved};
use crate::sustained::Sustained;
use crate::trigger::{Cause, Resource, Triggers};
use crate::{Effect, Observation, Settings};

/// So many plans in a row that gain less than half of their promise stop the loop.
const MOST_MISSES: u32 = 3;

/// How often a plan is sought without instances that it must not move.
const ATTEMPTS: usize = 4;

/// How long an instance stays after its move has failed, and after which a drain is begun again that has left instances behind.
const AFTER_FAILURE: Duration = Duration::from_secs(600);

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// These moves, wave by wave.
    Apply {
        /// The moves.
        waves: Vec<Vec<Step>>,
        /// The loads that are the reason, in words.
        reason: String,
    },
    /// Empty this host, which asks for it.
    Drain {
        /// The host.
        host: HostName,
        /// Its reason.
        reason: String,
    },
    /// The effect of the last plan has been measured. Nothing is to be done.
    Measured(Effect),
    /// The loop has stopped itself. Nothing is to be done.
    Stopped {
        /// Why.
        reason: String,
    },
}

/// What the loop must know after a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// The moves of the last time.
    pub moves: Vec<Moved>,
    /// How many plans in a row have gained too little.
    pub misses: u32,
    /// Why the loop has stopped itself, if it has.
    pub stopped: Option<String>,
}

/// The state of the loop, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// What the loop does, and why it does not do more.
    pub why: String,
    /// Loads that are too high and have lasted, in words.
    pub causes: Vec<String>,
    /// The planned moves of the last hour.
    pub moves: u32,
    /// The effect of the last plan that was measured.
    pub effect: Option<Effect>,
    /// How many plans in a row have gained too little.
    pub misses: u32,
}

/// A plan whose effect is not measured yet.
#[derive(Debug)]
struct Pending {
    changes: Vec<Change>,
    predicted: u64,
    causes: Vec<Cause>,
    /// What hosts have that the plan relieves, as the planner was told.
    rooms: BTreeMap<HostName, Amounts>,
    /// When to measure, once its moves are over.
    due: Option<Duration>,
}

/// The loop.
#[derive(Debug)]
pub struct Controller {
    settings: Settings,
    /// The planner's steps.
    steps: u64,
    last: Duration,
    sustained: Sustained,
    triggers: Triggers,
    backoff: Backoff,
    history: History,
    /// The instances that the last plan moves.
    own: BTreeSet<Vid>,
    pending: Option<Pending>,
    /// Until when instances stay whose moves have failed.
    failed: BTreeMap<Vid, Duration>,
    /// When the drain of each host was begun.
    drained: BTreeMap<HostName, Duration>,
    misses: u32,
    stopped: Option<String>,
    status: Status,
}

impl Controller {
    /// The loop with these settings and this memory. `steps` limits each search of the planner.
    #[must_use]
    pub fn new(settings: Settings, memory: Memory, steps: u64) -> Self {
        let Memory { moves, misses, stopped } = memory;
        Self {
            settings,
            steps,
            last: Duration::ZERO,
            sustained: Sustained::default(),
            triggers: Triggers::default(),
            backoff: Backoff::default(),
            history: History::new(moves),
            own: BTreeSet::new(),
            pending: None,
            failed: BTreeMap::new(),
            drained: BTreeMap::new(),
            misses,
            stopped,
            status: Status::default(),
        }
    }

    /// What it must know after a restart.
    #[must_use]
    pub fn memory(&self) -> Memory {
        Memory { moves: self.history.moves.clone(), misses: self.misses, stopped: self.stopped.clone() }
    }

    /// Its state.
    #[must_use]
    pub fn status(&self) -> &Status {
        &self.status
    }

    /// A move of the last plan has failed: its instance stays for a while.
    pub fn note_failure(&mut self, vid: Vid) {
        self.failed.insert(vid, self.last + AFTER_FAILURE);
    }

    /// Looks at the cluster at the time `now`, which counts from any moment but the same after a restart, and decides.
    pub fn step(&mut self, now: Duration, seen: &Observation<'_>) -> Vec<Decision> {
        // A clock that was set back stands still.
        let now = now.max(self.last);
        self.last = now;
        let Settings { hold, cool_down, goal, .. } = self.settings;
        self.history.note(now, cool_down, &seen.view, &self.own);
        self.failed.retain(|_, until| *until > now);
        self.sustained.update(now, hold, &seen.loads.talks);
        let lasting = Loads { talks: self.sustained.talks(), ..seen.loads.clone() };
        let score = Score::of(&seen.view, &lasting, &BTreeMap::new());
        self.triggers.update(now, goal, &seen.view, &seen.usage, &score);
        let causes = self.triggers.firing(now, hold);
        let mut decisions = self.drains(now, seen);
        decisions.extend(self.measured(now, seen));
        match self.reason_to_wait(now, seen, &causes) {
            Some(why) => self.status.why = why,
            None => decisions.extend(self.plan(now, seen, lasting, &causes)),
        }
        self.status.causes = causes.iter().map(|cause| self.triggers.in_words(cause)).collect();
        (self.status.moves, self.status.misses) = (self.history.own(now), self.misses);
        decisions
    }

    /// Drains to begin, at most so many at once.
    fn drains(&mut self, now: Duration, seen: &Observation<'_>) -> Vec<Decision> {
        self.drained.retain(|host, _| seen.leaving.contains_key(host));
        let under_way = seen.leaving.values().filter(|leaving| leaving.is_draining).count();
        let room = usize::from(self.settings.at_once).saturating_sub(under_way);
        let is_due = |host: &HostName| match self.drained.get(host) {
            None => true,
            Some(at) => now.saturating_sub(*at) >= AFTER_FAILURE && seen.view.instances_on(host) > 0,
        };
        let waiting = seen.leaving.iter().filter(|(host, leaving)| !leaving.is_draining && is_due(host));
        let next: Vec<_> =
            waiting.take(room).map(|(host, leaving)| (host.clone(), leaving.reason.clone())).collect();
        self.drained.extend(next.iter().map(|(host, _)| (host.clone(), now)));
        next.into_iter().map(|(host, reason)| Decision::Drain { host, reason }).collect()
    }

    /// Measures the effect of the last plan, if it is time.
    fn measured(&mut self, now: Duration, seen: &Observation<'_>) -> Vec<Decision> {
        let Some(pending) = &mut self.pending else { return Vec::new() };
        if seen.is_applying {
            return Vec::new();
        }
        // Averages of loads follow the moves with a delay, and sustained loads too.
        let due = *pending.due.get_or_insert(now + self.settings.hold);
        if now < due {
            return Vec::new();
        }
        let Some(pending) = self.pending.take() else { return Vec::new() };
        let effect = self.effect(&pending, seen);
        self.status.effect = Some(effect);
        self.misses = if effect.is_kept() { 0 } else { self.misses + 1 };
        let mut decisions = vec![Decision::Measured(effect)];
        if self.misses >= MOST_MISSES && self.stopped.is_none() {
            let reason =
                format!("{MOST_MISSES} plans in a row have gained less than half of what was predicted");
            self.stopped = Some(reason.clone());
            decisions.push(Decision::Stopped { reason });
        }
        decisions
    }

    fn effect(&self, pending: &Pending, seen: &Observation<'_>) -> Effect {
        // An instance that did not move, has moved on or has ended gains nothing.
        let is_there = |change: &&Change| {
            seen.view.instances.get(&change.vid).is_some_and(|instance| *instance.host == change.to)
        };
        let changes: Vec<_> = pending.changes.iter().filter(is_there).cloned().collect();
        let mut loads = seen.loads.clone();
        loads.rooms.extend(pending.rooms.iter().map(|(host, room)| (host.clone(), *room)));
        let mut relieved = pending
            .causes
            .iter()
            .filter(|cause| matches!(cause, Cause::Host(host, _) if pending.rooms.contains_key(host)));
        let is_unrelieved = relieved.any(|cause| self.triggers.is_unrelieved(cause));
        let measured = if is_unrelieved { 0 } else { self.gain(&seen.view, &loads, &changes) };
        Effect { predicted: pending.predicted, measured }
    }

    fn gain(&self, view: &View<'_>, loads: &Loads, changes: &[Change]) -> u64 {
        gain(view, loads, self.settings.goal, self.settings.horizon, changes)
    }

    /// Why nothing is planned now.
    fn reason_to_wait(&self, now: Duration, seen: &Observation<'_>, causes: &[Cause]) -> Option<String> {
        let seconds = |time: Duration| time.as_millis().div_ceil(1000);
        if let Some(reason) = &self.stopped {
            return Some(format!("it has stopped itself: {reason}"));
        }
        if seen.is_applying {
            return Some("the moves of a plan are under way".into());
        }
        if seen.leaving.iter().any(|(host, leaving)| leaving.is_draining || !self.drained.contains_key(host))
        {
            return Some("hosts are being emptied".into());
        }
        if let Some(due) = self.pending.as_ref().and_then(|pending| pending.due) {
            return Some(format!(
                "it measures the effect of the last plan in {} s",
                seconds(due.saturating_sub(now))
            ));
        }
        if causes.is_empty() {
            let rising = self.triggers.rising(now, self.settings.hold).into_iter().next();
            return Some(rising.map_or_else(
                || "no load is too high".to_owned(),
                |(cause, lasts)| {
                    format!(
                        "{cause} since {} s, and it acts after {} s",
                        lasts.as_secs(),
                        self.settings.hold.as_secs()
                    )
                },
            ));
        }
        if self.history.own(now) >= self.settings.budget {
            let next = self.history.until_next(now).unwrap_or_default();
            return Some(format!(
                "the {} moves of this hour are used up, the next one is possible in {} s",
                self.settings.budget,
                seconds(next)
            ));
        }
        let left = self.backoff.left(now, causes, &self.triggers)?;
        Some(format!("no move pays; it plans again in {} s, or when a load rises", seconds(left)))
    }

    /// Plans under loads that last.
    fn plan(
        &mut self,
        now: Duration,
        seen: &Observation<'_>,
        mut loads: Loads,
        causes: &[Cause],
    ) -> Option<Decision> {
        let view = without_leaving(seen);
        let rooms = self.relieved_rooms(seen, causes);
        loads.rooms.extend(rooms.iter().map(|(host, room)| (host.clone(), *room)));
        self.pin(now, &mut loads);
        let found = self.search(now, &view, &mut loads);
        let waves = found.map(|found| found.waves).unwrap_or_default();
        let changes: Vec<Change> = waves
            .iter()
            .flatten()
            .map(|step| Change { vid: step.vid, from: step.from.clone(), to: step.to.clone() })
            .collect();
        let predicted = self.gain(&view, &loads, &changes);
        let words: Vec<_> = causes.iter().map(|cause| self.triggers.in_words(cause)).collect();
        if predicted == 0 {
            self.backoff.note(now, self.settings.hold, causes, &self.triggers);
            self.status.why = format!("no move pays, although {}", words.join(", "));
            return None;
        }
        self.backoff.reset();
        self.own = changes.iter().map(|change| change.vid).collect();
        self.status.why = format!("it moves {} instances, because {}", changes.len(), words.join(", "));
        let causes = causes.to_vec();
        // The effect is measured with the rooms that have caused the plan.
        let rooms = rooms.into_iter().filter(|(host, _)| is_cause(&causes, host)).collect();
        self.pending = Some(Pending { changes, predicted, causes, rooms, due: None });
        Some(Decision::Apply { waves, reason: words.join(", ") })
    }

    /// What hosts have for instances: what other programs do not use, and on hosts under pressure less than instances use now. If all hosts
    /// are overloaded, no move relieves any, and only instances count.
    fn relieved_rooms(&self, seen: &Observation<'_>, causes: &[Cause]) -> BTreeMap<HostName, Amounts> {
        if seen.view.usable().all(|host| is_cause(causes, host)) {
            return BTreeMap::new();
        }
        let mut used = BTreeMap::<&HostName, Amounts>::new();
        for (vid, instance) in &seen.view.instances {
            let need = seen.loads.needs.get(vid).map(|need| need.amounts).unwrap_or_default();
            let sum = used.entry(instance.host).or_default();
            *sum = Amounts { cpu: sum.cpu + need.cpu, memory: sum.memory + need.memory };
        }
        let is = |host: &HostName, resource| causes.contains(&Cause::Host(host.clone(), resource));
        let room = |(host, room): (&HostName, &Amounts)| {
            let used = used.get(host).copied().unwrap_or_default();
            let busy = seen.usage.get(host).map_or(0, |usage| usage.busy);
            let others = (room.cpu * busy / 1000).saturating_sub(used.cpu);
            let mut left = Amounts { cpu: room.cpu.saturating_sub(others), ..*room };
            if is(host, Resource::CpuPressure) {
                left.cpu = left.cpu.min(used.cpu);
            }
            if is(host, Resource::MemoryPressure) {
                left.memory = left.memory.min(used.memory / 10 * 9);
            }
            (host.clone(), left)
        };
        seen.loads.rooms.iter().map(room).collect()
    }

    /// Pins instances that cool down, or whose moves have failed lately.
    fn pin(&self, now: Duration, loads: &mut Loads) {
        for (vid, left) in self.history.cooling(now, self.settings.cool_down) {
            let why = format!("it cools down for {} s more", left.as_secs());
            loads.needs.entry(vid).or_default().pinned.get_or_insert(why);
        }
        for vid in self.failed.keys() {
            let why = "its last move has failed".to_owned();
            loads.needs.entry(*vid).or_default().pinned.get_or_insert(why);
        }
    }

    /// A plan that brings no instance back to a host that it has left within the hour, and that makes no detour.
    fn search(&self, now: Duration, view: &View<'_>, loads: &mut Loads) -> Option<Improvement> {
        let budget = self.settings.budget.saturating_sub(self.history.own(now));
        let bounds = Bounds {
            moves: budget as usize,
            at_once: self.settings.at_once.into(),
            horizon: self.settings.horizon.as_secs(),
            steps: self.steps,
            ..Bounds::default()
        };
        for _ in 0..ATTEMPTS {
            let found = improve(view, loads, &self.settings.goal.aim(), &bounds).ok()?;
            let is_barred = |step: &&Step| step.is_detour || self.history.has_left(step.vid, &step.to, now);
            let barred: BTreeSet<Vid> =
                found.waves.iter().flatten().filter(is_barred).map(|step| step.vid).collect();
            if barred.is_empty() {
                return Some(found);
            }
            for vid in barred {
                loads.needs.entry(vid).or_default().pinned = Some("it would have to move twice".into());
            }
        }
        None
    }
}

fn is_cause(causes: &[Cause], host: &HostName) -> bool {
    causes.iter().any(|cause| matches!(cause, Cause::Host(of, _) if of == host))
}

/// The view in which hosts that ask to be emptied take no instances.
fn without_leaving<'a>(seen: &Observation<'a>) -> View<'a> {
    let mut view = seen.view.clone();
    for host in seen.leaving.keys() {
        if let Some(host) = view.hosts.get_mut(host) {
            host.is_drained = true;
        }
    }
    view
}

#[cfg(test)]
mod tests;
