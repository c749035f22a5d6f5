//! A lab as a whole.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use api::{Client, Event, Request};
use fabric::netns;

use crate::error::Doing;
use crate::layout::{self, Layout, MAX_HOSTS, RUN};
use crate::partition::{self, Cut};
use crate::record::{Lock, Record};
use crate::status::{DaemonStatus, HostStatus, Status};
use crate::{Error, Files, Host, LabName, Place, Result, daemons, files, mark, network, sweep};

/// Time limit for the first host to register, and for each further one.
const READY_LIMIT: Duration = Duration::from_secs(30);

/// How often the coordinator is asked meanwhile.
const READY_INTERVAL: Duration = Duration::from_millis(20);

/// Time limit for an answer of a running coordinator.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// Parameters of a new lab.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Its name.
    pub name: LabName,
    /// How many hosts, 1 to [`MAX_HOSTS`].
    pub hosts: u16,
    /// The `transhume` binary for its daemons.
    pub program: PathBuf,
    /// Whether each host has files of its own.
    pub files: Files,
}

/// Progress of the creation of a lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Creating namespaces, links and keys, and starting daemons.
    Networks,
    /// Waiting for hosts to register with the coordinator.
    Ready {
        /// Number of registered hosts.
        hosts: usize,
        /// Number of all hosts.
        of: usize,
    },
}

/// An existing lab.
#[derive(Clone, Debug)]
pub struct Lab {
    name: LabName,
    layout: Layout,
    record: Record,
}

impl Lab {
    /// Creates a lab, and returns when all its hosts are registered with its coordinator. After a
    /// failure, the partial lab is removed.
    ///
    /// # Errors
    /// [`Error::NotRoot`], [`Error::BadSize`], [`Error::AlreadyUp`], [`Error::Daemon`], and the errors of
    /// [`network::make`].
    pub fn up(spec: &Spec) -> Result<Self> {
        Self::up_telling(spec, &|_| {})
    }

    /// Like [`Self::up`], and reports progress to `tell`.
    ///
    /// # Errors
    /// As [`Self::up`].
    pub fn up_telling(spec: &Spec, tell: &dyn Fn(Progress)) -> Result<Self> {
        require_root()?;
        if !(1..=MAX_HOSTS).contains(&spec.hosts) {
            return Err(Error::BadSize(spec.hosts.into()));
        }
        let layout = Layout::of(&spec.name);
        if !network::namespaces(&layout).is_empty() {
            return Err(Error::AlreadyUp { name: spec.name.to_string() });
        }
        let _lock = Lock::create(&spec.name, &layout)?;
        Self::make(spec, &layout, tell).inspect_err(|_| {
            // The first error is reported; `down` removes what this cleanup cannot.
            let _ = sweep::sweep(&layout);
        })
    }

    /// Opens the lab `name`.
    ///
    /// # Errors
    /// [`Error::NotRoot`], [`Error::NoSuchLab`], [`Error::Incomplete`] if its creation was interrupted,
    /// and [`Error::Busy`] if the creation is in progress.
    pub fn open(name: &LabName) -> Result<Self> {
        require_root()?;
        let layout = Layout::of(name);
        let record = match complete(&layout) {
            Some(record) => record,
            None => complete_by_now(name, &layout)?,
        };
        Ok(Self { name: name.clone(), layout, record })
    }

    /// Removes lab `name` with all remains: its processes and instances, namespaces,
    /// mounts and files. A lab that does not exist is not an error.
    ///
    /// # Errors
    /// [`Error::NotRoot`], [`Error::Busy`], and the errors of [`sweep::sweep`].
    pub fn down(name: &LabName) -> Result<()> {
        require_root()?;
        let layout = Layout::of(name);
        let _lock = Lock::take_if_there(name, &layout)?;
        sweep::sweep(&layout)
    }

    /// Like [`Self::down`], for a lab that a crash has left behind.
    ///
    /// # Errors
    /// [`Error::Alive`] if any of its processes runs, and as [`Self::down`].
    pub fn clear_dead(name: &LabName) -> Result<()> {
        require_root()?;
        let layout = Layout::of(name);
        let _lock = Lock::take_if_there(name, &layout)?;
        if sweep::marks(&layout).processes().next().is_some() {
            return Err(Error::Alive { name: name.to_string() });
        }
        sweep::sweep(&layout)
    }

    /// The names of the existing labs.
    #[must_use]
    pub fn names() -> Vec<LabName> {
        let entries = fs::read_dir(RUN).into_iter().flatten().flatten();
        let names =
            entries.filter_map(|entry| entry.file_name().to_str()?.strip_prefix("lab-")?.parse().ok());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }

    /// The paths of the lab's files.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The lab's hosts.
    pub fn hosts(&self) -> impl Iterator<Item = Host> + use<> {
        Host::first(self.record.hosts)
    }

