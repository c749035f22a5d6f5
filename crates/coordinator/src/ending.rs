//! Ends instances. One that is being moved is ended when its move is over, which a kill hastens where it still can.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::{Event, Failure};
use fabric::Vid;
use moves::MoveId;
use rpc::wire::{self, Question};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::cluster::{AskError, Cluster};
use crate::follow::Events;
use crate::server::Client;
use crate::{failure, moving};

/// How long a host may take to end an instance.
const KILL_LIMIT: Duration = Duration::from_secs(30);

/// How long an instance's host may be away, and how often it is looked for.
const AWAY_LIMIT: Duration = Duration::from_secs(10);
const AWAY_TURN: Duration = Duration::from_millis(100);

/// Becomes how the end of an instance went.
pub type Ending = watch::Receiver<Option<Result<(), Failure>>>;

/// Ends an instance, and tells the client when that is done. It is done also if the client goes away.
///
/// # Errors
/// If the client cannot be told.
pub async fn kill(cluster: &Arc<Cluster>, name: &str, client: &mut Client) -> io::Result<()> {
    let begun = begin(cluster, name);
    let outcome = match begun {
        Ok(Some((ending, events))) => match moving::tell_until(over(ending), events, client).await? {
            Some(outcome) => outcome,
            None => return Ok(()),
        },
        Ok(None) => Ok(()),
        Err(failure) => Err(failure),
    };
    client.say(&outcome.map_or_else(Event::Failed, |()| Event::Done)).await
}

/// Sees to it that the instance ends; `None` if it has ended.
fn begin(cluster: &Arc<Cluster>, name: &str) -> Result<Option<(Ending, Events)>, Failure> {
    let mut inner = cluster.lock();
    let vid = match inner.find(name) {
        Some((vid, _)) => vid,
        None if inner.has_ended(name) => return Ok(None),
        None => return Err(failure::no_instance(name)),
    };
    let moving = moving::holds(&inner, vid);
    let events = moving::listen(&mut inner, moving);
    if let Some(ending) = inner.endings.get(&vid) {
        return Ok(Some((ending.clone(), events)));
    }
    let (done, ending) = watch::channel(None);
    inner.endings.insert(vid, ending.clone());
    inner.ends(vid);
    if let Some(id) = moving {
        let reason = wire::reason(&format!("it was cancelled, because `{name}` is being ended"), "");
        // One that is committed goes forward, and is waited for.
        let _too_late = moving::cancel_for(cluster, &mut inner, id, reason);
    }
    tokio::spawn(end(cluster.clone(), vid, moving, done));
    Ok(Some((ending, events)))
}

async fn end(
    cluster: Arc<Cluster>,
    vid: Vid,
    moving: Option<MoveId>,
    done: watch::Sender<Option<Result<(), Failure>>>,
) {
    if let Some(id) = moving {
        // No other move of it begins as long as it is being ended.
        moving::over(&cluster, id).await;
    }
    let outcome = end_here(&cluster, vid).await;
    cluster.lock().endings.remove(&vid);
    // Also who waits for what could not be ended.
    cluster.ended.notify_waiters();
    done.send_replace(Some(outcome));
}

/// Ends an instance that is not being moved, also if its host's node is being restarted.
async fn end_here(cluster: &Cluster, vid: Vid) -> Result<(), Failure> {
    let patience = Instant::now() + AWAY_LIMIT;
    loop {
        let host = cluster.lock().machine.image().instances.get(&vid).map(|instance| instance.host.clone());
        let Some(host) = host else { return Ok(()) };
        match cluster.ask(&host, Question::Kill { vid }, KILL_LIMIT).await {
            Ok(_) => return Ok(()),
            Err(AskError::Away(_) | AskError::Silent(_)) if Instant::now() < patience => {
                sleep(AWAY_TURN).await
            }
            Err(error) => return Err(error.into()),
        }
    }
}

async fn over(mut ending: Ending) -> Result<(), Failure> {
    let outcome = ending.wait_for(Option::is_some).await.ok().and_then(|outcome| outcome.clone());
    outcome.unwrap_or_else(|| Err(failure::coordinator_ends()))
}
