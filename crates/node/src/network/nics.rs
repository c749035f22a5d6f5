//! The network devices of instances on the overlay: stations that come and go with their instances (ADR 0024).
//!
//! ```text
//!   create, find ──▶ Arriving ──────────── mend ──▶ Running ◀── mend ── Paused
//!                    muted; frames for it           │  ▲                  ▲
//!                    are kept                       └──┴───── cut ────────┘
//! ```
//!
//! A device is a persistent TAP in its instance's network namespace: it stays when the node is killed, with all that the instance has
//! set up on it. It exists even while this host is not yet part of the overlay again, and gets its port later.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::thread;
use std::time::{Duration, Instant};

use engine_api::wiring::{DEVICE, Wiring};
use fabric::{Epoch, netns};
use instance::{InstanceName, InstanceSpec, Network};
use overlay::Mac;
use overlay::switch::{Entry, Parcel, PortId, PortKind, Switch};
use overlay::topology::NodeId;
use overlay_io::plane::Plane;
use overlay_io::tap::{Offloads, OpenError, Tap};
use rpc::wire::reason;
use tokio::sync::Notify;
use tokio::time::timeout;

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

/// The overlay, while this host is part of it.
struct Overlay {
    plane: Weak<Plane>,
    me: NodeId,
    offloads: Offloads,
}

struct Nic {
    name: InstanceName,
    network: Network,
    tap: Arc<Tap>,
    port: PortId,
    stage: Stage,
    /// The epoch with which the instance is on this host, as far as its node knows.
    here: Option<Epoch>,
}

/// Whether the device carries frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Not yet.
    Arriving,
    /// It does.
    Running,
    /// Not any more.
    Paused,
}

impl Stage {
    /// The stage of a device after a cut: a device that has never carried frames is still arriving.
    fn cut(self) -> Self {
        match self {
            Self::Arriving => Self::Arriving,
            Self::Running | Self::Paused => Self::Paused,
        }
    }
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

impl Overlay {
    fn plane(&self) -> Option<(Arc<Plane>, NodeId)> {
        Some((self.plane.upgrade()?, self.me))
    }
}

impl Nic {
    /// Gives the device its port.
    fn plug(&mut self, overlay: Option<&Overlay>) -> io::Result<()> {
        let Some((plane, me)) = overlay.and_then(Overlay::plane) else { return Ok(()) };
        plane.command(|switch, now, parcels| {
            switch.attach(self.port, PortKind::Instance);
            self.settle_in(switch, me, now, parcels);
        });
        self.serve(overlay)
    }

    /// Carries frames between its port and its TAP.
    fn serve(&mut self, overlay: Option<&Overlay>) -> io::Result<()> {
        let Some((plane, _)) = overlay.and_then(Overlay::plane) else { return Ok(()) };
        plane.release(self.port);
        // A TAP that another plane has used has its offloads set already.
        if let Some((tap, overlay)) = Arc::get_mut(&mut self.tap).zip(overlay) {
            tap.set_offloads(overlay.offloads)?;
        }
        plane.serve(self.port, self.tap.clone())
    }

    /// Brings the switch's record of the device up to date.
    fn settle(&self, overlay: Option<&Overlay>) {
        if let Some((plane, me)) = overlay.and_then(Overlay::plane) {
            plane.command(|switch, now, parcels| self.settle_in(switch, me, now, parcels));
        }
    }

