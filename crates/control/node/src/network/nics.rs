//! The network devices of instances on the overlay: stations that come and go with their instances (ADR 0024).
//!
//! ```text
//!   create, find ──▶ Arriving ──────────── mend ──▶ Running ◀── mend ── Paused
//!                    muted; frames for it           │  ▲                  ▲
//!                    are kept                       ├──┴───── cut ────────┤
//!                                                   └─ hold ──▶ Held ─ cut ┘
//!                                                          it sends; frames for it are kept
//! ```
//!
//! A device is a persistent TAP in its instance's network namespace: it stays when the node is killed, with all that the instance has
//! set up on it. It exists even while this host is not yet part of the overlay again, and gets its port later.

mod nic;

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use engine_api::wiring::{DEVICE, Wiring};
use fabric::{Epoch, netns};
use instance::{InstanceName, InstanceSpec, Network};
use overlay::Mac;
use overlay::switch::{Entry, PortId};
use overlay::topology::NodeId;
use overlay_io::plane::Plane;
use overlay_io::tap::{Offloads, OpenError, Tap};
use rpc::wire::reason;
use tokio::sync::Notify;
use tokio::time::timeout;

use self::nic::{Nic, Overlay, Stage};
use super::devices;
use crate::lock::lock;

/// The limit of instances of a host on the overlay.
const MOST: u16 = 1024;

/// How long a TAP may still be in use after its node was killed: a child that the node was about to make has all its descriptors
/// until the child executes its program.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(5);

/// When a device is cut: how long reading the instance's sent frames may take, and how often to check whether it is done.
const DRAIN: Duration = Duration::from_millis(200);
const LOOK: Duration = Duration::from_micros(50);

/// The network devices of instances. Clones share one state.
#[derive(Clone, Default)]
pub struct Nics {
    inner: Arc<Mutex<Inner>>,
    /// Notified when this host joins the overlay.
    joined: Arc<Notify>,
}

#[derive(Default)]
struct Inner {
    overlay: Option<Overlay>,
    nics: BTreeMap<Mac, Nic>,
}

/// A device, as users see it.
pub struct Listed {
    pub name: InstanceName,
    pub network: Network,
    pub port: PortId,
}

impl fmt::Debug for Nics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.lock().nics.keys()).finish()
    }
}

impl Nics {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    /// This host joins the overlay as `me`: plugs all devices into `plane`. They do not keep the plane alive.
    pub fn join(&self, plane: &Arc<Plane>, me: NodeId, offloads: Offloads) {
        let mut inner = self.lock();
        inner.overlay = Some(Overlay { plane: Arc::downgrade(plane), me, offloads });
        let Inner { overlay, nics } = &mut *inner;
        for nic in nics.values_mut() {
            if let Err(error) = nic.plug(overlay.as_ref()) {
                tracing::warn!("{} cannot be attached to the overlay: {error}", nic.name);
            }
        }
        self.joined.notify_waiters();
    }

    /// Waits until an instance's device can be plugged in: a node that has just started receives the overlay's orders soon.
    ///
    /// # Errors
    /// A [`reason`], if this host is not part of the overlay within `patience`.
    pub async fn ready(&self, patience: Duration) -> Result<(), String> {
        let joined = async {
            loop {
                let mut joined = std::pin::pin!(self.joined.notified());
                joined.as_mut().enable();
                if self.lock().plane().is_some() {
                    return;
                }
                joined.await;
            }
        };
        timeout(patience, joined).await.map_err(|_| {
            reason(
                "this host is not part of the overlay, and the instance is on it",
                "add all hosts that are up with `transhume net layout`, or choose another host",
            )
        })
    }

    /// Records that the instance with this MAC is here with `epoch`, by its move or its start.
    pub fn set_here(&self, mac: Mac, epoch: Epoch) {
        let mut inner = self.lock();
        let Inner { overlay, nics } = &mut *inner;
        if let Some(nic) = nics.get_mut(&mac) {
            nic.here = Some(epoch);
            nic.settle(overlay.as_ref());
        }
    }

    /// Applies the coordinator's entry for a MAC, if that is a device here.
    pub fn apply(&self, entry: &Entry) -> bool {
        let inner = self.lock();
        let Some(nic) = inner.nics.get(&entry.mac) else { return false };
        let Some((plane, me)) = inner.plane() else { return true };
        let entry = Entry { port: (entry.node == me).then_some(nic.port), ..entry.clone() };
        plane.command(|switch, now, parcels| {
            if let Err(refused) = switch.commit(&entry, now, parcels) {
                tracing::warn!("recording the location of {} failed: {refused}", entry.mac);
            }
            nic.settle_in(switch, me, now, parcels);
        });
        true
    }

    /// The MACs of all devices.
    pub fn macs(&self) -> HashSet<Mac> {
        self.lock().nics.keys().copied().collect()
    }

