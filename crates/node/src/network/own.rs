//! The device that the node itself is to have, without which it is of no use: that of `transhume net up`.

use std::sync::atomic::{AtomicBool, Ordering};

use rpc::net::{DeviceKind, FromNode};
use rpc::wire;
use tokio::sync::watch;

use super::devices::Present;
use crate::node::Node;
use crate::{Device, Progress};

/// See the module.
pub struct OwnDevice {
    wanted: Option<Device>,
    /// Whether it has been there.
    plugged: AtomicBool,
    /// Why it cannot be plugged in.
    failure: watch::Sender<Option<String>>,
}

impl OwnDevice {
    /// The node is to have `wanted`.
    pub fn new(wanted: Option<Device>) -> Self {
        Self { wanted, plugged: AtomicBool::new(false), failure: watch::Sender::default() }
    }

    /// The device cannot be plugged in, if the node is to have one. One that has been there is tried again.
    pub fn fail(&self, reason: &str) {
        if self.wanted.is_some() && !self.plugged.load(Ordering::Relaxed) {
            self.failure.send_replace(Some(reason.to_owned()));
        }
    }
}

impl Node {
    /// Waits until it is found that the node's own device cannot be plugged in: why.
    pub async fn own_device_failed(&self) -> String {
        let mut failure = self.network.own.failure.subscribe();
        let reason = failure.wait_for(Option::is_some).await.ok().and_then(|reason| reason.clone());
        // The sender lives as long as this.
        reason.unwrap_or_default()
    }

    /// Asks the coordinator for it, unless it has been there: then the coordinator knows of it, or of what became of it.
    pub fn ask_for_own_device(&self) {
        if self.network.own.plugged.load(Ordering::Relaxed) {
            return;
        }
        if let Some(Device { name, address, mtu, former }) = self.network.own.wanted.clone() {
            let own = FromNode::Own { device: name, address, mtu, former };
            self.tell_coordinator(&wire::FromNode::Net(own));
        }
    }

    /// Looks whether it is there by now, or cannot be made.
    pub async fn look_after_own_device(&self) {
        let own = &self.network.own;
        let Some(wanted) = own.wanted.as_ref().filter(|_| !own.plugged.load(Ordering::Relaxed)) else {
            return;
        };
        // Before the coordinator has heard of this one, one of the same name may be there with another address.
        let kind = DeviceKind::Station { address: wanted.address.clone(), mtu: wanted.mtu };
        let joined = self.network.lock().await;
        let mut present = joined.iter().flat_map(|joined| joined.devices.iter());
        match present.find(|present| present.device.name == wanted.name && present.device.kind == kind) {
            None => {}
            Some(Present { failure: Some(failure), .. }) => own.fail(failure),
            Some(Present { failure: None, .. }) => {
                own.plugged.store(true, Ordering::Relaxed);
                (self.progress)(Progress::Plugged);
            }
        }
    }
}
