//! One socket.

use std::collections::{HashMap, VecDeque};
use std::mem::ManuallyDrop;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use cm::socket::{AGREEMENT, agrees};
use libc::{c_int, pollfd};
use verbs_abi::cm_event::*;
use verbs_abi::port_space::RDMA_PS_TCP;
use verbs_abi::{rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_event_channel};

use crate::address;
use crate::bind;
use crate::channel::ChannelObject;
use crate::errno::{Errno, INVALID, Result};
use crate::event;
use crate::id::Id;
use crate::manager::Manager;
use crate::qp;
use crate::verbs::{kind, zeroed};
use waiting::{EventFd, cancellable, generation, keep, lock, poll_or_nap, reads_of};

use super::packets::{self, Fate, Packets};
use super::stream::Stream;

/// How long the other side's address may take to be found.
const RESOLVE: Duration = Duration::from_secs(20);

/// How often a thread polls a socket before it sleeps.
const SPINS: u32 = 200;

/// Whether a call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    Never,
    /// Unless the program has made the socket non-blocking.
    AsSet,
    Always,
}

impl Wait {
    /// The request that a transfer's `flags` make.
    pub(super) fn of(flags: c_int) -> Self {
        if flags & libc::MSG_DONTWAIT == 0 { Self::AsSet } else { Self::Never }
    }
}

/// Where a socket stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Fresh,
    Resolving,
    Routing,
    Connecting,
    Accepting,
    Connected,
    Listening,
    Over,
}

/// A channel of our own, which is destroyed when this is dropped.
struct OwnChannel(*mut rdma_event_channel);

impl OwnChannel {
    fn new() -> Result<Self> {
        ChannelObject::create().map(Self)
    }

    /// The program's number for the socket with this channel.
    fn number(&self) -> RawFd {
        // SAFETY: the channel is live as long as this.
        unsafe { (*self.0).fd }
    }
}

impl Drop for OwnChannel {
    fn drop(&mut self) {
        // SAFETY: it is not used again.
        unsafe { ChannelObject::destroy(self.0) };
    }
}

/// An identifier of our own, with its channel.
struct Owned {
    id: *mut rdma_cm_id,
    channel: OwnChannel,
}

// SAFETY: used under the socket's lock.
unsafe impl Send for Owned {}

impl Owned {
    fn id(&mut self) -> &mut Id {
        // SAFETY: the identifier is live until this is dropped, and no other code has it.
        unsafe { Id::of(self.id) }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        qp::destroy(self.id());
        // SAFETY: it is not used again.
        unsafe { bind::destroy(self.id) };
    }
}

/// Connections that were accepted for a program before it asks for them, as others take them for made then.
struct Listening {
    accepted: VecDeque<Socket>,
    /// How many there may be; more wait to be accepted.
    backlog: usize,
    /// Of their addresses.
    domain: c_int,
}

/// The remains of a socket that was closed before it was connected, or while it listened. Dropped with this.
pub(super) struct Remains {
    _owned: Option<Owned>,
    _listening: Option<Listening>,
}

/// The state that the lock guards.
pub(super) struct Inner {
    pub(super) phase: Phase,
    /// Dropped before the identifier's channel, after its queue pair: see [`Inner::drop`].
    pub(super) stream: Option<Stream>,
    /// The datagram part of a socket, instead of a stream. It uses the identifier's channel.
    packets: Option<Packets>,
    owned: Option<Owned>,
    /// The state of a listening socket.
    listening: Option<Listening>,
    pub(super) nonblocking: bool,
    /// `SO_ERROR`.
    pub(super) error: c_int,
    pub(super) reads_no_more: bool,
    pub(super) writes_no_more: bool,
    /// The connection has ended.
    pub(super) hung_up: bool,
    pub(super) options: HashMap<(c_int, c_int), Vec<u8>>,
    /// Threads that sleep on the descriptors.
    asleep: u32,
    /// Sleepers that were told that another thread has taken an event, and have not woken yet.
    told: u32,
    /// How often sleepers were told.
    tellings: u64,
    /// Readable for these when another thread has taken the events that they might wait for; made for the
    /// first of them.
    nudge: Option<EventFd>,
}

