//! The plane moves frames between a node's ports and other nodes.
//!
//! ```text
//!                    ┌─ thread of a port ──────────────────────────────────────────┐
//!  instance ─▶ TAP ──┤ read a segment ─▶ switch ─▶ split ─▶ seal ─▶ send many ──────├──▶ other node
//!                    └─────────────────────────────────────────────────────────────┘
//!                    ┌─ thread of the socket ──────────────────────────────────────┐
//!  instance ◀─ TAP ──┤ write a segment ◀─ merge ◀─ switch ◀─ open ◀─ receive many ──├─── other node
//!                    └─────────────────────────────────────────────────────────────┘
//! ```
//!
//! All frames of a port pass one thread, and all that comes from a node another one, so none overtakes another of its flow. A
//! third thread does the periodic work: probes, and the removal of old entries. Where UDP is blocked, a [`fallback`](crate::fallback) replaces
//! the socket.

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, RwLock, RwLockWriteGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use overlay::Mac;
use overlay::matrix::Traffic;
use overlay::message::PROBE;
use overlay::path_bursts::{Lengths, PROBES};
use overlay::path_mtu::{BASE, PathMtu};
use overlay::segment::split::Plan;
use overlay::segment::vnet::VnetHeader;
use overlay::switch::{From, Parcel, PortId, PortKind, Switch};
use overlay::topology::NodeId;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::carrier::{Carrier, Source};
use crate::counters::{Counter, Counters};
use crate::fallback::{Inlet, Inlets};
use crate::faults::{self, Claims, Fault, Gluing, Place, SwitchedOff};
use crate::forwarder::Forwarder;
use crate::kernel::{HandedOver, Kernel, What, Word};
use crate::lock::lock;
use crate::meters::{Meter, Meters};
use crate::offloads::Offload;
use crate::outgoing::{Loss, Way};
use crate::peer::{LANES, Path, Peer, PeerState, Terms};
use crate::peers::Peers;
use crate::socket::{self, Socket};
use crate::tap::{self, Tap};

/// After so many reads a thread looks whether it is to end.
const TURN: usize = 64;

/// The interval of periodic work.
const TICK: Duration = Duration::from_millis(100);

/// The interval of periodic work that may wait.
const SELDOM: Duration = Duration::from_secs(1);

/// Bytes of datagrams that are sent back to back to measure the rate of an idle path.
const TRAIN: usize = 32 * 1024;

/// The state that all threads share.
pub(crate) struct Shared {
    pub socket: Socket,
    pub switch: Mutex<Switch>,
    pub peers: Peers,
    pub counters: Counters,
    pub meters: Meters,
    /// The kernel's fast path.
    pub kernel: Option<Kernel>,
    /// Counts these.
    kernel_meter: Arc<Meter>,
    taps: RwLock<HashMap<PortId, Arc<Tap>>>,
    /// Told of each offload that is switched off.
    listener: OnceLock<Listener>,
    started: Instant,
}

/// The listener for disabled offloads.
type Listener = Box<dyn Fn(SwitchedOff) + Send + Sync>;

impl Shared {
    pub fn new(switch: Switch, socket: Socket, kernel: Option<Kernel>) -> Self {
        let meters = Meters::default();
        Self {
            socket,
            switch: Mutex::new(switch),
            peers: Peers::default(),
            counters: Counters::default(),
            kernel_meter: meters.take(),
            meters,
            kernel,
            taps: RwLock::default(),
            listener: OnceLock::new(),
            started: Instant::now(),
        }
    }

    /// The time, for all that has no clock.
    pub fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn tap(&self, port: PortId) -> Option<Arc<Tap>> {
        self.taps.read().expect("no thread panics while it holds the lock").get(&port).cloned()
    }

