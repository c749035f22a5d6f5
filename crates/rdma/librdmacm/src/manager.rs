//! The connection manager of this process: the state machine of [`cm`], its thread, and their shared state.
//!
//! Locks are taken in this order: the manager, an identifier's state, a channel's queue.

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cm::{
    ABSENCE, Addresses, ConnectionId, Event, Incoming, Limits, ListenerId, Offer, Output, Peer, Reason,
    Service,
};

use crate::address;
use crate::channel::Channel;
use crate::clock::{Clock, LOOK};
use crate::device::Device;
use crate::directory::{Answer, Directory, Entry};
use crate::errno::{Errno, Result};
use crate::happening::Happening;
use crate::id::{Core, Stage, random};
use crate::messenger::Messenger;
use crate::rsocket::{self, unfinished};
use waiting::{EventFd, OneAtATime, lock, poll_or_nap};

/// How long a connect may wait for the directory.
const LOOKUP: Duration = Duration::from_secs(20);

/// The purpose of a lookup.
pub(crate) enum Purpose {
    /// The program wants to know that the address can be reached, with or without a listener.
    Resolve,
    /// A connection request follows, with this offer.
    Connect(Box<Offer>),
    /// There is no listener for a connection request: find out whether any process has the address.
    Absence,
}

struct Lookup {
    core: Arc<Core>,
    service: Service,
    purpose: Purpose,
    deadline: Duration,
    /// Until when a listener may be absent.
    absent_until: Duration,
}

/// The pause before the directory is asked again for an absent listener.
const PAUSE: Duration = Duration::from_millis(50);

/// The state that the manager's lock guards.
pub(crate) struct Inner {
    pub(crate) cm: cm::Manager,
    messenger: Messenger,
    clock: Clock,
    connections: HashMap<ConnectionId, Arc<Core>>,
    listeners: HashMap<ListenerId, Arc<Core>>,
    lookups: HashMap<u64, Lookup>,
    /// Lookups that are made again at these times.
    again: Vec<(Duration, Lookup)>,
    watches: HashMap<u64, Peer>,
    /// When the thread means to wake.
    wakes_at: Option<Duration>,
}

/// See the module.
pub(crate) struct Manager {
    /// Dropped before the device that it uses.
    inner: Mutex<Inner>,
    pub(crate) device: Device,
    pub(crate) directory: Directory,
    /// Where others reach this manager.
    pub(crate) qpn: u32,
    wake: Arc<EventFd>,
    sign: RawFd,
}

/// Never freed: its thread refers to it. A forked child makes its own.
static CURRENT: AtomicPtr<Manager> = AtomicPtr::new(ptr::null_mut());

/// It takes up to a minute where the node is away, and needs locks that libibverbs holds while a thread forks: so
/// `fork` does not wait for it.
static MAKING: OneAtATime = OneAtATime::new();

