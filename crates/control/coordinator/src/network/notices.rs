//! Notices to nodes about devices and stations.

use ::moves::HostName;
use rpc::net::ToNode;

use super::devices::Devices;
use super::nics;
use super::orders::{self, Order};
use super::rollout::Rollout;
use crate::core::State;

/// Sends an order to all nodes of the overlay.
pub fn to_all(state: &State, what: ToNode) {
    let to = state.get::<Rollout>().plan().members().cloned().collect();
    orders::send(state, [Order { to, what }]);
}

/// Sends the node of `host` the list of its devices.
pub fn settle(state: &State, host: &HostName) {
    let what = state.get::<Devices>().of_host(host);
    orders::send(state, [Order { to: vec![host.clone()], what }]);
}

/// Sends the node of `host` its devices and the locations of all stations.
pub fn all(state: &State, host: &HostName) {
    settle(state, host);
    let plan = state.get::<Rollout>().plan();
    let number = |host: &str| plan.number(&HostName::new(host).ok()?);
    let parts = state.get::<Devices>().stations(number, nics::entries(state, plan)).into_iter();
    orders::send(state, parts.map(|what| Order { to: vec![host.clone()], what }));
}
