//! Ends instances. If an instance is moving, its end waits for the end of the move; a kill cancels the move if that is still possible.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use api::{Event, Failure};
use fabric::Vid;
use instance::{Blueprint, Kind};
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

/// How long a virtual machine may take to power down, if the user does not say.
const GRACE_S: u64 = 10;

/// How long the coordinator waits for the instance's host to reconnect, and how often it checks.
const AWAY_LIMIT: Duration = Duration::from_secs(10);
const AWAY_TURN: Duration = Duration::from_millis(100);

/// Ends an instance and reports the result to the client. The instance ends even if the client disconnects. A virtual machine has a grace
/// of so many seconds to power down.
///
/// # Errors
/// If sending to the client fails.
pub async fn kill(
    cluster: &Arc<Cluster>,
    name: &str,
    grace_s: Option<u64>,
    client: &mut Client,
) -> io::Result<()> {
    let end = EndInstance { cluster: cluster.clone(), name: name.to_owned(), grace_s };
    let begun = cluster.run(end).await;
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
    grace_s: Option<u64>,
}

impl Command for EndInstance {
    type Reply = Result<Option<(Ending, Events)>, Failure>;

    async fn run(self, owner: &mut Owner) -> Self::Reply {
        let Self { cluster, name, grace_s } = self;
        let Some(vid) = find(&owner.view(), &name)? else { return Ok(None) };
        check_grace(&owner.view(), vid, grace_s)?;
        let grace_s = grace_s.unwrap_or(GRACE_S);
        let moving = moving::holds(&owner.view(), vid);
        let events = owner.edit(|state| state.get_mut::<Follows>().listen_to(moving));
        if let Some(ending) = owner.view().get::<Lifecycle>().ending(vid) {
            if grace_s == 0 {
                // A machine that is powering down ends at once.
                tokio::spawn(async move { end_here(&cluster, vid, grace_s).await });
            }
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
        tokio::spawn(end(cluster, vid, moving, grace_s, done));
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

/// Refuses a grace for an instance whose workload cannot be told to end in an orderly way.
fn check_grace(state: &State, vid: Vid, grace_s: Option<u64>) -> Result<(), Failure> {
    let Some(instance) =
        state.snapshot().instances.get(&vid).filter(|_| grace_s.is_some_and(|grace| grace > 0))
    else {
        return Ok(());
    };
    match Blueprint::decode(&instance.spec).map(|blueprint| blueprint.spec.workload.kind()) {
        Ok(kind @ (Kind::Process | Kind::Container)) => {
            let what = format!("`{}` is a {kind}, which always ends at once", instance.name);
            Err(Failure::new(what, "omit `--grace`"))
        }
        _ => Ok(()),
    }
}

async fn end(
    cluster: Arc<Cluster>,
    vid: Vid,
    moving: Option<MoveId>,
    grace_s: u64,
    done: watch::Sender<Option<Result<(), Failure>>>,
) {
    if let Some(id) = moving {
        // While the instance is being ended, no other move of it can begin.
        moving::over(&cluster, id).await;
    }
    let outcome = end_here(&cluster, vid, grace_s).await;
    cluster.edit(move |state| state.get_mut::<Lifecycle>().end_is_over(vid)).await;
    // Wake the waiters even if the instance could not be ended.
    cluster.signals().ended.notify_waiters();
    done.send_replace(Some(outcome));
}

/// Ends an instance that is not moving. Waits for its host to reconnect if the node is restarting.
async fn end_here(cluster: &Cluster, vid: Vid, grace_s: u64) -> Result<(), Failure> {
    let limit = KILL_LIMIT.saturating_add(Duration::from_secs(grace_s));
    let patience = Instant::now() + AWAY_LIMIT;
    loop {
        let host = cluster.view().snapshot().instances.get(&vid).map(|instance| instance.host.clone());
        let Some(host) = host else { return Ok(()) };
        match cluster.ask(&host, Question::Kill { vid, grace_s }, limit).await {
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
