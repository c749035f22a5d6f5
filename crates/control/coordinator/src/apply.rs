//! Carries out plans: moves of one wave at the same time, and wave after wave.
//!
//! The plan is stored before its first move, so a coordinator that restarts goes on with it. If a move fails, its instance stays, and the rest is planned
//! anew; a plan of the loop ends, since the loop plans by itself.

use std::io;
use std::sync::Arc;

use api::{
    Event, Failure, ImproveRequest, Improvement, MoveReport, MoveRequest, Occurrence, Outcome, PlanReport,
    Stays,
};
use controller::{Blocked, next_wave};
use fabric::Vid;
use planner::Step;
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::client::Client;
use crate::core::{Cluster, Command, Owner, State};
use crate::drain::{GATHERING, LOOK};
use crate::follow::Events;
use crate::plans::{Plan, Plans, Stored};
use crate::{failure, improve, loads, moving, planning};

/// How often the rest is planned anew after a failure.
const PLANS: u32 = 5;

/// Plans, carries the plan out, and reports progress to the client. The plan goes on if the client disconnects.
///
/// # Errors
/// If sending to the client fails.
pub async fn make(cluster: &Arc<Cluster>, request: ImproveRequest, client: &mut Client) -> io::Result<()> {
    // A search takes long, so it does not begin in vain.
    let refusal = refuse_another(&cluster.view());
    let found = match refusal {
        Ok(()) => improve::search(cluster, &request).await,
        Err(failure) => Err(failure),
    };
    let begun = match found {
        Ok(found) => {
            let plan = Plan::new(request, false, &found.waves);
            begin(cluster, plan, found.shown, None).await
        }
        Err(failure) => Err(failure),
    };
    match begun {
        Ok(events) => moving::pass_on(events, client).await,
        Err(failure) => client.say(&Event::Failed(failure)).await,
    }
}

/// Begins to carry out a plan, for a `reason` if it is the loop's.
///
/// # Errors
/// If another plan is being carried out, or nothing can be stored.
pub async fn begin(
    cluster: &Arc<Cluster>,
    plan: Plan,
    shown: Improvement,
    reason: Option<String>,
) -> Result<Events, Failure> {
    cluster.run(BeginPlan { cluster: cluster.clone(), plan, shown, reason }).await
}

/// Goes on with the plan that the store has, if it has one.
pub fn resume(cluster: &Arc<Cluster>) {
    if cluster.view().get::<Plans>().under_way().is_some() {
        tokio::spawn(carry_out(cluster.clone()));
    }
}

/// Reports the progress, or the result, of a plan to the client.
///
/// # Errors
/// If sending to the client fails.
pub async fn follow(cluster: &Cluster, number: u64, client: &mut Client) -> io::Result<()> {
    let found = cluster.edit(move |state| {
        let plans = state.get_mut::<Plans>();
        match plans.under_way() {
            Some(plan) if plan.number == number => Ok(plans.listen()),
            _ => Err(plans.result(number).cloned()),
        }
    });
    match found.await {
        Ok(events) => moving::pass_on(events, client).await,
        Err(Some(report)) => client.say(&Event::Applied(report)).await,
        Err(None) => client.say(&Event::Failed(failure::unknown_plan())).await,
    }
}

/// Begins no more moves of the plan that is being carried out.
pub async fn cancel(cluster: &Cluster) -> Result<Event, Failure> {
    match cluster.edit(|state| state.get_mut::<Plans>().cancel()).await {
        true => Ok(Event::Done),
        false => Err(failure::no_plan()),
    }
}

/// Refuses a second plan beside the one that is being carried out.
fn refuse_another(state: &State) -> Result<(), Failure> {
    let other = state.get::<Plans>().under_way();
    other.map_or(Ok(()), |other| Err(failure::plan_under_way(other.by_loop)))
}

struct BeginPlan {
    cluster: Arc<Cluster>,
    plan: Plan,
    shown: Improvement,
    reason: Option<String>,
}

impl Command for BeginPlan {
    type Reply = Result<Events, Failure>;

