//! The engine for process trees, on CRIU.
//!
//! An instance has PID, network and UTS namespaces of its own, and shares the rest with its host, including `/proc`. CRIU can dump
//! a mount namespace, but must then describe each of its mounts; a tree without one costs nothing. A process that reads
//! `/proc/self` sees itself; a process that reads `/proc/PID` with a PID of its own namespace sees another process.
//!
//! ```text
//! node (host's network)
//!   ├ criu swrk  in the instance's network namespace: it dumps sockets, and of namespaces UTS
//!   └ init       in namespaces of its own, first process of the instance
//!       └ command
//! ```
//!
//! * [`tree`]: the process tree of an instance, and the steps of the engine's calls;
//! * [`network`]: its network device;
//! * [`launch`], [`host_root`]: its first process, and its root file system if it is no container;
//! * [`record`]: the durable record of an instance;
//! * [`site`], [`host`]: the resources that a host offers to its instances, and its features and versions.

pub(crate) mod host;
mod host_root;
pub(crate) mod launch;
pub(crate) mod network;
mod record;
mod site;
mod tree;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::os::fd::OwnedFd;
use std::path::{self, Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use self::network::bridge::Bridge;
use self::record::Records;
pub use self::site::Config;
use self::site::Site;
use self::tree::Tree;
pub use crate::container::containers::ContainerConfig;
use crate::container::containers::Containers;
use crate::criu::pages::left_behind::LeftBehind;
use crate::criu::pages::local::Local;
use crate::criu::pages::{archives, resident};
use crate::criu::paging::Pager;
use crate::criu::root::OwnRoot;
use crate::criu::turn::Turn;
use crate::criu::{check, images};
use crate::engine::{Dump, Phases, Recovered, Running, State, Watch};
use crate::error::{Doing, Error, Result};
use crate::instance::{Blocker, InstanceName, InstanceSpec, ResourceLimit};
use crate::linux::spawn::descriptor_limit;
use crate::lock::lock;
use crate::memory::MemorySink;
use crate::report::{Host, Needs, Report, Shortage};
use crate::stopwatch::Stopwatch;

/// How long to retry a dump if the stopped instance has a blocker that may last only a moment: a lock, a connection that it is about
/// to accept, or other programs' unread descriptors. Each try stops it for hundredths of a second, or for a quarter of a second if closed connections have unsent data.
const INSISTENCE: Duration = Duration::from_secs(3);

/// The engine; one for each state directory.
pub struct ProcessEngine {
    config: Config,
    /// The descriptor limit of a new instance: this process's own limit when the engine was made.
    descriptors: ResourceLimit,
    records: Records,
    site: Site,
    host: OnceLock<Host>,
    instances: Mutex<HashMap<InstanceName, Arc<Mutex<Tree>>>>,
}

impl ProcessEngine {
    /// Makes an engine that does not know its instances yet: see [`ProcessEngine::recover`].
    ///
    /// # Errors
    /// If the state directory or a directory for images cannot be made, or other users can write to it.
    pub fn new(mut config: Config) -> Result<Self> {
        for directory in &mut config.images {
            // CRIU works in another directory.
            *directory = path::absolute(&directory).doing(|| format!("finding {}", directory.display()))?;
            images::room_in(directory)?;
        }
        let records = Records::open(config.state.clone())?;
        let descriptors = descriptor_limit();
        let containers = config.containers.as_ref();
        let containers =
            containers.map(|found| Containers::new(found, &config.init, &config.state)).transpose()?;
        let bridge = Arc::new(Bridge(config.bridge.clone()));
        let site = Site { bridge, overlay: config.overlay.clone(), containers };
        Ok(Self { config, descriptors, records, site, host: OnceLock::new(), instances: Mutex::default() })
    }

    fn find(&self, name: &InstanceName) -> Result<Arc<Mutex<Tree>>> {
        lock(&self.instances).get(name).cloned().ok_or_else(|| Error::Unknown(name.clone()))
    }

    /// Refuses a call for an instance that is unknown on this host.
    pub(crate) fn must_have(&self, name: &InstanceName) -> Result<()> {
        self.find(name).map(drop)
    }

    fn running(&self, live: &Tree, phases: Phases) -> Result<Running> {
        Ok(Running { pid: Some(live.first()?.id().pid), phases, outage: None })
    }

    fn remove(&self, name: &InstanceName) -> Result<()> {
        let Ok(instance) = self.find(name) else { return Ok(()) };
        lock(&instance).remove()?;
        self.records.forget(name)?;
        lock(&self.instances).remove(name);
        Ok(())
    }

    fn room(&self) -> u64 {
        let rooms = self.config.images.iter().map(|directory| images::room_in(directory).unwrap_or(0));
        rooms.max().unwrap_or(0)
    }
}

/// An instance's life and moves. Calls for different instances run side by side; the caller orders calls for one instance.
impl ProcessEngine {
    /// Returns the features, versions and free resources of this host. Cached after the first call, except for its room.
    ///
    /// # Errors
    /// If the engine cannot work on this host at all (not root, no CRIU, `criu check` fails).
    pub fn host(&self) -> Result<Host> {
        let host = match self.host.get() {
            Some(host) => host.clone(),
            None => {
                let host = host::inspect(&self.config.criu)?;
                self.host.get_or_init(|| host).clone()
            }
        };
        let containers = self.site.containers.as_ref();
        Ok(Host {
            memory_available: host::memory_available()?,
            image_room: self.room(),
            layer_room: containers.map_or(0, Containers::room),
            containers: containers.is_some_and(Containers::has_runtime),
            ..host
        })
    }

    /// Makes the instance's network namespace, with its link down. Nothing runs in it. The engine calls this for a first start, and
    /// at the destination of a move. For a move, `memory` is [`Needs::images`] of the source's report: images of that size must
    /// fit.
    ///
    /// # Errors
    /// If the bridge is missing, there is no room, or an instance of this name is on this host and has not ended.
    pub fn prepare(&self, spec: &InstanceSpec, memory: u64) -> Result<()> {
        let name = &spec.name;
        if let Ok(present) = self.find(name) {
            lock(&present).must_be(State::Ended)?;
            self.remove(name)?;
        }
        let images = images::make_room(&self.config.images, name, memory)?;
        let mut live = match Tree::prepare(spec.clone(), &images, &self.site) {
            Ok(live) => live,
            Err(error) => {
                images::delete(&images)?;
                return Err(error);
            }
        };
        // Recorded first: after a crash, the record leads to the remains of a container.
        let made = self.records.save(&live.record).and_then(|()| live.make_root(&self.site));
        if let Err(error) = made {
            live.remove()?;
            self.records.forget(name)?;
            return Err(error);
        }
        match lock(&self.instances).entry(name.clone()) {
            Entry::Vacant(place) => {
                place.insert(Arc::new(Mutex::new(live)));
                Ok(())
            }
            Entry::Occupied(_) => {
                Err(Error::State { name: name.clone(), is: "already on this host", must: "absent" })
            }
        }
    }

    /// Returns the instance's network namespace, in which the node listens: see [`fabric::netns::enter`].
    ///
    /// # Errors
    /// If the instance is unknown on this host or has ended.
    pub fn network_namespace(&self, name: &InstanceName) -> Result<OwnedFd> {
        let instance = self.find(name)?;
        let live = lock(&instance);
        live.namespace.try_clone().doing(|| format!("using the network of `{name}`"))
    }

    /// Starts the prepared instance's command and brings its link up.
    ///
    /// # Errors
    /// If its directory or user does not permit the start. The instance stays prepared.
    pub fn start(&self, name: &InstanceName) -> Result<Running> {
        let instance = self.find(name)?;
        let mut live = lock(&instance);
        live.must_be(State::Prepared)?;
        let mut clock = Stopwatch::start(&Watch::QUIET);
        let pid = live.start(&self.config.init, self.descriptors)?;
        clock.lap("start");
        if let Err(error) = live.begin(&self.records) {
            live.drop_held();
            return Err(error);
        }
        clock.lap("link");
        Ok(Running { pid: Some(pid), phases: clock.stop(), outage: None })
    }

    /// Source: reports the instance's blockers, and its needs at the destination. Does not disturb it. `keeps_memory` says whether
    /// the images will contain the memory, and so need room for it on this host: see [`ProcessEngine::suspend`].
    ///
    /// # Errors
    /// If the instance cannot be inspected. A blocker is no error, but a part of the report.
    pub fn check(&self, name: &InstanceName, keeps_memory: bool) -> Result<Report> {
        let host = self.host()?;
        let instance = self.find(name)?;
        let mut live = lock(&instance);
        live.must_be(State::Running)?;
        live.must_be_whole()?;
        let check::Found { mut blockers, files, memory, kept, layer } = check::inspect(&live.subject()?)?;
        // Pages that a sink accepts need no room here.
        let pages = if keeps_memory { memory } else { 0 };
        match live.place_images(&self.config.images, pages + kept + layer) {
            Err(error @ Error::NoRoom(_)) => {
                blockers.push(Blocker::new(format!("at the source {error}"), "free space there"));
            }
            placed => placed?,
        }
        let (spec, own) = (&live.record.spec, live.root.own());
        Ok(Report {
            blockers,
            needs: Needs {
                files,
                memory: memory + kept,
                layer,
                container: spec.container().is_some(),
                image: spec.container().and_then(|container| container.image()).cloned(),
                rootfs: own.as_ref().and_then(|own| own.rootfs).map(Path::to_owned),
                support: own.as_ref().map(OwnRoot::support).unwrap_or_default(),
                controllers: own.map(|own| own.controllers.to_vec()).unwrap_or_default(),
                host,
            },
        })
    }

    /// Destination: returns the needs that this host does not meet, as blockers.
    ///
    /// # Errors
    /// As [`ProcessEngine::host`].
    pub fn verify(&self, needs: &Needs) -> Result<Vec<Blocker>> {
        let mut lacks = check::verify::verify(needs, &self.host()?);
        if let Some(containers) = &self.site.containers {
            lacks.extend(needs.image.as_ref().and_then(|image| containers.lack(image)));
            lacks.extend(containers.unsupported(needs));
        }
        Ok(lacks)
    }

    /// Does in advance a part of the work of the blackout: at the source for [`ProcessEngine::suspend`], at the destination for
    /// [`ProcessEngine::restore`]. Both do it themselves if it was not done.
    ///
    /// # Errors
    /// If CRIU does not start.
    pub fn arm(&self, name: &InstanceName) -> Result<()> {
        let instance = self.find(name)?;
        let mut live = lock(&instance);
        if live.is_armed() { Ok(()) } else { live.arm(&self.config, &self.site, &self.records) }
    }

    /// Destination, before [`ProcessEngine::arm`] and [`ProcessEngine::restore`]: records that a part of the instance's memory will
    /// be fetched on demand.
    ///
    /// # Errors
    /// If the record cannot be written.
    pub fn expect_postcopy(&self, name: &InstanceName) -> Result<()> {
        let instance = self.find(name)?;
        let mut live = lock(&instance);
        live.must_be(State::Prepared)?;
        live.record.lazily = true;
        self.records.save(&live.record)
    }

    /// Destination: returns a connection to the pager, which requests missing memory, from [`ProcessEngine::arm`] until
    /// [`ProcessEngine::finish_postcopy`]; see [`crate::pager::wire`]. `None` if no memory is missing.
    ///
    /// # Errors
    /// If the instance is unknown on this host.
    pub fn pager(&self, name: &InstanceName) -> Result<Option<OwnedFd>> {
        let instance = self.find(name)?;
        let mut live = lock(&instance);
        // The restore touches memory that is not here.
        if live.record.state == State::Prepared && live.record.lazily && !live.is_armed() {
            live.arm(&self.config, &self.site, &self.records)?;
        }
        let connection = live.pager.as_ref().map(Pager::connection).transpose();
        connection.doing(|| format!("connecting to the pager of `{name}`"))
    }

    /// Destination: ends post-copy, after the pager has reported that no page is missing.
    ///
    /// # Errors
    /// If the record cannot be written.
    pub fn finish_postcopy(&self, name: &InstanceName) -> Result<()> {
        let instance = self.find(name)?;
        lock(&instance).finish_postcopy(&self.records)
    }

    /// Source, after [`ProcessEngine::suspend`]: returns access to the memory of the stopped instance.
    ///
    /// # Errors
    /// If the instance is not stopped, or its memory does not exist any more.
    pub fn left_behind(&self, name: &InstanceName) -> Result<LeftBehind> {
        let instance = self.find(name)?;
        let live = lock(&instance);
        live.must_be(State::Stopped)?;
        let first = live.first()?.try_clone();
        first.and_then(LeftBehind::open).doing(|| format!("opening the memory of `{name}`"))
    }

    /// Source: undoes [`ProcessEngine::arm`] and [`ProcessEngine::await_turn`] because the instance stays. Succeeds if there is
    /// nothing to undo.
    ///
    /// # Errors
    /// If the record cannot be written.
    pub fn disarm(&self, name: &InstanceName) -> Result<()> {
        let Ok(instance) = self.find(name) else { return Ok(()) };
        let mut live = lock(&instance);
        if live.record.state == State::Running { live.disarm(&self.records) } else { Ok(()) }
    }

    /// Source: waits for other dumps on this machine, so that [`ProcessEngine::suspend`] need not. No other dump begins until that
    /// has ended, or [`ProcessEngine::disarm`] has given the turn back.
    ///
    /// # Errors
    /// If it takes longer than the timeout of `watch`; [`Error::Cancelled`](crate::Error::Cancelled).
    pub fn await_turn(&self, name: &InstanceName, watch: &Watch<'_>) -> Result<()> {
        let instance = self.find(name)?;
        // A repeated call finds the turn taken.
        if lock(&instance).turn.is_none() {
            let turn = Turn::take(name, watch)?;
            lock(&instance).turn = Some(turn);
        }
        Ok(())
    }

    /// Source: gives the present memory of the instance to `memory`, in one account. The instance runs on, undisturbed. The call
    /// takes as long as `memory` does: the timeout of `watch` does not apply.
    ///
    /// # Errors
    /// [`Error::NotTaken`](crate::Error::NotTaken); [`Error::Cancelled`](crate::Error::Cancelled).
    pub fn show_memory(&self, name: &InstanceName, memory: &dyn MemorySink, watch: &Watch<'_>) -> Result<()> {
        let instance = self.find(name)?;
        let (first, file_systems) = lock(&instance).to_look_at(memory)?;
        match resident::show(first, &file_systems, memory, &|| !(watch.cancelled)()) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Error::Cancelled),
            Err(error) => Err(Error::NotTaken(error)),
        }
    }

    /// Source: cuts the link, dumps the instance, and leaves it stopped. If it fails or is cancelled, the instance runs on with its
    /// link up. It gives the instance's memory to `memory`; a repeated dump begins another account. Without `memory`, the images
    /// contain it.
    ///
    /// # Errors
    /// [`Error::Criu`](crate::Error::Criu) with CRIU's reason; [`Error::NotTaken`](crate::Error::NotTaken);
    /// [`Error::Cancelled`](crate::Error::Cancelled).
    pub fn suspend(
        &self,
        name: &InstanceName,
        memory: Option<&dyn MemorySink>,
        watch: &Watch<'_>,
    ) -> Result<Dump> {
        let instance = self.find(name)?;
        let mut live = lock(&instance);
        live.must_be(State::Running)?;
        let mut clock = Stopwatch::start(watch);
        if !live.is_armed() {
            live.arm(&self.config, &self.site, &self.records)?;
            clock.lap("start of CRIU");
        }
        let turn = match live.turn.take() {
            Some(turn) => turn,
            None => Turn::take(name, watch)?,
        };
        let images = Local::new(&live.record.images);
        let memory = memory.unwrap_or(&images);
        let mut first_refusal = None;
        while let Err(error) = live.freeze(memory, &self.records, watch, &mut clock) {
            // The instance runs on, and the blocker may pass.
            let mut has_insisted = || first_refusal.get_or_insert_with(Instant::now).elapsed() > INSISTENCE;
            if !matches!(error, Error::Pinned { .. }) || has_insisted() {
                return Err(error);
            }
            live.settle()?;
            clock.lap("between");
            live.arm(&self.config, &self.site, &self.records)?;
            clock.lap("start of CRIU");
        }
        drop(turn);
        let mut images = images::list(&live.record.images)?;
        // The sink has accepted the archives.
        images.retain(|image| !(memory.takes_archives() && archives::is_archive(image)));
        Ok(Dump { images, phases: clock.stop() })
    }

    /// Returns the directory of the instance's images: at the source after [`ProcessEngine::suspend`], at the destination before
    /// [`ProcessEngine::restore`].
    ///
    /// # Errors
    /// If the instance is unknown on this host.
    pub fn image_directory(&self, name: &InstanceName) -> Result<PathBuf> {
        let instance = self.find(name)?;
        Ok(lock(&instance).record.images.clone())
    }

    /// Destination: restores the instance from its images up to the last step, and holds it there. A held instance dies with this
    /// process. If it is held already, the call returns no phases.
    ///
    /// # Errors
    /// [`Error::Criu`](crate::Error::Criu) with CRIU's reason. The images stay, and the call may be repeated.
    pub fn restore(&self, name: &InstanceName, watch: &Watch<'_>) -> Result<Phases> {
        let instance = self.find(name)?;
        let mut live = lock(&instance);
        if live.record.state == State::Held {
            return Ok(Phases::default());
        }
        live.must_be(State::Prepared)?;
        live.restore(&self.config, &self.site, &self.records, watch)
    }

    /// Destination, after the commit: brings the link up, announces the address to the neighbours, lets the instance run, and
    /// deletes the images. `watch` cannot cancel it.
    ///
    /// # Errors
    /// [`Error::Lost`](crate::Error::Lost) if the instance may have run, and has ended. After any other error, the instance has had
    /// no effect outside: it is still held, or it is prepared again with its images, and [`ProcessEngine::restore`] may be
    /// repeated.
    pub fn release(&self, name: &InstanceName, watch: &Watch<'_>) -> Result<Running> {
        let instance = self.find(name)?;
        let mut live = lock(&instance);
        live.must_be(State::Held)?;
        let running = live.release(&self.site, &self.records, watch)?;
        // The instance runs: images that cannot be deleted now are deleted with the instance.
        let _left = live.drop_images();
        Ok(running)
    }

    /// Source, after a rollback: brings the link up, lets the stopped instance run, and deletes the images. Succeeds if the
    /// instance runs already. A record that cannot be written is no error: the instance must not stay stopped for that.
    ///
    /// # Errors
    /// If a process of the instance has ended.
    pub fn resume(&self, name: &InstanceName) -> Result<Running> {
        let instance = self.find(name)?;
        let mut live = lock(&instance);
        let mut clock = Stopwatch::start(&Watch::QUIET);
        if live.record.state != State::Running {
            live.must_be(State::Stopped)?;
            live.run_on(&self.records)?;
        }
        clock.lap("resume");
        live.drop_images()?;
        self.running(&live, clock.stop())
    }

    /// Destination, after a rollback: kills the held instance; deletes its namespace, link and images. Succeeds if there is nothing
    /// to delete.
    ///
    /// # Errors
    /// If something cannot be deleted.
    pub fn abort(&self, name: &InstanceName) -> Result<()> {
        let Ok(instance) = self.find(name) else { return Ok(()) };
        let state = lock(&instance).record.state;
        if matches!(state, State::Held | State::Prepared) { self.remove(name) } else { Ok(()) }
    }

    /// Kills the instance in any state; deletes its namespace, link and images. Succeeds if the instance is unknown on this host.
    ///
    /// # Errors
    /// If something cannot be deleted.
    pub fn destroy(&self, name: &InstanceName) -> Result<()> {
        self.remove(name)
    }

    /// Waits until the instance's first process has ended, for at most `timeout`; returns whether it has.
    ///
    /// # Errors
    /// If the instance is unknown on this host.
    pub fn wait(&self, name: &InstanceName, timeout: Duration) -> Result<bool> {
        let instance = self.find(name)?;
        let live = lock(&instance);
        let Some(first) = &live.first else { return live.must_be(State::Running).map(|()| true) };
        let first = first.try_clone().doing(|| format!("watching `{name}`"))?;
        drop(live);
        let ended = first.ended_within(timeout);
        if ended {
            lock(&instance).record.state = State::Ended;
        }
        Ok(ended)
    }

    /// Returns how many processes of the instance the kernel has killed for lack of memory since it came to this host. The engine
    /// knows this of containers only. Does not wait for other calls.
    pub fn shortage(&self, name: &InstanceName) -> Shortage {
        self.site.containers.as_ref().map(|containers| containers.shortage(name)).unwrap_or_default()
    }

    /// Finds the instances that an earlier engine has left: running ones, stopped ones that wait for the move's decision, and the
    /// remains of a crash. Verifies their PIDs.
    ///
    /// # Errors
    /// If the state directory cannot be read.
    pub fn recover(&self) -> Result<Vec<Recovered>> {
        let mut found = Vec::new();
        for record in self.records.all()? {
            let live = Tree::recover(record, &self.records, &self.site)?;
            let (spec, state) = (live.record.spec.clone(), live.record.state);
            found.push(Recovered { spec, state, pid: live.first.as_ref().map(|first| first.id().pid) });
            lock(&self.instances).insert(live.record.spec.name.clone(), Arc::new(Mutex::new(live)));
        }
        Ok(found)
    }
}
