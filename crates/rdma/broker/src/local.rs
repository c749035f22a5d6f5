//! Hosts and instances on one machine, with brokers and nothing else: for tests of attaching processes.
//!
//! Each instance is a network namespace; programs started with [`LocalInstance::enter`] belong to it. Links between hosts are TCP
//! connections over the loopback device, and links on one host are the same as a node makes. A "move" suspends the instance at one
//! broker and resumes it at another, while its processes keep running. Needs the right to make network namespaces.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let fabric = broker::local::LocalFabric::new(2)?;
//! let here = fabric.add_instance(0)?;
//! let there = fabric.add_instance(1)?;
//! let mut server = there.enter(&mut std::process::Command::new("ib_write_bw")).spawn()?;
//! fabric.suspend(&here)?;
//! fabric.resume(&here, 1)?;
//! # server.kill()?;
//! # Ok(())
//! # }
//! ```

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use fabric::attach::{LinkRefusal, NotStarted, Role};
use fabric::directory::{Directory, Due, Member, Request};
use fabric::link::LinkRequest;
use fabric::session::{Server, Word};
use fabric::{Epoch, FabricId, InstanceId, Vid, netns};
use instance::{Carried, Roster};
use tokio::runtime::Runtime;
use tokio::time::timeout;

use crate::lock::lock;
use crate::peers::{Answer, Observer, Passing, Peers, RemoteLink};
use crate::report::{ResumeReport, SuspendError, SuspendReport};
use crate::{Broker, Config, link};

/// How long processes may take to suspend, and to resume.
const LIMIT: Duration = Duration::from_secs(10);

/// Connected hosts. Dropping it disconnects all processes.
pub struct LocalFabric {
    runtime: Runtime,
    hosts: Arc<Hosts>,
}

/// An instance of a [`LocalFabric`].
pub struct LocalInstance {
    id: InstanceId,
    network: OwnedFd,
}

#[derive(Default)]
struct Hosts {
    brokers: OnceLock<Vec<Broker>>,
    places: Mutex<HashMap<InstanceId, Place>>,
    directory: Mutex<Directory>,
}

#[derive(Clone, Copy)]
struct Place {
    host: usize,
    epoch: Epoch,
}

impl LocalFabric {
    /// A fabric of `hosts` hosts without instances.
    ///
    /// # Errors
    /// If threads cannot be started.
    pub fn new(hosts: usize) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let shared = Arc::new(Hosts::default());
        let broker = |_| Broker::new(LocalPeers(shared.clone()), LocalObserver(shared.clone()));
        let brokers = (0..hosts).map(broker).collect();
        let _ = shared.brokers.set(brokers);
        Ok(Self { runtime, hosts: shared })
    }

    /// A new instance on `host`, in a network namespace of its own with nothing but a loopback device.
    ///
    /// # Errors
    /// If a network namespace cannot be made, for example without the right to.
    pub fn add_instance(&self, host: usize) -> io::Result<LocalInstance> {
        self.adopt(host, new_network()?)
    }

    /// Adds an instance on `host`, in the network namespace `network`.
    ///
    /// # Errors
    /// `AddrInUse` if the namespace already has an instance; `InvalidInput` if the host does not exist; otherwise errors of `setns`.
    pub fn adopt(&self, host: usize, network: OwnedFd) -> io::Result<LocalInstance> {
        let id = {
            let mut places = self.hosts.places();
            let lid = u16::try_from(places.len() + 1).ok().and_then(Vid::new);
            let id = InstanceId { fabric: FabricId(1), vid: lid.ok_or(io::ErrorKind::InvalidInput)? };
            places.insert(id, Place { host, epoch: Epoch::default() });
            id
        };
        let config = Config { id, network: network.try_clone()?, pids: None, carried: Carried::default() };
        let broker = self.broker(host)?;
        broker.add(config);
        self.runtime.block_on(broker.resume(id, Epoch::default()))?;
        Ok(LocalInstance { id, network })
    }

    /// The broker of a host.
    ///
    /// # Errors
    /// `InvalidInput` if there is no such host.
    pub fn broker(&self, host: usize) -> io::Result<&Broker> {
        self.hosts.broker(host).ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }

    /// A connection of a process with this PID in the virtual machine that is `instance`. It does not block.
    ///
    /// # Errors
    /// Errors of [`Broker::connect`].
    pub fn connect(&self, instance: &LocalInstance, pid: i32) -> io::Result<OwnedFd> {
        self.connect_inside(instance, pid, Role::Verbs)
    }

    /// A connection of the agent there.
    ///
    /// # Errors
    /// Errors of [`Broker::connect`].
    pub fn connect_agent(&self, instance: &LocalInstance, pid: i32) -> io::Result<OwnedFd> {
        self.connect_inside(instance, pid, Role::Sessions)
    }

    fn connect_inside(&self, instance: &LocalInstance, pid: i32, role: Role) -> io::Result<OwnedFd> {
        let place = self.hosts.place(instance.id).ok_or(io::ErrorKind::InvalidInput)?;
        let _inside = self.runtime.enter();
        self.broker(place.host)?.connect(instance.id, pid, role)
    }

    /// Suspends the instance's processes, as before a move, once all are attached.
    ///
    /// # Errors
    /// Errors of [`Broker::whole`] and [`Broker::suspend`].
    pub fn suspend(&self, instance: &LocalInstance) -> Result<SuspendReport, SuspendError> {
        let place = self.hosts.place(instance.id).ok_or(SuspendError::Unknown)?;
        let broker = self.hosts.broker(place.host).ok_or(SuspendError::Unknown)?;
        self.runtime.block_on(async {
            broker.whole(instance.id, LIMIT).await?;
            broker.suspend(instance.id, LIMIT).await
        })
    }

    /// Resumes a suspended instance at `host`, and waits until its processes have resumed.
    ///
    /// # Errors
    /// If the socket cannot be made, or `TimedOut` if some process does not resume.
    pub fn resume(&self, instance: &LocalInstance, host: usize) -> io::Result<ResumeReport> {
        let id = instance.id;
        let place = self.hosts.place(id).ok_or(io::ErrorKind::InvalidInput)?;
        let (from, to) = (self.broker(place.host)?, self.broker(host)?);
        let mut epoch = place.epoch;
        if place.host != host {
            epoch = epoch.next();
            let carried = from.carried(id).ok_or(io::ErrorKind::NotFound)?;
            to.add(Config { id, network: instance.network.try_clone()?, pids: None, carried });
            from.remove(id);
        }
        self.hosts.places().insert(id, Place { host, epoch });
        self.runtime.block_on(async {
            to.resume(id, epoch).await?;
            timeout(LIMIT, to.resumed(id)).await?.map_err(io::Error::other)
        })
    }
}

