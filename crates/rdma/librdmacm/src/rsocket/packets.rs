//! The datagrams of a socket: a queue pair that the directory of the fabric knows by the socket's address and port.
//!
//! Each datagram carries its source address. As with UDP it is not authenticated, and an answer goes to the owner of the address.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::ptr;
use std::time::{Duration, Instant};

use cm::Peer;
use cm::socket::{HEADER, header, parse};
use verbs_abi::cm_event::RDMA_CM_EVENT_ADDR_RESOLVED;
use verbs_abi::{rdma_cm_id, rdma_event_channel};

use crate::address;
use crate::bind;
use crate::datagrams::{Datagrams, Shape};
use crate::device::Device;
use crate::errno::{Errno, Result};
use crate::event;
use crate::id::Id;
use crate::verbs::kind;
use waiting::lock;

use super::option::Sizes;

/// Under which the directory knows these sockets: no port space of the connection manager.
pub(super) const SPACE: u32 = 0xffff;

/// The payload of a datagram queue pair, including the header. The Q_Key is "rsdg".
const SHAPE: Shape = Shape { depth: 128, size: 4096, key: 0x7273_6467 };

/// The queue sizes.
pub(super) const SIZES: Sizes = Sizes {
    send_requests: SHAPE.depth,
    receive_requests: SHAPE.depth,
    send_bytes: SHAPE.depth * MAX,
    receive_bytes: MAX_ARRIVED * MAX,
};

/// The longest datagram.
const MAX: usize = SHAPE.size - HEADER;

/// The most datagrams that wait to be read. Further ones are dropped: sends proceed while the program does not read.
const MAX_ARRIVED: usize = 1024;

/// Datagrams that are taken at a time.
const AT_A_TIME: usize = SHAPE.depth;

/// Datagrams that wait for their destination to be found.
const MAX_WAITING: usize = 64;

/// Destinations that are remembered.
const MAX_DESTINATIONS: usize = 4096;

/// After this time, a destination in use is looked up again: another socket may have its address by now.
const FRESH: Duration = Duration::from_secs(1);

/// How long a destination may take to be found.
const RESOLVE: Duration = Duration::from_secs(2);

/// An identifier that asks the directory for a destination.
struct Question(*mut rdma_cm_id);

// SAFETY: used under the socket's lock.
unsafe impl Send for Question {}

impl Question {
    /// Resolves the owner of `to`, and the source for it; the answer is an event of `channel`.
    fn ask(channel: *mut rdma_event_channel, to: SocketAddr) -> Result<(Self, IpAddr)> {
        let question = Self(Id::create(channel, ptr::null_mut(), SPACE, kind::UD)?);
        // SAFETY: the identifier was just made.
        let id = unsafe { Id::of(question.0) };
        id.begin_resolving(None, to, RESOLVE)?;
        let source = lock(&id.core.state).local.ok_or(Errno(libc::ENETUNREACH))?;
        Ok((question, source.ip()))
    }

    /// The owner, if there is one.
    fn answer(&self) -> Option<Peer> {
        // SAFETY: the identifier is live until this is dropped.
        lock(&unsafe { Id::of(self.0) }.core.state).peer
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        // SAFETY: no other code has the identifier, and its events have been acknowledged or are withdrawn.
        unsafe { bind::destroy(self.0) };
    }
}

/// The socket's destination.
struct Destination {
    /// From where, if the socket is bound to no address.
    source: IpAddr,
    /// The owner, if it is known.
    peer: Option<Peer>,
    /// The lookup of the present owner.
    question: Option<Question>,
    since: Instant,
    /// Whole messages that wait for the first answer.
    waiting: Vec<Vec<u8>>,
}

/// The outcome of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is on its way.
    Sent,
    /// It goes when it is known where to.
    Waits,
}

/// See the module. Used under the socket's lock.
pub(super) struct Packets {
    datagrams: Datagrams,
    has_more: bool,
    arrived: VecDeque<(SocketAddr, Vec<u8>)>,
    destinations: HashMap<SocketAddr, Destination>,
}

impl Packets {
    pub(super) fn new(device: &Device) -> Result<Self> {
        let datagrams = Datagrams::new(device, SHAPE)?;
        Ok(Self { datagrams, has_more: false, arrived: VecDeque::new(), destinations: HashMap::new() })
    }

    /// The entry for the directory.
    pub(super) fn qpn(&self) -> u32 {
        self.datagrams.qpn()
    }

    /// Readable when something may have come.
    pub(super) fn fd(&self) -> RawFd {
        self.datagrams.fd()
    }

    /// True if more may have arrived without a wake-up: no thread may sleep before [`Self::advance`].
    pub(super) fn has_more(&self) -> bool {
        self.has_more
    }

