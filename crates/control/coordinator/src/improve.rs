//! Better placements of running instances, on request. Nothing moves here.

use std::sync::Arc;

use api::{Event, Failure, ImproveRequest, Stays};
use planner::{Aim, Bounds, Improvement, Loads, Score, Step, Talk, View};

use crate::core::{Cluster, State};
use crate::network::traffic;
use crate::owned::OwnedView;
use crate::{hosts, loads, planning};

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

/// Searches for moves that pay. The search takes up to some seconds, on a thread of its own.
///
/// # Errors
/// If the host to be emptied is unknown, or one of its instances fits nowhere else.
pub async fn search(cluster: &Arc<Cluster>, request: &ImproveRequest) -> Result<Found, Failure> {
    let talks = traffic::between_instances(cluster, traffic::WINDOW_S).await;
    let search = Search::of(&cluster.view(), request, talks)?;
    let searched = tokio::task::spawn_blocking(move || search.run()).await;
    searched.map_err(|error| Failure::new(format!("the search has failed: {error}"), "report this"))?
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

    fn run(&self) -> Result<Found, Failure> {
        let view = self.view.view();
        let found =
            planner::improve(&view, &self.loads, &self.aim, &self.bounds).map_err(planning::refused)?;
        Ok(Found { waves: found.waves.clone(), shown: described(&view, found) })
    }
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
    let waves = found.waves.into_iter().map(|wave| wave.into_iter().map(step).collect()).collect();
    api::Improvement { before, after, waves, stay: pinned.chain(stuck).collect() }
}

fn figures(score: &Score) -> api::PlacementFigures {
    api::PlacementFigures {
        traffic: score.traffic,
        overload_milli: score.overload,
        spread_permille: score.spread,
        hosts: score.hosts,
    }
}
