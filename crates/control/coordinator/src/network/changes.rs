//! Changes of the overlay that the command line requests.

use std::sync::Arc;

use ::moves::HostName;
use api::{DEFAULT_MTU, Event, Failure, NetChange, NetDevice, NetLaid, Purpose, Shape};
use overlay::Mac;
use overlay::mac::InvalidMac;
use rpc::net::{DeviceKind, FoundTap, Question};
use rpc::wire::Answer;

use super::devices::{self, Devices};
use super::plan::{Plan, Terms};
use super::plugging::{self, CheckNew, DEVICE_LIMIT};
use super::rollout::Rollout;
use super::{layout, moves, show};
use crate::core::{AskError, Cluster, Command, Owner, State};
use crate::{failure, hosts};

/// Makes a change, and waits until it is in use.
pub async fn fulfil(cluster: &Arc<Cluster>, wanted: NetChange) -> Result<Event, Failure> {
    match wanted {
        NetChange::Lay { shape, center, plain } => {
            lay(cluster, shape, center.as_deref(), plain).await.map(Event::NetLaid)
        }
        NetChange::AddLink { ends: [a, b], cost, plain } => {
            let (a, b) = (known(cluster, &a)?, known(cluster, &b)?);
            let linked =
                move |state: &State| state.get::<Rollout>().plan().add_link(&a, &b, Terms { cost, plain });
            change(cluster, linked).await.map(Event::NetLaid)
        }
        NetChange::RemoveLink { ends: [a, b] } => {
            let (a, b) = (known(cluster, &a)?, known(cluster, &b)?);
            let unlinked = move |state: &State| state.get::<Rollout>().plan().remove_link(&a, &b);
            change(cluster, unlinked).await.map(Event::NetLaid)
        }
        NetChange::Attach { host, device, purpose, mac } => {
            let wanted = Wanted { purpose, mac: mac.map(|mac| own_mac(&mac)).transpose()? };
            if let Purpose::Station { netns: Some(netns), .. } = &wanted.purpose {
                check_netns(netns)?;
            }
            if matches!(wanted.purpose, Purpose::Proxy { .. }) {
                lay_first(cluster, &host).await?;
            }
            let host = layout::member(cluster, &host).await?;
            let (kind, mac) = decide(cluster, &host, &device, wanted).await?;
            let attached = plugging::attach(cluster.clone(), host, device, kind, mac);
            let NetDevice { mac, mtu_bytes, adopted, .. } =
                whole(async { attached.await.map_err(not_attached) }).await?.describe();
            Ok(Event::NetAttached { mac, mtu_bytes, adopted })
        }
        NetChange::Detach { host, device } => {
            let name = HostName::new(&host).map_err(|_| failure::no_host(&host))?;
            if cluster.view().get::<Devices>().count(&name) == 0 {
                layout::member(cluster, &host).await?;
            }
            let detached = plugging::detach(cluster, &name, &device).await?;
            // When the user gets the result, the device's name is free. A node that does not answer removes the device when it reconnects.
            let _ = cluster.ask_net(&name, Question::UpToDate, DEVICE_LIMIT).await;
            Ok(detached)
        }
        NetChange::Move { host, device, to } => {
            let (host, to) = (layout::member(cluster, &host).await?, layout::member(cluster, &to).await?);
            whole(moves::make(cluster.clone(), host, device, to)).await
        }
    }
}

/// The host called `name`, which need not be part of the overlay.
fn known(cluster: &Cluster, name: &str) -> Result<HostName, Failure> {
    hosts::find(&cluster.view(), name)
}

/// Lays a star with `host` in the center, unless a plan exists.
async fn lay_first(cluster: &Arc<Cluster>, host: &str) -> Result<(), Failure> {
    if cluster.view().get::<Rollout>().plan().is_empty() {
        lay(cluster, Shape::Star, Some(host), false).await?;
    }
    Ok(())
}

/// Lays a topology of the connected hosts.
async fn lay(
    cluster: &Arc<Cluster>,
    shape: Shape,
    center: Option<&str>,
    plain: bool,
) -> Result<NetLaid, Failure> {
    let center = center.map(|name| known(cluster, name)).transpose()?;
    change(cluster, move |state| {
        let connected = state.links().up().cloned().collect();
        match &center {
            Some(away) if !state.links().is_up(away) => Err(failure::host_down(away)),
            _ if state.get::<Rollout>().plan().is_empty() => {
                Plan::random()?.lay(shape, center.as_ref(), &connected, plain)
            }
            _ => state.get::<Rollout>().plan().lay(shape, center.as_ref(), &connected, plain),
        }
    })
    .await
}

/// Changes the plan, and waits until it is in use.
async fn change(
    cluster: &Arc<Cluster>,
    change: impl FnOnce(&State) -> Result<Plan, Failure> + Send + 'static,
) -> Result<NetLaid, Failure> {
    let laid = cluster.run(ChangePlan { cluster: cluster.clone(), change }).await?;
    layout::in_use(cluster).await;
    match cluster.view().get::<Rollout>().failed().iter().next() {
        None => Ok(laid),
        Some((host, reason)) => {
            let failure = failure::from_reason(reason);
            Err(Failure::new(format!("cannot include {host}: {}", failure.message), failure.remedy))
        }
    }
}

/// A change of the plan.
struct ChangePlan<F> {
    cluster: Arc<Cluster>,
    change: F,
}

impl<F: FnOnce(&State) -> Result<Plan, Failure> + Send + 'static> Command for ChangePlan<F> {
    type Reply = Result<NetLaid, Failure>;

    async fn run(self, owner: &mut Owner) -> Self::Reply {
        let Self { cluster, change } = self;
        let plan = change(&owner.view())?;
        let laid = plan.changed_since(owner.view().get::<Rollout>().plan());
        layout::use_plan(&cluster, owner, plan).await?;
        Ok(laid)
    }
}