/// A thread's sleep on a socket's descriptors.
pub(super) struct Nap {
    socket: Arc<Socket>,
    /// The count of tellings when it began.
    tellings: u64,
    /// The longest sleep, if there is no descriptor for wake-ups.
    pub(super) limit: Option<Duration>,
}

impl Nap {
    /// Sleeps on `descriptors`, and on the wake-ups of other threads. `inner` is the socket's.
    pub(super) fn on(socket: &Arc<Socket>, inner: &mut Inner, descriptors: &mut Vec<pollfd>) -> Self {
        const GLANCE: Duration = Duration::from_millis(1);
        inner.asleep += 1;
        if inner.nudge.is_none() {
            inner.nudge = EventFd::new(0).ok();
        }
        // Readable for other threads that have not woken yet, perhaps for long, as they were cancelled.
        let nudge = inner.nudge.as_ref().filter(|_| inner.told == 0);
        descriptors.extend(nudge.map(EventFd::fd).map(reads_of));
        let limit = nudge.is_none().then_some(GLANCE);
        Self { socket: socket.clone(), tellings: inner.tellings, limit }
    }
}

impl Drop for Nap {
    fn drop(&mut self) {
        lock(&self.socket.inner).woke(self.tellings);
    }
}

/// See the module.
pub(super) struct Socket {
    number: RawFd,
    domain: c_int,
    carries_datagrams: bool,
    /// The value of [`generation`] when it was made.
    generation: u32,
    /// In a forked child as a thread of the parent's left it, perhaps locked for ever: it is not looked at there, nor dropped.
    inner: ManuallyDrop<Mutex<Inner>>,
}

impl Socket {
    /// A socket of a stream that is not bound.
    pub(super) fn new(domain: c_int) -> Result<Self> {
        Manager::get()?;
        let channel = OwnChannel::new()?;
        let id = Id::create(channel.0, std::ptr::null_mut(), RDMA_PS_TCP, kind::RC)?;
        Ok(Self::of(Owned { id, channel }, domain, Phase::Fresh, None))
    }

    /// A socket for datagrams that is not bound.
    pub(super) fn for_datagrams(domain: c_int) -> Result<Self> {
        let packets = Packets::new(&Manager::get()?.device)?;
        let channel = OwnChannel::new()?;
        let id = Id::create(channel.0, std::ptr::null_mut(), packets::SPACE, kind::UD)?;
        // SAFETY: the identifier was just made.
        lock(&unsafe { Id::of(id) }.core.state).published = Some(packets.qpn());
        let mut socket = Self::of(Owned { id, channel }, domain, Phase::Fresh, None);
        socket.carries_datagrams = true;
        lock(&socket.inner).packets = Some(packets);
        Ok(socket)
    }

    fn of(owned: Owned, domain: c_int, phase: Phase, stream: Option<Stream>) -> Self {
        let number = owned.channel.number();
        let inner = Inner {
            phase,
            stream,
            packets: None,
            owned: Some(owned),
            listening: None,
            nonblocking: false,
            error: 0,
            reads_no_more: false,
            writes_no_more: false,
            hung_up: false,
            options: HashMap::new(),
            asleep: 0,
            told: 0,
            tellings: 0,
            nudge: None,
        };
        let inner = ManuallyDrop::new(Mutex::new(inner));
        Self { number, domain, carries_datagrams: false, generation: generation(), inner }
    }

    /// Whether it is one for datagrams.
    pub(super) fn carries_datagrams(&self) -> bool {
        self.carries_datagrams
    }

    /// The program's number for it.
    pub(super) fn number(&self) -> RawFd {
        self.number
    }

    /// The family of its addresses.
    pub(super) fn domain(&self) -> c_int {
        self.domain
    }