    async fn run(self, owner: &mut Owner) -> Self::Reply {
        let Self { cluster, mut plan, shown, reason } = self;
        owner.view().check_whole()?;
        refuse_another(&owner.view())?;
        plan.number = owner.view().get::<Plans>().next_number();
        owner.ready().await?;
        owner.append(Stored::UnderWay(plan.clone()).change()).await?;
        let (number, moves) = (plan.number, plan.moves());
        let events = owner.edit(|state| {
            let events = state.get_mut::<Plans>().begin(plan);
            state.get_mut::<Plans>().tell(&Event::Applying { number, plan: shown });
            events
        });
        owner.view().log().note(&Occurrence::PlanBegan { moves, reason });
        tokio::spawn(carry_out(cluster));
        Ok(events)
    }
}

/// Carries out the present plan to its end.
async fn carry_out(cluster: Arc<Cluster>) {
    gather(&cluster).await;
    let given_up = loop {
        if cluster.view().get::<Plans>().is_cancelled() {
            break Some("it was cancelled".to_owned());
        }
        match one_wave(&cluster).await {
            Wave::Moved => {}
            Wave::Over => break None,
            Wave::Failed => match plan_anew(&cluster).await {
                Ok(()) => {}
                Err(failure) => break Some(failure.message),
            },
        }
    };
    // A coordinator that cannot store the end goes on with the plan after its restart.
    let _ = cluster.run(EndPlan { given_up }).await;
}

/// Waits for the hosts of the plan, which reconnect after the coordinator has restarted.
async fn gather(cluster: &Cluster) {
    let are_there = |state: &State| {
        let plan = state.get::<Plans>().under_way();
        plan.is_none_or(|plan| plan.hosts().all(|host| state.links().is_up(host)))
    };
    while cluster.now() < GATHERING && !are_there(&cluster.view()) {
        sleep(LOOK).await;
    }
}

enum Wave {
    /// Its moves are made.
    Moved,
    /// A move has failed.
    Failed,
    /// Nothing is left to move.
    Over,
}

/// Makes the moves of the next wave.
async fn one_wave(cluster: &Arc<Cluster>) -> Wave {
    wait_for_earlier(cluster).await;
    let (mut moves, mut has_failed) = (JoinSet::new(), false);
    match cluster.run(BeginWave).await {
        Begun::Over => return Wave::Over,
        Begun::Blocked(vid, stays) => {
            cluster.edit(move |state| state.get_mut::<Plans>().note_failure(vid, stays)).await;
            return Wave::Failed;
        }
        Begun::Moves(begun) => {
            for (vid, name, begun) in begun {
                match begun {
                    Ok(events) => {
                        let user = teller(cluster);
                        moves.spawn(async move { (vid, moving::last_of(events, &user).await) });
                    }
                    Err(failure) => {
                        has_failed = true;
                        let stays = Stays { name, why: failure.message };
                        cluster.edit(move |state| state.get_mut::<Plans>().note_failure(vid, stays)).await;
                    }
                }
            }
        }
    }
    while let Some(over) = moves.join_next().await {
        let Ok((vid, Some(Event::Moved(report)))) = over else { continue };
        has_failed |= report.outcome != Outcome::Moved;
        cluster.edit(move |state| note(state.get_mut::<Plans>(), vid, report)).await;
    }
    if has_failed { Wave::Failed } else { Wave::Moved }
}

fn note(plans: &mut Plans, vid: Vid, report: Box<MoveReport>) {
    match &report.outcome {
        Outcome::RolledBack(why) | Outcome::Ended(why) => {
            plans.note_failure(vid, Stays { name: report.name.clone(), why: why.message.clone() });
        }
        Outcome::Moved | Outcome::Saved | Outcome::Restored => plans.note_move(),
    }
    plans.tell(&Event::MoveOver(report));
}

/// Tells waiting messages of a move to all who follow the plan.
fn teller(cluster: &Arc<Cluster>) -> UnboundedSender<Event> {
    let (user, mut events) = mpsc::unbounded_channel();
    let cluster = cluster.clone();
    tokio::spawn(async move {
        while let Some(event) = events.recv().await {
            cluster.edit(move |state| state.get_mut::<Plans>().tell(&event)).await;
        }
    });
    user
}

/// Waits for moves of the plan's instances that an earlier coordinator, or somebody else, has begun.
async fn wait_for_earlier(cluster: &Cluster) {
    loop {
        let mut over = std::pin::pin!(cluster.signals().move_over.notified());
        over.as_mut().enable();
        let is_earlier = {
            let state = cluster.view();
            let plan = state.get::<Plans>().under_way();
            let mut moves = state.moves().filter(|view| view.is_under_way);
            plan.is_some_and(|plan| moves.any(|view| plan.has(view.record.vid)))
        };
        if !is_earlier {
            return;
        }
        over.await;
    }
}

