//! Carries out the coordinator's orders for the overlay one after the other, since later orders refer to earlier ones.

use std::sync::Arc;
use std::time::Duration;

use rpc::Outbox;
use rpc::net::{FromNode, Question, ToNode};
use rpc::wire::{self, reason};
use tokio::sync::{Notify, mpsc};
use tokio::time::{MissedTickBehavior, interval};

use super::installing::Installer;
use super::joined::Membership;
use super::own::OwnDevice;
use super::questions;
use super::undone::Undone;
use crate::uplink::Uplink;

/// How often to retry a failed installation, and to recreate missing devices.
const AGAIN: Duration = Duration::from_secs(2);

/// An order or question of the coordinator.
pub enum Order {
    /// An order without an answer.
    Do(ToNode),
    /// A question, which must be answered.
    Ask { number: u64, question: Question, outbox: Outbox<wire::FromNode> },
}

/// The queue of the coordinator's orders, and the components that carry them out.
pub struct Orders {
    queue: mpsc::UnboundedReceiver<Order>,
    membership: Arc<Membership>,
    installer: Installer,
    own: Arc<OwnDevice>,
    uplink: Arc<Uplink>,
    /// Notified when the coordinator must repeat all orders.
    renewal: Arc<Notify>,
}

impl Orders {
    pub fn new(
        queue: mpsc::UnboundedReceiver<Order>,
        membership: Arc<Membership>,
        installer: Installer,
        own: Arc<OwnDevice>,
        uplink: Arc<Uplink>,
        renewal: Arc<Notify>,
    ) -> Self {
        Self { queue, membership, installer, own, uplink, renewal }
    }

    /// Carries out the coordinator's orders, for ever.
    pub async fn follow(mut self) {
        let mut again = interval(AGAIN);
        again.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut undone = Undone::default();
        loop {
            tokio::select! {
                order = self.queue.recv() => match order {
                    None => return,
                    Some(Order::Ask { number, question, outbox }) => {
                        questions::answer(&self.membership, number, question, &outbox).await;
                    }
                    Some(Order::Do(order)) => self.take(order, &mut undone).await,
                },
                _ = again.tick() => {
                    self.carry_out_all(undone.orders()).await;
                    if let Some(joined) = &mut *self.membership.lock().await {
                        joined.devices.mend().await;
                    }
                }
            }
            self.check_own_device().await;
        }
    }

    async fn take(&self, order: ToNode, undone: &mut Undone) {
        let may_help = matches!(order, ToNode::Install { .. });
        if !undone.push(order) {
            // After a reconnect, the coordinator repeats all orders.
            tracing::warn!("too many orders wait for a topology that could not be installed");
            undone.orders().clear();
            self.renewal.notify_one();
        }
        // The failed installation is repeated later.
        if may_help || undone.orders().len() == 1 {
            self.carry_out_all(undone.orders()).await;
        }
    }

    /// Carries out `orders` and removes them; if their topology cannot be installed, they stay.
    async fn carry_out_all(&self, orders: &mut Vec<ToNode>) {
        if let Some(ToNode::Install { overlay, topology, plain, hosts }) = orders.first() {
            let (version, plain) = (topology.version(), plain.iter().copied().collect());
            let hosts = hosts.iter().cloned().collect();
            if let Err(error) = self.installer.install(*overlay, topology.clone(), plain, hosts).await {
                tracing::warn!("topology {version} is not installed: {error}");
                self.own.fail(&error.to_string());
                let remedy = "the node tries again; see its log for details";
                let failed = FromNode::NotInstalled { version, reason: reason(&error.to_string(), remedy) };
                return self.uplink.send(&wire::FromNode::Net(failed));
            }
        }
        for order in orders.drain(..) {
            self.carry_out(order).await;
        }
    }

    /// Carries out orders other than installations.
    async fn carry_out(&self, order: ToNode) {
        match order {
            ToNode::Install { .. } => {}
            ToNode::Use { version } => {
                if let Err(error) = self.installer.use_version(version).await {
                    tracing::warn!("topology {version} cannot be used: {error}");
                }
            }
            ToNode::NotPlugged { reason } => self.own.fail(&reason),
            order => {
                if let Some(joined) = &mut *self.membership.lock().await {
                    joined.obey(order).await;
                }
            }
        }
    }

    async fn check_own_device(&self) {
        if self.own.is_awaited() {
            let joined = self.membership.lock().await;
            self.own.check(joined.iter().flat_map(|joined| joined.devices.iter()));
        }
    }
}
