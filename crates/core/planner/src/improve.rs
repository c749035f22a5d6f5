//! A better placement of running instances, as an ordered list of moves.
//!
//! * `score`: a placement's figures for people.

mod score;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use fabric::Vid;
use moves::HostName;
use solver::effort::Steps;
use solver::order::{Move, order};
use solver::{evaluate, solve};

use crate::load::latencies;
use crate::model::{Model, Search};
use crate::{Loads, Refusal, View};
pub use score::Score;

/// What a better placement is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Aim {
    /// Processors and memory are used evenly.
    Balance,
    /// Instances that talk share a host, as far as their hosts are not overloaded.
    Traffic,
    /// As few hosts as possible have instances.
    Consolidate,
    /// This host has no instances.
    Evacuate(HostName),
}

/// Bounds of an improvement.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The number of moves.
    pub moves: usize,
    /// The number of moves at the same time.
    pub at_once: usize,
    /// The time, in seconds, within which a move must pay for itself.
    pub horizon: u64,
    /// The solver's steps.
    pub steps: u64,
    /// The solver's seed.
    pub seed: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { moves: usize::MAX, at_once: 4, horizon: 600, steps: 2_000_000, seed: 1 }
    }
}

/// The most changes of a placement that a search of a small cluster compares: some 0.3 s.
const MOST_CHANGES: usize = 100_000_000;

/// Up to so many changes, the solver compares all of them in each step. A search of a larger cluster ends by itself.
const SMALL: usize = 100_000;

/// One move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The instance.
    pub vid: Vid,
    /// Its host before.
    pub from: HostName,
    /// Its host afterwards.
    pub to: HostName,
    /// The bytes that the move copies.
    pub copied: u64,
    /// The figures after this move.
    pub after: Score,
    /// Whether the instance goes on to another host in a later step: it makes room.
    pub is_detour: bool,
}

/// Two instances on different hosts, of which one demands a latency to the other. The latency between hosts is unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Far {
    /// The instance with the demand.
    pub one: Vid,
    /// The other instance.
    pub other: Vid,
    /// The most microseconds between both.
    pub within_us: u64,
}

/// Moves to a better placement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Improvement {
    /// The figures now.
    pub before: Score,
    /// The moves in waves: those of one wave may run at the same time. Without any, no move pays.
    pub waves: Vec<Vec<Step>>,
    /// Instances that stay for a reason of their own.
    pub pinned: Vec<(Vid, String)>,
    /// Instances that would be better elsewhere, but that no order of moves brings there.
    pub stuck: Vec<Vid>,
    /// Instances whose demand of a latency cannot be judged when all moves are done.
    pub far: Vec<Far>,
}

impl Improvement {
    /// The figures when all moves are done.
    #[must_use]
    pub fn after(&self) -> &Score {
        self.waves.iter().flatten().last().map_or(&self.before, |step| &step.after)
    }
}

/// Searches for a placement that is so much better that its moves pay.
///
/// # Errors
/// If a host that is to be empty is unknown, or one of its instances fits nowhere else.
pub fn improve(view: &View<'_>, loads: &Loads, aim: &Aim, bounds: &Bounds) -> Result<Improvement, Refusal> {
    let loads = &loads.with_demands(view);
    let places = match aim {
        Aim::Consolidate => consolidated(view, loads, bounds),
        Aim::Evacuate(host) => {
            if !view.hosts.contains_key(host) {
                return Err(Refusal::NotConnected(host.clone()));
            }
            let empty = BTreeSet::from([host.clone()]);
            let found = searched(view, loads, aim, bounds, &empty, 1);
            found.ok_or_else(|| Refusal::NowhereToGo(host.clone()))?
        }
        Aim::Balance | Aim::Traffic => affordable(view, loads, aim, bounds),
    };
    Ok(ordered(view, loads, aim, bounds, &places))
}

/// Where each instance that may move is to be.
type Places = BTreeMap<Vid, HostName>;

/// A placement with no more moves than allowed, if there is one when moves cost several times as much as they do; else the best one, of
/// whose moves some are made.
fn affordable(view: &View<'_>, loads: &Loads, aim: &Aim, bounds: &Bounds) -> Places {
    let none = BTreeSet::new();
    let attempt = |weight| searched(view, loads, aim, bounds, &none, weight);
    let best = attempt(1).unwrap_or_default();
    if moved(view, &best) <= bounds.moves {
        return best;
    }
    let is_some = |places: &Places| (1..=bounds.moves).contains(&moved(view, places));
    [4, 16, 64].into_iter().filter_map(attempt).find(is_some).unwrap_or(best)
}

fn moved(view: &View<'_>, places: &Places) -> usize {
    let moves = |(vid, to): &(&Vid, &HostName)| view.instances.get(vid).is_some_and(|at| at.host != *to);
    places.iter().filter(moves).count()
}

