//! Removal of hosts: the revocation of a host's certificate.
//!
//! One record in the store is decisive (see [`members`](crate::members)); removing the host again repeats everything that follows from it.
//! A host that instances use is not removed, because only the host knows whether they run there. If the user declares the machine lost,
//! its instances are lost too, as soon as the other nodes reject the host.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use api::{Event, Failure, HostRemoved, Occurrence};
use moves::HostName;
use moves::coordinator::{Coordinator, Input};
use rpc::COORDINATOR;
use rpc::removed::KeyId;
use rpc::wire::{FromCoordinator, reason};
use tokio::task::JoinSet;

use crate::admission::Enrolled;
use crate::core::{Cluster, Command, Owner, State};
use crate::members::{self, MOST_REMOVED, Members};
use crate::network::layout;
use crate::network::rollout::Rollout;
use crate::{drain, failure, hosts};

/// Time limit for nodes to close their connections with the removed host.
const TELLING_LIMIT: Duration = Duration::from_secs(5);

/// Removes a host. When this returns, all connected nodes reject the host. `is_lost`: the machine is
/// gone for good.
pub async fn remove(cluster: &Arc<Cluster>, name: &str, is_lost: bool) -> Result<Event, Failure> {
    let (host, revoked_tokens) = dismiss(cluster, name, is_lost).await?;
    let untold = tell_nodes(cluster).await;
    // Only afterwards: instances started as replacements must not have the lost ones as neighbours.
    let lost_instances = if is_lost { cluster.run(LoseInstances(host.clone())).await? } else { Vec::new() };
    Ok(Event::HostRemoved(HostRemoved { host: host.to_string(), revoked_tokens, lost_instances, untold }))
}

/// Makes the changes at the coordinator. Returns the tokens that were revoked.
async fn dismiss(cluster: &Arc<Cluster>, name: &str, is_lost: bool) -> Result<(HostName, Vec<u64>), Failure> {
    let admission = cluster.view().get::<Enrolled>().admission().cloned();
    let _nobody_joins = match &admission {
        Some(admission) => Some(admission.pause().await),
        None => None,
    };
    let host = HostName::new(name).ok().filter(|_| name != COORDINATOR);
    let host = host.ok_or_else(|| failure::no_host(name))?;
    let key = admission.as_ref().and_then(|admission| admission.key_of(&host));
    let dismissal = Dismissal { cluster: cluster.clone(), host: host.clone(), key, is_lost };
    let revoked = cluster.run(dismissal).await?;
    if let Some(admission) = &admission {
        admission.forget(&host);
    }
    Ok((host, revoked))
}

/// The removal of a host, whose certificate is for `key` if it has joined with a token. The reply is the revoked tokens.
struct Dismissal {
    cluster: Arc<Cluster>,
    host: HostName,
    key: Option<KeyId>,
    is_lost: bool,
}

impl Command for Dismissal {
    type Reply = Result<Vec<u64>, Failure>;

    async fn run(self, owner: &mut Owner) -> Self::Reply {
        let Self { cluster, host, key, is_lost } = self;
        owner.view().check_whole()?;
        owner.ready().await?;
        check_removable(owner, &host, is_lost)?;
        let (revoked, changed) = {
            let view = owner.view();
            let shown = view.links().get(&host).map(|node| node.key);
            view.get::<Members>().without(&host, key.into_iter().chain(shown), SystemTime::now())
        };
        members::note(owner, changed).await?;
        tracing::info!("host {host} was removed");
        owner.view().log().note(&Occurrence::HostRemoved { host: host.to_string() });
        cut_off(owner, &host).await;
        members::tell(&owner.view());
        owner.edit(|state| state.get_mut::<Enrolled>().forget(&host));
        drain::forget(owner, &host).await?;
        layout::leave(&cluster, owner, &host).await?;
        Ok(revoked)
    }
}

/// The end of a lost host's instances, and of its part in moves. The reply is the names of the instances.
struct LoseInstances(HostName);

impl Command for LoseInstances {
    type Reply = Result<Vec<String>, Failure>;

    async fn run(self, owner: &mut Owner) -> Self::Reply {
        let Self(host) = self;
        let Some(names) = lost(&owner.view(), &host) else { return Ok(Vec::new()) };
        let reason = format!("host {host} is gone for good");
        let outputs = owner.decide(|machine, now| machine.lose(&host, &reason, now));
        owner.perform(outputs).await;
        owner.view().check_whole()?;
        // Its move was committed a moment ago.
        owner.machine().leaves(&host).map_or(Ok(names), |id| Err(failure::still_leaving(&host, id)))
    }
}

