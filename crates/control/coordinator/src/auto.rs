//! The loop that plans by itself: observes the cluster, lets the controller decide, and carries out what it decides.
//!
//! The store has whether it is on, with its settings and what the controller must not forget, so a coordinator that restarts goes on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use api::{
    Aim, AutoEffect, AutoGoal, AutoRequest, AutoSettings, AutoState, AutoStatus, DrainRequest, Event,
    Failure, ImproveRequest, MAX_PARALLEL, Occurrence,
};
use controller::{Controller, Decision, Goal, Leaving, Memory, Observation, Settings, Status, Usage};
use moves::HostName;
use planner::{Loads, Talk};
use serde::{Deserialize, Serialize};
use store::{Change, Value};
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::core::{Cluster, Command, Feature, Owner, State};
use crate::drains::Drains;
use crate::network::traffic;
use crate::owned::OwnedView;
use crate::plans::{Plan, Plans};
use crate::telemetry::{Machine, Telemetry};
use crate::{apply, drain, failure, loads, planning};

/// The planner's steps in each search.
const STEPS: u64 = 2_000_000;

/// The longest and the shortest time between two looks at the cluster.
const LOOK: (Duration, Duration) = (Duration::from_secs(10), Duration::from_millis(500));

/// What the store has of the loop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stored {
    is_on: bool,
    settings: AutoSettings,
    memory: Memory,
}

/// The loop, as users see it.
#[derive(Default)]
pub struct Loop {
    stored: Option<Stored>,
    status: Status,
    /// How often it was switched.
    switched: u64,
    changed: Arc<Notify>,
}

impl Feature for Loop {}

impl Loop {
    /// Loads what is stored.
    pub fn load(stored: Option<Stored>) -> Self {
        Self { stored, ..Self::default() }
    }

    fn running(&self) -> Option<(u64, Stored)> {
        self.stored.clone().filter(|stored| stored.is_on).map(|stored| (self.switched, stored))
    }

    fn status(&self) -> AutoStatus {
        let Some(Stored { is_on, settings, memory }) = &self.stored else {
            return AutoStatus { why: "it was never switched on".into(), ..AutoStatus::default() };
        };
        let state = match (is_on, &memory.stopped) {
            (false, _) => AutoState::Off,
            (true, None) => AutoState::On,
            (true, Some(_)) => AutoState::Stopped,
        };
        let settings = Some(settings.clone());
        if !is_on {
            return AutoStatus { state, settings, why: "it is switched off".into(), ..AutoStatus::default() };
        }
        let Status { why, causes, moves, effect, misses } = self.status.clone();
        let why = if why.is_empty() { "it has not looked at the cluster yet".into() } else { why };
        let effect = effect.map(|of| AutoEffect { predicted: of.predicted, measured: of.measured });
        AutoStatus { state, settings, why, causes, moves_in_hour: moves, effect, misses }
    }
}

/// Switches the loop on or off, or reads its state.
///
/// # Errors
/// If a setting is out of range, or nothing can be stored.
pub async fn fulfil(cluster: &Cluster, request: AutoRequest) -> Result<Event, Failure> {
    match request {
        AutoRequest::On(settings) => {
            check(&settings)?;
            cluster.run(Switch { to: Some(settings) }).await?;
        }
        AutoRequest::Off => cluster.run(Switch { to: None }).await?,
        AutoRequest::Status => {}
    }
    Ok(Event::Auto(cluster.view().get::<Loop>().status()))
}

fn check(settings: &AutoSettings) -> Result<(), Failure> {
    if !(1..=MAX_PARALLEL).contains(&settings.parallel) {
        return Err(failure::wrong_parallel(settings.parallel, MAX_PARALLEL));
    }
    if settings.hold_s == 0 || settings.budget == 0 {
        let help = "use `--hold` of at least 1s and `--budget` of at least 1";
        return Err(Failure::new("a loop without hold time or budget cannot plan", help));
    }
    Ok(())
}