    /// The state of the lab.
    ///
    /// # Errors
    /// The errors of [`partition::cuts`].
    pub fn status(&self) -> Result<Status> {
        let registered = registered(&self.layout.socket());
        let cuts = partition::cuts(&self.layout)?;
        Ok(Status {
            name: self.name.to_string(),
            socket: self.layout.socket().display().to_string(),
            coordinator: self.daemon_status(Place::Coordinator),
            hosts: self.hosts().map(|host| self.host_status(host, registered.as_deref())).collect(),
            cuts: cuts.into_iter().map(Cut::places).collect(),
        })
    }

    /// A command that will run in the network of `place` and with its files, with `TRANSHUME_SOCKET` naming the lab's
    /// coordinator.
    ///
    /// # Errors
    /// [`Error::NoSuchHost`], and [`Error::Io`] if the network is gone.
    pub fn command(&self, place: Place, program: &str) -> Result<Command> {
        self.require(place)?;
        let namespace = network::namespace_file(&self.layout.namespace(place));
        let namespace = File::open(&namespace).doing(|| format!("cannot enter the network of {place}"))?;
        let mounts = files::namespace(&self.layout, place)?;
        let folder = mounts.as_ref().and_then(|_| files::current_folder());
        let mut command = Command::new(program);
        command.env(api::SOCKET_VARIABLE, self.layout.socket());
        // If the command enters a namespace of its own, the mark in its environment still identifies it.
        command.env(mark::VARIABLE, &self.record.id);
        let enter = move || {
            netns::join(namespace.as_fd())?;
            mounts.as_ref().map_or(Ok(()), |mounts| files::join(mounts.as_fd(), folder.as_deref()))
        };
        // SAFETY: between fork and exec only setns and chdir are called, and the descriptors are open as long as the command is.
        unsafe { command.pre_exec(enter) };
        Ok(command)
    }

    /// Drops all packets between `one` and `other`, including instances' traffic.
    ///
    /// # Errors
    /// [`Error::NoSuchHost`], [`Error::SamePlace`], and the errors of [`partition::cut`].
    pub fn cut(&self, one: Place, other: Place) -> Result<()> {
        partition::cut(&self.layout, self.cut_between(one, other)?)
    }

    /// Heals the partition of `one` and `other`.
    ///
    /// # Errors
    /// As [`Self::cut`].
    pub fn heal(&self, one: Place, other: Place) -> Result<()> {
        partition::heal(&self.layout, self.cut_between(one, other)?)
    }

    /// Heals all partitions.
    ///
    /// # Errors
    /// The errors of [`partition::heal_all`].
    pub fn heal_all(&self) -> Result<()> {
        partition::heal_all(&self.layout)
    }

    /// Kills the daemon at `place` with SIGKILL; instances continue to run.
    ///
    /// # Errors
    /// [`Error::NoSuchHost`], [`Error::Busy`], [`Error::WillNotEnd`].
    pub fn kill(&self, place: Place) -> Result<()> {
        self.require(place)?;
        let _lock = Lock::take(&self.name, &self.layout)?;
        daemons::kill(&self.layout, place)
    }

    /// Starts the daemon at `place`, and returns when the coordinator is connected to each
    /// running node.
    ///
    /// # Errors
    /// [`Error::NoSuchHost`], [`Error::Busy`], [`Error::AlreadyRunning`], [`Error::Daemon`].
    pub fn start(&self, place: Place) -> Result<()> {
        self.start_with(place, &[])
    }

    /// The same with additional options, which a later start does not repeat.
    ///
    /// # Errors
    /// As [`Lab::start`].
    pub fn start_with(&self, place: Place, options: &[&str]) -> Result<()> {
        self.require(place)?;
        let _lock = Lock::take(&self.name, &self.layout)?;
        daemons::start(&self.layout, &self.record, place, options)?;
        if daemons::running(&self.layout, Place::Coordinator).is_none() {
            return Err(Error::NoCoordinator(place.to_string()));
        }
        self.wait_until_registered(&self.reachable()?, &|_| {})
    }

    fn make(spec: &Spec, layout: &Layout, tell: &dyn Fn(Progress)) -> Result<Self> {
        tell(Progress::Networks);
        let record = Record::new(spec.hosts, &spec.program)?;
        record.write(layout)?;
        let images = layout.images_in_memory();
        private::directory(&images).doing(|| format!("cannot create {}", images.display()))?;
        let lab = Self { name: spec.name.clone(), layout: layout.clone(), record };
        network::make(layout, &lab.record)?;
        files::make(layout, &lab.record, &spec.files)?;
        daemons::make_keys(layout, &lab.record)?;
        for place in Place::all(spec.hosts) {
            daemons::start(layout, &lab.record, place, &[])?;
        }
        lab.wait_until_registered(&lab.hosts().collect::<Vec<_>>(), tell)?;
        Ok(lab)
    }

