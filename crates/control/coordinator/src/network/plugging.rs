//! Attaches devices to the overlay, and detaches them.

use std::sync::Arc;
use std::time::Duration;

use ::moves::HostName;
use api::{Event, Failure};
use overlay::Mac;
use rpc::net::{self, DeviceKind, Question, ToNode};
use store::DeviceKey;

use super::devices::{self, Device, Devices};
use super::rollout::Rollout;
use super::{nics, notices, plan};
use crate::core::{AskError, Cluster, Command, Owner, State};

/// Time limit for a node to make a device.
pub const DEVICE_LIMIT: Duration = Duration::from_secs(10);

/// Stores a device, and has the node of `host` make it. Returns the device. If the node does not answer, the device stays stored, because it may be in use.
pub async fn attach(
    cluster: Arc<Cluster>,
    host: HostName,
    name: String,
    kind: DeviceKind,
    mac: Option<Mac>,
) -> Result<net::Device, AskError> {
    let key = devices::key(&host, &name);
    let device = cluster.run(Add { host: host.clone(), key: key.clone(), kind, mac }).await?;
    let asked = cluster.ask_net(&host, Question::Attach(device.for_node(&name)), DEVICE_LIMIT).await;
    let made = device.for_node(&name);
    let is_kept = matches!(asked, Ok(_) | Err(AskError::Silent(_)));
    if let Err(failure) = cluster.run(Added { host: host.clone(), key, device, is_kept }).await {
        tracing::warn!("{host} could not make device {name}, which stays stored: {failure}");
    }
    asked.map(|_| made)
}

/// A new device, which its node has not made yet.
struct Add {
    host: HostName,
    key: DeviceKey,
    kind: DeviceKind,
    mac: Option<Mac>,
}

impl Command for Add {
    type Reply = Result<Device, Failure>;

    async fn run(self, owner: &mut Owner) -> Self::Reply {
        let Self { host, key, kind, mac } = self;
        // The host may have been removed meanwhile.
        if !owner.view().get::<Rollout>().plan().is_member(&host) {
            return Err(plan::not_joined(&host));
        }
        check_new(owner, &key, mac).await?;
        nics::check_no_instances(&owner.view(), &kind)?;
        owner.edit(|state| state.get_mut::<Devices>().begin(&key))?;
        let changed = owner.view().get::<Devices>().added(&key, kind, mac);
        let device = changed.device().cloned();
        devices::note(owner, changed).await?;
        device.ok_or_else(|| plan::not_joined(&host))
    }
}

/// The result of a node that was asked to make a device. A device that was not made is forgotten, unless it `is_kept`.
struct Added {
    host: HostName,
    key: DeviceKey,
    device: Device,
    is_kept: bool,
}

impl Command for Added {
    type Reply = Result<(), Failure>;

    async fn run(self, owner: &mut Owner) -> Self::Reply {
        let Self { host, key, device, is_kept } = self;
        owner.edit(|state| state.get_mut::<Devices>().end(&key));
        if !is_kept {
            return take_away(owner, &host, &key).await;
        }
        let view = owner.view();
        let number = view.get::<Rollout>().plan().number(&host);
        if let Some(entry) = number.and_then(|number| device.entry(number)) {
            notices::to_all(&view, ToNode::Station(entry));
        }
        Ok(())
    }
}

/// Checks whether a new device can be added.
pub struct CheckNew {
    pub key: DeviceKey,
    pub mac: Option<Mac>,
}

impl Command for CheckNew {
    type Reply = Result<(), Failure>;

    async fn run(self, owner: &mut Owner) -> Self::Reply {
        check_new(owner, &self.key, self.mac).await
    }
}

/// Checks that no device is stored at `key`, and that no device has the requested MAC.
async fn check_new(owner: &Owner, key: &DeviceKey, mac: Option<Mac>) -> Result<(), Failure> {
    owner.view().check_whole()?;
    owner.ready().await?;
    let view = owner.view();
    mac.map_or(Ok(()), |mac| view.get::<Devices>().check_mac(mac))?;
    view.get::<Devices>().check_free(key)
}

/// Removes a device from the store. If the node is not connected, it removes the device when it reconnects.
pub async fn detach(cluster: &Cluster, host: &HostName, name: &str) -> Result<Event, Failure> {
    cluster.run(Detach { host: host.clone(), name: name.to_owned() }).await
}

struct Detach {
    host: HostName,
    name: String,
}

impl Command for Detach {
    type Reply = Result<Event, Failure>;

    async fn run(self, owner: &mut Owner) -> Self::Reply {
        let Self { host, name } = self;
        let key = devices::key(&host, &name);
        owner.edit(|state| check_free(state, &host, &name, &key))?;
        take_away(owner, &host, &key).await?;
        let is_up = owner.view().links().is_up(&host);
        Ok(if is_up { Event::Done } else { Event::NetForgotten })
    }
}

/// Checks that no change of the device is in progress.
fn check_free(state: &mut State, host: &HostName, name: &str, key: &DeviceKey) -> Result<(), Failure> {
    if state.get::<Devices>().get(key).is_err() {
        nics::check_no_nic(state, host, name)?;
    }
    let devices = state.get_mut::<Devices>();
    devices.begin(key).inspect(|()| devices.end(key))
}

async fn take_away(owner: &mut Owner, host: &HostName, key: &DeviceKey) -> Result<(), Failure> {
    owner.view().check_whole()?;
    let (mac, changed) = {
        let view = owner.view();
        let devices = view.get::<Devices>();
        (devices.get(key)?.mac, devices.removed(key))
    };
    let epoch = changed.epoch;
    devices::note(owner, changed).await?;
    let view = owner.view();
    notices::settle(&view, host);
    notices::to_all(&view, ToNode::Withdraw { mac, epoch });
    Ok(())
}

/// Removes all devices of `host` in the same way.
pub async fn take_all_away(owner: &mut Owner, host: &HostName) -> Result<(), Failure> {
    let names = owner.view().get::<Devices>().names(host);
    for name in names {
        take_away(owner, host, &devices::key(host, &name)).await?;
    }
    Ok(())
}