impl Manager {
    /// The manager of this process, which is made when it is first needed.
    ///
    /// # Errors
    /// `ENODEV` if there is no device.
    pub(crate) fn get() -> Result<&'static Self> {
        if let Some(manager) = Self::current() {
            return Ok(manager);
        }
        let _one_at_a_time = MAKING.enter();
        match Self::current() {
            Some(manager) => Ok(manager),
            None => Self::make(),
        }
    }

    /// The manager, if there is one yet.
    pub(crate) fn current() -> Option<&'static Self> {
        // SAFETY: the pointer is null, or came from `make` and is never freed.
        unsafe { CURRENT.load(Ordering::Acquire).as_ref() }
    }

    /// A failure releases everything, so that the program can try again. So steps that can fail come before steps that cannot be undone.
    fn make() -> Result<&'static Self> {
        let device = Device::open()?;
        let addresses = address::own()?;
        let wake = Arc::new(EventFd::new(libc::EFD_NONBLOCK)?);
        let directory = Directory::new(device.verbs, wake.clone());
        let messenger = Messenger::new(&device)?;
        let (qpn, sign) = (messenger.qpn(), messenger.fd());
        let inner = Mutex::new(Inner {
            // A forked child does not use the parent's manager.
            cm: cm::Manager::new(Limits::default()).numbering_from(random()),
            messenger,
            clock: Clock::default(),
            connections: HashMap::new(),
            listeners: HashMap::new(),
            lookups: HashMap::new(),
            again: Vec::new(),
            watches: HashMap::new(),
            wakes_at: None,
        });
        let manager = Arc::new(Self { inner, device, directory, qpn, wake, sign });
        start(manager.clone())?;
        // SAFETY: it is never freed.
        let manager: &'static Self = unsafe { &*Arc::into_raw(manager) };
        // The process is attached, as its device is open.
        manager.directory.attend()?;
        manager.show(&addresses);
        watch_the_process();
        CURRENT.store(ptr::from_ref(manager).cast_mut(), Ordering::Release);
        Ok(manager)
    }

    /// Publishes this instance's addresses.
    fn show(&self, addresses: &[IpAddr]) {
        for address in addresses {
            let key = Service::of_address(address.to_canonical()).key(self.device.lid);
            self.directory.share(&key, &self.value(None));
        }
    }

    /// Does `work` under the lock, and then executes its outputs.
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut Inner, Duration) -> R) -> R {
        let mut inner = lock(&self.inner);
        let now = inner.clock.now();
        let result = work(&mut inner, now);
        inner.perform(self, now);
        let sooner = inner.deadline().is_some_and(|at| inner.wakes_at.is_none_or(|wakes_at| at < wakes_at));
        drop(inner);
        if sooner {
            self.wake.signal();
        }
        result
    }

    /// Looks up the process that accepts requests for `service`, within `limit`.
    ///
    /// # Errors
    /// `EAGAIN` if too many lookups are pending.
    pub(crate) fn look_up(
        &self,
        core: &Arc<Core>,
        service: Service,
        purpose: Purpose,
        limit: Option<Duration>,
    ) -> Result<()> {
        self.with(|inner, now| {
            let number = self.directory.look(&service.key(self.device.lid))?;
            let deadline = now + limit.unwrap_or(LOOKUP);
            let absent_until = now + ABSENCE;
            let lookup = Lookup { core: core.clone(), service, purpose, deadline, absent_until };
            inner.lookups.insert(number, lookup);
            Ok(())
        })
    }

    /// Makes `core` listen.
    pub(crate) fn listen(
        &self,
        core: &Arc<Core>,
        space: u16,
        addresses: Addresses,
        port: u16,
        backlog: usize,
    ) {
        self.with(|inner, _| {
            let listener = inner.cm.listen(space, addresses, port, backlog);
            inner.listeners.insert(listener, core.clone());
            lock(&core.state).listener = Some(listener);
        });
    }

    /// The program abandons `core`, and its requesters that it has not seen.
    pub(crate) fn abandon(&self, core: &Arc<Core>) {
        let (claimed, published) = self.with(|inner, now| {
            let numbers = inner.lookups.iter().filter(|(_, lookup)| Arc::ptr_eq(&lookup.core, core));
            for number in numbers.map(|(number, _)| *number).collect::<Vec<_>>() {
                inner.lookups.remove(&number);
                self.directory.forget(number);
            }
            inner.again.retain(|(_, lookup)| !Arc::ptr_eq(&lookup.core, core));
            if let Some(listener) = lock(&core.state).listener.take() {
                inner.cm.stop_listening(listener);
                inner.listeners.remove(&listener);
            }
            inner.leave(core, now);
            // Requesters get no more events until they are abandoned as well.
            for queued in core.withdraw() {
                if let Some(child) = queued.asking() {
                    inner.leave(child, now);
                }
            }
            let mut state = lock(&core.state);
            (std::mem::take(&mut state.claimed), state.published)
        });
        self.directory.release(core.holder(), &claimed, &self.value(published));
    }

    /// Gives `core` another channel. No request arrives meanwhile, and requesters get no events.
    pub(crate) fn migrate(&self, core: &Arc<Core>, to: &Arc<Channel>) {
        self.with(|_, _| core.migrate(to));
    }

    /// The value that this process publishes under a service's key: its manager's address, or a queue pair that accepts everything.
    pub(crate) fn value(&self, published: Option<u32>) -> [u8; 4] {
        published.unwrap_or(self.qpn).to_be_bytes()
    }

    fn turn(&self) -> Option<Duration> {
        let mut inner = lock(&self.inner);
        let now = inner.clock.now();
        let mut received = Vec::new();
        let more = inner.messenger.receive(|from, datagram| received.push((from, datagram.to_vec())));
        for (from, datagram) in received {
            inner.cm.received(from, &datagram, now);
        }
        for answer in self.directory.take_answers() {
            inner.answered(answer, now);
        }
        inner.cm.expire(now);
        inner.expire_lookups(&self.directory, now);
        inner.repeat_lookups(self, now);
        inner.perform(self, now);
        inner.wakes_at = if more { Some(now) } else { inner.deadline() };
        inner.wakes_at.map(|at| at.saturating_sub(now).min(LOOK))
    }
}

impl Inner {
    fn deadline(&self) -> Option<Duration> {
        let lookups = self.lookups.values().map(|lookup| lookup.deadline).min();
        let again = self.again.iter().map(|(at, _)| *at).min();
        lookups.into_iter().chain(again).chain(self.cm.deadline()).min()
    }

