//! Moves that users request.

use std::io;
use std::time::Duration;

use api::{Event, Failure, MoveReport, MoveRequest};
use fabric::Vid;
use moves::coordinator::{MoveRequest as Wish, MoveView, TooLate};
use moves::journal::Stage;
use moves::progress::Phase;
use moves::{HostName, MoveId};
use rpc::wire;
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::time::timeout;

use crate::cluster::{Cluster, Inner};
use crate::follow::{self, Events, Follow};
use crate::server::Client;
use crate::{cooling, failure, log, planning};

/// How long a move waits for its instance to start.
const START_LIMIT: Duration = Duration::from_secs(5);

/// Makes a move and reports progress to the client.
///
/// # Errors
/// If the client cannot be told.
pub async fn make(cluster: &Cluster, request: &MoveRequest, client: &mut Client) -> io::Result<()> {
    tokio::select! {
        () = wait_for_start(cluster, &request.name) => {}
        () = client.gone() => return Ok(()),
    }
    let begun = begin(&mut cluster.lock(), cluster, request);
    match begun {
        Ok((id, events)) => {
            client.say(&Event::Begun { id: id.0 }).await?;
            pass_on(events, client).await
        }
        Err(failure) => client.say(&Event::Failed(failure)).await,
    }
}

/// Reports the progress, or the result, of an earlier move to the client.
///
/// # Errors
/// If the client cannot be told.
pub async fn follow(cluster: &Cluster, name: &str, id: MoveId, client: &mut Client) -> io::Result<()> {
    let found = find(&mut cluster.lock(), name, id);
    match found {
        Ok(Found::UnderWay(events)) => pass_on(events, client).await,
        Ok(Found::Over(report)) => client.say(&Event::Moved(report)).await,
        Err(failure) => client.say(&Event::Failed(failure)).await,
    }
}

/// Forwards events to the client.
///
/// # Errors
/// If the client cannot be told.
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
            let mut started = std::pin::pin!(cluster.started.notified());
            started.as_mut().enable();
            if starting(&cluster.lock(), name).is_none() {
                return;
            }
            started.await;
        }
    };
    // If the start takes longer, the move is refused for that reason.
    let _ = timeout(START_LIMIT, started).await;
}

fn starting(inner: &Inner, name: &str) -> Option<Vid> {
    inner.find(name).map(|(vid, _)| vid).filter(|vid| inner.starting.contains(vid))
}

/// Begins a move of an instance and returns its events. The instance must not be starting.
///
/// # Errors
/// If the move is refused.
pub fn begin(
    inner: &mut Inner,
    cluster: &Cluster,
    request: &MoveRequest,
) -> Result<(MoveId, Events), Failure> {
    let name = &request.name;
    let (vid, source) = match inner.find(name) {
        Some((vid, instance)) => (vid, instance.host.clone()),
        None if inner.has_ended(name) => return Err(failure::ended(name)),
        None => return Err(failure::no_instance(name)),
    };
    let destination = HostName::new(&request.host).map_err(|_| failure::no_host(&request.host))?;
    if source != destination {
        planning::usable_host(inner, &request.host)?;
        planning::view(inner).check_move(vid, &destination).map_err(planning::refused)?;
    }
    check_free(inner, vid, name, &source)?;
    // Other reasons for a refusal take precedence over the cool-down.
    let may_cool_down = !request.force && source != destination && under_way(inner, vid).is_none();
    let cooling = cooling::check(inner, may_cool_down.then_some((vid, name.as_str()))).err();
    if let Some(failure) = cooling.as_ref().filter(|_| !request.dry_run) {
        return Err(failure.clone());
    }
    inner.store.ready().map_err(|error| failure::of_store(&error))?;
    let MoveRequest { dry_run, post_copy, .. } = *request;
    let wish = Wish { vid, destination, dry_run, post_copy };
    let begun = inner.machine.begin(wish, cluster.now());
    let (id, outputs) = begun.map_err(|refusal| failure::of_refusal(&refusal, name))?;
    let events = follow_new(inner, name, id, None).ok_or_else(|| failure::unknown_move(name))?;
    if let Some((follow, failure)) = inner.follows.get_mut(&id).zip(cooling) {
        follow.hinder(failure);
    }
    cluster.perform(inner, outputs);
    Ok((id, events))
}

/// The event stream of a new move of the instance `name`, possibly in a `group`.
pub fn follow_new(inner: &mut Inner, name: &str, id: MoveId, group: Option<&str>) -> Option<Events> {
    let record = inner.machine.image().moves.get(&id)?;
    if !record.dry_run {
        inner.log.note(&log::move_began(name, id, record, group));
    }
    let mut follow = Follow::new(name, record);
    let events = follow.listen();
    inner.follows.insert(id, follow);
    Some(events)
}

