//! Better placements of running instances, on request. Nothing moves here.
//!
//! * `checks`: what the engines say about the moves of a plan.

mod checks;

use std::collections::BTreeMap;
use std::sync::Arc;

use api::{Event, Failure, ImproveRequest, Stays};
use fabric::Vid;
use moves::HostName;
use moves::placement::Placement;
use planner::{Aim, Bounds, Far, Host, Improvement, Instance, Loads, Refusal, Score, Step, Talk, View};

use crate::core::{Cluster, State};
use crate::improve::checks::{Checks, Mover};
use crate::network::traffic;
use crate::{hosts, loads, planning};

/// How often a plan is made anew without the instances that the engines refuse to move.
const ROUNDS: usize = 4;

/// Searches for moves that pay, and that the engines do not refuse. The search takes up to some seconds, on a thread of its own.
///
/// # Errors
/// If the host to be emptied is unknown, or one of its instances fits nowhere else.
pub async fn find(cluster: &Arc<Cluster>, request: ImproveRequest) -> Result<Event, Failure> {
    let talks = traffic::between_instances(cluster, traffic::WINDOW_S).await;
    let mut search = Search::of(&cluster.view(), &request, talks)?;
    let mut checks = Checks::default();
    let mut rounds = 0..ROUNDS;
    loop {
        let found;
        (search, found) = searched(search).await?;
        let refused = match rounds.next() {
            Some(_) => checks.refused(cluster, &search.movers(&found)).await,
            None => Vec::new(),
        };
        if refused.is_empty() {
            return Ok(Event::Improvement(search.described(found)));
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
    hosts: BTreeMap<HostName, Host>,
    instances: BTreeMap<Vid, Owned>,
    loads: Loads,
    aim: Aim,
    bounds: Bounds,
}

/// An instance with data of its own.
struct Owned {
    name: String,
    host: HostName,
    moves_to: Option<HostName>,
    placement: Placement,
}

impl Search {
    fn of(state: &State, request: &ImproveRequest, talks: Vec<Talk>) -> Result<Self, Failure> {
        let view = planning::view(state);
        let owned = |at: &Instance<'_>| Owned {
            name: at.name.to_owned(),
            host: at.host.clone(),
            moves_to: at.moves_to.cloned(),
            placement: at.placement.clone(),
        };
        Ok(Self {
            instances: view.instances.iter().map(|(vid, at)| (*vid, owned(at))).collect(),
            hosts: view.hosts,
            loads: loads::of(state, request, talks),
            aim: aim(state, request)?,
            bounds: bounds(request),
        })
    }

    fn view(&self) -> View<'_> {
        let instances = self.instances.iter().map(|(vid, at)| {
            let (name, host, placement) = (&*at.name, &at.host, &at.placement);
            (*vid, Instance { name, host, moves_to: at.moves_to.as_ref(), placement })
        });
        View { hosts: self.hosts.clone(), instances: instances.collect(), ..View::default() }
    }

    fn run(&self) -> Result<Improvement, Refusal> {
        planner::improve(&self.view(), &self.loads, &self.aim, &self.bounds)
    }

    /// The moves of instances from where they are now.
    fn movers(&self, found: &Improvement) -> Vec<Mover> {
        let steps = found
            .waves
            .iter()
            .flatten()
            .filter(|step| self.instances.get(&step.vid).is_some_and(|at| at.host == step.from));
        steps.map(|step| Mover { vid: step.vid, name: self.name(step.vid), to: step.to.clone() }).collect()
    }

    fn name(&self, vid: Vid) -> String {
        self.instances.get(&vid).map(|at| at.name.clone()).unwrap_or_default()
    }

    fn described(&self, found: Improvement) -> api::Improvement {
        let step = |step: Step| api::ImprovementStep {
            name: self.name(step.vid),
            from: step.from.to_string(),
            to: step.to.to_string(),
            copied_bytes: step.copied,
            after: figures(&step.after),
            is_detour: step.is_detour,
        };
        let (before, after) = (figures(&found.before), figures(found.after()));
        let pinned = found.pinned.into_iter().map(|(vid, why)| Stays { name: self.name(vid), why });
        let stuck = found.stuck.into_iter().map(|vid| Stays {
            name: self.name(vid),
            why: "no order of moves brings it to its better host, since no host has room for it meanwhile"
                .into(),
        });
        let far = |Far { one, other, within_us }: Far| Stays {
            name: self.name(one),
            why: format!(
                "it demands at most {within_us} us to `{}`, which is on another host, and the latency between hosts is not known",
                self.name(other)
            ),
        };
        let waves = found.waves.into_iter().map(|wave| wave.into_iter().map(step).collect()).collect();
        let unjudged = found.far.into_iter().map(far).collect();
        api::Improvement { before, after, waves, stay: pinned.chain(stuck).collect(), unjudged }
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

fn figures(score: &Score) -> api::PlacementFigures {
    api::PlacementFigures {
        traffic: score.traffic,
        overload_milli: score.overload,
        spread_permille: score.spread,
        hosts: score.hosts,
    }
}