    /// Ends sending, as the process exits. True once all has arrived, or never will. A forked child does not end
    /// inherited sockets.
    pub(super) fn ends(&self) -> bool {
        let Ok(mut inner) = self.now() else { return true };
        if inner.packets.is_some() {
            return inner.is_flushed();
        }
        if !matches!(inner.phase, Phase::Connected | Phase::Accepting) || inner.has_hung_up() {
            return true;
        }
        inner.writes_no_more = true;
        inner.end() && inner.is_flushed()
    }

    /// True if a parent process has made it. Only the parent handles its events, since both have
    /// the same descriptors.
    ///
    /// # Errors
    /// `ECONNRESET` if so.
    /// `ECONNRESET` if so.
    fn own(&self) -> Result<()> {
        if self.generation == generation() { Ok(()) } else { Err(Errno(libc::ECONNRESET)) }
    }

    /// Its state, as of now.
    ///
    /// # Errors
    /// `ECONNRESET` if it is the parent's.
    pub(super) fn now(&self) -> Result<MutexGuard<'_, Inner>> {
        self.own()?;
        let mut inner = lock(&self.inner);
        inner.advance();
        Ok(inner)
    }

    /// Closes the number that a forked child has of its parent's socket, which the program does not use again.
    pub(super) fn close_number(&self) {
        // SAFETY: the other copies are never dropped in the child.
        unsafe { libc::close(self.number) };
    }

    /// Waits until `ready` has a result. During a wait without a time limit, the program may cancel the thread.
    ///
    /// # Errors
    /// `EAGAIN` if there is none now and the socket, or this call, does not wait; `ETIMEDOUT` after `limit`; `ECONNRESET`
    /// if it is the parent's.
    pub(super) fn until<T>(
        self: &Arc<Self>,
        wait: Wait,
        limit: Option<Duration>,
        mut ready: impl FnMut(&mut Inner) -> Option<Result<T>>,
    ) -> Result<T> {
        self.own()?;
        let deadline = limit.map(|limit| Instant::now() + limit);
        let mut inner = lock(&self.inner);
        let mut spins = SPINS;
        loop {
            inner.advance();
            if let Some(result) = ready(&mut inner) {
                return result;
            }
            if wait == Wait::Never || wait == Wait::AsSet && inner.nonblocking {
                return Err(Errno(libc::EAGAIN));
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(Errno(libc::ETIMEDOUT));
            }
            if spins > 0 || inner.is_restless() {
                spins = spins.saturating_sub(1);
                drop(inner);
                inner = lock(&self.inner);
                continue;
            }
            let descriptors = inner.arm(self.number);
            inner.advance();
            // Events before the arming do not wake.
            if let Some(result) = ready(&mut inner) {
                return result;
            }
            if inner.is_restless() {
                continue;
            }
            self.sleep(inner, descriptors, deadline);
            inner = lock(&self.inner);
        }
    }

    /// Sleeps on the descriptors until something may have happened.
    fn sleep(
        self: &Arc<Self>,
        mut inner: MutexGuard<'_, Inner>,
        mut descriptors: Vec<pollfd>,
        deadline: Option<Instant>,
    ) {
        let nap = Nap::on(self, &mut inner, &mut descriptors);
        drop(inner);
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let limit = [left, nap.limit].into_iter().flatten().min();
        keep((nap, descriptors), |(_, descriptors)| {
            // An early return does no harm.
            let _ = match deadline {
                Some(_) => poll_or_nap(descriptors, limit),
                None => cancellable(|| poll_or_nap(descriptors, limit)),
            };
        });
    }

    /// Listens from now on.
    pub(super) fn listen(&self, backlog: c_int) -> Result<()> {
        /// As a kernel's `somaxconn`, for each has memory.
        const MOST: usize = 128;
        let mut inner = self.now()?;
        inner.id()?;
        if inner.phase != Phase::Listening {
            // A connection beyond the backlog waits there, and need not ask again.
            inner.id()?.listen(0)?;
            inner.phase = Phase::Listening;
        }
        let backlog = usize::try_from(backlog).unwrap_or(MOST).clamp(1, MOST);
        let accepted = inner.listening.take().map(|listening| listening.accepted).unwrap_or_default();
        inner.listening = Some(Listening { accepted, backlog, domain: self.domain });
        Ok(())
    }

    /// Takes the next connection of a listening socket.
    pub(super) fn accept(self: &Arc<Self>) -> Result<Self> {
        self.until(Wait::AsSet, None, |inner| match inner.phase {
            Phase::Listening => inner.next_accepted().transpose(),
            _ => Some(Err(INVALID)),
        })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.own().is_ok() {
            // SAFETY: it is not used again.
            unsafe { ManuallyDrop::drop(&mut self.inner) };
        }
    }
}

