//! Changes of the plan, and their rollout.

use std::collections::BTreeSet;
use std::sync::Arc;

use ::moves::HostName;
use api::Failure;
use overlay::topology::Version;
use store::{Change, Value};

use super::devices::Devices;
use super::plan::{self, Plan};
use super::rollout::{PATIENCE, Rollout};
use super::{nics, notices, orders, plugging};
use crate::admission::Enrolled;
use crate::core::{Cluster, Owner, State};
use crate::hosts;

/// Waits for the nodes of the plan to reconnect after the coordinator's start.
pub async fn await_nodes(cluster: Arc<Cluster>) {
    let version = cluster.view().get::<Rollout>().plan().version();
    await_installation(cluster, version).await;
}

/// Handles a node that has connected.
pub async fn connected(cluster: &Arc<Cluster>, owner: &mut Owner, host: &HostName) {
    let order = owner.edit(|state| state.get_mut::<Rollout>().connected(host));
    if order.is_some() {
        let view = owner.view();
        orders::send(&view, order);
        notices::all(&view, host);
    }
    let changed = with(&owner.view(), host);
    if let Some(changed) = changed {
        let joined = match changed {
            Ok(plan) => use_plan(cluster, owner, plan).await,
            Err(failure) => Err(failure),
        };
        if let Err(failure) = joined {
            tracing::warn!("cannot join {host} to the overlay: {failure}");
        }
    }
}

/// The plan that joins `host`, if it has to be joined.
fn with(state: &State, host: &HostName) -> Option<Result<Plan, Failure>> {
    let plan = state.get::<Rollout>().plan();
    let is_center = state.get::<Enrolled>().admission().is_some_and(|admission| admission.center() == host);
    match plan.is_empty() {
        true if is_center => Some(plan::first_star(host)),
        false if !plan.is_member(host) => Some(plan.join(host)),
        _ => None,
    }
}

/// Stores `plan` and starts its rollout.
pub async fn use_plan(cluster: &Arc<Cluster>, owner: &mut Owner, plan: Plan) -> Result<(), Failure> {
    owner.view().check_whole()?;
    let plan = without_old_numbers(&owner.view(), plan);
    plan.topology()?;
    owner.ready().await?;
    owner.append(Change::Network(Value::of(&plan))).await?;
    let version = plan.version();
    owner.edit(|state| {
        let before: BTreeSet<_> = state.get::<Rollout>().plan().members().cloned().collect();
        let order = state.get_mut::<Rollout>().begin(plan);
        let newcomers = order.iter().flat_map(|order| &order.to).filter(|host| !before.contains(*host));
        let newcomers: Vec<_> = newcomers.cloned().collect();
        orders::send(state, order);
        newcomers.iter().for_each(|host| notices::all(state, host));
    });
    tokio::spawn(await_installation(cluster.clone(), version));
    Ok(())
}

/// Nodes identify the hosts of devices and instances by their numbers, so those of hosts that have some are kept.
fn without_old_numbers(state: &State, plan: Plan) -> Plan {
    let nic_hosts = nics::hosts(state);
    plan.forget_numbers(|host| state.get::<Devices>().count(host) > 0 || nic_hosts.contains(host))
}

/// Removes `host` and its devices from the overlay, and links the remaining hosts without it.
pub async fn leave(cluster: &Arc<Cluster>, owner: &mut Owner, host: &HostName) -> Result<(), Failure> {
    plugging::take_all_away(owner, host).await?;
    let left = {
        let view = owner.view();
        let plan = view.get::<Rollout>().plan();
        plan.is_member(host).then(|| plan.leave(host))
    };
    match left {
        Some(plan) => use_plan(cluster, owner, plan).await,
        None => Ok(()),
    }
}

async fn await_installation(cluster: Arc<Cluster>, version: Version) {
    tokio::time::sleep(PATIENCE).await;
    let time_is_up = move |state: &mut State| {
        let order = state.get_mut::<Rollout>().time_is_up(version);
        orders::send(state, order);
    };
    cluster.edit(time_is_up).await;
    cluster.signals().network_changed.notify_waiters();
}

/// Waits until the current plan, including later changes, is in use.
pub async fn in_use(cluster: &Cluster) {
    loop {
        let mut changed = std::pin::pin!(cluster.signals().network_changed.notified());
        changed.as_mut().enable();
        if cluster.view().get::<Rollout>().awaited().next().is_none() {
            return;
        }
        changed.await;
    }
}

/// The host called `name`, if it is part of the overlay.
pub async fn member(cluster: &Cluster, name: &str) -> Result<HostName, Failure> {
    let host = hosts::find(&cluster.view(), name)?;
    if !cluster.view().get::<Rollout>().plan().is_member(&host) {
        return Err(plan::not_joined(&host));
    }
    in_use(cluster).await;
    Ok(host)
}

#[cfg(test)]
mod tests;