impl LocalInstance {
    /// The instance's identity.
    #[must_use]
    pub fn id(&self) -> InstanceId {
        self.id
    }

    /// The instance's network namespace.
    #[must_use]
    pub fn network(&self) -> BorrowedFd<'_> {
        self.network.as_fd()
    }

    /// Makes `command` start in the instance.
    pub fn enter<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let network = self.network.as_raw_fd();
        // SAFETY: between fork and exec only setns is called, and the descriptor is open as long as
        // the parent's is, which the caller keeps until it spawns.
        unsafe { command.pre_exec(move || netns::join(BorrowedFd::borrow_raw(network))) }
    }
}

impl Hosts {
    fn places(&self) -> std::sync::MutexGuard<'_, HashMap<InstanceId, Place>> {
        lock(&self.places)
    }

    fn place(&self, id: InstanceId) -> Option<Place> {
        self.places().get(&id).copied()
    }

    fn broker(&self, host: usize) -> Option<&Broker> {
        self.brokers.get()?.get(host)
    }

    fn directory(&self) -> std::sync::MutexGuard<'_, Directory> {
        lock(&self.directory)
    }

    fn answer(&self, due: Due) {
        let place = self.place(due.asker.instance());
        if let Some(broker) = place.and_then(|place| self.broker(place.host)) {
            broker.answer(due);
        }
    }

    /// The broker of the process at the other end.
    fn wanted(&self, request: &LinkRequest) -> Result<(&Broker, Epoch), LinkRefusal> {
        let place = self.place(request.to_instance()).ok_or(LinkRefusal::Gone)?;
        let broker = self.broker(place.host).ok_or(LinkRefusal::Gone)?;
        let epoch = broker.reachable(request).ok_or(LinkRefusal::Moving)??;
        Ok((broker, epoch))
    }
}

struct LocalPeers(Arc<Hosts>);

impl Peers for LocalPeers {
    fn open(&self, request: LinkRequest) -> Answer<RemoteLink> {
        let hosts = self.0.clone();
        Box::pin(async move {
            let (broker, epoch) = hosts.wanted(&request)?;
            let (near, far) = link::loopback_pair().map_err(|_| LinkRefusal::Unreachable)?;
            broker.deliver(&request, far)?;
            Ok(RemoteLink { epoch, socket: near })
        })
    }

    fn nudge(&self, request: LinkRequest) -> Answer<()> {
        let hosts = self.0.clone();
        Box::pin(async move { hosts.wanted(&request)?.0.nudge(&request) })
    }

    fn ask_directory(&self, asker: Member, number: u64, request: Request) {
        let answer = self.0.directory().ask(asker, number, request);
        if let Some(answer) = answer {
            self.0.answer(Due { asker, number, answer });
        }
    }

    fn sessions_say(&self, _: InstanceId, _: Server, _: Word) -> Passing {
        Box::pin(std::future::ready(()))
    }
}

/// Keeps the directory up to date.
struct LocalObserver(Arc<Hosts>);

impl Observer for LocalObserver {
    fn roster_changed(&self, instance: InstanceId, roster: &Roster) {
        let (hosts, indexes): (_, BTreeSet<u8>) = (self.0.clone(), roster.indexes());
        let due = hosts.directory().set_processes(instance, indexes);
        // The broker must not be called from here.
        tokio::spawn(async move { due.into_iter().for_each(|due| hosts.answer(due)) });
    }

    fn exited(&self, _: InstanceId, _: i32) {}

    fn started(&self, _: InstanceId, _: Result<(), NotStarted>) {}
}

/// A new network namespace with its loopback device up. It lives as long as a descriptor or a process is in it.
fn new_network() -> io::Result<OwnedFd> {
    let network = netns::create()?;
    netns::enter(network.as_fd(), raise_loopback)??;
    Ok(network)
}

fn raise_loopback() -> io::Result<()> {
    // SAFETY: no memory is passed.
    let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if socket == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: all-zero is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[..2].copy_from_slice(&[b'l', b'o'].map(u8::cast_signed));
    request.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
    // SAFETY: `request` is a live ifreq with a terminated name.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