impl Inner {
    /// The identifier.
    ///
    /// # Errors
    /// `EBADF` if the socket is closed.
    pub(super) fn id(&mut self) -> Result<&mut Id> {
        self.owned.as_mut().map(Owned::id).ok_or(Errno(libc::EBADF))
    }

    /// The local and the remote address.
    pub(super) fn addresses(&mut self) -> Result<(Option<SocketAddr>, Option<SocketAddr>)> {
        let state = lock(&self.id()?.core.state);
        Ok((state.local, state.remote))
    }

    /// Begins to connect.
    pub(super) fn connect(&mut self, to: SocketAddr) -> Result<()> {
        self.id()?.begin_resolving(None, to, RESOLVE)?;
        self.phase = Phase::Resolving;
        Ok(())
    }

    /// Sends datagrams to `to`, and takes those from there alone, from now on.
    pub(super) fn connect_datagrams(&mut self, to: SocketAddr) -> Result<()> {
        self.bind_for(to)?;
        lock(&self.id()?.core.state).remote = Some(address::canonical(to));
        Ok(())
    }

    /// Sends a datagram to `to`, or to the connected address; `None` if there is no room now.
    pub(super) fn send_datagram(&mut self, data: &[u8], to: Option<SocketAddr>) -> Result<Option<Fate>> {
        if self.phase == Phase::Over {
            return Err(Errno(libc::EBADF));
        }
        let connected = self.addresses()?.1;
        let to = to.map(address::canonical).or(connected).ok_or(Errno(libc::EDESTADDRREQ))?;
        let local = self.bind_for(to)?;
        let channel = self.owned.as_ref().map(|owned| owned.channel.0).ok_or(Errno(libc::EBADF))?;
        let packets = self.packets.as_mut().ok_or(INVALID)?;
        packets.send(channel, local, to, data)
    }

    /// Takes the next datagram; `None` if there is none.
    ///
    /// # Errors
    /// `EBADF` if the socket is closed.
    pub(super) fn read_datagram(
        &mut self,
        into: &mut [u8],
        peeks: bool,
    ) -> Option<Result<(usize, SocketAddr)>> {
        if self.phase == Phase::Over {
            return Some(Err(Errno(libc::EBADF)));
        }
        self.packets.as_mut()?.read(into, peeks).map(Ok)
    }

    /// Where the socket is bound; if nowhere yet, to a port of any address.
    fn bind_for(&mut self, to: SocketAddr) -> Result<SocketAddr> {
        if self.addresses()?.0.is_none() {
            let any: IpAddr =
                if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
            self.id()?.bind((any, 0).into())?;
        }
        self.addresses()?.0.ok_or(INVALID)
    }

    /// Tells the peer that no more data comes; `false` if that has to wait.
    pub(super) fn end(&mut self) -> bool {
        self.phase == Phase::Connected && self.stream.as_mut().is_some_and(Stream::end)
    }

    /// Whether all that was sent has left or arrived, or never will.
    pub(super) fn is_flushed(&self) -> bool {
        self.stream.as_ref().is_none_or(Stream::is_flushed)
            && self.packets.as_ref().is_none_or(Packets::is_flushed)
    }