    /// Traffic of the kernel counts as this node's.
    fn look_at_kernel(&self) {
        let Some(kernel) = &self.kernel else { return };
        let now = self.now();
        let seen = kernel.look(&self.peers, now);
        if kernel.is_newly_gone() {
            self.counters.count(Counter::PortGone);
        }
        seen.flows.into_iter().for_each(|(flow, volume)| self.kernel_meter.add(flow, volume, now));
        seen.dropped.into_iter().for_each(|(counter, more)| self.counters.add(counter, more));
    }

    /// The disabled offloads.
    pub fn switched_off(&self) -> Vec<SwitchedOff> {
        let of_node = self.socket.is_gro_to_blame().then_some(SwitchedOff {
            offload: Offload::UdpGro,
            place: Place::Node,
            fault: Fault::Spoils,
        });
        let of_peer = |peer: Arc<Peer>| {
            let (fault, place) = (peer.wrong_together()?.into(), Place::Way(peer.node));
            Some(SwitchedOff { offload: Offload::UdpSegment, place, fault })
        };
        let mut all: Vec<_> =
            of_node.into_iter().chain(self.peers.all().into_iter().filter_map(of_peer)).collect();
        let taps = self.taps.read().expect("no thread panics while it holds the lock");
        all.extend(taps.iter().flat_map(|(port, tap)| faults::of_tap(*port, tap)));
        all
    }

    /// Reports disabled offloads that are not in `known`, which contains them afterwards.
    fn tell_of_offloads(&self, known: &mut Vec<SwitchedOff>) {
        let Some(listener) = self.listener.get() else { return };
        let all = self.switched_off();
        all.iter().filter(|off| !known.contains(off)).for_each(|off| listener(*off));
        *known = all;
    }

    /// The kernel carries frames as sessions now say.
    fn links_changed(&self) {
        if let Some(kernel) = &self.kernel {
            kernel.follow(&self.peers);
        }
    }

    /// Whether `port` takes segments of the kind of the frame that came with `vnet`.
    pub fn takes_segments(&self, port: PortId, vnet: &VnetHeader) -> bool {
        self.tap(port).is_some_and(|tap| tap.takes_segments(vnet.is_udp()))
    }

    /// Writes `frame`, which came with `vnet`, to `port`; a segment that this does not take is cut.
    pub fn write_frame(&self, port: PortId, vnet: &VnetHeader, frame: &[u8]) {
        let is_cut = vnet.is_segment() && !self.takes_segments(port, vnet);
        if is_cut || !self.write(port, vnet, &[IoSlice::new(&vnet.encode()), IoSlice::new(frame)]) {
            self.write_pieces(port, vnet, frame);
        }
    }

    /// Cuts `frame`, a segment that came with `vnet`, and writes it to `port`.
    pub fn write_pieces(&self, port: PortId, vnet: &VnetHeader, frame: &[u8]) {
        let Ok(plan) = Plan::of(vnet, frame) else { return self.counters.count(Counter::Unsplittable) };
        let vnet = plan.piece_vnet();
        let header = vnet.encode();
        let mut piece = vec![0; plan.piece_length(0)];
        for index in 0..plan.pieces() {
            let length = plan.write_piece(index, frame, &mut piece);
            self.write(port, &vnet, &[IoSlice::new(&header), IoSlice::new(&piece[..length])]);
        }
    }

    /// Writes a frame, which came with `vnet`, with its header to `port`. False if it is a segment that the kernel does not
    /// take, and which has to be cut.
    pub fn write(&self, port: PortId, vnet: &VnetHeader, parts: &[IoSlice<'_>]) -> bool {
        let Some(tap) = self.tap(port) else {
            self.counters.count(Counter::NotWritten);
            return true;
        };
        let written = tap.write(parts);
        let is_refused = written.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::InvalidInput);
        if vnet.is_segment() {
            tap.note_segment(vnet.is_udp(), !is_refused);
            if is_refused {
                self.counters.count(Counter::SegmentRefused);
                return false;
            }
        }
        if written.is_err() {
            self.counters.count(Counter::NotWritten);
        }
        true
    }
}

