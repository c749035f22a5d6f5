//! The kernel's fast path: eBPF programs carry frames between stations of two nodes on an unencrypted link, where no decision is needed.
//!
//! Programs at the devices (`kernel/programs.c`) read maps that are written here: places of stations ([`stations`], from the
//! switch), and addresses of nodes ([`links`], from their sessions). They count in maps that are read here
//! ([`traffic`]). All other frames are left to the plane, or handed over to it by a TAP of its own (ADR 0021).
//!
//! Everything disappears with the process except the VXLAN device, and a program that drops its frames; the next process makes both again.

mod devices;
mod links;
mod stations;
mod tables;
mod traffic;
mod words;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aya::programs::links::LinkOrder;
use aya::programs::tc::{NlOptions, SchedClassifierLinkId, TcAttachOptions, qdisc_add_clsact};
use aya::programs::{SchedClassifier, TcAttachType};
use aya::util::KernelVersion;
use aya::{Ebpf, EbpfLoader};
use overlay::switch::{PortId, Switch};
use overlay::topology::NodeId;

use crate::lock::lock;
use crate::peers::Peers;
use crate::tap::{self, Tap};
use devices::Devices;
use links::Links;
use stations::{Attached, Due, Stations};
use tables::missing;
use traffic::Traffic;

pub use devices::PORT;
pub(crate) use traffic::Seen;
pub use words::{HandedOver, What, Word};

/// The object that clang has made of `programs.c`: empty if there was no clang.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/programs.o"));

/// See the module. Nothing passes before nodes and stations are known, and nothing any more when this is dropped.
pub struct Kernel {
    /// Is removed before the programs are: at no time does the host take in frames from there.
    devices: Devices,
    /// The holder may wait for another thread that changes the host's network. So no thread waits for this lock while it holds another one.
    programs: Mutex<Ebpf>,
    stations: Mutex<Stations>,
    links: Mutex<Links>,
    traffic: Mutex<Traffic>,
    is_gone: AtomicBool,
}

impl Kernel {
    /// Whether there was clang when this was built.
    #[must_use]
    pub fn is_built() -> bool {
        !OBJECT.is_empty()
    }

    /// Loads the programs, with devices in the network namespace of the calling thread. `offloads`: the ones that
    /// work with TAPs.
    ///
    /// # Errors
    /// If this was built without clang, another process does the same in the namespace, or the kernel lacks a feature.
    pub fn new(offloads: tap::Offloads) -> io::Result<Self> {
        if !Self::is_built() {
            return Err(io::Error::other("this program was built without clang"));
        }
        // Before, programs could not be attached by links that end with the process (TCX).
        if KernelVersion::current().map_err(io::Error::other)? < KernelVersion::new(6, 6, 0) {
            return Err(io::Error::other("the kernel's fast path needs Linux 6.6"));
        }
        let devices = Devices::new(offloads)?;
        let indexes = devices.indexes()?;
        let mut loader = EbpfLoader::new();
        loader.override_global("vxlan", &indexes.vxlan, true).override_global("plane", &indexes.plane, true);
        let mut programs = loader.load(OBJECT).map_err(io::Error::other)?;
        let links = Links::new(&mut programs)?;
        let traffic = Traffic::new(&mut programs)?;
        let stations = Stations::new(&mut programs)?;
        drop_for_good(&mut programs, devices::VXLAN)?;
        program(&mut programs, "from_station")?.load().map_err(io::Error::other)?;
        for (name, device) in [("from_peer", devices::VXLAN), ("from_plane", devices::PLANE)] {
            let program = program(&mut programs, name)?;
            program.load().map_err(io::Error::other)?;
            attach(program, device, TcAttachType::Ingress)?;
        }
        devices.open()?;
        Ok(Self {
            devices,
            programs: Mutex::new(programs),
            stations: Mutex::new(stations),
            links: Mutex::new(links),
            traffic: Mutex::new(traffic),
            is_gone: AtomicBool::new(false),
        })
    }

    /// Frames from `port` to `tap` may be carried from now on. A TAP in another namespace is left to the plane.
    pub(crate) fn attach(&self, port: PortId, tap: &Arc<Tap>, switch: &Mutex<Switch>) {
        self.detach(port);
        // A failure does no harm: the plane carries the frames.
        let Ok(attached) = self.watch(tap) else { return };
        let mut switch = lock(switch);
        let mut stations = lock(&self.stations);
        stations.attach(port, attached);
        switch.port_has_changed(port);
        let changes = switch.take_changes();
        let due = stations.retract(&switch, changes);
        stations.extend(due);
    }