/// Switches the loop on with these settings, or off.
struct Switch {
    to: Option<AutoSettings>,
}

impl Command for Switch {
    type Reply = Result<(), Failure>;

    async fn run(self, owner: &mut Owner) -> Self::Reply {
        let before = owner.view().get::<Loop>().stored.clone();
        let stored = match (self.to, before) {
            (None, None) => return Ok(()),
            (None, Some(before)) => Stored { is_on: false, ..before },
            (Some(settings), before) => {
                // The moves of the last hour count, whoever has switched it off and on meanwhile.
                let moves = before.map(|before| before.memory.moves).unwrap_or_default();
                Stored { is_on: true, settings, memory: Memory { moves, ..Memory::default() } }
            }
        };
        owner.ready().await?;
        owner.append(Change::Loop(Value::of(&stored))).await?;
        owner.view().log().note(&Occurrence::AutoSwitched { is_on: stored.is_on });
        owner.edit(|state| {
            let its = state.get_mut::<Loop>();
            (its.stored, its.status, its.switched) = (Some(stored), Status::default(), its.switched + 1);
            its.changed.notify_one();
        });
        Ok(())
    }
}

/// Runs the loop while it is on, for as long as the coordinator runs.
pub async fn run(cluster: Arc<Cluster>) {
    let changed = cluster.view().get::<Loop>().changed.clone();
    loop {
        let running = cluster.view().get::<Loop>().running();
        let Some((switched, stored)) = running else {
            changed.notified().await;
            continue;
        };
        let mut controller = Controller::new(settings(&stored.settings), stored.memory, STEPS);
        let pause = Duration::from_secs(stored.settings.hold_s).div_f64(10.0).clamp(LOOK.1, LOOK.0);
        while cluster.view().get::<Loop>().switched == switched {
            match step(&cluster, controller, &stored.settings, switched).await {
                Some(next) => controller = next,
                // It begins anew with what is stored.
                None => {
                    sleep(pause).await;
                    break;
                }
            }
            tokio::select! {
                () = sleep(pause) => {}
                () = changed.notified() => {}
            }
        }
    }
}

fn settings(of: &AutoSettings) -> Settings {
    Settings {
        goal: match of.goal {
            AutoGoal::Traffic => Goal::Traffic,
            AutoGoal::Balance => Goal::Balance,
        },
        budget: of.budget,
        at_once: of.parallel,
        hold: Duration::from_secs(of.hold_s),
        cool_down: Duration::from_secs(of.cool_down_s),
        horizon: Duration::from_secs(of.horizon_s),
    }
}

/// One step: observes, decides, and begins what is decided. None if the search has panicked.
async fn step(
    cluster: &Arc<Cluster>,
    mut controller: Controller,
    settings: &AutoSettings,
    switched: u64,
) -> Option<Controller> {
    for vid in cluster.edit(|state| state.get_mut::<Plans>().take_failed()).await {
        controller.note_failure(vid);
    }
    let talks = traffic::between_instances(cluster, traffic::WINDOW_S).await;
    let seen = Seen::of(&cluster.view(), &request(settings), talks);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let decide = move || {
        let decisions = controller.step(now, &seen.observation());
        (controller, decisions)
    };
    let (controller, decisions) = tokio::task::spawn_blocking(decide).await.ok()?;
    let (memory, status) = (controller.memory(), controller.status().clone());
    // What it must not forget is stored before anything moves.
    if cluster.run(Keep { memory, status, switched }).await {
        for decision in decisions {
            perform(cluster, decision, settings).await;
        }
    }
    Some(controller)
}

/// What the loop asks the planner for.
fn request(settings: &AutoSettings) -> ImproveRequest {
    ImproveRequest {
        aim: match settings.goal {
            AutoGoal::Traffic => Aim::Traffic,
            AutoGoal::Balance => Aim::Balance,
        },
        max_moves: None,
        parallel: settings.parallel,
        horizon_s: settings.horizon_s,
        stay: Vec::new(),
    }
}