/// A thread that ends when this is dropped.
struct Worker {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts `work`, which returns soon after the descriptor that it gets has become readable.
    fn start(name: &str, work: impl FnOnce(&OwnedFd) + Send + 'static) -> io::Result<Self> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let given = stop.clone();
        let work = move || {
            use_default_scheduling();
            work(&given);
        };
        let thread = thread::Builder::new().name(name.into()).spawn(work)?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Worker {
    fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It is a counter far from its limit; if it were full, the thread would already have been woken.
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// For threads that carry traffic. Leaves a real-time policy, which a daemon may have and its threads inherit: these threads share the
/// processors with the programs whose traffic they carry. With real-time priority they would take the processors as long as there is
/// traffic.
pub fn use_default_scheduling() {
    let none = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameters are live. A refusal changes nothing.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const none) };
}

/// Waits until `source` can be read. False if the thread is to end.
fn wait_for(source: impl AsFd, stop: &OwnedFd) -> bool {
    let mut waits = [PollFd::new(&source, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
    // An interruption is no reason to end.
    let _ = poll(&mut waits, None);
    waits[1].revents().is_empty()
}

/// See the module. All ends when it is dropped.
pub struct Plane {
    ports: Mutex<HashMap<PortId, Worker>>,
    /// Sends frames that commands release.
    forwarder: Mutex<Forwarder>,
    inlets: Inlets,
    shared: Arc<Shared>,
    _workers: Vec<Worker>,
}

impl Plane {
    /// Starts to move frames as `switch` decides, to and from nodes through `socket`. `kernel` carries frames that need no decision,
    /// on links where that was agreed on.
    ///
    /// # Errors
    /// If there can be no more threads or descriptors.
    pub fn start(switch: Switch, socket: Socket, kernel: Option<Kernel>) -> io::Result<Self> {
        let shared = Arc::new(Shared::new(switch, socket, kernel));
        let forwarder = |lane| Forwarder::new(shared.clone(), lane);
        let (receiver, ticker) = (forwarder(0), forwarder(1));
        let mut workers = vec![
            Worker::start("th-overlay", move |stop| receive(receiver, stop))?,
            Worker::start("th-overlay-tick", move |stop| tick(ticker, stop))?,
        ];
        if shared.kernel.is_some() {
            let handed_over = forwarder(3);
            workers.push(Worker::start("th-overlay-kern", move |stop| take_handed_over(handed_over, stop))?);
        }
        let (mut forwarder, mut inlet) = (forwarder(2), forwarder(3));
        forwarder.outgoing.never_waits();
        // A thread that reads from one connection has others to read from.
        inlet.outgoing.never_waits();
        let (forwarder, inlets) = (Mutex::new(forwarder), Inlets::new(inlet));
        Ok(Self { ports: Mutex::default(), forwarder, inlets, shared, _workers: workers })
    }

    /// Attaches `tap` as `port`; one of the same number is detached.
    ///
    /// # Errors
    /// If there can be no more threads.
    pub fn plug(&self, port: PortId, kind: PortKind, tap: impl Into<Arc<Tap>>) -> io::Result<()> {
        self.unplug(port);
        self.command(|switch, _, _| switch.attach(port, kind));
        self.serve(port, tap)
    }

    /// Unplugs `port`, if it is there.
    pub fn unplug(&self, port: PortId) {
        self.release(port);
        self.command(|switch, _, _| switch.detach(port));
    }

    /// Carries frames between `tap` and `port`, which the switch already knows.
    ///
    /// # Errors
    /// If there can be no more threads.
    pub fn serve(&self, port: PortId, tap: impl Into<Arc<Tap>>) -> io::Result<()> {
        let tap = tap.into();
        self.taps().insert(port, tap.clone());
        let forwarder = Forwarder::new(self.shared.clone(), (port.0 % u16::from(LANES)) as u8);
        let carried = tap.clone();
        let work = move |stop: &OwnedFd| carry(forwarder, port, &carried, stop);
        let worker = Worker::start(&format!("th-port-{port}"), work);
        let worker = worker.inspect_err(|_| drop(self.taps().remove(&port)))?;
        lock(&self.ports).insert(port, worker);
        if let Some(kernel) = &self.shared.kernel {
            kernel.attach(port, &tap, &self.shared.switch);
        }
        Ok(())
    }

    /// Whether frames are carried between `port` and its TAP: not if it was never served, or the device is gone.
    #[must_use]
    pub fn is_served(&self, port: PortId) -> bool {
        lock(&self.ports).get(&port).is_some_and(Worker::is_running)
    }

    /// Tells all LANs that the managed `mac` is behind `port`.
    pub fn announce(&self, port: PortId, mac: Mac) {
        let mut forwarder = lock(&self.forwarder);
        let announcements = lock(&self.shared.switch).announcements(mac);
        for frame in announcements {
            forwarder.carry_on(From::Port(port), &VnetHeader::default(), &frame);
        }
    }

    /// The TAP of `port`, from which nothing is read any more, and to which nothing is written. The switch keeps the port.
    pub fn release(&self, port: PortId) -> Option<Arc<Tap>> {
        if let Some(kernel) = &self.shared.kernel {
            kernel.detach(port);
        }
        let worker = lock(&self.ports).remove(&port);
        drop(worker);
        self.taps().remove(&port)
    }

    fn taps(&self) -> RwLockWriteGuard<'_, HashMap<PortId, Arc<Tap>>> {
        self.shared.taps.write().expect("no thread panics while it holds the lock")
    }

    /// Starts a session with `node`, which is reached by `path`, as `agreed`. Datagrams of the previous session are
    /// accepted for some more seconds.
    ///
    /// To lose nothing at the change-over, one of two nodes calls [`Self::expect`] first, and then the other
    /// one calls this.
    pub fn connect(&self, node: NodeId, path: Path, agreed: impl Into<Terms>) {
        let now = self.shared.now();
        self.shared.peers.insert(Peer::new(node, path, agreed, now), now);
        self.shared.links_changed();
    }

    /// The same, but goes on as was agreed on before until `node` speaks as `agreed`. Only the last call before that counts.
    pub fn expect(&self, node: NodeId, path: Path, agreed: impl Into<Terms>) {
        let now = self.shared.now();
        self.shared.peers.expect(Peer::new(node, path, agreed, now), now);
        self.shared.links_changed();
    }

    /// Ends the session with `node`.
    pub fn disconnect(&self, node: NodeId) {
        self.shared.peers.remove(node);
        self.shared.links_changed();
    }

    /// Where datagrams come in that a connection has carried, on which two nodes have agreed on `session`, which is this node's
    /// number for it.
    #[must_use]
    pub fn inlet(&self, session: u32) -> Inlet {
        self.inlets.of_session(session)
    }

    /// Lets `command` act on the switch at the present time; sends the frames that it adds to its list.
    pub fn command<T>(&self, command: impl FnOnce(&mut Switch, Duration, &mut Vec<Parcel>) -> T) -> T {
        let mut forwarder = lock(&self.forwarder);
        let mut parcels = Vec::new();
        // No frame that is decided on later may overtake those that were kept. They do not wait for room in the kernel:
        // all others would.
        let mut switch = lock(&self.shared.switch);
        let result = command(&mut switch, self.shared.now(), &mut parcels);
        let due = self.shared.kernel.as_ref().map(|kernel| (kernel, kernel.retract(&mut switch)));
        forwarder.deliver_all(parcels);
        if let Some((kernel, due)) = due {
            kernel.extend(due);
        }
        result
    }

    /// How often something went nowhere for this reason.
    #[must_use]
    pub fn counter(&self, counter: Counter) -> u64 {
        self.shared.counters.get(counter)
    }

    /// The traffic matrix of frames from this node's ports: the busiest pairs first, 4096 of them at most, and
    /// behind them all others as one.
    ///
    /// `time` is the time before the present slot of [`overlay::matrix::SLOT`], rounded up to whole slots and limited by
    /// [`overlay::matrix::LONGEST`]. Each frame is counted where it comes in, and so once in the whole network.
    #[must_use]
    pub fn matrix(&self, time: Duration) -> Vec<Traffic> {
        self.shared.look_at_kernel();
        self.shared.meters.read(time, self.shared.now())
    }

    /// The disabled offloads.
    #[must_use]
    pub fn switched_off(&self) -> Vec<SwitchedOff> {
        self.shared.switched_off()
    }

    /// Reports each of them to `listener` within a second. Only the first listener is kept.
    pub fn tell_of_offloads(&self, listener: impl Fn(SwitchedOff) + Send + Sync + 'static) {
        let _ = self.shared.listener.set(Box::new(listener));
    }

    /// How it stands with `node`; `None` without a session.
    #[must_use]
    pub fn peer(&self, node: NodeId) -> Option<PeerState> {
        let state = self.shared.peers.state(node)?;
        let kernel_frames = self.shared.kernel.as_ref().map_or(0, |kernel| kernel.sent_to(node));
        Some(PeerState { kernel_frames, ..state })
    }
}

impl Drop for Plane {
    fn drop(&mut self) {
        self.inlets.close();
    }
}

/// Carries frames from `tap` to where they belong, until the device is gone.
fn carry(mut forwarder: Forwarder, port: PortId, tap: &Tap, stop: &OwnedFd) {
    let (meter, mut claims) = (forwarder.shared.meters.take(), Claims::default());
    let mut buffer = vec![0; tap::MOST];
    while wait_for(tap, stop) {
        for _ in 0..TURN {
            match tap.read(&mut buffer) {
                Ok(length) => {
                    let Some((header, frame)) = buffer[..length].split_first_chunk() else { continue };
                    let vnet = VnetHeader::decode(header);
                    claims.look(tap, &vnet, frame);
                    forwarder.carry(port, &vnet, frame, &meter);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => return forwarder.shared.counters.count(Counter::PortGone),
            }
        }
    }
}

/// Takes in frames that the kernel leaves to this node.
fn take_handed_over(mut forwarder: Forwarder, stop: &OwnedFd) {
    let shared = forwarder.shared.clone();
    let Some(kernel) = &shared.kernel else { return };
    let mut buffer = vec![0; tap::MOST];
    while wait_for(kernel, stop) {
        for _ in 0..TURN {
            match kernel.plane().read(&mut buffer) {
                Ok(length) => forwarder.take_handed_over(kernel, &buffer[..length]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // Nothing is answered any more, and so the kernel is not used.
                Err(_) => return shared.counters.count(Counter::PortGone),
            }
        }
    }
}

/// Takes in datagrams.
fn receive(mut forwarder: Forwarder, stop: &OwnedFd) {
    let shared = forwarder.shared.clone();
    let (mut buffer, mut gluing) = (vec![0; socket::MOST], Gluing::default());
    while wait_for(&shared.socket, stop) {
        for _ in 0..TURN {
            let Ok(arrival) = shared.socket.receive(&mut buffer) else { break };
            let datagrams = &mut buffer[..arrival.bytes];
            let is_spoilt =
                forwarder.take(Source::Udp(arrival.from), datagrams, arrival.length, arrival.waited);
            gluing.look(&shared.socket, &arrival, is_spoilt);
        }
    }
}

/// Does the work that is due.
fn tick(mut forwarder: Forwarder, stop: &OwnedFd) {
    let shared = forwarder.shared.clone();
    let (mut seldom, mut known) = (Duration::ZERO, Vec::new());
    let pause = Timespec { tv_sec: 0, tv_nsec: TICK.subsec_nanos().into() };
    while poll(&mut [PollFd::new(stop, PollFlags::IN)], Some(&pause)) != Ok(1) {
        let now = shared.now();
        let is_seldom = now >= seldom;
        let mut links_have_changed = is_seldom;
        for peer in shared.peers.all() {
            ask_for_life(&mut forwarder, &peer, now);
            links_have_changed |= ask_kernel(&shared, &peer, now);
            let has_reported = is_seldom && report(&mut forwarder, &peer, now);
            if has_reported && peer.quality().train_is_due(now) {
                send_train(&mut forwarder, &peer, now);
            }
            // An idle path is probed only with the rare reports.
            if !has_reported && peer.quality().is_idle(now) {
                continue;
            }
            probe_path(&mut forwarder, &peer, now);
            try_bursts(&mut forwarder, &peer, now);
            if is_seldom {
                confirm_keys(&mut forwarder, &peer, now);
            }
        }
        if is_seldom {
            seldom = now + SELDOM;
            shared.peers.forget_former(now);
            shared.look_at_kernel();
            shared.tell_of_offloads(&mut known);
        }
        if links_have_changed {
            shared.links_changed();
        }
        let mut parcels = Vec::new();
        lock(&shared.switch).tick(now, &mut parcels);
        forwarder.deliver_all(parcels);
    }
}

/// Sends the report that is due to `peer`. False if none is.
fn report(forwarder: &mut Forwarder, peer: &Peer, now: Duration) -> bool {
    let Some(report) = peer.next_report(now) else { return false };
    // One that is lost was not the last.
    let way = Way::to(peer, &forwarder.shared.socket);
    let _ = forwarder.outgoing.tell(way, &report.encode(), now);
    true
}

/// Sends as many datagrams as show `peer` how much the way carries, if nothing else has.
fn send_train(forwarder: &mut Forwarder, peer: &Peer, now: Duration) {
    let way = Way::to(peer, &forwarder.shared.socket);
    let length = peer.arrives(Carrier::Udp);
    for _ in 0..TRAIN.div_ceil(length) {
        // Lost ones are also missing in another thread's train.
        let _ = forwarder.outgoing.probe(way, 0, length, now);
    }
}

/// Asks whether datagrams arrive at `peer`, if it is due and there is another way for them: the probes for each way.
fn ask_for_life(forwarder: &mut Forwarder, peer: &Peer, now: Duration) {
    let Some(fallback) = peer.fallback() else { return };
    // Without the other way nothing else shows whether the link is cut.
    let is_idle = fallback.stands() && peer.quality().is_idle(now);
    if peer.watch(|liveness| liveness.next_question(is_idle, now)) {
        let way = Way::by(Carrier::Udp, peer, &forwarder.shared.socket);
        // A lost question is repeated.
        let _ = forwarder.outgoing.probe(way, 0, BASE, now);
    }
}

/// Asks whether frames arrive at `peer` that the kernel carries, if it is due: the longest ones, as the way may swallow only these.
/// True if they do not any more.
fn ask_kernel(shared: &Shared, peer: &Peer, now: Duration) -> bool {
    let (Some(kernel), Some(short_cut)) = (&shared.kernel, peer.short_cut()) else { return false };
    let (longest, was_alive) = (peer.longest_by_kernel(), short_cut.is_alive());
    let may_carry_more = was_alive && short_cut.arrives() < longest;
    let is_idle = peer.quality().is_idle(now) && !may_carry_more;
    if short_cut.watch(|liveness| liveness.next_question(is_idle, now)) {
        // A lost question is repeated.
        let _ = kernel.say(peer.node, Word::Question(longest.try_into().unwrap_or(u16::MAX)));
    }
    was_alive != short_cut.is_alive()
}

/// Sends the probes that are due on the way to `peer`. Where nothing arrives they would show nothing.
fn probe_path(forwarder: &mut Forwarder, peer: &Peer, now: Duration) {
    let way = Way::to(peer, &forwarder.shared.socket);
    if way.carrier() != Carrier::Udp {
        return peer.search(PathMtu::interrupt);
    }
    while let Some(length) = peer.next_probe(now) {
        match forwarder.outgoing.probe(way, 0, length, now) {
            // After a refusal the next one is shorter.
            Ok(()) | Err(Loss::TooLong) => {}
            Err(_) => return,
        }
    }
}

/// Sees whether datagrams arrive at `peer` that leave together, if that is due. Where they do not leave so, there is nothing to see.
fn try_bursts(forwarder: &mut Forwarder, peer: &Peer, now: Duration) {
    let way = Way::to(peer, &forwarder.shared.socket);
    // So many leave in one call.
    let longest = peer.arrives(Carrier::Udp).min(socket::LONGEST / PROBES);
    if way.carrier() != Carrier::Udp || way.at_once(longest) < PROBES {
        return;
    }
    let (sent, lost) = {
        let quality = peer.quality();
        (quality.sent(), quality.lost())
    };
    let lengths = peer.try_bursts(|bursts| bursts.next_trial(longest, sent, lost, now));
    let Some(Lengths { together, alone }) = lengths else { return };
    // A datagram that does not leave is not answered.
    let _ = forwarder.outgoing.probe_together(way, PROBES, together, now);
    for _ in 0..PROBES {
        let _ = forwarder.outgoing.probe(way, 0, alone, now);
    }
}

/// Asks on the lanes to `peer` with new keys whether it has these.
fn confirm_keys(forwarder: &mut Forwarder, peer: &Peer, now: Duration) {
    for lane in (0..LANES).filter(|lane| peer.sealing(*lane).is_unconfirmed()) {
        // A lost question is repeated.
        let way = Way::to(peer, &forwarder.shared.socket);
        let _ = forwarder.outgoing.probe(way, lane, peer.overhead + PROBE, now);
    }
}

impl Forwarder {
    /// Takes in the frames that the kernel has `read`, and left to this node.
    fn take_handed_over(&mut self, kernel: &Kernel, read: &[u8]) {
        // A host sends many frames of its own on devices that are up.
        let Some(HandedOver { session, what }) = HandedOver::decode(read) else { return };
        let Some(peer) = self.shared.peers.of_session(session) else {
            return self.shared.counters.count(Counter::Stranger);
        };
        let now = self.shared.now();
        if peer.is_expected.load(Ordering::Relaxed) {
            self.shared.peers.heard(&peer, now);
            self.shared.links_changed();
        }
        match what {
            // One that is lost is asked for again.
            What::Said(Word::Question(length)) => drop(kernel.say(peer.node, Word::Answer(length))),
            What::Said(Word::Answer(length)) => {
                if peer.short_cut().is_some_and(|short_cut| short_cut.answered(length.into(), now)) {
                    self.shared.links_changed();
                }
            }
            What::Frame(vnet, frame) => {
                peer.use_it();
                self.carry_on(From::ShortCut(peer.node), &vnet, frame);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn plane_threads_do_not_inherit_the_daemons_priority() {
        // A thread of its own, with its own policy.
        let daemon = thread::spawn(|| {
            let lowest = libc::sched_param { sched_priority: 1 };
            // SAFETY: the parameters are live.
            let taken = unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &raw const lowest) } == 0;
            let (sender, policy) = mpsc::channel();
            let worker = Worker::start("worker", move |_| {
                // SAFETY: no memory is passed.
                let _ = sender.send(unsafe { libc::sched_getscheduler(0) });
            });
            let policy = policy.recv().unwrap();
            drop(worker);
            (taken, policy)
        });
        assert_eq!(daemon.join().unwrap(), (true, libc::SCHED_OTHER), "these tests run as root");
    }
}