    /// Executes the outputs of the state machine until none are left.
    fn perform(&mut self, manager: &Manager, now: Duration) {
        loop {
            let outputs = self.cm.take_outputs();
            if outputs.is_empty() {
                return;
            }
            for output in outputs {
                match output {
                    Output::Send { to, datagram } => self.messenger.send(to, datagram),
                    Output::Tell { connection, event } => self.tell(connection, event, now),
                    Output::Watch(peer) => {
                        // Without a watch the peer's end shows in its queue pairs alone.
                        if let Ok(number) = manager.directory.watch(peer.lid, peer.index()) {
                            self.watches.insert(number, peer);
                        }
                    }
                }
            }
        }
    }

    fn tell(&mut self, connection: ConnectionId, event: Event, now: Duration) {
        if let Event::Requested(incoming) = event {
            return self.requested(connection, incoming, now);
        }
        let Some(core) = self.connections.get(&connection) else { return };
        let happening = match event {
            Event::Requested(_) => return,
            Event::Replied(offer) => Happening::Replied(Box::new(offer)),
            Event::Established => {
                lock(&core.state).connected = true;
                Happening::Established
            }
            Event::Rejected { reason, private } => Happening::Rejected(reason, private),
            Event::Unreachable => Happening::Unreachable(-libc::ETIMEDOUT),
            Event::Disconnected => {
                // Perhaps before the program has taken note that it was ever there.
                lock(&core.state).connected = true;
                Happening::Disconnected
            }
            Event::Over if !lock(&core.state).connected => return,
            Event::Over => Happening::TimewaitExit,
        };
        core.push(happening);
    }

    fn requested(&mut self, connection: ConnectionId, incoming: Incoming, now: Duration) {
        let Some(listening) = self.listeners.get(&incoming.listener) else {
            return self.cm.abandon(connection, now);
        };
        let core = Core::new(lock(&listening.state).channel.clone());
        {
            let mut state = lock(&core.state);
            state.stage = Stage::Connecting;
            state.local = Some((incoming.service.address, incoming.service.port).into());
            state.remote = Some(incoming.source);
            state.connection = Some(connection);
            state.peer = Some(incoming.peer);
            state.responder_resources = incoming.offer.initiator_depth;
            state.initiator_depth = incoming.offer.responder_resources;
            state.retry_count = incoming.offer.retry_count;
            state.rnr_retry_count = incoming.offer.rnr_retry_count;
            state.offer = Some(incoming.offer.clone());
        }
        self.connections.insert(connection, core.clone());
        listening.push(Happening::Requested(core, Box::new(incoming)));
    }

    /// Abandons the connection of `core`, which gets no more events.
    fn leave(&mut self, core: &Core, now: Duration) {
        if let Some(connection) = lock(&core.state).connection.take() {
            self.cm.abandon(connection, now);
            self.connections.remove(&connection);
        }
    }

    fn answered(&mut self, answer: Answer, now: Duration) {
        if let Some(peer) = self.watches.remove(&answer.number) {
            if answer.result.is_ok() {
                self.cm.peer_ended(peer.lid, peer.index(), now);
            }
        } else if let Some(lookup) = self.lookups.remove(&answer.number) {
            match answer.result {
                Ok(entries) => self.found(lookup, &entries, now),
                Err(errno) => failed(&lookup, errno),
            }
        }
    }

    fn found(&mut self, lookup: Lookup, entries: &[Entry], now: Duration) {
        let peer = entries.first().and_then(peer_of);
        if peer.is_none() && matches!(lookup.purpose, Purpose::Connect(_)) && now < lookup.absent_until {
            self.again.push((now + PAUSE, lookup));
            return;
        }
        let Lookup { core, service, purpose, deadline, absent_until } = lookup;
        lock(&core.state).peer = peer;
        match (purpose, peer) {
            (Purpose::Resolve, _) => {
                core.resolved(true);
                core.push(Happening::AddressResolved);
            }
            (Purpose::Connect(_), None) => {
                let service = Service::of_address(service.address);
                let lookup = Lookup { core, service, purpose: Purpose::Absence, deadline, absent_until };
                self.again.push((now, lookup));
            }
            (Purpose::Absence, Some(_)) => {
                core.push(Happening::Rejected(Reason::INVALID_SERVICE, Vec::new()));
            }
            (Purpose::Absence, None) => core.push(Happening::Unreachable(-libc::ETIMEDOUT)),
            (Purpose::Connect(offer), Some(peer)) => self.connect(&core, service, *offer, peer, now),
        }
    }

