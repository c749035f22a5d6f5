//! What the command line can change of the overlay.

use std::sync::Arc;
use std::time::Duration;

use ::moves::HostName;
use api::{Event, Failure, NetChange, Purpose, Shape};
use rpc::net::{Question, ToNode};
use store::DeviceKey;

use super::plan::{self, Plan, Terms};
use super::{devices, moves, use_plan};
use crate::cluster::{Cluster, Inner};
use crate::failure;

/// How long a node may take to make a device.
const DEVICE_LIMIT: Duration = Duration::from_secs(10);

/// Makes a change, and waits until it is in use.
pub async fn fulfil(cluster: &Arc<Cluster>, wanted: NetChange) -> Result<Event, Failure> {
    match wanted {
        NetChange::Lay { shape, center, plain } => lay(cluster, shape, center.as_deref(), plain).await?,
        NetChange::AddLink { ends: [a, b], cost, plain } => {
            let (a, b) = (known(cluster, &a)?, known(cluster, &b)?);
            change(cluster, |inner| inner.network.plan().add_link(&a, &b, Terms { cost, plain })).await?;
        }
        NetChange::RemoveLink { ends: [a, b] } => {
            let (a, b) = (known(cluster, &a)?, known(cluster, &b)?);
            change(cluster, |inner| inner.network.plan().remove_link(&a, &b)).await?;
        }
        NetChange::Attach { host, device, purpose } => {
            if matches!(purpose, Purpose::Proxy { .. }) {
                lay_first(cluster, &host).await?;
            }
            let host = member(cluster, &host).await?;
            whole(attach(cluster.clone(), host, device, purpose)).await?;
        }
        NetChange::Detach { host, device } => {
            let host = member(cluster, &host).await?;
            detach(cluster, &host, &device)?;
        }
        NetChange::Move { host, device, to } => {
            let (host, to) = (member(cluster, &host).await?, member(cluster, &to).await?);
            return whole(moves::make(cluster.clone(), host, device, to)).await;
        }
    }
    Ok(Event::Done)
}

/// The host called `name`, which the overlay need not join yet.
fn known(cluster: &Cluster, name: &str) -> Result<HostName, Failure> {
    let host = HostName::new(name).map_err(|_| failure::no_host(name))?;
    let inner = cluster.lock();
    let is_known = inner.hosts.contains_key(&host) || inner.network.plan().is_member(&host);
    if is_known { Ok(host) } else { Err(failure::no_host(name)) }
}

/// Lays a star with `host` in the middle, unless something was laid before.
async fn lay_first(cluster: &Arc<Cluster>, host: &str) -> Result<(), Failure> {
    if cluster.lock().network.plan().is_empty() {
        lay(cluster, Shape::Star, Some(host), false).await?;
    }
    Ok(())
}

/// Joins the hosts that are connected.
async fn lay(cluster: &Arc<Cluster>, shape: Shape, center: Option<&str>, plain: bool) -> Result<(), Failure> {
    let center = center.map(|name| known(cluster, name)).transpose()?;
    change(cluster, |inner| {
        let connected = inner.nodes.keys().cloned().collect();
        match &center {
            Some(away) if !inner.nodes.contains_key(away) => Err(failure::host_down(away)),
            _ if inner.network.plan().is_empty() => {
                Plan::random()?.lay(shape, center.as_ref(), &connected, plain)
            }
            _ => inner.network.plan().lay(shape, center.as_ref(), &connected, plain),
        }
    })
    .await
}

/// Changes the plan, and waits until it is in use.
async fn change(
    cluster: &Arc<Cluster>,
    change: impl FnOnce(&Inner) -> Result<Plan, Failure>,
) -> Result<(), Failure> {
    {
        let mut inner = cluster.lock();
        let plan = change(&inner)?;
        use_plan(cluster, &mut inner, plan)?;
    }
    in_use(cluster).await;
    match cluster.lock().network.failed().iter().next() {
        None => Ok(()),
        Some((host, reason)) => {
            let failure = failure::from_reason(reason);
            Err(Failure::new(format!("{host} is left out: {}", failure.message), failure.help))
        }
    }
}

/// Waits until the plan is in use, with what is changed meanwhile.
async fn in_use(cluster: &Cluster) {
    loop {
        let mut changed = std::pin::pin!(cluster.network_changed.notified());
        changed.as_mut().enable();
        if cluster.lock().network.awaited().next().is_none() {
            return;
        }
        changed.await;
    }
}

/// The host called `name`, which the overlay joins as it is laid out now.
pub(super) async fn member(cluster: &Cluster, name: &str) -> Result<HostName, Failure> {
    let host = known(cluster, name)?;
    if !cluster.lock().network.plan().is_member(&host) {
        return Err(plan::not_joined(&host));
    }
    in_use(cluster).await;
    Ok(host)
}

/// Does something to its end, also if nobody waits for it any more.
async fn whole<T: Send + 'static>(
    change: impl Future<Output = Result<T, Failure>> + Send + 'static,
) -> Result<T, Failure> {
    let ended = tokio::spawn(change).await;
    ended.unwrap_or_else(|error| Err(Failure::new(format!("the change has failed: {error}"), "")))
}

pub(super) async fn attach(
    cluster: Arc<Cluster>,
    host: HostName,
    name: String,
    purpose: Purpose,
) -> Result<(), Failure> {
    let key = devices::key(&host, &name);
    let device = {
        let inner = &mut *cluster.lock();
        inner.devices.begin(&key)?;
        let added = inner.devices.add(&inner.store, &key, purpose);
        added.inspect_err(|_| inner.devices.end(&key))?
    };
    let asked = cluster.ask_net(&host, Question::Attach(device.for_node(&name)), DEVICE_LIMIT).await;
    let inner = &mut *cluster.lock();
    inner.devices.end(&key);
    match asked {
        Ok(_) => {
            let number = inner.network.plan().number(&host);
            if let Some(entry) = number.and_then(|number| device.entry(number)) {
                inner.order_all(ToNode::Station(entry));
            }
            Ok(())
        }
        Err(error) => {
            if let Err(failure) = inner.take_away(&host, &key) {
                tracing::warn!("{name} of {host} could not be made, and stays noted: {failure}");
            }
            Err(error.into())
        }
    }
}

/// A node that is away hears of it when it is back.
pub(super) fn detach(cluster: &Cluster, host: &HostName, name: &str) -> Result<(), Failure> {
    let key = devices::key(host, name);
    let inner = &mut *cluster.lock();
    inner.devices.begin(&key)?;
    inner.devices.end(&key);
    inner.take_away(host, &key)
}

impl Inner {
    fn take_away(&mut self, host: &HostName, key: &DeviceKey) -> Result<(), Failure> {
        let withdrawn = self.devices.remove(&self.store, key)?;
        self.settle(host);
        self.order_all(withdrawn);
        Ok(())
    }
}