    /// Arms the sources of the returned descriptors, which then become readable.
    pub(super) fn arm(&mut self, number: RawFd) -> Vec<pollfd> {
        let mut descriptors = vec![reads_of(number)];
        if let Some(stream) = &mut self.stream {
            let took = stream.arm();
            descriptors.push(reads_of(stream.fd()));
            self.tell_sleepers(took);
        }
        descriptors.extend(self.packets.as_ref().map(Packets::fd).map(reads_of));
        descriptors
    }

    /// A thread has woken that had been told so many times. When all told threads have woken, the signal is
    /// cleared: threads that fell asleep since have seen the state.
    fn woke(&mut self, tellings: u64) {
        self.asleep -= 1;
        if tellings == self.tellings {
            return;
        }
        self.told -= 1;
        if self.told == 0
            && let Some(nudge) = &self.nudge
        {
            nudge.clear();
        }
    }

    /// Events that a thread takes from the descriptors, or frames that it sends, are invisible to the sleepers.
    pub(super) fn tell_sleepers(&mut self, took: bool) {
        if took
            && self.asleep > 0
            && let Some(nudge) = &self.nudge
        {
            nudge.signal();
            self.told = self.asleep;
            self.tellings += 1;
        }
    }

    /// True if something may have happened without a wake-up of the descriptors.
    pub(super) fn is_restless(&self) -> bool {
        self.packets.as_ref().is_some_and(Packets::has_more)
    }

    /// Whether something goes on that the program need not wait for.
    pub(super) fn is_unfinished(&self) -> bool {
        matches!(self.phase, Phase::Resolving | Phase::Routing | Phase::Connecting | Phase::Listening)
            || self.packets.as_ref().is_some_and(Packets::has_waiting)
    }

    /// Processes all events.
    pub(super) fn advance(&mut self) {
        let took = self.take_completions() | self.take_events();
        self.tell_sleepers(took);
    }

    /// Advances the stream; false if nothing has changed.
    fn take_completions(&mut self) -> bool {
        let Some(stream) = &mut self.stream else { return false };
        let took = stream.progress();
        if stream.is_violated() && self.phase != Phase::Over {
            self.give_up(Errno(libc::EPROTO));
        }
        took
    }

    /// Advances the connection, datagrams and the accept queue; false if nothing has changed.
    fn take_events(&mut self) -> bool {
        if self.phase == Phase::Listening {
            return self.accept_waiting();
        }
        let Some(channel) = self.owned.as_ref().map(|owned| owned.channel.0) else { return false };
        if self.packets.is_some() {
            let connected = self.addresses().ok().and_then(|(_, remote)| remote);
            return self.packets.as_mut().is_some_and(|packets| packets.advance(channel, connected));
        }
        let mut took = false;
        // SAFETY: the channel is our own, and so are its events.
        while let Some(event) = unsafe { event::take(channel) } {
            // SAFETY: the event was just made; it is not used after it is acknowledged.
            let result = unsafe {
                let result = self.happened(&*event);
                event::acknowledge(event);
                result
            };
            if let Err(errno) = result {
                self.give_up(errno);
            }
            took = true;
        }
        took
    }

    fn happened(&mut self, event: &rdma_cm_event) -> Result<()> {
        match (self.phase, event.event) {
            (Phase::Resolving, RDMA_CM_EVENT_ADDR_RESOLVED) => {
                self.id()?.begin_routing()?;
                self.phase = Phase::Routing;
            }
            (Phase::Routing, RDMA_CM_EVENT_ROUTE_RESOLVED) => {
                let stream = Stream::new(&Manager::get()?.device, self.id()?);
                self.stream = Some(stream?);
                // SAFETY: the parameters point at static data.
                unsafe { self.id()?.connect(Some(&agreement()))? };
                self.phase = Phase::Connecting;
            }
            (Phase::Connecting, RDMA_CM_EVENT_ESTABLISHED) => {
                check_agreement(event)?;
                self.phase = Phase::Connected;
            }
            (Phase::Accepting, RDMA_CM_EVENT_ESTABLISHED) => self.phase = Phase::Connected,
            (_, RDMA_CM_EVENT_REJECTED) => return Err(Errno(libc::ECONNREFUSED)),
            (_, RDMA_CM_EVENT_ADDR_ERROR | RDMA_CM_EVENT_UNREACHABLE) => {
                return Err(Errno(libc::ETIMEDOUT));
            }
            (_, RDMA_CM_EVENT_CONNECT_ERROR) => return Err(Errno(libc::ECONNABORTED)),
            (_, RDMA_CM_EVENT_DISCONNECTED) => self.hang_up(),
            _ => {}
        }
        Ok(())
    }

