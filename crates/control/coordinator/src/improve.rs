//! Better placements of running instances, on request. Nothing moves here.
//!
//! * `checks`: what the engines say about the moves of a plan.

mod checks;

use std::sync::Arc;

use api::{Event, Failure, ImproveRequest, Stays};
use planner::{Aim, Bounds, Far, Improvement, Loads, Refusal, Score, Step, Talk, View};

use crate::core::{Cluster, State};
use crate::improve::checks::{Checks, Mover};
use crate::network::traffic;
use crate::owned::OwnedView;
use crate::{hosts, loads, planning};

/// How often a plan is made anew without the instances that the engines refuse to move.
const ROUNDS: usize = 4;

/// A plan.
pub struct Found {
    /// For users.
    pub shown: api::Improvement,
    /// Its moves.
    pub waves: Vec<Vec<Step>>,
}

/// Searches for moves that pay.
///
/// # Errors
/// As of [`search`].
pub async fn find(cluster: &Arc<Cluster>, request: ImproveRequest) -> Result<Event, Failure> {
    Ok(Event::Improvement(search(cluster, &request).await?.shown))
}

/// Searches for moves that pay, and that the engines do not refuse. The search takes up to some seconds, on a thread of its own.
///
/// # Errors
/// If the host to be emptied is unknown, or one of its instances fits nowhere else.
pub async fn search(cluster: &Arc<Cluster>, request: &ImproveRequest) -> Result<Found, Failure> {
    let talks = traffic::between_instances(cluster, traffic::WINDOW_S).await;
    let mut search = Search::of(&cluster.view(), request, talks)?;
    let mut checks = Checks::default();
    let mut rounds = 0..ROUNDS;
    loop {
        let found;
        (search, found) = searched(search).await?;
        let refused = match rounds.next() {
            Some(_) => checks.refused(cluster, &movers(&search.view.view(), &found)).await,
            None => Vec::new(),
        };
        if refused.is_empty() {
            return Ok(Found { waves: found.waves.clone(), shown: described(&search.view.view(), found) });
        }
        for (vid, reason) in refused {
            search.loads.needs.entry(vid).or_default().pinned = Some(reason);
        }
    }
}

async fn searched(search: Search) -> Result<(Search, Improvement), Failure> {
    let run = move || {
        let found = search.run();
        (search, found)
    };
    let ran = tokio::task::spawn_blocking(run).await;
    let (search, found) =
        ran.map_err(|error| Failure::new(format!("the search has failed: {error}"), "report this"))?;
    Ok((search, found.map_err(planning::refused)?))
}

/// What a search needs, apart from the state, which changes meanwhile.
struct Search {
    view: OwnedView,
    loads: Loads,
    aim: Aim,
    bounds: Bounds,
}

impl Search {
    fn of(state: &State, request: &ImproveRequest, talks: Vec<Talk>) -> Result<Self, Failure> {
        Ok(Self {
            view: OwnedView::of(&planning::view(state)),
            loads: loads::of(state, request, talks),
            aim: aim(state, request)?,
            bounds: bounds(request),
        })
    }

    fn run(&self) -> Result<Improvement, Refusal> {
        planner::improve(&self.view.view(), &self.loads, &self.aim, &self.bounds)
    }
}

/// The moves of instances from where they are now.
fn movers(view: &View<'_>, found: &Improvement) -> Vec<Mover> {
    let mover = |step: &Step| {
        let at = view.instances.get(&step.vid).filter(|at| *at.host == step.from)?;
        Some(Mover { vid: step.vid, name: at.name.to_owned(), to: step.to.clone() })
    };
    found.waves.iter().flatten().filter_map(mover).collect()
}

fn aim(state: &State, request: &ImproveRequest) -> Result<Aim, Failure> {
    Ok(match &request.aim {
        api::Aim::Balance => Aim::Balance,
        api::Aim::Traffic => Aim::Traffic,
        api::Aim::Consolidate => Aim::Consolidate,
        api::Aim::Evacuate(host) => Aim::Evacuate(hosts::find(state, host)?),
    })
}

fn bounds(request: &ImproveRequest) -> Bounds {
    Bounds {
        moves: request.max_moves.map_or(usize::MAX, |most| most as usize),
        at_once: request.parallel.into(),
        horizon: request.horizon_s,
        ..Bounds::default()
    }
}

fn described(view: &View<'_>, found: Improvement) -> api::Improvement {
    let name = |vid| view.instances.get(&vid).map(|at| at.name.to_owned()).unwrap_or_default();
    let step = |step: Step| api::ImprovementStep {
        name: name(step.vid),
        from: step.from.to_string(),
        to: step.to.to_string(),
        copied_bytes: step.copied,
        after: figures(&step.after),
        is_detour: step.is_detour,
    };
    let (before, after) = (figures(&found.before), figures(found.after()));
    let pinned = found.pinned.into_iter().map(|(vid, why)| Stays { name: name(vid), why });
    let stuck = found.stuck.into_iter().map(|vid| Stays {
        name: name(vid),
        why: "no order of moves brings it to its better host, since no host has room for it meanwhile".into(),
    });
    let far = |Far { one, other, within_us }: Far| Stays {
        name: name(one),
        why: format!(
            "it demands at most {within_us} us to `{}`, which is on another host, and the latency between hosts is not known",
            name(other)
        ),
    };
    let waves = found.waves.into_iter().map(|wave| wave.into_iter().map(step).collect()).collect();
    let unjudged = found.far.into_iter().map(far).collect();
    api::Improvement { before, after, waves, stay: pinned.chain(stuck).collect(), unjudged }
}

fn figures(score: &Score) -> api::PlacementFigures {
    api::PlacementFigures {
        traffic: score.traffic,
        overload_milli: score.overload,
        spread_permille: score.spread,
        hosts: score.hosts,
    }
}
