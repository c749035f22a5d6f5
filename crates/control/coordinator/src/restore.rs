//! Restores checkpoints: all instances run again, or none.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use api::{Event, Failure, GroupMove, RestoreRequest};
use fabric::{NetworkKind, Vid};
use instance::Blueprint;
use moves::coordinator::{AddError, RestoreRefusal, SavedInstance};
use moves::journal::Instance;
use planner::{Amounts, Assignment, Goal, New};
use tokio::task::spawn_blocking;

use crate::address::address;
use crate::client::{Client, User};
use crate::core::{Cluster, Command, Owner, State};
use crate::follow::Events;
use crate::network::devices::Devices;
use crate::{checkpoint, failure, group, loads, moving, planning};

/// Restores the instances of a checkpoint and reports progress to the client.
///
/// # Errors
/// If sending to the client fails.
pub async fn make(
    cluster: &Arc<Cluster>,
    request: RestoreRequest,
    user: User,
    client: &mut Client,
) -> io::Result<()> {
    match begin(cluster, request, user).await {
        Ok(moves) => group::follow(moves, client).await,
        Err(failure) => client.say(&Event::Failed(failure)).await,
    }
}

async fn begin(
    cluster: &Cluster,
    request: RestoreRequest,
    user: User,
) -> Result<Vec<(GroupMove, Events)>, Failure> {
    if user.user != 0 {
        return Err(failure::only_root_checkpoints());
    }
    let RestoreRequest { directory, hosts } = request;
    let reading = spawn_blocking(move || checkpoint::read(Path::new(&directory)));
    let saved = reading.await.map_err(|error| Failure::new(error.to_string(), "try again"))??;
    cluster.run(BeginRestore { saved, hosts }).await
}

/// A restore of saved instances.
struct BeginRestore {
    saved: Vec<(Vid, SavedInstance)>,
    hosts: Vec<String>,
}

impl Command for BeginRestore {
    type Reply = Result<Vec<(GroupMove, Events)>, Failure>;

    async fn run(self, owner: &mut Owner) -> Self::Reply {
        owner.ready().await?;
        let placed = validate(&owner.view(), self)?;
        let begun = owner.decide(|machine, now| machine.restore_together(placed.clone(), now));
        let (ids, outputs) =
            begun.map_err(|(vid, refusal)| refused(&owner.view(), vid, &placed, &refusal))?;
        let moves = ids.into_iter().filter_map(|id| group::listen(owner, id)).collect();
        owner.perform(outputs).await;
        Ok(moves)
    }
}

/// The instances, each with its host.
fn validate(state: &State, restore: BeginRestore) -> Result<BTreeMap<Vid, SavedInstance>, Failure> {
    let BeginRestore { saved, hosts } = restore;
    for (vid, saved) in &saved {
        moving::check_free(state, *vid, &saved.instance.name, &saved.instance.host)?;
        check_address(state, *vid, &saved.instance.name)?;
    }
    Ok(place(state, saved, &hosts)?.into_iter().collect())
}

/// Checks that no overlay device has been given the address of a saved instance meanwhile.
///
/// # Errors
/// If one has: with a duplicate address, one of the two would be unreachable.
fn check_address(state: &State, vid: Vid, name: &str) -> Result<(), Failure> {
    let address = address(vid);
    let Some((host, device)) = state.get::<Devices>().with_address(address.into()) else { return Ok(()) };
    Err(Failure::new(
        format!("the address {address} of `{name}` now belongs to device {device} on {host}"),
        format!("if the device is not needed, detach it first: `transhume net detach {host} {device}`"),
    ))
}

/// Assigns each instance a host. Empty `hosts` means all that are connected and not drained.
fn place(
    state: &State,
    saved: Vec<(Vid, SavedInstance)>,
    hosts: &[String],
) -> Result<Vec<(Vid, SavedInstance)>, Failure> {
    let hosts = planning::usable_hosts(state, hosts)?;
    let networks: Vec<_> =
        saved.iter().map(|(_, saved)| network_of(&saved.instance)).collect::<Result<_, _>>()?;
    let new = saved.iter().zip(&networks).map(|((_, SavedInstance { instance, .. }), network)| New {
        name: &instance.name,
        placement: &instance.placement,
        needed: needed(instance),
        network: *network,
    });
    let instances: Vec<_> = new.collect();
    let goal = Goal::Start { instances: &instances, hosts: &hosts };
    let loads = loads::measured(state, Vec::new());
    let planned = planner::plan(&planning::view(state), &loads, &goal).map_err(planning::refused)?;
    let mut placed = saved;
    for Assignment { which, to } in planned {
        placed[which].1.instance.host = to;
    }
    Ok(placed)
}

/// What a saved instance needs before it is measured.
fn needed(instance: &Instance) -> Amounts {
    let demanded = Amounts::demanded(&instance.placement.demand);
    loads::size(&instance.spec).map_or(demanded, |size| size.max(demanded))
}

/// The network that a saved instance needs.
fn network_of(instance: &Instance) -> Result<NetworkKind, Failure> {
    let blueprint = Blueprint::decode(&instance.spec).map_err(|error| {
        Failure::new(
            format!("the checkpoint of `{}` cannot be restored: {error}", instance.name),
            "restore it with the release that made the checkpoint",
        )
    })?;
    if blueprint.spec.name.as_str() != instance.name {
        return Err(Failure::new(
            format!("`{}` is called `{}` in its blueprint", instance.name, blueprint.spec.name),
            "restore an unmodified copy of the checkpoint",
        ));
    }
    Ok(blueprint.spec.network_kind)
}

fn refused(
    state: &State,
    vid: Vid,
    placed: &BTreeMap<Vid, SavedInstance>,
    refusal: &RestoreRefusal,
) -> Failure {
    let name = placed.get(&vid).map(|saved| saved.instance.name.as_str()).unwrap_or_default();
    let other = state.snapshot().instances.get(&vid).map(|instance| instance.name.as_str());
    let in_the_way = |what: String, other| {
        Failure::new(what, format!("if that instance is not needed, end it first: `transhume kill {other}`"))
    };
    match refusal {
        RestoreRefusal::NotAdmitted(refusal) => failure::of_refusal(refusal, name),
        RestoreRefusal::NotAddable(AddError::VidTaken(_)) if other != Some(name) => {
            let other = other.unwrap_or_default();
            let what = format!("`{name}` needs its identity {vid}, which instance `{other}` uses now");
            in_the_way(what, other)
        }
        RestoreRefusal::NotAddable(AddError::NameTaken(_) | AddError::VidTaken(_)) => {
            let what = format!("an instance `{name}` already exists, and a restored instance keeps its name");
            in_the_way(what, name)
        }
        RestoreRefusal::NotAddable(error) => failure::of_add_error(error),
    }
}

#[cfg(test)]
mod tests;
