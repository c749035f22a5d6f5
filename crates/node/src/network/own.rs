//! The device of the node itself, which `transhume net up` requires.

use std::sync::atomic::{AtomicBool, Ordering};

use rpc::net::{DeviceKind, FromNode};
use rpc::wire;
use tokio::sync::watch;

use super::devices::Present;
use crate::node::Node;
use crate::progress::Progress;

/// A station's network device that a node has for as long as it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Its address with its prefix.
    pub address: Option<String>,
    /// Its MTU, in bytes.
    pub mtu: u32,
    /// Its former name, if it was renamed.
    pub former: Option<String>,
}

/// The node's own device.
pub struct OwnDevice {
    wanted: Option<Device>,
    /// Whether it has ever existed.
    plugged: AtomicBool,
    /// The reason why it cannot be attached.
    failure: watch::Sender<Option<String>>,
}

impl OwnDevice {
    /// Sets the device that the node needs.
    pub fn new(wanted: Option<Device>) -> Self {
        Self { wanted, plugged: AtomicBool::new(false), failure: watch::Sender::default() }
    }

    /// Records that the device cannot be attached, if the node needs one. A device that has existed is tried again.
    pub fn fail(&self, reason: &str) {
        if self.wanted.is_some() && !self.plugged.load(Ordering::Relaxed) {
            self.failure.send_replace(Some(reason.to_owned()));
        }
    }
}

impl Node {
    /// Waits until attaching the node's own device fails, and returns the reason.
    pub async fn own_device_failed(&self) -> String {
        let mut failure = self.network.own.failure.subscribe();
        let reason = failure.wait_for(Option::is_some).await.ok().and_then(|reason| reason.clone());
        // The sender lives as long as this object.
        reason.unwrap_or_default()
    }

    /// Asks the coordinator for the device, unless it has existed: then the coordinator already knows its state.
    pub fn ask_for_own_device(&self) {
        if self.network.own.plugged.load(Ordering::Relaxed) {
            return;
        }
        if let Some(Device { name, address, mtu, former }) = self.network.own.wanted.clone() {
            let own = FromNode::Own { device: name, address, mtu, former };
            self.uplink.send(&wire::FromNode::Net(own));
        }
    }

    /// Checks whether it exists now, or cannot be created.
    pub async fn look_after_own_device(&self) {
        let own = &self.network.own;
        let Some(wanted) = own.wanted.as_ref().filter(|_| !own.plugged.load(Ordering::Relaxed)) else {
            return;
        };
        // Until the coordinator knows this station, another station of the same name may exist with another address.
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