/// Checks that the instance `name` on `host` is neither starting nor ending.
///
/// # Errors
/// If it is.
pub fn check_free(inner: &Inner, vid: Vid, name: &str, host: &HostName) -> Result<(), Failure> {
    if inner.endings.contains_key(&vid) {
        return Err(failure::being_ended(name));
    }
    if inner.starting.contains(&vid) {
        return Err(failure::still_starting(name, host));
    }
    Ok(())
}

/// The blockers of a move, including the cool-down unless `force` is set.
pub async fn check(cluster: &Cluster, name: &str, to: &HostName, force: bool) -> Vec<Failure> {
    let (name, host) = (name.into(), to.to_string());
    let request = MoveRequest { name, host, dry_run: true, force, post_copy: false };
    let begun = begin(&mut cluster.lock(), cluster, &request);
    let mut events = match begun {
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

fn find(inner: &mut Inner, name: &str, id: MoveId) -> Result<Found, Failure> {
    if let Some(follow) = inner.follows.get_mut(&id) {
        return Ok(Found::UnderWay(follow.listen()));
    }
    let present = inner.machine.image().moves.get(&id).cloned();
    let kept = || inner.store.ended_move(id).map_err(|error| Failure::new(error.to_string(), ""));
    let record = present.map_or_else(kept, |record| Ok(Some(record)))?;
    // Dry runs, and moves that were not recorded, leave no trace.
    let record =
        record.filter(|record| record.stage != Stage::Began).ok_or_else(|| failure::unknown_move(name))?;
    let mut report = follow::report(name, &record);
    report.restarted = true;
    Ok(Found::Over(Box::new(report)))
}

/// Rolls the instance's move back if it is not committed, and tells the client when the instance runs again. The rollback completes even if
/// the client disconnects.
///
/// # Errors
/// If the client cannot be told.
pub async fn cancel(cluster: &Cluster, name: &str, client: &mut Client) -> io::Result<()> {
    let begun = begin_cancel(cluster, name);
    let (id, events) = match begun {
        Ok(begun) => begun,
        Err(failure) => return client.say(&Event::Failed(failure)).await,
    };
    client.say(&Event::Cancelling).await?;
    match tell_until(over(cluster, id), events, client).await? {
        Some(()) => client.say(&Event::Done).await,
        None => Ok(()),
    }
}

fn begin_cancel(cluster: &Cluster, name: &str) -> Result<(MoveId, Events), Failure> {
    let mut inner = cluster.lock();
    let vid = match inner.find(name) {
        Some((vid, _)) => vid,
        None if inner.has_ended(name) => return Err(failure::ended(name)),
        None => return Err(failure::no_instance(name)),
    };
    let id = under_way(&inner, vid).ok_or_else(|| failure::not_moving(name))?;
    let events = listen(&mut inner, Some(id));
    let cancelled = cancel_for(cluster, &mut inner, id, wire::reason(failure::CANCELLED, ""));
    cancelled.map_err(|error| failure::of_too_late(error, name))?;
    Ok((id, events))
}

/// Cancels a move with `reason`, if it is not committed.
///
/// # Errors
/// If it is committed or over.
pub fn cancel_for(cluster: &Cluster, inner: &mut Inner, id: MoveId, reason: String) -> Result<(), TooLate> {
    let outputs = inner.machine.cancel(id, reason, cluster.now())?;
    cluster.perform(inner, outputs);
    Ok(())
}

/// The move that blocks other moves of the instance, if any.
pub fn under_way(inner: &Inner, vid: Vid) -> Option<MoveId> {
    let mut moves = inner.machine.moves();
    moves.find(|view| view.record.vid == vid && view.is_under_way).map(|view| view.id)
}

/// The event stream of a move; it is empty if there is no move.
pub fn listen(inner: &mut Inner, id: Option<MoveId>) -> Events {
    let follow = id.and_then(|id| inner.follows.get_mut(&id));
    follow.map_or_else(|| mpsc::unbounded_channel().1, Follow::listen)
}

/// The move that blocks the end of the instance, if any. Fetching memory after post-copy does not block it.
pub fn holds(inner: &Inner, vid: Vid) -> Option<MoveId> {
    let mut moves = inner.machine.moves();
    moves.find(|view| view.record.vid == vid && holds_up(view)).map(|view| view.id)
}

fn holds_up(view: &MoveView<'_>) -> bool {
    view.is_under_way && view.phase != Phase::Fetch
}

/// Waits until the move no longer blocks the end of its instance.
pub async fn over(cluster: &Cluster, id: MoveId) {
    loop {
        let mut over = std::pin::pin!(cluster.move_over.notified());
        over.as_mut().enable();
        if !cluster.lock().machine.moves().any(|view| view.id == id && holds_up(&view)) {
            return;
        }
        over.await;
    }
}

/// Waits until `over`, and forwards waiting messages to the client meanwhile; returns `None` if the client disconnects.
///
/// # Errors
/// If the client cannot be told.
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