    /// All devices, by MAC.
    pub fn list(&self) -> Vec<Listed> {
        let listed = |nic: &Nic| Listed { name: nic.name.clone(), network: nic.network, port: nic.port };
        self.lock().nics.values().map(listed).collect()
    }

    /// The instance whose device is at `port`.
    pub fn name_of(&self, port: PortId) -> Option<String> {
        let inner = self.lock();
        inner.nics.values().find(|nic| nic.port == port).map(|nic| nic.name.to_string())
    }

    /// Adopts `tap` as the device of an instance: as a new one, or in place of its former one.
    fn put(&self, spec: &InstanceSpec, tap: Tap) -> io::Result<()> {
        let mac = Mac(spec.network.mac);
        let mut inner = self.lock();
        let port = match inner.nics.get(&mac) {
            Some(nic) => nic.port,
            None => inner.free_port()?,
        };
        let Inner { overlay, nics } = &mut *inner;
        let before = nics.remove(&mac);
        let mut nic = Nic {
            name: spec.name.clone(),
            network: spec.network,
            tap: Arc::new(tap),
            port,
            stage: before.as_ref().map_or(Stage::Arriving, |before| before.stage.cut()),
            here: before.as_ref().and_then(|before| before.here),
        };
        // Frames that the switch keeps for the former device are for this one.
        let plugged = match before {
            None => nic.plug(overlay.as_ref()),
            Some(_) => {
                nic.settle(overlay.as_ref());
                nic.serve(overlay.as_ref())
            }
        };
        nics.insert(mac, nic);
        plugged
    }

    /// Waits until the frames that the instance has sent are on their way, unless that takes long. Connections retransmit lost
    /// frames only after a pause.
    fn drain(&self, network: &Network) {
        let inner = self.lock();
        let tap = inner.nics.get(&Mac(network.mac)).map(|nic| nic.tap.clone());
        let Some((tap, _)) = tap.zip(inner.plane()) else { return };
        drop(inner);
        let end = Instant::now() + DRAIN;
        let mut empty = 0;
        // The last frame may have been read, but not forwarded yet.
        while empty < 2 && Instant::now() < end {
            thread::sleep(LOOK);
            empty = if tap.has_frames() { 0 } else { empty + 1 };
        }
    }

    fn change(&self, network: &Network, stage: impl FnOnce(Stage) -> Stage) -> io::Result<()> {
        let mut inner = self.lock();
        let Inner { overlay, nics } = &mut *inner;
        let nic = nics.get_mut(&Mac(network.mac)).ok_or(io::ErrorKind::NotFound)?;
        nic.stage = stage(nic.stage);
        nic.settle(overlay.as_ref());
        Ok(())
    }
}

impl Wiring for Nics {
    fn create(&self, spec: &InstanceSpec, namespace: BorrowedFd<'_>) -> io::Result<()> {
        let made = netns::enter(namespace, || Tap::new(DEVICE))?;
        let tap = made.map_err(io::Error::other)?;
        tap.set_persistent(true)?;
        self.put(spec, tap)
    }

    fn find(&self, spec: &InstanceSpec, namespace: BorrowedFd<'_>) -> io::Result<()> {
        let end = Instant::now() + PATIENCE;
        loop {
            match netns::enter(namespace, || Tap::adopt(DEVICE))? {
                Ok(tap) => return self.put(spec, tap),
                Err(OpenError::InUse(_)) if Instant::now() < end => thread::sleep(PAUSE),
                Err(error) => return Err(io::Error::other(error)),
            }
        }
    }

    fn hold(&self, network: &Network) -> io::Result<()> {
        self.change(network, Stage::hold)
    }

    fn cut(&self, network: &Network) -> io::Result<()> {
        self.drain(network);
        self.change(network, Stage::cut)
    }

    fn keeps_frames(&self) -> bool {
        true
    }

    fn mend(&self, network: &Network) -> io::Result<()> {
        self.change(network, |_| Stage::Running)
    }

    fn delete(&self, network: &Network) -> io::Result<()> {
        let mac = Mac(network.mac);
        let mut inner = self.lock();
        let Some(nic) = inner.nics.remove(&mac) else { return Ok(()) };
        if let Some((plane, _)) = inner.plane() {
            // Frames that were kept for an instance that does not come go back to its location.
            let _ = plane.command(|switch, _, parcels| switch.abort(mac, parcels));
            plane.unplug(nic.port);
        }
        nic.tap.set_persistent(false)
    }
}

impl Inner {
    fn plane(&self) -> Option<(Arc<Plane>, NodeId)> {
        self.overlay.as_ref().and_then(Overlay::plane)
    }

    fn free_port(&self) -> io::Result<PortId> {
        let first = devices::MOST as u16 + 1;
        let is_free = |port: &PortId| !self.nics.values().any(|nic| nic.port == *port);
        let full = || io::Error::other(format!("{MOST} instances on this host are on the overlay"));
        (first..first + MOST).map(PortId).find(is_free).ok_or_else(full)
    }
}

#[cfg(test)]
mod tests;