    pub(super) fn has_data(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// True if a datagram can be sent to a known owner.
    pub(super) fn has_room(&self) -> bool {
        self.datagrams.has_room()
    }

    /// Whether all that was sent has left.
    pub(super) fn is_flushed(&self) -> bool {
        self.datagrams.is_flushed() && !self.has_waiting()
    }

    /// Whether datagrams wait for their destination to be found.
    pub(super) fn has_waiting(&self) -> bool {
        self.destinations.values().any(|to| !to.waiting.is_empty())
    }

    /// Whether more datagrams to some destination have to wait until it is found.
    pub(super) fn has_full_queue(&self) -> bool {
        self.destinations.values().any(|to| to.waiting.len() >= MAX_WAITING)
    }

    /// Takes arrived datagrams, from `only` if the socket is connected, and answers of the directory. False if nothing
    /// has changed.
    pub(super) fn advance(&mut self, channel: *mut rdma_event_channel, only: Option<SocketAddr>) -> bool {
        let (arrived, mut took, room) = (&mut self.arrived, false, self.datagrams.room());
        self.has_more = self.datagrams.receive(AT_A_TIME, |_, message| {
            took = true;
            // A header holds no scope.
            let is_from =
                |from: SocketAddr, only: SocketAddr| (from.ip(), from.port()) == (only.ip(), only.port());
            let wanted = parse(message).filter(|(from, _)| only.is_none_or(|only| is_from(*from, only)));
            let fits = wanted.filter(|_| arrived.len() < MAX_ARRIVED);
            arrived.extend(fits.map(|(from, data)| (from, data.to_vec())));
        });
        // Available datagrams do not wake the descriptor.
        took |= self.has_more || self.datagrams.room() != room;
        // SAFETY: the channel is the socket's own, and so are its events.
        while let Some(event) = unsafe { event::take(channel) } {
            // SAFETY: the event was just made; it is not used after it is acknowledged.
            let (id, found) = unsafe {
                let of_event = ((*event).id, (*event).event == RDMA_CM_EVENT_ADDR_RESOLVED);
                event::acknowledge(event);
                of_event
            };
            self.answered(id, found);
            took = true;
        }
        took
    }

    /// `found` if the directory could be asked.
    fn answered(&mut self, id: *mut rdma_cm_id, found: bool) {
        let asked = |question: &Option<Question>| question.as_ref().is_some_and(|question| question.0 == id);
        let Some((to, destination)) = self.destinations.iter_mut().find(|(_, to)| asked(&to.question)) else {
            return;
        };
        let answer = destination.question.take().and_then(|question| question.answer());
        if found {
            destination.peer = answer;
        }
        match destination.peer {
            Some(peer) => {
                let waiting = std::mem::take(&mut destination.waiting);
                waiting.iter().for_each(|message| self.datagrams.send(peer, &[message]));
            }
            // The address has no owner: waiting datagrams are lost, and the next one asks again.
            None => {
                let to = *to;
                self.destinations.remove(&to);
            }
        }
    }

    /// Takes the next datagram, as much of it as fits; leaves it there if it `peeks`.
    pub(super) fn read(&mut self, into: &mut [u8], peeks: bool) -> Option<(usize, SocketAddr)> {
        let (from, data) = self.arrived.front()?;
        let (from, count) = (*from, data.len().min(into.len()));
        into[..count].copy_from_slice(&data[..count]);
        if !peeks {
            self.arrived.pop_front();
        }
        Some((count, from))
    }

    /// Sends a datagram from `local`; `None` if there is no room for it now.
    ///
    /// # Errors
    /// `EMSGSIZE` if it is too long; the errors of the way to its destination.
    pub(super) fn send(
        &mut self,
        channel: *mut rdma_event_channel,
        local: SocketAddr,
        to: SocketAddr,
        data: &[u8],
    ) -> Result<Option<Fate>> {
        if data.len() > MAX {
            return Err(Errno(libc::EMSGSIZE));
        }
        let destination = destination(&mut self.destinations, channel, to)?;
        let source = if address::is_any(local.ip()) { destination.source } else { local.ip().to_canonical() };
        let header = header(SocketAddr::new(source, local.port()));
        match destination.peer {
            Some(_) if !self.datagrams.has_room() => Ok(None),
            Some(peer) => {
                self.datagrams.send(peer, &[&header, data]);
                Ok(Some(Fate::Sent))
            }
            None if destination.waiting.len() >= MAX_WAITING => Ok(None),
            None => {
                destination.waiting.push([&header, data].concat());
                Ok(Some(Fate::Waits))
            }
        }
    }
}

/// The destination `to`. Looks it up if it is unknown or known for too long.
fn destination(
    known: &mut HashMap<SocketAddr, Destination>,
    channel: *mut rdma_event_channel,
    to: SocketAddr,
) -> Result<&mut Destination> {
    if !known.contains_key(&to) {
        if known.len() >= MAX_DESTINATIONS
            && let Some(oldest) = known.iter().min_by_key(|(_, to)| to.since).map(|(to, _)| *to)
        {
            known.remove(&oldest);
        }
        // A call that waits does not wait for that.
        let busy = |errno| if errno == Errno(libc::EAGAIN) { Errno(libc::ENOBUFS) } else { errno };
        let (question, source) = Question::ask(channel, to).map_err(busy)?;
        let (question, since) = (Some(question), Instant::now());
        known.insert(to, Destination { source, peer: None, question, since, waiting: Vec::new() });
    }
    let destination = known.get_mut(&to).ok_or(Errno(libc::ENOMEM))?;
    if destination.question.is_none() && destination.since.elapsed() > FRESH {
        destination.since = Instant::now();
        // If that cannot be asked now, the known owner is kept.
        destination.question = Question::ask(channel, to).ok().map(|(question, _)| question);
    }
    Ok(destination)
}
