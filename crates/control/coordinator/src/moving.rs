//! Moves that users request.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use api::{Event, Failure, MoveReport, MoveRequest};
use fabric::Vid;
use moves::coordinator::{MoveRequest as Wish, MoveView, TooLate};
use moves::journal::Stage;
use moves::progress::Phase;
use moves::{HostName, MoveId};
use rpc::wire;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::timeout;

use crate::client::Client;
use crate::core::{Cluster, Command, Owner, State};
use crate::follow::{self, Events, Follow};
use crate::follows::Follows;
use crate::lifecycle::Lifecycle;
use crate::{cooling, failure, occurrences, planning};

/// How long a move waits for its instance to start.
const START_LIMIT: Duration = Duration::from_secs(5);

/// Makes a move and reports progress to the client.
///
/// # Errors
/// If sending to the client fails.
pub async fn make(cluster: &Arc<Cluster>, request: &MoveRequest, client: &mut Client) -> io::Result<()> {
    tokio::select! {
        () = wait_for_start(cluster, &request.name) => {}
        () = client.gone() => return Ok(()),
    }
    match cluster.run(BeginMove(request.clone())).await {
        Ok((id, events)) => {
            if let Some(seconds) = request.within_s.filter(|_| !request.dry_run) {
                tokio::spawn(end_in_time(cluster.clone(), id, seconds));
            }
            client.say(&Event::Begun { id: id.0 }).await?;
            pass_on(events, client).await
        }
        Err(failure) => client.say(&Event::Failed(failure)).await,
    }
}

/// Rolls the move back if it has not committed after so many seconds. A move that a restarted coordinator finds is rolled back anyway.
async fn end_in_time(cluster: Arc<Cluster>, id: MoveId, seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let what = format!("it was not done within {}", api::in_words(seconds));
    let reason = wire::reason(&what, "give it more time, or move it when it changes less memory");
    cluster.run(Expire { id, reason }).await;
}

/// The end of a move whose time is over.
struct Expire {
    id: MoveId,
    reason: String,
}

impl Command for Expire {
    type Reply = ();

    async fn run(self, owner: &mut Owner) {
        // One that has committed goes forward.
        let _committed = cancel_for(owner, self.id, self.reason).await;
    }
}

/// Reports the progress, or the result, of an earlier move to the client.
///
/// # Errors
/// If sending to the client fails.
pub async fn follow(cluster: &Cluster, name: &str, id: MoveId, client: &mut Client) -> io::Result<()> {
    let name = name.to_owned();
    match cluster.edit(move |state| find(state, &name, id)).await {
        Ok(Found::UnderWay(events)) => pass_on(events, client).await,
        Ok(Found::Over(report)) => client.say(&Event::Moved(report)).await,
        Err(failure) => client.say(&Event::Failed(failure)).await,
    }
}

/// Forwards events to the client.
///
/// # Errors
/// If sending to the client fails.
pub async fn pass_on(mut events: Events, client: &mut Client) -> io::Result<()> {
    while let Some(event) = events.recv().await {
        client.say(&event).await?;
    }
    Ok(())
}

/// Waits for the start of an instance, so that a new instance can be moved at once.
pub async fn wait_for_start(cluster: &Cluster, name: &str) {
    let started = async {
        loop {
            let mut started = std::pin::pin!(cluster.signals().started.notified());
            started.as_mut().enable();
            if starting(&cluster.view(), name).is_none() {
                return;
            }
            started.await;
        }
    };
    // If the start takes longer, the move is refused for that reason.
    let _ = timeout(START_LIMIT, started).await;
}

fn starting(state: &State, name: &str) -> Option<Vid> {
    state.find(name).map(|(vid, _)| vid).filter(|vid| state.get::<Lifecycle>().is_starting(*vid))
}

/// Begins a move of an instance and returns its events. The instance must not be starting.
///
/// # Errors
/// If the move is refused.
pub async fn begin(owner: &mut Owner, request: &MoveRequest) -> Result<(MoveId, Events), Failure> {
    let name = &request.name;
    let (wish, cooling) = validate(&owner.view(), request)?;
    owner.ready().await?;
    let begun = owner.decide(|machine, now| machine.begin(wish, now));
    let (id, outputs) = begun.map_err(|refusal| failure::of_refusal(&refusal, name))?;
    let events = follow_new(owner, name, id, None).ok_or_else(|| failure::unknown_move(name))?;
    if let Some(failure) = cooling {
        owner.edit(|state| state.get_mut::<Follows>().hinder(id, failure));
    }
    owner.perform(outputs).await;
    Ok((id, events))
}

