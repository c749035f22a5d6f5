//! The thread `transhume-rdma`: the attach socket, timers, and links while the program does not poll.
//!
//! [`crate::arming`] decides when it sleeps on links.
//!
//! # Moves
//!
//! `Suspend` closes all that reaches out of the instance; then the thread tries to connect every
//! half millisecond, for as long as it takes, with the process frozen somewhere in between.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use std::{ptr, thread};

use fabric::attach::{ToNode, ToProcess, Transport, decode, encode};
use fabric::directory::Answer;
use fabric::{Epoch, ProcessId, seqpacket};
use softhca::{Progress, Stream, Waitable, stream};

use crate::arming::{Arming, Polls, TICK};
use crate::attach::{self, Refusal, Welcome};
use crate::crowding::{NAP, OwnTime};
use crate::debug;
use crate::held_acks::{HOLD, HeldAcks};
use crate::process::{Known, Process, State};
use crate::reports::{self, Reports};

/// The thread's time slice, the least that the scheduler grants.
const SLICE: Duration = Duration::from_micros(100);

/// Ticks in a row for which the thread only looks whether the program still polls.
const GLANCES: u32 = 16;

/// While the thread sleeps without a tick, each call of the program checks all links for pending output: at so many at most.
const FEW_LINKS: usize = 16;

/// Between attempts to reach a node that went away without a word: it restarts.
const NODE_RETRY: Duration = Duration::from_millis(20);

/// Where the process stands with its node.
enum Node {
    Attached(OwnedFd),
    /// Lost: the node ended, links live on.
    Lost,
    /// Between `Suspended` and `Welcome`.
    Suspended,
}

/// The thread's next action.
enum Next {
    Again,
    /// `None`: until something happens.
    Sleep(Option<Duration>),
    /// For a tick; again as long as the program spins.
    Doze,
}

/// The cause of a wake-up.
#[derive(Default)]
struct Woken {
    node: bool,
    link: bool,
    /// The program.
    call: bool,
}

/// The state of the thread.
pub(crate) struct Runtime {
    process: &'static Process,
    node: Node,
    /// Links that the node has been asked for and not answered.
    asked: BTreeSet<ProcessId>,
    waitables: Vec<Waitable>,
    /// Turns without a sleep so far.
    restless: u32,
    /// The cause of the last wake-up, until it has been judged.
    woken: Option<Woken>,
    arming: Arming,
    acks: HeldAcks,
    reports: Reports,
}

/// Starts the thread with all signals blocked: they are the program's.
///
/// # Errors
/// If there can be no more threads.
pub(crate) fn start(runtime: Runtime) -> io::Result<()> {
    waiting::start_thread("transhume-rdma", move || {
        let runtime = Box::into_raw(Box::new(runtime));
        // SAFETY: the pointer is fresh from `Box`.
        unsafe { run(runtime) }
    })
}

/// `extern "C"`, so that a panic ends the process: with a dead thread its peers would hang.
unsafe extern "C" fn run(runtime: *mut Runtime) {
    prefer_short_slices();
    // SAFETY: `start` passes a pointer from `Box`.
    let mut runtime = unsafe { Box::from_raw(runtime) };
    loop {
        runtime.turn();
    }
}

/// Asks the scheduler for short time slices. Among equals, a thread with a shorter slice gets the processor sooner:
/// a wake-up then does not wait for the end of the slice of a program that polls memory. Kernels
/// before 6.12 do not support it; only time is lost.
fn prefer_short_slices() {
    /// The first version of `struct sched_attr`.
    #[repr(C)]
    #[derive(Default)]
    struct Attributes {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime: u64,
        deadline: u64,
        period: u64,
    }
    let wanted = Attributes {
        size: size_of::<Attributes>() as u32,
        runtime: SLICE.as_nanos() as u64,
        ..Attributes::default()
    };
    // SAFETY: the structure is live and as long as it says.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const wanted, 0) };
}

/// `CLOCK_MONOTONIC`.
pub(crate) fn now() -> Duration {
    clock(libc::CLOCK_MONOTONIC)
}

/// For how long the calling thread has run.
pub(crate) fn own_time() -> OwnTime {
    thread_local! {
        /// Its address is the thread's.
        static PLACE: u8 = const { 0 };
    }
    let thread = PLACE.with(|place| ptr::from_ref(place).addr());
    OwnTime { thread, ran: clock(libc::CLOCK_THREAD_CPUTIME_ID) }
}