/// Runs a change to completion, even if the client disconnects.
async fn whole<T: Send + 'static>(
    change: impl Future<Output = Result<T, Failure>> + Send + 'static,
) -> Result<T, Failure> {
    let ended = tokio::spawn(change).await;
    ended.unwrap_or_else(|error| Err(Failure::new(format!("the change failed: {error}"), "")))
}

/// A requested device.
struct Wanted {
    purpose: Purpose,
    mac: Option<Mac>,
}

/// The kind and MAC of a requested device on `host`: an existing TAP is adopted with
/// its own configuration.
async fn decide(
    cluster: &Arc<Cluster>,
    host: &HostName,
    name: &str,
    wanted: Wanted,
) -> Result<(DeviceKind, Option<Mac>), Failure> {
    let Wanted { purpose, mac } = wanted;
    cluster.run(CheckNew { key: devices::key(host, name), mac }).await?;
    let (address, mtu, netns) = match purpose {
        Purpose::Proxy { bridge } => return Ok((DeviceKind::Proxy { bridge }, mac)),
        Purpose::Station { address, mtu, netns } => (address, mtu, netns),
    };
    let look = Question::Look { device: name.to_owned(), netns: netns.clone() };
    let found = match cluster.ask_net(host, look, DEVICE_LIMIT).await? {
        Answer::Tap(found) => found,
        _ => None,
    };
    if let Some(found) = found {
        check_kept(name, found, address.as_deref(), mtu, mac)?;
    }
    let mac = found.filter(|found| !found.is_open).map(|found| found.mac).or(mac);
    if let Some(mac) = mac {
        check_unseen(cluster, mac).await?;
    }
    let new = mtu.unwrap_or(DEFAULT_MTU);
    let kind = match (found, netns) {
        (Some(FoundTap { mtu, is_open: true, .. }), netns) => DeviceKind::Redirected { netns, mtu },
        (Some(FoundTap { mtu, .. }), netns) => DeviceKind::Adopted { netns, mtu },
        (None, Some(netns)) => DeviceKind::Contained { netns, address, mtu: new },
        (None, None) => DeviceKind::Station { address, mtu: new },
    };
    Ok((kind, mac))
}

/// Checks that the request does not contradict the configuration of an existing TAP, which may be in use.
fn check_kept(
    name: &str,
    found: FoundTap,
    address: Option<&str>,
    mtu: Option<u32>,
    mac: Option<Mac>,
) -> Result<(), Failure> {
    if found.is_open && mac.is_none() {
        let what = format!("another program, such as a virtual machine, has the TAP {name} open");
        let remedy = "give the MAC of the machine's NIC, such as `--mac 52:54:00:12:34:56`; only its frames are let through";
        return Err(Failure::new(what, remedy));
    }
    let other = if address.is_some() {
        "keeps its addresses: omit `--address`"
    } else if !found.is_open && mac.is_some_and(|mac| mac != found.mac) {
        "keeps its MAC: omit `--mac`"
    } else if mtu.is_some_and(|mtu| mtu != found.mtu) {
        "keeps its MTU: omit `--mtu`"
    } else {
        return Ok(());
    };
    let FoundTap { mac, mtu, .. } = found;
    let what = format!("the TAP {name} already exists, with MAC {mac} and MTU {mtu}");
    Err(Failure::new(what, format!("an adopted TAP {other}; or choose another name")))
}

/// Checks that `name` is a valid name of a network namespace: a single path component, and no option of `ip`.
fn check_netns(name: &str) -> Result<(), Failure> {
    const LONGEST: usize = 255;
    let fits = !name.is_empty() && name.len() <= LONGEST && !name.starts_with(['.', '-']);
    if fits && !name.contains(|letter: char| letter == '/' || letter.is_control()) {
        return Ok(());
    }
    let what = format!("{name:?} is not a valid name of a network namespace");
    Err(Failure::new(what, "pass a name from `ip netns list`, not a path"))
}

/// Parses the MAC of a device.
fn own_mac(text: &str) -> Result<Mac, Failure> {
    let mac: Mac = text.parse().map_err(|error: InvalidMac| Failure::new(error.to_string(), ""))?;
    if mac.is_station() {
        return Ok(mac);
    }
    let what = format!("the MAC {mac} is not valid for a device: it is a multicast or zero address");
    Err(Failure::new(what, "choose a MAC whose second digit is even, such as 02:74:72:00:00:01"))
}

/// Checks that no device has `mac` and that no switch has learned it recently, for instance behind a proxy.
async fn check_unseen(cluster: &Arc<Cluster>, mac: Mac) -> Result<(), Failure> {
    cluster.view().get::<Devices>().check_mac(mac)?;
    let plan = cluster.view().get::<Rollout>().plan().clone();
    for (_, answer) in show::ask_all(cluster, &plan, &Question::Find { mac }).await {
        let Some(Answer::Macs(places)) = answer else { continue };
        if let Some(place) = places.first() {
            let device = place.device.as_ref().map_or_else(String::new, |device| format!("{device} of "));
            return Err(devices::mac_is_taken(mac, &format!("it was seen at {device}{}", place.host)));
        }
    }
    Ok(())
}

fn not_attached(error: AskError) -> Failure {
    match error {
        AskError::Silent(host) => {
            let remedy = "the device is stored, and the node makes it when it reconnects; `transhume net detach` removes it";
            Failure::new(format!("host {host} did not answer"), remedy)
        }
        error => error.into(),
    }
}

#[cfg(test)]
mod tests;
