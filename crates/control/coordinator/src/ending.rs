//! Ends instances. If an instance is moving, its end waits for the end of the move; a kill cancels the move if that is still possible.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use api::{Event, Failure};
use fabric::Vid;
use moves::MoveId;
use rpc::wire::{self, Question};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::client::Client;
use crate::core::{AskError, Cluster, Command, Owner, State};
use crate::follow::Events;
use crate::follows::Follows;
use crate::lifecycle::{Ending, Lifecycle};
use crate::{failure, moving};

/// Time limit for a host to end an instance.
const KILL_LIMIT: Duration = Duration::from_secs(30);

/// How long the coordinator waits for the instance's host to reconnect, and how often it checks.
const AWAY_LIMIT: Duration = Duration::from_secs(10);
const AWAY_TURN: Duration = Duration::from_millis(100);

/// Ends an instance and reports the result to the client. The instance ends even if the client disconnects.
///
/// # Errors
/// If sending to the client fails.
pub async fn kill(cluster: &Arc<Cluster>, name: &str, client: &mut Client) -> io::Result<()> {
    let begun = cluster.run(EndInstance { cluster: cluster.clone(), name: name.to_owned() }).await;
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

/// The end of an instance that a user requests. The reply is `None` if the instance has ended.
struct EndInstance {
    cluster: Arc<Cluster>,
    name: String,
}

impl Command for EndInstance {
    type Reply = Result<Option<(Ending, Events)>, Failure>;

    async fn run(self, owner: &mut Owner) -> Self::Reply {
        let Self { cluster, name } = self;
        let Some(vid) = find(&owner.view(), &name)? else { return Ok(None) };
        let moving = moving::holds(&owner.view(), vid);
        let events = owner.edit(|state| state.get_mut::<Follows>().listen_to(moving));
        if let Some(ending) = owner.view().get::<Lifecycle>().ending(vid) {
            return Ok(Some((ending.clone(), events)));
        }
        let (done, ending) = watch::channel(None);
        let noted = ending.clone();
        owner.edit(|state| {
            state.get_mut::<Lifecycle>().ends(vid, noted);
            state.get_mut::<Follows>().ends(vid);
        });
        if let Some(id) = moving {
            let reason = wire::reason(&format!("it was cancelled because `{name}` is being ended"), "");
            // A committed move goes forward; the kill waits for it.
            let _too_late = moving::cancel_for(owner, id, reason).await;
        }
        tokio::spawn(end(cluster, vid, moving, done));
        Ok(Some((ending, events)))
    }
}

/// The instance called `name`; `None` if it has ended.
fn find(state: &State, name: &str) -> Result<Option<Vid>, Failure> {
    match state.find(name) {
        Some((vid, _)) => Ok(Some(vid)),
        None if state.get::<Lifecycle>().has_ended(name) => Ok(None),
        None => Err(failure::no_instance(name)),
    }
}

async fn end(
    cluster: Arc<Cluster>,
    vid: Vid,
    moving: Option<MoveId>,
    done: watch::Sender<Option<Result<(), Failure>>>,
) {
    if let Some(id) = moving {
        // While the instance is being ended, no other move of it can begin.
        moving::over(&cluster, id).await;
    }
    let outcome = end_here(&cluster, vid).await;
    cluster.edit(move |state| state.get_mut::<Lifecycle>().end_is_over(vid)).await;
    // Wake the waiters even if the instance could not be ended.
    cluster.signals().ended.notify_waiters();
    done.send_replace(Some(outcome));
}

/// Ends an instance that is not moving. Waits for its host to reconnect if the node is restarting.
async fn end_here(cluster: &Cluster, vid: Vid) -> Result<(), Failure> {
    let patience = Instant::now() + AWAY_LIMIT;
    loop {
        let host = cluster.view().snapshot().instances.get(&vid).map(|instance| instance.host.clone());
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