    /// The connection has ended. The peer's earlier messages, such as its end of data, have arrived by now.
    fn hang_up(&mut self) {
        if let Some(stream) = &mut self.stream {
            stream.progress();
        }
        // It was the other side's turn, and it has gone instead; or its word that it was ready is lost.
        if self.phase == Phase::Accepting {
            self.phase = Phase::Connected;
        }
        self.hung_up = true;
    }

    /// Ends a socket that is not connected: waiting calls fail, and its port is free when its remains are gone.
    /// `None` if it is connected, or was, or has datagrams to send.
    pub(super) fn abandon(&mut self) -> Option<Remains> {
        if matches!(self.phase, Phase::Accepting | Phase::Connected | Phase::Over) {
            return None;
        }
        self.give_up(Errno(libc::EBADF));
        self.tell_sleepers(true);
        if self.packets.is_some() {
            return None;
        }
        Some(Remains { _owned: self.owned.take(), _listening: self.listening.take() })
    }

    /// Ends the connection, if there is one, with an error for the program.
    fn give_up(&mut self, errno: Errno) {
        self.phase = Phase::Over;
        self.error = errno.0;
        // A connection that has ended, or never existed, needs no message.
        let _ = self.id().and_then(Id::disconnect);
    }

    /// True if a connection request waits.
    fn is_asked(&self) -> bool {
        // SAFETY: the channel is our own.
        let is_empty = |owned: &Owned| unsafe { ChannelObject::of(owned.channel.0) }.channel.is_empty();
        self.phase == Phase::Listening && !self.owned.as_ref().is_none_or(is_empty)
    }

    /// True if `accept` would return a connection, or an error.
    fn is_acceptable(&self) -> bool {
        self.listening.as_ref().is_some_and(|listening| !listening.accepted.is_empty()) || self.is_asked()
    }

    /// Accepts as many as may wait for the program; false if there were none.
    fn accept_waiting(&mut self) -> bool {
        let mut took = false;
        // A failure now is reported when the program asks.
        while self.listening.as_ref().is_some_and(|listening| listening.accepted.len() < listening.backlog)
            && self.accept_one().is_ok_and(|was_one| was_one)
        {
            took = true;
        }
        took
    }

    /// The next connection for the program; `None` if there is none.
    fn next_accepted(&mut self) -> Result<Option<Socket>> {
        loop {
            let listening = self.listening.as_mut().ok_or(INVALID)?;
            if let Some(accepted) = listening.accepted.pop_front() {
                self.accept_waiting();
                // Other threads may sleep on the event that was just taken from the channel.
                let more = self.listening.as_ref().is_some_and(|listening| !listening.accepted.is_empty());
                self.tell_sleepers(more);
                return Ok(Some(accepted));
            }
            if !self.accept_one()? {
                return Ok(None);
            }
        }
    }

    /// Accepts the next request; false if there is none. Without a free descriptor it is left there; without
    /// memory it is rejected.
    fn accept_one(&mut self) -> Result<bool> {
        if !self.is_asked() {
            return Ok(false);
        }
        // A socket has two, its channel's and its completions'.
        let (channel, spare) = (OwnChannel::new()?, EventFd::new(0)?);
        let id = self.next_request()?;
        drop(spare);
        let listening = self.listening.as_mut().ok_or(INVALID)?;
        if let Some(id) = id
            && let Ok(Some(accepted)) = accept(Owned { id, channel }, listening.domain)
        {
            listening.accepted.push_back(accepted);
        }
        Ok(true)
    }