async fn perform(cluster: &Arc<Cluster>, decision: Decision, settings: &AutoSettings) {
    let log = cluster.view().log().clone();
    match decision {
        Decision::Apply { waves, reason } => {
            let plan = Plan::new(request(settings), true, &waves);
            // Nobody follows it; its end is in the event log.
            if let Err(failure) = apply::begin(cluster, plan, api::Improvement::default(), Some(reason)).await
            {
                tracing::warn!("a plan of the loop cannot begin: {}", failure.message);
            }
        }
        Decision::Drain { host, reason } => {
            tracing::info!("host {host} asks to be emptied: {reason}");
            let request = DrainRequest {
                host: host.to_string(),
                to: Vec::new(),
                parallel: settings.parallel,
                dry_run: false,
            };
            if let Err(failure) = drain::begin(cluster, request).await {
                tracing::warn!("host {host} cannot be emptied: {}", failure.message);
            }
        }
        Decision::Measured(effect) => {
            log.note(&Occurrence::PlanMeasured { predicted: effect.predicted, measured: effect.measured });
        }
        Decision::Stopped { reason } => {
            tracing::warn!("`plan --auto` has stopped itself: {reason}");
            log.note(&Occurrence::AutoStopped { reason });
        }
    }
}

/// Keeps what the controller must not forget. Whether it is still the same loop.
struct Keep {
    memory: Memory,
    status: Status,
    switched: u64,
}

impl Command for Keep {
    type Reply = bool;

    async fn run(self, owner: &mut Owner) -> bool {
        let Self { memory, status, switched } = self;
        let Some((_, before)) =
            owner.view().get::<Loop>().running().filter(|(number, _)| *number == switched)
        else {
            return false;
        };
        let stored = Stored { memory, ..before.clone() };
        if stored != before && owner.append(Change::Loop(Value::of(&stored))).await.is_err() {
            return false;
        }
        owner.edit(|state| {
            let its = state.get_mut::<Loop>();
            (its.stored, its.status) = (Some(stored), status);
        });
        true
    }
}

/// The cluster at one moment, apart from the state, which changes meanwhile.
struct Seen {
    view: OwnedView,
    loads: Loads,
    usage: BTreeMap<HostName, Usage>,
    leaving: BTreeMap<HostName, Leaving>,
    is_applying: bool,
}

impl Seen {
    fn of(state: &State, request: &ImproveRequest, talks: Vec<Talk>) -> Self {
        let hosts = state.get::<Telemetry>().hosts();
        Self {
            view: OwnedView::of(&planning::view(state)),
            loads: loads::of(state, request, talks),
            usage: hosts.iter().map(|(host, machine)| (host.clone(), usage(machine))).collect(),
            leaving: hosts.iter().filter_map(|(host, machine)| leaving(state, host, machine)).collect(),
            is_applying: state.get::<Plans>().under_way().is_some(),
        }
    }

    fn observation(&self) -> Observation<'_> {
        Observation {
            view: self.view.view(),
            loads: self.loads.clone(),
            usage: self.usage.clone(),
            leaving: self.leaving.clone(),
            is_applying: self.is_applying,
        }
    }
}

fn usage(machine: &Machine) -> Usage {
    let cpu = machine.track.last().map_or(0, |point| u64::from(point.cpu));
    let pressure = machine.last.pressure.unwrap_or_default();
    Usage {
        busy: cpu / u64::from(machine.last.processors.max(1)),
        cpu_pressure: pressure.cpu.into(),
        memory_pressure: pressure.memory.into(),
    }
}

/// The wish of a host to be emptied, unless it is empty already.
fn leaving(state: &State, host: &HostName, machine: &Machine) -> Option<(HostName, Leaving)> {
    let reason = machine.last.leaving.clone()?;
    let drains = state.get::<Drains>();
    let is_done = drains.contains(host) && state.instances_on(host) == 0 && !drains.is_draining(host);
    let is_draining = drains.is_draining(host);
    (!is_done).then(|| (host.clone(), Leaving { reason, is_draining }))
}