fn clock(id: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` can be written.
    unsafe { libc::clock_gettime(id, &raw mut time) };
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

impl Runtime {
    pub(crate) fn new(process: &'static Process, socket: OwnedFd) -> Self {
        Self {
            process,
            node: Node::Attached(socket),
            asked: BTreeSet::new(),
            waitables: Vec::new(),
            restless: 0,
            woken: None,
            arming: Arming::default(),
            acks: HeldAcks::default(),
            reports: Reports::default(),
        }
    }

    /// Does all pending work, and sleeps until there is more.
    fn turn(&mut self) {
        let process = self.process;
        let mut state = process.lock_with_priority();
        let next = self.prepare(&mut state);
        let wanted = self.take_wanted(&mut state);
        drop(state);
        self.ask_for(wanted);
        self.ask_directory();
        let woken = match next {
            Next::Sleep(timeout) => self.sleep(timeout),
            Next::Doze => self.doze(),
            Next::Again => {
                if process.is_wanted() {
                    thread::sleep(NAP);
                }
                return self.read_node_messages();
            }
        };
        self.attend_node(woken.node);
        self.woken = Some(woken);
    }

    /// Attends to the node now and then while there is no sleep: links that never rest must not keep a move waiting.
    fn read_node_messages(&mut self) {
        /// Rounds. Each moves up to half a megabyte.
        const SELDOM: u32 = 16;
        self.restless = self.restless.wrapping_add(1);
        if self.restless.is_multiple_of(SELDOM) {
            self.waitables.clear();
            let woken = self.sleep(Some(Duration::ZERO));
            self.attend_node(woken.node);
        }
    }

    /// Drives links and timers, and returns the next action.
    fn prepare(&mut self, state: &mut State) -> Next {
        let now = now();
        let woken = self.woken.take();
        if woken.is_some() {
            state.device.awake();
        }
        let by_link = woken.as_ref().is_some_and(|woken| woken.link);
        let leaves_acks = self.leaves_acks(state, by_link, now);
        state.device.hold_acks(leaves_acks);
        let progress = self.drive(state, now);
        if let Node::Attached(socket) = &self.node {
            self.reports.look(&mut state.device, socket.as_fd(), now);
        }
        self.process.deliver(state);
        if let Some(woken) = woken {
            if woken.link && !progress.did_work {
                state.device.drain_wakes();
            }
            let polls = self.polls(now);
            let had_work = woken.link || woken.call || progress.did_work;
            let is_needed = self.arming.has_polled(polls) && state.device.live_links() > FEW_LINKS;
            self.arming.note(!state.armed || had_work || is_needed);
            state.armed = self.arming.judge(state.armed, polls, woken.link, progress.did_work);
        }
        state.known = Known::of(&state.device);
        self.waitables.clear();
        // While disarmed, the thread leaves available work to the program.
        if state.armed && (progress.more || !state.device.prepare_to_sleep()) {
            return Next::Again;
        }
        if state.armed {
            state.device.waitables(&mut self.waitables);
        }
        state.sleeps_without_tick =
            state.armed && self.arming.is_quiet_for_long() && !state.device.has_output();
        if !state.armed && progress.next_deadline.is_none() && matches!(self.node, Node::Attached(_)) {
            return Next::Doze;
        }
        let holds = state.armed && leaves_acks && state.device.has_output();
        if holds {
            self.acks.leave(state.device.acks_sent());
        }
        let tick = (!state.sleeps_without_tick).then_some(if holds { HOLD } else { TICK });
        let retry = match self.node {
            Node::Attached(_) => None,
            Node::Lost => Some(NODE_RETRY),
            Node::Suspended => Some(attach::RETRY),
        };
        let deadline = progress.next_deadline.map(|deadline| deadline.saturating_sub(now));
        let may_report = matches!(self.node, Node::Attached(_)) && state.device.live_links() > 0;
        let report = may_report.then(|| self.reports.longest_sleep(now));
        Next::Sleep([tick, retry, deadline, report].into_iter().flatten().min())
    }

    /// Whether acknowledgements are left to the program this time.
    fn leaves_acks(&mut self, state: &State, link: bool, now: Duration) -> bool {
        if !state.armed {
            // A program that spins sends them itself as soon as a poll finds nothing.
            return self.arming.spins(self.polls(now));
        }
        self.acks.may_be_delayed(state.device.acks_sent(), link)
    }

    /// The program's polls so far; `at`: the time.
    fn polls(&self, at: Duration) -> Polls {
        Polls { count: self.process.polls.load(Ordering::Relaxed), at }
    }

    /// Drives links until nothing is left, in two rounds at most while others may want the lock.
    fn drive(&self, state: &mut State, now: Duration) -> Progress {
        let first = state.device.progress(now);
        if !first.more || self.process.is_wanted() {
            return first;
        }
        let second = state.device.progress(now);
        Progress { did_work: true, ..second }
    }

    /// Links that the device wants, if the node can be asked for them now.
    fn take_wanted(&self, state: &mut State) -> Vec<ProcessId> {
        match self.node {
            Node::Attached(_) => std::mem::take(&mut state.wanted_links),
            Node::Lost | Node::Suspended => Vec::new(),
        }
    }

    /// Sleeps for some ticks while the program spins, without the lock, for which the program would have to wait.
    fn doze(&mut self) -> Woken {
        let mut woken = self.sleep(Some(self.arming.tick()));
        for _ in 1..GLANCES {
            let polls = self.polls(now());
            if woken.node || woken.call || !self.arming.spins(polls) {
                break;
            }
            self.arming.glance(polls);
            woken = self.sleep(Some(TICK));
        }
        woken
    }

    /// `None`: until something happens.
    fn sleep(&self, timeout: Option<Duration>) -> Woken {
        let node = match &self.node {
            Node::Attached(socket) => socket.as_raw_fd(),
            Node::Lost | Node::Suspended => -1,
        };
        let mut entries = vec![entry(node, libc::POLLIN), entry(self.process.wake.fd(), libc::POLLIN)];
        entries.extend(self.waitables.iter().map(|waitable| {
            let reads = if waitable.readable { libc::POLLIN } else { 0 };
            let writes = if waitable.writable { libc::POLLOUT } else { 0 };
            entry(waitable.fd, reads | writes)
        }));
        let timeout = timeout.map(|timeout| libc::timespec {
            tv_sec: timeout.as_secs().cast_signed(),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
        let count = entries.len() as libc::nfds_t;
        // SAFETY: `count` live entries and a live timeout, or none, are passed. A descriptor that the
        // program's thread closed meanwhile makes at worst a spurious wake-up.
        let ready = unsafe { libc::ppoll(entries.as_mut_ptr(), count, timeout, ptr::null()) };
        if ready == -1 && io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL) {
            // The program may be allowed fewer descriptors than it has (RLIMIT_NOFILE): all links are polled now
            // and then.
            thread::sleep(TICK);
            self.process.wake.clear();
            let has_word = |socket| attach::readable_within(socket, 0);
            let node = matches!(&self.node, Node::Attached(socket) if has_word(socket));
            return Woken { node, link: true, call: true };
        }
        if ready <= 0 {
            return Woken::default();
        }
        let [node, call, links @ ..] = &*entries else { return Woken::default() };
        if call.revents != 0 {
            self.process.wake.clear();
        }
        Woken {
            node: node.revents != 0,
            link: links.iter().any(|entry| entry.revents != 0),
            call: call.revents != 0,
        }
    }

    fn attend_node(&mut self, spoke: bool) {
        match self.node {
            Node::Attached(_) if spoke => self.receive_waiting(),
            Node::Attached(_) => {}
            Node::Lost | Node::Suspended => self.reconnect(),
        }
    }

    /// Asks the node for links.
    fn ask_for(&mut self, wanted: Vec<ProcessId>) {
        let Node::Attached(socket) = &self.node else { return };
        let mut lost = false;
        for peer in wanted {
            self.asked.insert(peer);
            lost |= say(socket, &ToNode::OpenLink { peer }).is_err();
        }
        if lost {
            self.hang_up(Node::Lost);
        }
    }

    /// Sends the program's directory messages to the node.
    fn ask_directory(&mut self) {
        let Node::Attached(socket) = &self.node else { return };
        for (number, request) in self.process.directory.take_outgoing() {
            if say(socket, &ToNode::Directory { number, request }).is_err() {
                self.hang_up(Node::Lost);
                return;
            }
        }
    }

    /// Handles messages of the node. Every round looks at every link, so a round for each message would make a thousand new links
    /// cost a million looks.
    fn receive_waiting(&mut self) {
        /// Links must not wait for ever.
        const MOST: u32 = 256;
        for _ in 0..MOST {
            self.receive();
            let has_more =
                |node: &Node| matches!(node, Node::Attached(socket) if attach::readable_within(socket, 0));
            if !has_more(&self.node) {
                return;
            }
        }
    }

    /// Takes one message from the node.
    fn receive(&mut self) {
        let Node::Attached(socket) = &self.node else { return };
        // A process that has no free descriptor gets no link then, and keeps the existing ones.
        let packet = match seqpacket::receive_what_fits(socket.as_fd()) {
            Ok(packet) if !packet.bytes.is_empty() => packet,
            Ok(_) | Err(_) => {
                self.hang_up(Node::Lost);
                return;
            }
        };
        match decode(&packet.bytes) {
            Ok(message) => self.handle(message, packet.descriptors),
            Err(error) => {
                debug::say(|| format!("malformed message from the node: {error}"));
                self.hang_up(Node::Lost);
            }
        }
    }

    fn handle(&mut self, message: ToProcess, descriptors: Vec<OwnedFd>) {
        match message {
            ToProcess::LinkUp { peer, epoch, transport } => self.link_up(peer, epoch, transport, descriptors),
            ToProcess::LinkRefused { peer, reason } => {
                self.asked.remove(&peer);
                self.process.lock_with_priority().device.link_refused(peer, reason, now());
            }
            ToProcess::Nudge { peer } => self.nudge(peer),
            ToProcess::Suspend => self.suspend(),
            ToProcess::Directory { number, answer } => {
                self.learn_members(number, &answer);
                self.process.directory.answered(number, &answer);
            }
            ToProcess::DirectoryBack => self.process.directory.resend(),
            ToProcess::Welcome { .. }
            | ToProcess::Refused { .. }
            | ToProcess::Farewell
            | ToProcess::Session { .. }
            | ToProcess::SayAgain => {}
        }
    }

    /// Passes the members of a multicast group to the device, if `answer` is about that.
    fn learn_members(&self, number: u64, answer: &Answer) {
        let Some((group, members)) = self.process.directory.members(number, answer) else { return };
        let mut state = self.process.lock_with_priority();
        state.device.learn_members(group, members);
        self.process.deliver(&mut state);
    }

    fn link_up(&mut self, peer: ProcessId, epoch: Epoch, transport: Transport, descriptors: Vec<OwnedFd>) {
        self.asked.remove(&peer);
        match stream(transport, descriptors, self.process.identity < peer) {
            Ok(stream) => self.process.lock_with_priority().device.link_up(peer, epoch, stream),
            Err(error) => {
                debug::say(|| format!("a link to {peer} failed: {error}"));
                // It is this process that lacks something, for as long as it likes.
                let reason = fabric::attach::LinkRefusal::Moving;
                self.process.lock_with_priority().device.link_refused(peer, reason, now());
            }
        }
    }

    /// Ends the connection to the node.
    fn hang_up(&mut self, from_now_on: Node) {
        {
            let _unforked = self.process.lock_with_priority();
            self.process.node.store(-1, Ordering::Relaxed);
            self.node = from_now_on;
        }
        self.process.reserve.fill();
    }

    /// The peer wants a link, and it is ours to ask for it.
    fn nudge(&mut self, peer: ProcessId) {
        let mut state = self.process.lock_with_priority();
        if !self.asked.contains(&peer) && !state.wanted_links.contains(&peer) {
            state.wanted_links.push(peer);
        }
    }

    fn suspend(&mut self) {
        let start = Instant::now();
        let suspended = {
            let mut state = self.process.lock_with_priority();
            let suspended = state.device.suspend(now());
            if let Node::Attached(socket) = &self.node {
                reports::report(&mut state.device, socket.as_fd());
            }
            self.process.deliver(&mut state);
            state.wanted_links.clear();
            suspended
        };
        self.asked.clear();
        let message = ToNode::Suspended {
            elapsed_us: microseconds(start),
            queue_pairs: suspended.counts.queue_pairs,
            memory_regions: suspended.counts.memory_regions,
            active_peers: suspended.active_peers,
        };
        if let Node::Attached(socket) = &self.node {
            // The closed socket tells a node that has gone the same as the message.
            let _ = say(socket, &message);
        }
        self.hang_up(Node::Suspended);
    }

    fn reconnect(&mut self) {
        let socket = match self.take_reserve() {
            Ok(socket) => socket,
            Err(error) => return debug::say(|| format!("no socket for the node: {error}")),
        };
        match attach::connection(&socket, Some(self.process.identity)) {
            Ok(welcome) if welcome.process == self.process.identity => self.resume(socket, &welcome),
            Ok(_) => {
                debug::say(|| "the node assigned another identity to this process".to_owned());
                self.give_up(socket);
            }
            // It is not connected, and can be the next time.
            Err(Refusal::NoNode(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                self.keep(socket)
            }
            Err(refusal) => {
                match &refusal {
                    Refusal::NoNode(_) | Refusal::Later => {}
                    Refusal::Node(_) => debug::complain_once(|| refusal.to_string()),
                    _ => debug::say(|| refusal.to_string()),
                }
                self.give_up(socket);
            }
        }
    }

    /// The socket for the next connection. A child of a fork knows it, and does not keep it.
    fn take_reserve(&self) -> io::Result<OwnedFd> {
        let _unforked = self.process.lock_with_priority();
        let socket = self.process.reserve.take()?;
        self.process.node.store(socket.as_raw_fd(), Ordering::Relaxed);
        Ok(socket)
    }

    fn keep(&self, socket: OwnedFd) {
        let _unforked = self.process.lock_with_priority();
        self.process.node.store(-1, Ordering::Relaxed);
        self.process.reserve.put(socket);
    }

    fn give_up(&self, socket: OwnedFd) {
        {
            let _unforked = self.process.lock_with_priority();
            self.process.node.store(-1, Ordering::Relaxed);
            drop(socket);
        }
        self.process.reserve.fill();
    }

    fn resume(&mut self, socket: OwnedFd, welcome: &Welcome) {
        let start = Instant::now();
        let mut state = self.process.lock_with_priority();
        let suspended = matches!(self.node, Node::Suspended);
        // It was moved while it had no node that could notify it: peers refuse messages with its previous epoch.
        let moved = state.device.epoch() != welcome.epoch;
        if moved && !suspended {
            state.device.suspend(now());
        }
        if moved || suspended {
            state.device.resume(welcome.epoch);
            self.process.deliver(&mut state);
        }
        let mut wanted = std::mem::take(&mut state.wanted_links);
        drop(state);
        wanted.extend(std::mem::take(&mut self.asked));
        self.process.node.store(socket.as_raw_fd(), Ordering::Relaxed);
        self.node = Node::Attached(socket);
        self.process.reserve.fill();
        // The clock may be another one.
        self.reports = Reports::default();
        self.process.directory.resend();
        self.ask_for(wanted);
        if let Node::Attached(socket) = &self.node
            && say(socket, &ToNode::Resumed { elapsed_us: microseconds(start) }).is_err()
        {
            self.hang_up(Node::Lost);
        }
    }
}

fn entry(fd: libc::c_int, events: libc::c_short) -> libc::pollfd {
    libc::pollfd { fd, events, revents: 0 }
}

fn say(node: &OwnedFd, message: &ToNode) -> io::Result<()> {
    seqpacket::send(node.as_fd(), &encode(message), &[])
}

fn microseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX)
}

/// The stream that `descriptors` are the end of.
fn stream(transport: Transport, descriptors: Vec<OwnedFd>, lower_end: bool) -> io::Result<Box<dyn Stream>> {
    match transport {
        Transport::Stream => {
            let [socket] = exactly(descriptors)?;
            stream::tcp_stream(socket)
        }
        Transport::SharedMemory => stream::shm_stream(exactly(descriptors)?, lower_end),
    }
}

fn exactly<const N: usize>(descriptors: Vec<OwnedFd>) -> io::Result<[OwnedFd; N]> {
    descriptors.try_into().map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Lets the thread sleep on links from now on: the program is about to block.
pub(crate) fn arm(process: &Process, state: &mut State) {
    if !state.armed {
        state.armed = true;
        process.wake.signal();
    }
}
