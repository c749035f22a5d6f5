//! Restores of checkpoints: all instances run again, or none.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::Path;
use std::sync::Arc;

use api::{Event, Failure, GroupMove, RestoreRequest};
use fabric::Vid;
use instance::Blueprint;
use moves::HostName;
use moves::coordinator::{AddError, RestoreRefusal, SavedInstance};
use tokio::task::spawn_blocking;

use crate::cluster::{Cluster, Inner};
use crate::follow::Events;
use crate::placement::{self, Planned};
use crate::server::{Client, User};
use crate::{checkpoint, failure, group, instances, moving};

/// Restores the instances of a checkpoint, and tells the client how that goes on.
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

/// Checks that the address of a saved instance was not given to a device of the overlay since.
///
/// # Errors
/// If it was: of the two, one would be lost to others.
fn check_address(inner: &Inner, vid: Vid, name: &str) -> Result<(), Failure> {
    let address = instances::address(vid);
    let Some((host, device)) = inner.devices.with_address(address.into()) else { return Ok(()) };
    Err(Failure::new(
        format!("{address}, the address of `{name}`, is that of the device {device} on {host} now"),
        format!("unplug that one first, if it may go: `transhume net detach {host} {device}`"),
    ))
}

/// Gives each instance that of the hosts which will have the fewest. Without `hosts` it is one of all that are up and not drained.
fn place(
    inner: &Inner,
    saved: Vec<(Vid, SavedInstance)>,
    hosts: &[String],
) -> Result<Vec<(Vid, SavedInstance)>, Failure> {
    let hosts: Vec<HostName> = match hosts {
        [] => instances::usable_hosts(inner).cloned().collect(),
        named => named.iter().map(|host| instances::usable_host(inner, host)).collect::<Result<_, _>>()?,
    };
    let mut load: HashMap<_, _> =
        hosts.into_iter().map(|host| (host.clone(), instances::instances_on(inner, &host))).collect();
    let mut placed: Vec<(Vid, SavedInstance)> = Vec::new();
    for (vid, mut saved) in saved {
        let blueprint = Blueprint::decode(&saved.instance.spec).map_err(|error| {
            Failure::new(
                format!("the checkpoint of `{}` cannot be used: {error}", saved.instance.name),
                "restore it with the release that has made the checkpoint",
            )
        })?;
        if blueprint.spec.name.as_str() != saved.instance.name {
            return Err(Failure::new(
                format!("`{}` is called `{}` in its description", saved.instance.name, blueprint.spec.name),
                "restore a checkpoint as it was written",
            ));
        }
        let suits = |host: &HostName| {
            inner.check_network(host, blueprint.spec.network_kind)?;
            placement::check(inner, None, &saved.instance.placement, host, &Planned::new())?;
            let beside = placed.iter().map(|(_, other)| &other.instance).filter(|other| other.host == *host);
            placement::check_beside(&saved.instance.placement, beside, host)
        };
        let host = emptiest(&load, suits)?;
        *load.entry(host.clone()).or_default() += 1;
        saved.instance.host = host;
        placed.push((vid, saved));
    }
    Ok(placed)
}

/// That of the hosts with the least load which suits; if none does, why the first does not.
fn emptiest(
    load: &HashMap<HostName, u32>,
    suits: impl Fn(&HostName) -> Result<(), Failure>,
) -> Result<HostName, Failure> {
    let mut hosts: Vec<_> = load.iter().map(|(host, load)| (*load, host)).collect();
    hosts.sort();
    let mut refused = None;
    for (_, host) in hosts {
        match suits(host) {
            Ok(()) => return Ok(host.clone()),
            Err(failure) => drop(refused.get_or_insert(failure)),
        }
    }
    Err(refused.unwrap_or_else(instances::no_usable_host))
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
        Failure::new(what, format!("end that one first, if it may go: `transhume kill {other}`"))
    };
    match refusal {
        RestoreRefusal::NotAdmitted(refusal) => failure::of_refusal(refusal, name),
        RestoreRefusal::NotAddable(AddError::VidTaken(_)) if other != Some(name) => {
            let other = other.unwrap_or_default();
            let what =
                format!("`{name}` is known to its programs as {vid}, and that is instance `{other}` now");
            in_the_way(what, other)
        }
        RestoreRefusal::NotAddable(AddError::NameTaken(_) | AddError::VidTaken(_)) => {
            let what =
                format!("there is an instance `{name}` already, and a restored one is called as it was");
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
            refused.contains("10.77.1.2, the address of `job`, is that of the device tap1 on h1"),
            "{refused}"
        );
    }
}
