//! What the command line can change of the overlay.

use std::sync::Arc;
use std::time::Duration;

use api::{Event, Failure, NetChange, Purpose, Shape};
use moves::HostName;
use rpc::net;
use rpc::wire::Question;

use super::plan::{self, Plan};
use super::use_plan;
use crate::cluster::{Cluster, Inner};
use crate::failure;

/// How long a node may take to make a device.
const DEVICE_LIMIT: Duration = Duration::from_secs(10);

/// Makes a change, and waits until it is in use.
pub async fn fulfil(cluster: &Arc<Cluster>, wanted: NetChange) -> Result<Event, Failure> {
    match wanted {
        NetChange::Lay { shape, center } => lay(cluster, shape, center.as_deref()).await?,
        NetChange::AddLink { ends: [a, b], cost } => {
            let (a, b) = (known(cluster, &a)?, known(cluster, &b)?);
            change(cluster, |inner| inner.network.plan().add_link(&a, &b, cost)).await?;
        }
        NetChange::RemoveLink { ends: [a, b] } => {
            let (a, b) = (known(cluster, &a)?, known(cluster, &b)?);
            change(cluster, |inner| inner.network.plan().remove_link(&a, &b)).await?;
        }
        NetChange::Attach { host, device, purpose } => {
            if matches!(purpose, Purpose::Proxy { .. }) {
                lay_first(cluster, &host).await?;
            }
            ask(cluster, &host, net::Question::Attach { device, purpose }).await?;
        }
        NetChange::Detach { host, device } => {
            ask(cluster, &host, net::Question::Detach { device }).await?;
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
        lay(cluster, Shape::Star, Some(host)).await?;
    }
    Ok(())
}

/// Joins the hosts that are connected.
async fn lay(cluster: &Arc<Cluster>, shape: Shape, center: Option<&str>) -> Result<(), Failure> {
    let center = center.map(|name| known(cluster, name)).transpose()?;
    change(cluster, |inner| {
        let connected = inner.nodes.keys().cloned().collect();
        match &center {
            Some(away) if !inner.nodes.contains_key(away) => Err(failure::host_down(away)),
            _ => inner.network.plan().lay(shape, center.as_ref(), &connected),
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
    Ok(())
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

/// What the node of `host`, which the overlay joins, does for a device.
async fn ask(cluster: &Arc<Cluster>, host: &str, question: net::Question) -> Result<(), Failure> {
    let host = known(cluster, host)?;
    if !cluster.lock().network.plan().is_member(&host) {
        return Err(plan::not_joined(&host));
    }
    in_use(cluster).await;
    cluster.ask(&host, Question::Net(question), DEVICE_LIMIT).await?;
    Ok(())
}