/// The request to the state machine, and the cool-down if it hinders a dry run.
fn validate(state: &State, request: &MoveRequest) -> Result<(Wish, Option<Failure>), Failure> {
    let name = &request.name;
    let (vid, source) = match state.find(name) {
        Some((vid, instance)) => (vid, instance.host.clone()),
        None if state.get::<Lifecycle>().has_ended(name) => return Err(failure::ended(name)),
        None => return Err(failure::no_instance(name)),
    };
    let destination = HostName::new(&request.host).map_err(|_| failure::no_host(&request.host))?;
    if source != destination {
        planning::usable_host(state, &request.host)?;
        planning::view(state).check_move(vid, &destination).map_err(planning::refused)?;
    }
    check_free(state, vid, name, &source)?;
    // Other reasons for a refusal take precedence over the cool-down.
    let may_cool_down = !request.force && source != destination && under_way(state, vid).is_none();
    let cooling = cooling::check(state, may_cool_down.then_some((vid, name.as_str()))).err();
    if let Some(failure) = cooling.as_ref().filter(|_| !request.dry_run) {
        return Err(failure.clone());
    }
    let MoveRequest { dry_run, post_copy, .. } = *request;
    Ok((Wish { vid, destination, dry_run, post_copy }, cooling))
}

/// A move that a user requests.
struct BeginMove(MoveRequest);

impl Command for BeginMove {
    type Reply = Result<(MoveId, Events), Failure>;

    async fn run(self, owner: &mut Owner) -> Self::Reply {
        begin(owner, &self.0).await
    }
}

/// The event stream of a new move of the instance `name`, possibly in a `group`.
pub fn follow_new(owner: &Owner, name: &str, id: MoveId, group: Option<&str>) -> Option<Events> {
    let record = owner.machine().snapshot().moves.get(&id)?;
    if !record.dry_run {
        owner.view().log().note(&occurrences::move_began(name, id, record, group));
    }
    let mut follow = Follow::new(name, record);
    let events = follow.listen();
    owner.edit(|state| state.get_mut::<Follows>().add(id, follow));
    Some(events)
}

/// Checks that the instance `name` on `host` is neither starting nor ending.
///
/// # Errors
/// If it is.
pub fn check_free(state: &State, vid: Vid, name: &str, host: &HostName) -> Result<(), Failure> {
    if state.get::<Lifecycle>().is_ending(vid) {
        return Err(failure::being_ended(name));
    }
    if state.get::<Lifecycle>().is_starting(vid) {
        return Err(failure::still_starting(name, host));
    }
    Ok(())
}

/// The blockers of a move, including the cool-down unless `force` is set.
pub async fn check(cluster: &Cluster, name: &str, to: &HostName, force: bool) -> Vec<Failure> {
    let (name, host) = (name.into(), to.to_string());
    let request = MoveRequest { name, host, dry_run: true, force, post_copy: false, within_s: None };
    let mut events = match cluster.run(BeginMove(request)).await {
        Ok((_, events)) => events,
        Err(failure) => return vec![failure],
    };
    while let Some(event) = events.recv().await {
        if let Event::Checked { obstacles } = event {
            return obstacles;
        }
    }
    vec![failure::host_silent(to)]
}

/// The last event of a move. Waiting messages go to `user` meanwhile.
pub async fn last_of(mut events: Events, user: &UnboundedSender<Event>) -> Option<Event> {
    while let Some(event) = events.recv().await {
        if event.is_last() {
            return Some(event);
        }
        if matches!(event, Event::Waiting { .. }) {
            // Events for a client that has disconnected are dropped.
            let _ = user.send(event);
        }
    }
    None
}

enum Found {
    UnderWay(Events),
    Over(Box<MoveReport>),
}

