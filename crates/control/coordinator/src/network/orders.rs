//! Orders to nodes.

use ::moves::HostName;
use rpc::net::ToNode;
use rpc::wire::FromCoordinator;

use crate::core::Base;

/// An order to some nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    pub to: Vec<HostName>,
    pub what: ToNode,
}

/// Sends orders to the nodes that are connected.
pub fn send(base: &Base, orders: impl IntoIterator<Item = Order>) {
    for Order { to, what } in orders {
        if !base.links().send_to(&to, &FromCoordinator::Net(what)) {
            tracing::error!("the overlay's state is too large for a message to {} nodes", to.len());
        }
    }
}