/// Begins the moves of the next wave.
struct BeginWave;

enum Begun {
    Over,
    Blocked(Vid, Stays),
    /// The instances with their names, and the events of their moves.
    Moves(Vec<(Vid, String, Result<Events, Failure>)>),
}

impl Command for BeginWave {
    type Reply = Begun;

    async fn run(self, owner: &mut Owner) -> Begun {
        let wave = match next(&owner.view()) {
            Ok(wave) if wave.is_empty() => return Begun::Over,
            Ok(wave) => wave,
            Err((vid, stays)) => return Begun::Blocked(vid, stays),
        };
        let mut begun = Vec::new();
        for (vid, request) in wave {
            let events = moving::begin(owner, &request).await.map(|(_, events)| events);
            begun.push((vid, request.name, events));
        }
        Begun::Moves(begun)
    }
}

/// The moves of the next wave.
fn next(state: &State) -> Result<Vec<(Vid, MoveRequest)>, (Vid, Stays)> {
    let Some(plan) = state.get::<Plans>().under_way() else { return Ok(Vec::new()) };
    let waves = plan.waves();
    let loads = loads::of(state, &plan.request, Vec::new());
    let name = |vid| state.snapshot().instances.get(&vid).map(|at| at.name.clone()).unwrap_or_default();
    let wave = next_wave(&waves, &planning::view(state), &loads);
    let wave = wave.map_err(|Blocked { vid, why }| (vid, Stays { name: name(vid), why }))?;
    // One that has made room goes on to its place, whatever its cool-down is.
    let has_detoured =
        |step: &Step| waves.iter().flatten().any(|other| other.vid == step.vid && other.to == step.from);
    let request = |step: &Step| MoveRequest {
        name: name(step.vid),
        host: step.to.to_string(),
        dry_run: false,
        force: has_detoured(step),
        post_copy: false,
        within_s: None,
    };
    Ok(wave.into_iter().map(|step| (step.vid, request(step))).collect())
}

/// Plans the rest anew, without the instances that did not move.
async fn plan_anew(cluster: &Arc<Cluster>) -> Result<(), Failure> {
    let (mut plan, failed) = {
        let state = cluster.view();
        let plans = state.get::<Plans>();
        let Some(plan) = plans.under_way() else { return Ok(()) };
        (plan.clone(), plans.progress().failed.clone())
    };
    if plan.by_loop {
        return Err(Failure::new("a move has failed", "the loop plans anew"));
    }
    if plan.times == PLANS {
        return Err(Failure::new("too many moves have failed", "plan again when the reasons are gone"));
    }
    plan.request.stay.extend(failed.into_iter().map(|stays| stays.name));
    plan.request.stay.sort();
    plan.request.stay.dedup();
    let found = improve::search(cluster, &plan.request).await?;
    plan.replace(&found.waves);
    cluster.run(ReplacePlan { plan, shown: found.shown }).await
}

struct ReplacePlan {
    plan: Plan,
    shown: Improvement,
}

impl Command for ReplacePlan {
    type Reply = Result<(), Failure>;

    async fn run(self, owner: &mut Owner) -> Self::Reply {
        let Self { plan, shown } = self;
        owner.append(Stored::UnderWay(plan.clone()).change()).await?;
        owner.edit(|state| {
            let plans = state.get_mut::<Plans>();
            let number = plan.number;
            plans.replace(plan);
            plans.tell(&Event::Applying { number, plan: shown });
        });
        Ok(())
    }
}

struct EndPlan {
    given_up: Option<String>,
}

impl Command for EndPlan {
    type Reply = Result<(), Failure>;

    async fn run(self, owner: &mut Owner) -> Self::Reply {
        let (number, progress) = {
            let view = owner.view();
            let plans = view.get::<Plans>();
            let Some(plan) = plans.under_way() else { return Ok(()) };
            (plan.number, plans.progress().clone())
        };
        let report = PlanReport { given_up: self.given_up, ..progress };
        owner.append(Stored::Over { number, report: report.clone() }.change()).await?;
        let (moved, failed, given_up) = (report.moved, report.failed.len() as u32, report.given_up.clone());
        owner.edit(|state| state.get_mut::<Plans>().end(number, report));
        owner.view().log().note(&Occurrence::PlanEnded { moved, failed, given_up });
        Ok(())
    }
}