fn find(state: &mut State, name: &str, id: MoveId) -> Result<Found, Failure> {
    if let Some(events) = state.get_mut::<Follows>().listen(id) {
        return Ok(Found::UnderWay(events));
    }
    let record = state.snapshot().moves.get(&id).or_else(|| state.get::<Follows>().over(id));
    // Dry runs, and moves that were not recorded, leave no trace.
    let record =
        record.filter(|record| record.stage != Stage::Began).ok_or_else(|| failure::unknown_move(name))?;
    let mut report = follow::report(name, record);
    report.restarted = true;
    Ok(Found::Over(Box::new(report)))
}

/// Rolls the instance's move back if it is not committed, and tells the client when the instance runs again. The rollback completes even if
/// the client disconnects.
///
/// # Errors
/// If sending to the client fails.
pub async fn cancel(cluster: &Cluster, name: &str, client: &mut Client) -> io::Result<()> {
    let (id, events) = match cluster.run(CancelMove { name: name.to_owned() }).await {
        Ok(begun) => begun,
        Err(failure) => return client.say(&Event::Failed(failure)).await,
    };
    client.say(&Event::Cancelling).await?;
    match tell_until(over(cluster, id), events, client).await? {
        Some(()) => client.say(&Event::Done).await,
        None => Ok(()),
    }
}

/// The cancellation of an instance's move.
struct CancelMove {
    name: String,
}

impl Command for CancelMove {
    type Reply = Result<(MoveId, Events), Failure>;

    async fn run(self, owner: &mut Owner) -> Self::Reply {
        let Self { name } = self;
        let id = moving(&owner.view(), &name)?;
        let events = owner.edit(|state| state.get_mut::<Follows>().listen_to(Some(id)));
        let cancelled = cancel_for(owner, id, wire::reason(failure::CANCELLED, "")).await;
        cancelled.map_err(|error| failure::of_too_late(error, &name))?;
        Ok((id, events))
    }
}

/// The move of the instance `name`.
fn moving(state: &State, name: &str) -> Result<MoveId, Failure> {
    let vid = match state.find(name) {
        Some((vid, _)) => vid,
        None if state.get::<Lifecycle>().has_ended(name) => return Err(failure::ended(name)),
        None => return Err(failure::no_instance(name)),
    };
    under_way(state, vid).ok_or_else(|| failure::not_moving(name))
}

/// Cancels a move with `reason`, if it is not committed.
///
/// # Errors
/// If it is committed or over.
pub async fn cancel_for(owner: &mut Owner, id: MoveId, reason: String) -> Result<(), TooLate> {
    let outputs = owner.decide(|machine, now| machine.cancel(id, reason, now))?;
    owner.perform(outputs).await;
    Ok(())
}

/// The move that blocks other moves of the instance, if any.
pub fn under_way(state: &State, vid: Vid) -> Option<MoveId> {
    let mut moves = state.moves();
    moves.find(|view| view.record.vid == vid && view.is_under_way).map(|view| view.id)
}

/// The move that blocks the end of the instance, if any. Fetching memory after post-copy does not block it.
pub fn holds(state: &State, vid: Vid) -> Option<MoveId> {
    let mut moves = state.moves();
    moves.find(|view| view.record.vid == vid && holds_up(view)).map(|view| view.id)
}

fn holds_up(view: &MoveView<'_>) -> bool {
    view.is_under_way && view.phase != Phase::Fetch
}

/// Waits until the move no longer blocks the end of its instance.
pub async fn over(cluster: &Cluster, id: MoveId) {
    loop {
        let mut over = std::pin::pin!(cluster.signals().move_over.notified());
        over.as_mut().enable();
        if !cluster.view().moves().any(|view| view.id == id && holds_up(&view)) {
            return;
        }
        over.await;
    }
}

/// Waits until `over`, and forwards waiting messages to the client meanwhile; returns `None` if the client disconnects.
///
/// # Errors
/// If sending to the client fails.
pub async fn tell_until<T>(
    over: impl Future<Output = T>,
    mut events: Events,
    client: &mut Client,
) -> io::Result<Option<T>> {
    let mut over = std::pin::pin!(over);
    loop {
        tokio::select! {
            outcome = &mut over => return Ok(Some(outcome)),
            () = client.gone() => return Ok(None),
            Some(event) = events.recv() => if matches!(event, Event::Waiting { .. }) {
                client.say(&event).await?;
            },
        }
    }
}