    /// Lets the programs see the frames to `tap`.
    fn watch(&self, tap: &Arc<Tap>) -> io::Result<Attached> {
        let (name, place) = self.devices.find(tap).ok_or(io::ErrorKind::NotFound)?;
        let mut programs = lock(&self.programs);
        let program = program(&mut programs, "from_station")?;
        let link = attach(program, &name, TcAttachType::Egress)?;
        let link = program.take_link(link).map_err(io::Error::other)?;
        Ok(Attached { tap: tap.clone(), place, _link: link })
    }

    /// Nothing is carried any more that comes from `port`, or goes there.
    pub(crate) fn detach(&self, port: PortId) {
        let detached = lock(&self.stations).detach(port);
        // That waits as `programs` do: not with the lock.
        drop(detached);
    }

    /// Stops carrying frames that `switch` wants to decide on since its last changes. The returned stations may be carried as soon
    /// as the released frames have been sent: [`Self::extend`].
    ///
    /// A program that has just read the maps, on another processor, may still be about to send or hand over its
    /// frame when this returns. That is harmless: the plane's threads, too, carry out the switch's last decisions
    /// after a change.
    pub(crate) fn retract(&self, switch: &mut Switch) -> Due {
        let changes = switch.take_changes();
        lock(&self.stations).retract(switch, changes)
    }

    pub(crate) fn extend(&self, due: Due) {
        lock(&self.stations).extend(due);
    }

    /// Sends and takes as sessions with nodes now say.
    pub(crate) fn follow(&self, peers: &Peers) {
        lock(&self.links).follow(peers);
    }

    /// Periodic work, about every second: updates sessions and devices. Returns the traffic
    /// since the last call.
    pub(crate) fn look(&self, peers: &Peers, now: Duration) -> Seen {
        self.look_at_devices();
        lock(&self.links).look(peers);
        lock(&self.traffic).look(now)
    }

    fn look_at_devices(&self) {
        // A command may not wait as long as finding one does.
        let taps = lock(&self.stations).taps();
        for (port, tap, before) in taps {
            let now = self.devices.find(&tap).map(|(_, place)| place);
            if now != Some(before) {
                let detached = lock(&self.stations).moved(port, &tap, now);
                drop(detached);
            }
        }
    }

    /// True once the VXLAN device has been deleted by another program: no frames are carried any more.
    pub(crate) fn is_newly_gone(&self) -> bool {
        !self.devices.has_vxlan() && !self.is_gone.swap(true, Ordering::Relaxed)
    }

    /// Frames that were sent to `node` during its present session.
    pub(crate) fn sent_to(&self, node: NodeId) -> u64 {
        lock(&self.links).sent_to(node)
    }

    /// Says `word` to `node`.
    ///
    /// # Errors
    /// The errors of the TAP.
    pub(crate) fn say(&self, node: NodeId, word: Word) -> io::Result<()> {
        words::write(&self.devices.plane, node, word)
    }

    /// From where [`HandedOver`] is read.
    pub(crate) fn plane(&self) -> &Tap {
        &self.devices.plane
    }
}

impl AsFd for Kernel {
    /// Readable when something was handed over.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.devices.plane.as_fd()
    }
}

fn program<'a>(programs: &'a mut Ebpf, name: &str) -> io::Result<&'a mut SchedClassifier> {
    let program = programs.program_mut(name).ok_or_else(|| missing(name))?;
    program.try_into().map_err(io::Error::other)
}

/// Drops the frames of `device` as long as it exists, if no other program has taken them before.
fn drop_for_good(programs: &mut Ebpf, device: &str) -> io::Result<()> {
    let needed = |error: &dyn std::error::Error| {
        io::Error::other(format!("the kernel's fast path needs clsact and cls_bpf: {error}"))
    };
    qdisc_add_clsact(device).map_err(|error| needed(&error))?;
    let program = program(programs, "nothing")?;
    program.load().map_err(io::Error::other)?;
    let options = TcAttachOptions::Netlink(NlOptions::default());
    let link = program.attach_with_options(device, TcAttachType::Ingress, options);
    let link = program.take_link(link.map_err(|error| needed(&error))?).map_err(io::Error::other)?;
    // Its end would be before the device's.
    std::mem::forget(link);
    Ok(())
}

/// Attaches `program` to `device`, before all other programs.
fn attach(
    program: &mut SchedClassifier,
    device: &str,
    way: TcAttachType,
) -> io::Result<SchedClassifierLinkId> {
    let options = TcAttachOptions::TcxOrder(LinkOrder::default());
    program.attach_with_options(device, way, options).map_err(io::Error::other)
}