/// The names of the instances on `host`; `None` if another machine has already joined with this name and reported that it does not know
/// these instances.
fn lost(state: &State, host: &HostName) -> Option<Vec<String>> {
    if state.links().is_up(host) {
        return None;
    }
    let here = state.snapshot().instances.values().filter(|instance| instance.host == *host);
    let mut names: Vec<_> = here.map(|instance| instance.name.clone()).collect();
    names.sort();
    Some(names)
}

/// Checks that `host` can be removed.
fn check_removable(owner: &Owner, host: &HostName, is_lost: bool) -> Result<(), Failure> {
    let state = &*owner.view();
    let admission = state.get::<Enrolled>().admission();
    if admission.is_some_and(|admission| admission.center() == host) {
        return Err(failure::has_the_coordinator(host));
    }
    if !hosts::known(state).contains(host) && !state.get::<Members>().is_removed(host) {
        return Err(failure::no_host(host.as_str()));
    }
    let instances = instances_of(state, host);
    if is_lost {
        check_lost(state, owner.machine(), host)?;
    } else if !instances.is_empty() {
        return Err(failure::host_in_use(host, &instances, state.links().is_up(host)));
    }
    match state.get::<Members>().has_room(host) {
        true => Ok(()),
        false => Err(failure::too_many_removed(MOST_REMOVED)),
    }
}

/// Checks that `host` shows no sign of life and that no move depends on it.
fn check_lost(state: &State, machine: &Coordinator, host: &HostName) -> Result<(), Failure> {
    if state.links().is_up(host) {
        return Err(failure::host_not_lost(host));
    }
    match machine.leaves(host) {
        Some(id) => Err(failure::still_leaving(host, id)),
        None => Ok(()),
    }
}

/// The instances that are on `host`, or move to it or away from it.
fn instances_of(state: &State, host: &HostName) -> Vec<String> {
    let image = state.snapshot();
    let moving = image.moves.values().filter(|record| record.hosts().any(|other| other == host));
    let moving: BTreeSet<_> = moving.map(|record| record.vid).collect();
    let instances = image.instances.iter();
    let here = instances.filter(|(vid, instance)| instance.host == *host || moving.contains(vid));
    let mut names: Vec<_> = here.map(|(_, instance)| instance.name.clone()).collect();
    names.sort();
    names
}

/// Drops the node's connection and ignores its queued messages.
async fn cut_off(owner: &mut Owner, host: &HostName) {
    let link = owner.edit(|state| {
        state.forget_address(host);
        state.disconnect(host)
    });
    if let Some(link) = link {
        link.pending.close();
        owner.input(Input::LinkDown(host.clone())).await;
    }
}

/// Waits until all nodes confirm the current revocation list. Returns the hosts that have not confirmed it.
async fn tell_nodes(cluster: &Arc<Cluster>) -> Vec<String> {
    let (nodes, mut untold) = {
        let state = cluster.view();
        let known = state.links().addresses().keys().chain(state.get::<Rollout>().plan().members());
        let known: BTreeSet<HostName> = known.cloned().collect();
        (state.links().up().cloned().collect::<Vec<_>>(), known)
    };
    let mut telling = JoinSet::new();
    for host in nodes {
        let cluster = cluster.clone();
        telling.spawn(async move {
            let removed = cluster.view().get::<Members>().list();
            let message = |number| FromCoordinator::Removed { number: Some(number), removed };
            let told = cluster.ask_as(&host, TELLING_LIMIT, message).await;
            told.is_ok().then_some(host)
        });
    }
    while let Some(told) = telling.join_next().await {
        if let Ok(Some(host)) = told {
            untold.remove(&host);
        }
    }
    untold.iter().map(HostName::to_string).collect()
}

/// The reason that the node of a removed host gets.
pub fn farewell(state: &State, host: &str) -> String {
    let remedy = match state.get::<Enrolled>().admission() {
        Some(admission) => {
            format!("to join again, {} and use it with `transhume net up --join`", admission.way_to_a_token())
        }
        None => {
            "issue a certificate for another name with `transhume pki`, and restart the node with it".into()
        }
    };
    reason(&format!("host `{host}` was removed from the cluster"), &remedy)
}

#[cfg(test)]
mod tests;