    fn connect(&mut self, core: &Arc<Core>, service: Service, offer: Offer, peer: Peer, now: Duration) {
        let datagram = offer.kind == Offer::DATAGRAM;
        let source = lock(&core.state).local.unwrap_or((service.address, 0).into());
        match self.cm.connect(peer, service, source, offer, datagram, now) {
            Some(connection) => {
                lock(&core.state).connection = Some(connection);
                self.connections.insert(connection, core.clone());
            }
            None => core.push(Happening::Unreachable(-libc::ENOMEM)),
        }
    }

    /// Asks the directory again for absent listeners.
    fn repeat_lookups(&mut self, manager: &Manager, now: Duration) {
        let (due, later): (Vec<_>, _) = self.again.drain(..).partition(|(at, _)| *at <= now);
        self.again = later;
        for (_, lookup) in due {
            match manager.directory.look(&lookup.service.key(manager.device.lid)) {
                Ok(number) => drop(self.lookups.insert(number, lookup)),
                Err(errno) => failed(&lookup, errno),
            }
        }
    }

    fn expire_lookups(&mut self, directory: &Directory, now: Duration) {
        let late = self.lookups.iter().filter(|(_, lookup)| lookup.deadline <= now);
        for number in late.map(|(number, _)| *number).collect::<Vec<_>>() {
            directory.forget(number);
            if let Some(lookup) = self.lookups.remove(&number) {
                failed(&lookup, Errno(libc::ETIMEDOUT));
            }
        }
    }
}

/// The directory cannot say.
fn failed(lookup: &Lookup, errno: Errno) {
    lookup.core.push(match lookup.purpose {
        Purpose::Resolve => {
            lookup.core.resolved(false);
            Happening::AddressFailed(-errno.0)
        }
        Purpose::Connect(_) | Purpose::Absence => Happening::Unreachable(-errno.0),
    });
}

fn peer_of(entry: &Entry) -> Option<Peer> {
    let qpn = u32::from_be_bytes(entry.value.as_slice().try_into().ok()?);
    Some(Peer { lid: entry.lid, qpn })
}

/// Starts the thread with all signals blocked: they are the program's.
fn start(manager: Arc<Manager>) -> Result<()> {
    waiting::start_thread("transhume-cm", move || run(&manager))
        .map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EAGAIN)))
}

/// `extern "C"`, so that a panic ends the process: with a dead thread its peers would hang.
extern "C" fn run(manager: &Manager) {
    loop {
        let timeout = manager.turn();
        unfinished::go_on();
        // An early return does no harm.
        let _ = poll_or_nap(&mut [manager.sign, manager.wake.fd()].map(waiting::reads_of), timeout);
        manager.wake.clear();
    }
}

/// From when the library is loaded: another thread may fork while the first manager is made.
#[used]
#[unsafe(link_section = ".init_array")]
static WATCH_FOR_FORKS: extern "C" fn() = watch_for_forks;

/// A forked child starts again. It detects that the inherited state is its parent's before it would take a lock of it: threads of the parent
/// may hold any of them. The one lock that it keeps using, that of [`rsocket`], is held across `fork`.
extern "C" fn watch_for_forks() {
    // SAFETY: the functions are never unloaded: the library is linked with `nodelete`.
    unsafe { libc::pthread_atfork(Some(rsocket::hold), Some(rsocket::let_go), Some(reset_in_child)) };
}

unsafe extern "C" fn reset_in_child() {
    headroom::reset_in_child();
    waiting::begin_generation();
    CURRENT.store(ptr::null_mut(), Ordering::Release);
    // SAFETY: the child is new, and a thread that makes a manager does not fork.
    unsafe {
        MAKING.renew();
        rsocket::let_go();
    }
}

/// Notifies peers at the end of the process. For the thread that makes the manager.
fn watch_the_process() {
    // No `Once`: another thread may fork while this one is in it, and the child would wait for that for ever.
    static WATCHED: AtomicBool = AtomicBool::new(false);
    if WATCHED.load(Ordering::Relaxed) {
        return;
    }
    // SAFETY: the function is never unloaded: the library is linked with `nodelete`.
    unsafe { libc::atexit(say_goodbye) };
    WATCHED.store(true, Ordering::Relaxed);
}

/// May run at any exit, and so does not wait for the lock.
extern "C" fn say_goodbye() {
    let Some(manager) = Manager::current() else { return };
    rsocket::end_all();
    let Ok(mut inner) = manager.inner.try_lock() else { return };
    let now = inner.clock.now();
    inner.cm.abandon_all(now);
    inner.perform(manager, now);
}