/// Empties hosts, the one with the fewest instances first, as long as their instances fit elsewhere without overload.
fn consolidated(view: &View<'_>, loads: &Loads, bounds: &Bounds) -> Places {
    const ATTEMPTS: usize = 32;
    let mut candidates: Vec<_> = view.usable().map(|host| (view.instances_on(host), host)).collect();
    candidates.retain(|(count, _)| *count > 0);
    candidates.sort();
    let (mut empty, mut best) = (BTreeSet::new(), Places::new());
    for (_, host) in candidates.into_iter().take(ATTEMPTS) {
        let mut more = empty.clone();
        more.insert(host.clone());
        let Some(places) = searched(view, loads, &Aim::Consolidate, bounds, &more, 1) else { continue };
        let overload = |places: &Places| Score::of(view, loads, places).overload;
        if overload(&places) <= overload(&Places::new()) && moved(view, &places) <= bounds.moves {
            (empty, best) = (more, places);
        }
    }
    best
}

/// The cheapest placement found in which the hosts `empty` have no instances that could go elsewhere; `None` if some of these fit nowhere.
fn searched(
    view: &View<'_>,
    loads: &Loads,
    aim: &Aim,
    bounds: &Bounds,
    empty: &BTreeSet<HostName>,
    move_weight: u64,
) -> Option<Places> {
    let search = Search::Improvement { aim, empty, move_weight };
    let model = Model::new(view, loads, search, bounds).bring_together();
    if !model.all_may_be_somewhere() {
        return None;
    }
    let problem = model.problem();
    let mut steps = Steps::new(bounds.steps.min(most_steps(problem.items(), problem.places())));
    let found = solve(&problem, &mut steps, bounds.seed);
    let stay = evaluate(&problem, &model.starts());
    let is_better = found.violations < stay.violations || found.cost < stay.cost || !empty.is_empty();
    let places = if is_better { found.places } else { model.starts() };
    model.hosts_of(&places)
}

/// The most steps of a search among so many items and places.
fn most_steps(items: usize, places: usize) -> u64 {
    match items * items.max(places) {
        changes @ 1..=SMALL => (MOST_CHANGES / changes) as u64,
        _ => u64::MAX,
    }
}

/// The moves to `places`, in an order in which each instant obeys all constraints.
fn ordered(view: &View<'_>, loads: &Loads, aim: &Aim, bounds: &Bounds, places: &Places) -> Improvement {
    let none = BTreeSet::new();
    let search = Search::Improvement { aim, empty: &none, move_weight: 1 };
    let model = Model::new(view, loads, search, bounds);
    let goals = model.indices_of(places);
    let order = order(&model.problem(), &goals, bounds.at_once);
    let (before, mut now) = (Score::of(view, loads, &Places::new()), Places::new());
    let mut left = worthwhile(&model, &order.waves, &goals, bounds.moves);
    let mut waves = Vec::new();
    for wave in order.waves {
        let taken: Vec<_> = wave.into_iter().take(left).collect();
        left -= taken.len();
        let moving = taken.iter().flat_map(|step| model.vids(step.item).map(move |vid| (vid, step)));
        let steps = moving.map(|(vid, step)| {
            let (from, to) = (model.host(step.from), model.host(step.to));
            now.insert(vid, to.clone());
            let is_detour = places.get(&vid) != Some(&to);
            let copied = loads.needs.get(&vid).map_or(0, |need| need.copied);
            Step { vid, from, to, copied, after: Score::of(view, loads, &now), is_detour }
        });
        let steps: Vec<_> = steps.collect();
        // Any part of a wave may be done before the rest.
        waves.extend(steps.chunks(bounds.at_once.max(1)).map(<[Step]>::to_vec));
    }
    let stuck = order.stuck.into_iter().flat_map(|item| model.vids(item).collect::<Vec<_>>()).collect();
    Improvement { before, waves, pinned: model.pinned(), stuck, far: far(view, &now) }
}

/// The demands of latencies between instances on different hosts, with those in `places` there.
fn far(view: &View<'_>, places: &Places) -> Vec<Far> {
    let ends: Vec<_> = view.instances.iter().map(|(vid, at)| (*vid, at.name, at.placement)).collect();
    let host_of = |vid: &Vid| places.get(vid).or_else(|| Some(view.instances.get(vid)?.host));
    let pairs = latencies(&ends).into_iter().filter(|(one, other, _)| host_of(one) != host_of(other));
    pairs.map(|(one, other, within_us)| Far { one, other, within_us }).collect()
}

/// How many of the orders' moves to make: all, or the first ones that gain the most together if they move too many instances. No instance is
/// left on the way to its place `goals`.
fn worthwhile(model: &Model<'_>, waves: &[Vec<Move>], goals: &[Option<usize>], most: usize) -> usize {
    let steps: Vec<_> = waves.iter().flatten().collect();
    let (mut sum, mut moved, mut on_the_way) = (0, 0, BTreeSet::new());
    let sums = steps.iter().map(|step| {
        sum += step.gain;
        moved += model.size(step.item);
        if goals[step.item] == Some(step.to) {
            on_the_way.remove(&step.item);
        } else {
            on_the_way.insert(step.item);
        }
        (moved <= most).then(|| on_the_way.is_empty().then_some(sum))
    });
    let sums: Vec<_> = sums.map_while(|sum| sum).collect();
    if sums.len() == steps.len() {
        return steps.len();
    }
    let best = sums.into_iter().enumerate().max_by_key(|(index, sum)| (*sum, Reverse(*index)));
    best.filter(|(_, sum)| *sum > Some(0)).map_or(0, |(index, _)| index + 1)
}

#[cfg(test)]
mod tests;
