//! The device of the node itself, which `transhume net up` requires.

use std::sync::atomic::{AtomicBool, Ordering};

use rpc::net::{DeviceKind, FromNode};
use tokio::sync::watch;

use super::devices::Present;
use crate::progress::{Progress, ProgressSink};

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
    progress: ProgressSink,
}

impl OwnDevice {
    /// Sets the device that the node needs.
    pub fn new(wanted: Option<Device>, progress: ProgressSink) -> Self {
        Self { wanted, plugged: AtomicBool::new(false), failure: watch::Sender::default(), progress }
    }

    /// Records that the device cannot be attached, if the node needs one. A device that has existed is tried again.
    pub fn fail(&self, reason: &str) {
        if self.is_awaited() {
            self.failure.send_replace(Some(reason.to_owned()));
        }
    }

    /// Waits until attaching the device fails, and returns the reason.
    pub async fn failed(&self) -> String {
        let mut failure = self.failure.subscribe();
        let reason = failure.wait_for(Option::is_some).await.ok().and_then(|reason| reason.clone());
        // The sender lives as long as this object.
        reason.unwrap_or_default()
    }

    /// The request for the device. `None` if it has existed: then the coordinator already knows its state.
    pub fn request(&self) -> Option<FromNode> {
        let Device { name, address, mtu, former } = self.wanted.clone().filter(|_| self.is_awaited())?;
        Some(FromNode::Own { device: name, address, mtu, former })
    }

    /// Whether the node needs a device that has never existed.
    pub fn is_awaited(&self) -> bool {
        self.wanted.is_some() && !self.plugged.load(Ordering::Relaxed)
    }

    /// Checks whether it is among the attached devices now, or cannot be created.
    pub fn check<'a>(&self, mut present: impl Iterator<Item = &'a Present>) {
        let Some(wanted) = self.wanted.as_ref().filter(|_| self.is_awaited()) else { return };
        // Until the coordinator knows this station, another station of the same name may exist with another address.
        let kind = DeviceKind::Station { address: wanted.address.clone(), mtu: wanted.mtu };
        match present.find(|present| present.device.name == wanted.name && present.device.kind == kind) {
            None => {}
            Some(Present { failure: Some(failure), .. }) => self.fail(failure),
            Some(Present { failure: None, .. }) => {
                self.plugged.store(true, Ordering::Relaxed);
                (self.progress)(Progress::Plugged);
            }
        }
    }
}