    /// The identifier of the next connection request; `None` if there is none.
    fn next_request(&mut self) -> Result<Option<*mut rdma_cm_id>> {
        let listening = self.owned.as_ref().map(|owned| owned.channel.0).ok_or(Errno(libc::EBADF))?;
        // SAFETY: the channel is our own.
        let Some(event) = (unsafe { event::take(listening) }) else { return Ok(None) };
        // SAFETY: the event was just made; it is not used after it is acknowledged.
        unsafe {
            let asked = (*event).event == RDMA_CM_EVENT_CONNECT_REQUEST;
            let id = (*event).id;
            let agreed = asked.then(|| check_agreement(&*event));
            event::acknowledge(event);
            match agreed {
                Some(Ok(())) => Ok(Some(id)),
                // A peer that is not a socket of ours is hidden from the program.
                Some(Err(_)) => {
                    Id::of(id).reject(Vec::new());
                    bind::destroy(id);
                    Ok(None)
                }
                None => Ok(None),
            }
        }
    }

    /// Whether reads find data, the end, or an error.
    pub(super) fn is_readable(&self) -> bool {
        self.reads_no_more
            || self.phase == Phase::Over
            || self.is_acceptable()
            || self.hung_up && self.phase == Phase::Connected
            || self
                .stream
                .as_ref()
                .is_some_and(|stream| stream.has_data() || stream.has_ended() || stream.broken)
            || self.packets.as_ref().is_some_and(Packets::has_data)
    }

    /// Whether writes find room or an error.
    pub(super) fn is_writable(&self) -> bool {
        self.phase == Phase::Over
            || self.hung_up
            || self.phase == Phase::Connected
                && self.stream.as_ref().is_some_and(|stream| stream.has_room() || stream.broken)
            || self.packets.as_ref().is_some_and(|packets| packets.has_room() && !packets.has_full_queue())
    }

    /// Whether there is data to be read yet.
    pub(super) fn has_data(&self) -> bool {
        self.stream.as_ref().is_some_and(Stream::has_data)
    }

    /// Whether nothing more comes or goes.
    pub(super) fn has_hung_up(&self) -> bool {
        self.hung_up || self.stream.as_ref().is_some_and(|stream| stream.broken)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The queue pair goes before the completion queue that it uses, and the requester before the channel for
        // answers.
        drop(self.packets.take());
        drop(self.owned.take());
    }
}

/// The agreed parameters of a connection. All requests wait for receives without limit.
fn agreement() -> rdma_conn_param {
    // SAFETY: null pointers and zeroes are values of the structure.
    let mut param: rdma_conn_param = unsafe { zeroed() };
    param.private_data = AGREEMENT.as_ptr().cast();
    param.private_data_len = AGREEMENT.len() as u8;
    param.retry_count = 7;
    param.rnr_retry_count = 7;
    param
}

fn check_agreement(event: &rdma_cm_event) -> Result<()> {
    // SAFETY: events about connections have connection parameters, with private data of the stated length.
    let private = unsafe {
        let param = event.param.conn;
        std::slice::from_raw_parts(param.private_data.cast::<u8>(), usize::from(param.private_data_len))
    };
    if agrees(private) { Ok(()) } else { Err(Errno(libc::EPROTO)) }
}

/// A socket for a connection request; `None` if the peer is gone by now, which the program does not see.
fn accept(mut owned: Owned, domain: c_int) -> Result<Option<Socket>> {
    let channel = owned.channel.0;
    bind::migrate(owned.id(), channel)?;
    let stream = Stream::new(&Manager::get()?.device, owned.id())?;
    // From here on all goes in the right order, should the other side be gone.
    let socket = Socket::of(owned, domain, Phase::Accepting, Some(stream));
    // SAFETY: the parameters point at static data.
    let accepted = unsafe { lock(&socket.inner).id()?.accept(Some(&agreement())) };
    Ok(accepted.is_ok().then_some(socket))
}
