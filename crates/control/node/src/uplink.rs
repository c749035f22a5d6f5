//! The way to the coordinator: messages go there while the node is connected to it, and are lost otherwise.

use std::sync::Mutex;

use moves::MoveId;
use rpc::Outbox;
use rpc::wire::{FromNode, Measurement};

use crate::lock::lock;

/// The connection to the coordinator, if there is one.
#[derive(Default)]
pub struct Uplink(Mutex<Option<Outbox<FromNode>>>);

impl Uplink {
    /// Sets the connection to the coordinator, or `None` when it is lost.
    pub fn set(&self, connection: Option<Outbox<FromNode>>) {
        *lock(&self.0) = connection;
    }

    /// The connection to the coordinator, if there is one.
    pub fn connection(&self) -> Option<Outbox<FromNode>> {
        lock(&self.0).clone()
    }

    /// Whether the coordinator is connected.
    pub fn is_connected(&self) -> bool {
        lock(&self.0).is_some()
    }

    /// Sends a message to the coordinator, if it is connected.
    pub fn send(&self, message: &FromNode) {
        if let Some(connection) = &*lock(&self.0) {
            // If the connection fails to accept it, the reader of the connection notices the loss.
            let _ = connection.send(message);
        }
    }

    /// Sends a measurement of a move to the coordinator.
    pub fn measured(&self, id: MoveId, measurement: Measurement) {
        self.send(&FromNode::Measured { id, measurement });
    }
}
