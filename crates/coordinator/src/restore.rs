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
use planner::{Assignment, Goal, New};
use tokio::task::spawn_blocking;

use crate::cluster::{Cluster, Inner};
use crate::follow::Events;
use crate::server::{Client, User};
use crate::{checkpoint, failure, group, instances, moving, planning};

/// Restores the instances of a checkpoint and reports progress to the client.
///
/// # Errors
/// If the client cannot be told.
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
    let inner = &mut cluster.lock();
    inner.store.ready().map_err(|error| failure::of_store(&error))?;
    for (vid, saved) in &saved {
        moving::check_free(inner, *vid, &saved.instance.name, &saved.instance.host)?;
        check_address(inner, *vid, &saved.instance.name)?;
    }
    let placed: BTreeMap<_, _> = place(inner, saved, &hosts)?.into_iter().collect();
    let begun = inner.machine.restore_together(placed.clone(), cluster.now());
    let (ids, outputs) = begun.map_err(|(vid, refusal)| refused(inner, vid, &placed, &refusal))?;
    let moves = ids.into_iter().filter_map(|id| group::listen(inner, id)).collect();
    cluster.perform(inner, outputs);
    Ok(moves)
}

/// Checks that no overlay device has been given the address of a saved instance meanwhile.
///
/// # Errors
/// If one has: with a duplicate address, one of the two would be unreachable.
fn check_address(inner: &Inner, vid: Vid, name: &str) -> Result<(), Failure> {
    let address = instances::address(vid);
    let Some((host, device)) = inner.devices.with_address(address.into()) else { return Ok(()) };
    Err(Failure::new(
        format!("the address {address} of `{name}` now belongs to device {device} on {host}"),
        format!("if the device is not needed, detach it first: `transhume net detach {host} {device}`"),
    ))
}

/// Assigns each instance the host that will have the fewest instances. Empty `hosts` means all that are connected and not drained.
fn place(
    inner: &Inner,
    saved: Vec<(Vid, SavedInstance)>,
    hosts: &[String],
) -> Result<Vec<(Vid, SavedInstance)>, Failure> {
    let hosts = planning::usable_hosts(inner, hosts)?;
    let networks: Vec<_> =
        saved.iter().map(|(_, saved)| network_of(&saved.instance)).collect::<Result<_, _>>()?;
    let new = saved.iter().zip(&networks).map(|((_, SavedInstance { instance, .. }), network)| New {
        name: &instance.name,
        placement: &instance.placement,
        network: *network,
    });
    let instances: Vec<_> = new.collect();
    let goal = Goal::Start { instances: &instances, hosts: &hosts };
    let planned = planner::plan(&planning::view(inner), &goal).map_err(planning::refused)?;
    let mut placed = saved;
    for Assignment { which, to } in planned {
        placed[which].1.instance.host = to;
    }
    Ok(placed)
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
    inner: &Inner,
    vid: Vid,
    placed: &BTreeMap<Vid, SavedInstance>,
    refusal: &RestoreRefusal,
) -> Failure {
    let name = placed.get(&vid).map(|saved| saved.instance.name.as_str()).unwrap_or_default();
    let other = inner.machine.image().instances.get(&vid).map(|instance| instance.name.as_str());
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
mod tests {
    use super::*;
    use crate::network::played::{World, attach_with};

    #[tokio::test]
    async fn an_address_that_a_device_has_is_not_restored() {
        let world = World::new().await;
        let mut h1 = world.node("h1").await;
        world.lay(&mut [&mut h1]).await;
        let wanted = attach_with("h1", "tap1", "10.77.1.2/16");
        let (attached, _) = tokio::join!(world.change(wanted), h1.grant());
        attached.unwrap();
        let [before, its] = [1, 2].map(|lid| Vid::new(lid).unwrap());
        let inner = world.cluster.lock();
        check_address(&inner, before, "job").unwrap();
        let refused = check_address(&inner, its, "job").unwrap_err().to_string();
        assert!(
            refused.contains("the address 10.77.1.2 of `job` now belongs to device tap1 on h1"),
            "{refused}"
        );
    }
}
