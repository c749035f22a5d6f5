//! This host's part of the overlay.
//!
//! * [`joined`]: the state of this host while it is part of the overlay. [`tunnels`]: its tunnels there.
//! * [`dialling`]: connections to the neighbours of this host, over which tunnels agree on keys. [`fallback`]: datagrams over these
//!   connections.
//! * [`installing`]: joins the overlay, and installs topologies. [`kernel`]: the usable offloads of the kernel.
//! * [`devices`]: attached devices; [`interface`]: creates network devices of this host; [`namespace`]: network namespaces for them.
//! * [`nics`]: the devices of instances. [`own`]: the device of the node itself.
//! * [`orders`]: carries out the coordinator's orders one after the other; [`undone`]: orders that wait. [`questions`], [`state`]: answers
//!   its questions.
//!
//! None of it exists before the coordinator has laid links to this host.

mod available;
mod devices;
mod dialling;
mod fallback;
mod installing;
mod interface;
mod joined;
mod kernel;
mod namespace;
mod nics;
mod orders;
mod own;
mod questions;
mod redirection;
mod state;
#[cfg(test)]
mod tests;
mod tunnels;
mod undone;

use std::io;
use std::sync::Arc;

use api::{NetFlow, NetHostState};
use moves::HostName;
use overlay::tunnel::keys::Direction;
use rpc::net::{FromNode, Question, ToNode};
use rpc::removed::Gate;
use rpc::{Outbox, Stream, wire};
use tokio::sync::{Notify, mpsc};

use self::dialling::TunnelKeeper;
use self::installing::Installer;
use self::joined::Membership;
use self::orders::Order;
use self::own::OwnDevice;
use crate::dialer::Dialer;
use crate::progress::ProgressSink;
use crate::uplink::Uplink;

pub use self::installing::Config;
pub use self::nics::Nics;
pub use self::orders::Orders;
pub use self::own::Device;

/// This host's part of the overlay.
pub struct Network {
    membership: Arc<Membership>,
    keeper: Arc<TunnelKeeper>,
    own: Arc<OwnDevice>,
    orders: mpsc::UnboundedSender<Order>,
    /// Notified when the coordinator must repeat all orders, as after a reconnect.
    renewal: Arc<Notify>,
}

impl Network {
    /// A host that is not part of the overlay yet, and that requests the device `own`. Also returns the coordinator's orders, for
    /// [`Orders::follow`].
    ///
    /// # Errors
    /// As [`TunnelKeeper::new`].
    pub fn new(
        config: Config,
        own: Option<Device>,
        dialer: Dialer,
        uplink: Arc<Uplink>,
        progress: ProgressSink,
    ) -> io::Result<(Self, Orders)> {
        let membership = Arc::<Membership>::default();
        let keeper = Arc::new(TunnelKeeper::new(dialer, membership.clone(), config.address.port())?);
        let (own, renewal) = (Arc::new(OwnDevice::new(own, progress)), Arc::<Notify>::default());
        let installer = Installer::new(config, membership.clone(), keeper.clone(), uplink.clone());
        let (orders, queue) = mpsc::unbounded_channel();
        let given = Orders::new(queue, membership.clone(), installer, own.clone(), uplink, renewal.clone());
        Ok((Self { membership, keeper, own, orders, renewal }, given))
    }

    /// Queues an order of the coordinator.
    pub fn take_order(&self, order: ToNode) {
        // This fails when the node ends.
        let _ = self.orders.send(Order::Do(order));
    }

    /// Answers a question of the coordinator: at once, or after the orders before it.
    pub fn take_question(&self, number: u64, question: Question, outbox: Outbox<wire::FromNode>) {
        if question.is_about_the_present() {
            let membership = self.membership.clone();
            tokio::spawn(async move { questions::answer(&membership, number, question, &outbox).await });
        } else {
            let _ = self.orders.send(Order::Ask { number, question, outbox });
        }
    }

    /// Waits until the coordinator must repeat all orders.
    pub async fn needs_renewal(&self) {
        self.renewal.notified().await;
    }

    /// The state of the overlay on this host, and its recent traffic by pairs of MACs.
    pub async fn look(&self, window_s: u64) -> (NetHostState, Vec<NetFlow>) {
        questions::look(&self.membership, window_s).await
    }

    /// Holds a tunnel whose connection `host` has dialled, until it is lost.
    ///
    /// # Errors
    /// If the hosts do not agree on keys.
    pub async fn hold_tunnel(&self, host: &HostName, stream: Stream) -> io::Result<()> {
        self.keeper.hold_tunnel(host, stream, Direction::FromListener).await
    }

    /// Deletes the keys agreed with hosts that the gate no longer admits.
    pub async fn end_barred_tunnels(&self, gate: &Gate) {
        self.keeper.end_barred(gate).await;
    }

    /// The request for the node's own device, unless the coordinator knows the device already.
    pub fn own_device_request(&self) -> Option<FromNode> {
        self.own.request()
    }

    /// Waits until attaching the node's own device fails, and returns the reason.
    pub async fn own_device_failed(&self) -> String {
        self.own.failed().await
    }
}