    /// The hosts with a running node that is not cut from the coordinator.
    fn reachable(&self) -> Result<Vec<Host>> {
        let cuts = partition::cuts(&self.layout)?;
        let is_cut = |host| Cut::between(Place::Coordinator, host).is_ok_and(|cut| cuts.contains(&cut));
        let runs = |host| daemons::running(&self.layout, host).is_some();
        let places = self.hosts().filter(|host| runs(Place::Host(*host)) && !is_cut(Place::Host(*host)));
        Ok(places.collect())
    }

    fn wait_until_registered(&self, awaited: &[Host], tell: &dyn Fn(Progress)) -> Result<()> {
        if daemons::running(&self.layout, Place::Coordinator).is_none() {
            return Err(daemons::failure(&self.layout, Place::Coordinator, "does not run"));
        }
        let (mut ready, mut deadline) = (0, Instant::now() + READY_LIMIT);
        loop {
            let registered = registered(&self.layout.socket());
            let Some(missing) = first_missing(awaited, registered.as_deref()) else { return Ok(()) };
            self.require_running(missing)?;
            let up = registered.map_or(0, |hosts| hosts.iter().filter(|host| host.up).count());
            tell(Progress::Ready { hosts: up, of: awaited.len() });
            if up > ready {
                (ready, deadline) = (up, Instant::now() + READY_LIMIT);
            }
            if Instant::now() > deadline {
                let seconds = READY_LIMIT.as_secs();
                let of = awaited.len();
                let problem = format!(
                    "was not ready in time: no progress for {seconds} s, with {ready} of {of} hosts ready"
                );
                return Err(daemons::failure(&self.layout, missing, &problem));
            }
            thread::sleep(READY_INTERVAL);
        }
    }

    /// Fails if the awaited daemon, or the coordinator, has ended.
    fn require_running(&self, awaited: Place) -> Result<()> {
        for place in [Place::Coordinator, awaited] {
            if daemons::running(&self.layout, place).is_none() {
                return Err(daemons::failure(&self.layout, place, "has ended"));
            }
        }
        Ok(())
    }

    fn require(&self, place: Place) -> Result<()> {
        match place {
            Place::Host(host) if host.number() > self.record.hosts => Err(Error::NoSuchHost {
                lab: self.name.to_string(),
                host: host.to_string(),
                hosts: self.record.hosts,
            }),
            _ => Ok(()),
        }
    }

    fn cut_between(&self, one: Place, other: Place) -> Result<Cut> {
        self.require(one)?;
        self.require(other)?;
        Cut::between(one, other)
    }

    fn daemon_status(&self, place: Place) -> DaemonStatus {
        DaemonStatus {
            address: layout::address(place),
            namespace: self.layout.namespace(place),
            pid: daemons::running(&self.layout, place).map(|identity| identity.pid),
        }
    }

    fn host_status(&self, host: Host, registered: Option<&[api::Host]>) -> HostStatus {
        let name = host.to_string();
        let known = registered.map(|hosts| hosts.iter().find(|known| known.name == name));
        HostStatus {
            name: host,
            node: self.daemon_status(Place::Host(host)),
            registered: known.map(|known| known.is_some_and(|known| known.up)),
            instances: known.map(|known| known.map_or(0, |known| known.instances)),
        }
    }
}

/// The record of a complete lab; its daemons are created last.
fn complete(layout: &Layout) -> Option<Record> {
    let was_started = |place| layout.pid_file(place).exists();
    Record::read(layout).filter(|record| Place::all(record.hosts).all(was_started))
}

/// Like [`complete`], after a concurrent creation has ended.
fn complete_by_now(name: &LabName, layout: &Layout) -> Result<Record> {
    let _lock = Lock::take(name, layout)?;
    complete(layout).ok_or_else(|| Error::Incomplete { name: name.to_string() })
}

/// The first of the coordinator and `awaited` that is not ready.
fn first_missing(awaited: &[Host], registered: Option<&[api::Host]>) -> Option<Place> {
    let Some(registered) = registered else { return Some(Place::Coordinator) };
    let is_up = |host: &Host| registered.iter().any(|known| known.up && known.name == host.to_string());
    awaited.iter().find(|host| !is_up(host)).map(|host| Place::Host(*host))
}

/// The hosts that are registered with the coordinator, or `None` if it does not answer.
fn registered(socket: &Path) -> Option<Vec<api::Host>> {
    let mut client = Client::send(socket, &Request::Hosts).ok()?;
    client.set_limit(Some(ANSWER_LIMIT)).ok()?;
    match client.next_event().ok()? {
        Event::Hosts(hosts) => Some(hosts),
        _ => None,
    }
}

fn require_root() -> Result<()> {
    if rustix::process::geteuid().is_root() { Ok(()) } else { Err(Error::NotRoot) }
}
