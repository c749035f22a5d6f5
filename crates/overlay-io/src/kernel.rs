//! What carries frames between stations of two nodes whose link is not sealed: the kernel itself, where nothing has to be decided.
//!
//! Programs at the devices (`kernel/programs.c`) look into maps, which are written here: where stations are ([`stations`], as the
//! switch says), and how nodes are reached ([`links`], as their sessions say). They count in maps, too, which are read here
//! ([`traffic`]). What they do not carry they leave to the plane, or hand over to it by a TAP of its own (ADR 0021).
//!
//! All is gone with the process but for the VXLAN device, which does nothing without the programs; the next one makes it anew.

mod devices;
mod links;
mod stations;
mod traffic;
mod words;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};

use aya::maps::{HashMap, MapData, PerCpuHashMap};
use aya::programs::tc::{SchedClassifierLinkId, qdisc_add_clsact};
use aya::programs::{SchedClassifier, TcAttachType};
use aya::{Ebpf, EbpfLoader, Pod};
use overlay::switch::{Changes, PortId, Switch};
use overlay::topology::NodeId;
use waiting::lock;

use crate::peers::Peers;
use crate::tap::{self, Tap};
use devices::Devices;
use links::Links;
use stations::{Due, Stations};
use traffic::Traffic;

pub use devices::PORT;
pub(crate) use traffic::Seen;
pub(crate) use words::{HandedOver, What, Word};

/// What clang has made of `programs.c`: nothing where there was none.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/programs.o"));

/// A map.
type Table<K, V> = HashMap<MapData, K, V>;

/// The same, with a value for each processor.
type Counts<K, V> = PerCpuHashMap<MapData, K, V>;

/// See the module. Nothing passes before nodes and stations are known, and nothing any more when this is dropped.
pub struct Kernel {
    stations: Mutex<Stations>,
    links: Mutex<Links>,
    traffic: Mutex<Traffic>,
    devices: Arc<Devices>,
}

impl Kernel {
    /// Whether there was clang when this was built.
    #[must_use]
    pub fn is_built() -> bool {
        !OBJECT.is_empty()
    }

    /// Loads the programs, with devices in the network namespace of the calling thread. `offloads`: what the kernel does right with
    /// TAPs.
    ///
    /// # Errors
    /// If that cannot be: this was built without clang, somebody else does the same in the namespace, or the kernel lacks something.
    pub fn new(offloads: tap::Offloads) -> io::Result<Self> {
        if !Self::is_built() {
            return Err(io::Error::other("it was built without clang"));
        }
        let devices = Arc::new(Devices::new(offloads)?);
        let indexes = devices.indexes()?;
        let mut loader = EbpfLoader::new();
        loader.override_global("vxlan", &indexes.vxlan, true).override_global("plane", &indexes.plane, true);
        let mut programs = loader.load(OBJECT).map_err(io::Error::other)?;
        let links = Links::new(&mut programs)?;
        let traffic = Traffic::new(&mut programs)?;
        for (name, device) in [("from_peer", devices::VXLAN), ("from_plane", devices::PLANE)] {
            let program = program(&mut programs, name)?;
            program.load().map_err(io::Error::other)?;
            attach(program, device, TcAttachType::Ingress)?;
        }
        let stations = Stations::new(programs, devices.clone())?;
        Ok(Self {
            stations: Mutex::new(stations),
            links: Mutex::new(links),
            traffic: Mutex::new(traffic),
            devices,
        })
    }

    /// What `port` sends to `tap` may be carried from now on. A TAP that is elsewhere than the devices is left to the plane.
    pub(crate) fn attach(&self, port: PortId, tap: &Arc<Tap>, switch: &mut Switch) {
        let mut stations = lock(&self.stations);
        // What cannot be is no harm: the plane carries it.
        let _ = stations.attach(port, tap);
        let due = stations.retract(switch, Changes::All);
        stations.extend(due);
    }

    /// Nothing is carried any more that comes from `port`, or goes there.
    pub(crate) fn detach(&self, port: PortId) {
        lock(&self.stations).detach(port);
    }

    /// Carries nothing any more that `switch` wants to decide on since its last changes. What is returned may be carried as soon
    /// as has been sent what the change has set free: [`Self::extend`].
    ///
    /// A program that has looked into the maps just before, on another processor, may still be about to send or to hand
    /// over its frame when this returns. That does not matter: the plane's threads, too, carry out after a change what the
    /// switch has decided on just before.
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

    /// What is due about every second: looks which nodes are spoken with, and whether devices are as they were. Returns what has
    /// passed since the last time.
    pub(crate) fn look(&self, peers: &Peers) -> Seen {
        lock(&self.stations).look();
        lock(&self.links).look(peers);
        lock(&self.traffic).look()
    }

    /// Frames that were sent to `node`, since there is a session with it.
    pub(crate) fn sent_to(&self, node: NodeId) -> u64 {
        lock(&self.links).sent_to(node)
    }

    /// Says `word` to `node`.
    ///
    /// # Errors
    /// Those of the TAP.
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

/// Lets `program` see what passes `device`.
fn attach(
    program: &mut SchedClassifier,
    device: &str,
    way: TcAttachType,
) -> io::Result<SchedClassifierLinkId> {
    program
        .attach(device, way)
        .or_else(|_| {
            // Linux before 6.6 needs this.
            qdisc_add_clsact(device)?;
            program.attach(device, way)
        })
        .map_err(io::Error::other)
}

fn table<K: Pod, V: Pod>(programs: &mut Ebpf, name: &str) -> io::Result<Table<K, V>> {
    let map = programs.take_map(name).ok_or_else(|| missing(name))?;
    Table::try_from(map).map_err(io::Error::other)
}

fn counts<K: Pod, V: Pod>(programs: &mut Ebpf, name: &str) -> io::Result<Counts<K, V>> {
    let map = programs.take_map(name).ok_or_else(|| missing(name))?;
    Counts::try_from(map).map_err(io::Error::other)
}

fn missing(name: &str) -> io::Error {
    io::Error::other(format!("the programs have no `{name}`"))
}
