//! What the command line can ask of the overlay.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::{Event, Failure, NetHost, NetHostState, NetLink, NetRequest, Network, Purpose, Shape};
use moves::HostName;
use overlay::topology::Version;
use rpc::net;
use rpc::wire::{Answer, Question};
use tokio::task::JoinSet;

use super::plan::{self, Plan};
use super::use_plan;
use crate::cluster::{AskError, Cluster};
use crate::failure;

/// How long a node may take to say how it is.
const STATE_LIMIT: Duration = Duration::from_secs(2);

/// How long a node may take to make a device.
const DEVICE_LIMIT: Duration = Duration::from_secs(10);

/// Fulfils a request.
pub async fn fulfil(cluster: &Arc<Cluster>, request: NetRequest) -> Result<Event, Failure> {
    match request {
        NetRequest::State => return Ok(Event::Network(Box::new(state(cluster).await))),
        NetRequest::Lay { shape, center } => lay(cluster, shape, center.as_deref()).await?,
        NetRequest::AddLink { ends: [a, b], cost } => {
            let (a, b) = (known(cluster, &a)?, known(cluster, &b)?);
            change(cluster, |plan| plan.add_link(&a, &b, cost)).await?;
        }
        NetRequest::RemoveLink { ends: [a, b] } => {
            let (a, b) = (known(cluster, &a)?, known(cluster, &b)?);
            change(cluster, |plan| plan.remove_link(&a, &b)).await?;
        }
        NetRequest::Attach { host, device, purpose } => {
            if matches!(purpose, Purpose::Proxy { .. }) {
                lay_first(cluster, &host).await?;
            }
            ask(cluster, &host, net::Question::Attach { device, purpose }).await?;
        }
        NetRequest::Detach { host, device } => {
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
    let connected = cluster.lock().nodes.keys().cloned().collect();
    let center = center.map(|name| known(cluster, name)).transpose()?;
    if let Some(away) = center.as_ref().filter(|center| !cluster.lock().nodes.contains_key(*center)) {
        return Err(failure::host_down(away));
    }
    change(cluster, |plan| plan.lay(shape, center.as_ref(), &connected)).await
}

/// Changes the plan, and waits until it is in use.
async fn change(
    cluster: &Arc<Cluster>,
    change: impl FnOnce(&Plan) -> Result<Plan, Failure>,
) -> Result<(), Failure> {
    let version = {
        let mut inner = cluster.lock();
        let plan = change(inner.network.plan())?;
        use_plan(cluster, &mut inner, plan)?
    };
    in_use(cluster, version).await;
    Ok(())
}

/// Waits until `version` is in use, or overtaken.
async fn in_use(cluster: &Cluster, version: Version) {
    loop {
        let mut changed = std::pin::pin!(cluster.network_changed.notified());
        changed.as_mut().enable();
        {
            let inner = cluster.lock();
            if inner.network.plan().version() != version || inner.network.awaited().next().is_none() {
                return;
            }
        }
        changed.await;
    }
}

/// What the node of `host`, which the overlay joins, does for a device.
async fn ask(cluster: &Arc<Cluster>, host: &str, question: net::Question) -> Result<(), Failure> {
    let host = known(cluster, host)?;
    let version = {
        let inner = cluster.lock();
        let plan = inner.network.plan();
        if !plan.is_member(&host) {
            return Err(plan::not_joined(&host));
        }
        plan.version()
    };
    in_use(cluster, version).await;
    cluster.ask(&host, Question::Net(question), DEVICE_LIMIT).await?;
    Ok(())
}

async fn state(cluster: &Arc<Cluster>) -> Network {
    let (mut network, plan) = {
        let inner = cluster.lock();
        let plan = inner.network.plan().clone();
        let network = Network {
            version: plan.version().0,
            awaited: inner.network.awaited().map(HostName::to_string).collect(),
            center: plan.center().map(HostName::to_string),
            ..Network::default()
        };
        (network, plan)
    };
    let states = ask_all(cluster, plan.members()).await;
    let has_tunnel = |from: &HostName, to: &HostName| {
        let state = states.get(from).and_then(Option::as_ref);
        state.is_some_and(|state| {
            state.tunnels.iter().any(|tunnel| tunnel.host == to.as_str() && tunnel.connected)
        })
    };
    let link = |((a, b), cost): (&(HostName, HostName), u32)| NetLink {
        ends: [a.to_string(), b.to_string()],
        cost,
        up: has_tunnel(a, b) && has_tunnel(b, a),
    };
    network.links = plan.links().map(link).collect();
    network.hosts =
        states.into_iter().map(|(host, state)| NetHost { name: host.to_string(), state }).collect();
    network
}

/// How the overlay is on each of `hosts` that answers.
async fn ask_all<'a>(
    cluster: &Arc<Cluster>,
    hosts: impl Iterator<Item = &'a HostName>,
) -> BTreeMap<HostName, Option<NetHostState>> {
    let mut asking = JoinSet::new();
    for host in hosts.cloned() {
        let cluster = cluster.clone();
        asking.spawn(async move {
            let answer = cluster.ask(&host, Question::Net(net::Question::State), STATE_LIMIT).await;
            (host, state_of(answer))
        });
    }
    asking.join_all().await.into_iter().collect()
}

fn state_of(answer: Result<Answer, AskError>) -> Option<NetHostState> {
    match answer {
        Ok(Answer::Net(state)) => Some(*state),
        _ => None,
    }
}