    /// Brings the switch's record up to date. A change that the switch refuses is in effect already, or will be when the
    /// coordinator has announced the instance's location.
    fn settle_in(&self, switch: &mut Switch, me: NodeId, now: Duration, parcels: &mut Vec<Parcel>) {
        let mac = Mac(self.network.mac);
        if let Some(epoch) = self.here {
            let addresses = vec![self.network.address.into()];
            let entry = Entry { mac, node: me, port: Some(self.port), epoch, addresses };
            let _ = switch.commit(&entry, now, parcels);
        }
        match self.stage {
            Stage::Arriving => {
                let next = switch.epoch_of(mac).map_or(Epoch::default(), Epoch::next);
                let _ = switch.prepare(mac, self.port, next);
            }
            Stage::Running => {
                let _ = switch.resume(mac, parcels);
                let _ = switch.unpause(mac, now, parcels);
            }
            Stage::Paused => {
                let _ = switch.pause(mac);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use instance::{Program, Workload};
    use std::net::Ipv4Addr;
    use std::os::fd::{AsFd, OwnedFd};

    use fabric::{NetworkKind, Vid, network};
    use overlay::switch::{Gate, Origin};
    use rpc::net::ToNode;

    use super::super::joined::Joined;
    use super::super::tests::{HERE, THERE, started};
    use super::*;

    fn mac() -> Mac {
        Mac(network::mac_of(Vid::new(1).unwrap()))
    }

    fn spec() -> InstanceSpec {
        InstanceSpec {
            name: InstanceName::new("job").unwrap(),
            network: Network { mac: mac().0, address: Ipv4Addr::new(10, 77, 1, 1), prefix: 16, mtu: 1400 },
            network_kind: NetworkKind::Overlay,
            workload: Workload::Process(Program::new(["true"])),
        }
    }

    fn entry(node: NodeId, epoch: u64) -> Entry {
        Entry { mac: mac(), node, port: None, epoch: Epoch(epoch), addresses: vec![] }
    }

    /// A host that has just joined the overlay, and the network namespace of an instance.
    fn host() -> (Joined, Nics, OwnedFd) {
        let joined = started();
        let nics = joined.nics.clone();
        nics.join(&joined.plane, HERE, Offloads::NONE);
        (joined, nics, netns::create().expect("a network namespace: these tests run as root"))
    }

    /// The location and epoch of the instance, and whether its port carries frames.
    fn known(joined: &Joined) -> (Option<(NodeId, u64)>, Option<Gate>) {
        joined.plane.command(|switch, now, _| {
            let place = switch.macs(now).into_iter().find_map(|known| match known.origin {
                Origin::Managed { epoch, .. } => Some((known.node, epoch.0)),
                Origin::Learned { .. } => None,
            });
            (place, switch.state(now).ports.first().map(|port| port.gate))
        })
    }

    #[test]
    fn an_instance_starts_leaves_and_is_gone() {
        let (joined, nics, namespace) = host();
        let (spec, network) = (spec(), spec().network);
        nics.create(&spec, namespace.as_fd()).unwrap();
        assert_eq!(known(&joined), (None, Some(Gate::Muted)));
        nics.set_here(mac(), Epoch(0));
        assert_eq!(known(&joined), (Some((HERE, 0)), Some(Gate::Muted)));
        nics.mend(&network).unwrap();
        assert_eq!(known(&joined), (Some((HERE, 0)), Some(Gate::Open)));
        assert!(nics.apply(&entry(HERE, 0)), "an entry that is known already changes nothing");
        nics.cut(&network).unwrap();
        assert_eq!(known(&joined).1, Some(Gate::Paused));
        nics.mend(&network).unwrap();
        assert_eq!(known(&joined).1, Some(Gate::Open), "the move was rolled back");
        nics.cut(&network).unwrap();
        assert!(nics.apply(&entry(THERE, 1)));
        assert_eq!(known(&joined), (Some((THERE, 1)), Some(Gate::Paused)));
        nics.delete(&network).unwrap();
        assert_eq!(known(&joined), (Some((THERE, 1)), None));
        assert!(!nics.apply(&entry(THERE, 2)), "the device is not here");
        assert!(nics.mend(&network).is_err());
        netns::enter(namespace.as_fd(), || Tap::new(DEVICE).map(drop)).unwrap().expect("the device is gone");
    }

    #[test]
    fn an_instance_arrives_at_the_commit_whichever_report_comes_first() {
        for says in [&[1][..], &[5, 6], &[6], &[]] {
            let (joined, nics, namespace) = host();
            nics.create(&spec(), namespace.as_fd()).unwrap();
            for epoch in says {
                let node = if *epoch == 6 { HERE } else { THERE };
                nics.apply(&entry(node, *epoch));
                assert_eq!(known(&joined).1, Some(Gate::Muted));
            }
            nics.set_here(mac(), Epoch(6));
            assert_eq!(known(&joined), (Some((HERE, 6)), Some(Gate::Muted)), "{says:?}");
            nics.mend(&spec().network).unwrap();
            assert_eq!(known(&joined).1, Some(Gate::Open));
        }
    }

    #[test]
    fn a_copy_that_was_not_released_is_replaced_by_another() {
        let (joined, nics, namespace) = host();
        nics.create(&spec(), namespace.as_fd()).unwrap();
        nics.set_here(mac(), Epoch(1));
        nics.mend(&spec().network).unwrap();
        let another = netns::create().unwrap();
        nics.create(&spec(), another.as_fd()).unwrap();
        assert_eq!(known(&joined), (Some((HERE, 1)), Some(Gate::Paused)));
        nics.mend(&spec().network).unwrap();
        assert_eq!(known(&joined).1, Some(Gate::Open));
    }

    #[test]
    fn a_restarted_node_finds_the_device_before_it_joins_the_overlay() {
        let (before, killed, namespace) = host();
        killed.create(&spec(), namespace.as_fd()).unwrap();
        let after = Nics::default();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let ready = |patience| runtime.block_on(after.ready(patience));
        let missing = ready(Duration::ZERO).unwrap_err();
        assert!(missing.contains("this host is not part of the overlay") && missing.contains("net layout"));
        let node = thread::spawn(move || {
            thread::sleep(10 * PAUSE);
            drop((before, killed));
        });
        after.find(&spec(), namespace.as_fd()).expect("the killed node lets it go soon");
        node.join().unwrap();
        after.mend(&spec().network).unwrap();
        let joined = started();
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(10 * PAUSE);
                after.join(&joined.plane, HERE, Offloads::NONE);
            });
            ready(10 * PATIENCE).expect("it is waited for");
        });
        assert_eq!(known(&joined), (None, Some(Gate::Open)));
        after.apply(&entry(HERE, 3));
        assert_eq!(known(&joined), (Some((HERE, 3)), Some(Gate::Open)));
        drop(joined);
        ready(Duration::ZERO).expect_err("it is another overlay now");
    }

    #[test]
    fn instances_missing_from_a_new_list_have_ended() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (mut joined, nics, namespace) = host();
        let told = |entries| ToNode::Stations { entries, all_until: Some(Epoch(0)) };
        runtime.block_on(joined.obey(told(vec![entry(THERE, 7)])));
        assert_eq!(known(&joined).0, Some((THERE, 7)));
        runtime.block_on(joined.obey(told(vec![])));
        assert_eq!(known(&joined).0, None);
        nics.create(&spec(), namespace.as_fd()).unwrap();
        nics.set_here(mac(), Epoch(9));
        runtime.block_on(joined.obey(told(vec![])));
        assert_eq!(known(&joined).0, Some((HERE, 9)), "it has begun since");
    }
}
