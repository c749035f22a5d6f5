//! Sends frames to a node.

use std::io;
use std::sync::MutexGuard;
use std::time::Duration;

use overlay::message::{Envelope, FRONT, Message, PART_FRONT};
use overlay::parts::Part;
use overlay::path_bursts::PathBursts;
use overlay::segment::split::{Plan, SplitError};
use overlay::segment::vnet::VnetHeader;
use overlay::switch::Label;
use overlay::tunnel::header::HEADER;
use overlay::tunnel::lane::{Exhausted, Sealing};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::carrier::Carrier;
use crate::counters::Counter;
use crate::peer::Peer;
use crate::socket::{LONGEST, Socket};

/// How long the kernel may take to make room for a datagram.
const PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Why a frame has not left.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Loss {
    /// The frame is malformed.
    #[error(transparent)]
    Split(#[from] SplitError),
    /// Too long for the path, even in parts.
    #[error("the frame is too long for the path, even in parts")]
    TooLong,
    #[error(transparent)]
    Exhausted(#[from] Exhausted),
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<&Loss> for Counter {
    fn from(loss: &Loss) -> Self {
        match loss {
            Loss::Split(_) => Self::Unsplittable,
            Loss::TooLong => Self::TooLong,
            Loss::Exhausted(_) => Self::Exhausted,
            Loss::Io(_) => Self::NotSent,
        }
    }
}

/// How datagrams get to a node.
#[derive(Clone, Copy)]
pub(crate) struct Way<'a> {
    socket: &'a Socket,
    peer: &'a Peer,
    carrier: Carrier,
}

impl<'a> Way<'a> {
    /// By their present carrier.
    pub fn to(peer: &'a Peer, socket: &'a Socket) -> Self {
        Self::by(peer.carrier(), peer, socket)
    }

    /// By `carrier`, whether they arrive or not.
    pub fn by(carrier: Carrier, peer: &'a Peer, socket: &'a Socket) -> Self {
        Self { socket, peer, carrier }
    }

    pub fn carrier(self) -> Carrier {
        self.carrier
    }

    fn arrives(self) -> usize {
        self.peer.arrives(self.carrier)
    }

    /// How many datagrams of `length` bytes can leave at once.
    pub fn at_once(self, length: usize) -> usize {
        match self.carrier {
            Carrier::Udp if !self.peer.may_leave_together() => 1,
            Carrier::Udp => self.socket.at_once(length),
            Carrier::Connection => (LONGEST / length.max(1)).max(1),
        }
    }

    /// Sends `datagrams`, all of `length` bytes but for a shorter last one. Datagrams that the kernel does not split
    /// are sent one by one.
    fn send(self, datagrams: &[u8], length: usize, patience: &Timespec) -> io::Result<()> {
        let sent = self.send_patiently(datagrams, length, patience);
        if datagrams.len() <= length || !sent.as_ref().is_err_and(refuses_to_cut) {
            return sent;
        }
        // A datagram that is refused alone, too, is refused for another reason.
        datagrams.chunks(length).try_for_each(|one| self.send_patiently(one, length, patience))?;
        self.peer.try_bursts(PathBursts::refused);
        Ok(())
    }

    /// Waits once until the kernel has room.
    fn send_patiently(self, datagrams: &[u8], length: usize, patience: &Timespec) -> io::Result<()> {
        let sent = self.try_to_send(datagrams, length);
        let has_room = sent.as_ref().err().is_none_or(|error| error.kind() != io::ErrorKind::WouldBlock);
        if has_room || self.carrier != Carrier::Udp {
            return sent;
        }
        poll(&mut [PollFd::new(self.socket, PollFlags::OUT)], Some(patience))?;
        self.try_to_send(datagrams, length)
    }

    fn try_to_send(self, datagrams: &[u8], length: usize) -> io::Result<()> {
        match self.carrier {
            Carrier::Udp => self.socket.send(self.peer.address(), datagrams, length),
            Carrier::Connection => {
                let fallback = self.peer.fallback().ok_or(io::ErrorKind::NotConnected)?;
                fallback.send(datagrams, length)
            }
        }
    }
}

/// True for the kernel's answers when it, or a device, cannot cut datagrams for this way; and for datagrams that are
/// too long for it.
fn refuses_to_cut(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIO | libc::EINVAL | libc::EOPNOTSUPP))
}

/// The sender of one thread.
pub(crate) struct Outgoing {
    lane: u8,
    /// For how long it waits for the kernel to make room for a datagram.
    patience: Timespec,
    /// Datagrams that leave together, one behind the other, all but the last of `length` bytes.
    buffer: Box<[u8]>,
    used: usize,
    length: usize,
}

impl Outgoing {
    pub fn new(lane: u8) -> Self {
        Self { lane, patience: PATIENCE, buffer: vec![0; LONGEST].into(), used: 0, length: 0 }
    }

    /// Datagrams without room in the kernel are dropped from now on.
    pub fn never_waits(&mut self) {
        self.patience = Timespec { tv_sec: 0, tv_nsec: 0 };
    }

    /// Sends `frame`, which came with `vnet` and may be a segment, on the route of `label`.
    pub fn send(
        &mut self,
        way: Way<'_>,
        label: Label,
        vnet: &VnetHeader,
        frame: &[u8],
        now: Duration,
    ) -> Result<(), Loss> {
        let plan = Plan::of(vnet, frame)?;
        let peer = way.peer;
        peer.use_it();
        let front = Envelope { label, vnet: plan.piece_vnet() }.front();
        let longest = plan.piece_length(0) + FRONT + peer.overhead;
        if longest > way.arrives() {
            return self.send_in_parts(way, label, &plan, frame, now);
        }
        let mut sealing = peer.sealing(self.lane);
        let mut train = Train::new(self, way, longest);
        for index in 0..plan.pieces() {
            let length = plan.piece_length(index) + FRONT;
            train.add(&mut sealing, length, now, |content| {
                let (before, behind) = content.split_at_mut(FRONT);
                before.copy_from_slice(&front);
                plan.write_piece(index, frame, behind);
            })?;
        }
        train.leave()
    }

    /// The same for pieces that are too long for the path.
    fn send_in_parts(
        &mut self,
        way: Way<'_>,
        label: Label,
        plan: &Plan,
        frame: &[u8],
        now: Duration,
    ) -> Result<(), Loss> {
        let peer = way.peer;
        let room = way.arrives().saturating_sub(PART_FRONT + peer.overhead);
        let envelope = Envelope { label, vnet: plan.piece_vnet() };
        let mut piece = vec![0; plan.piece_length(0)];
        for index in 0..plan.pieces() {
            let length = plan.write_piece(index, frame, &mut piece);
            let count = Part::count(length, room).ok_or(Loss::TooLong)?;
            let first = Part { frame: peer.next_frame(), total: length as u32, index: 0, count };
            let mut sealing = peer.sealing(self.lane);
            let mut train = Train::new(self, way, PART_FRONT + first.range().len() + peer.overhead);
            for index in 0..count {
                let part = Part { index, ..first };
                train.add(&mut sealing, PART_FRONT + part.range().len(), now, |content| {
                    let (before, behind) = content.split_at_mut(PART_FRONT);
                    before.copy_from_slice(&envelope.part_front(&part));
                    behind.copy_from_slice(&piece[part.range()]);
                })?;
            }
            train.leave()?;
        }
        Ok(())
    }

    /// Asks on `lane` whether a datagram of `length` bytes arrives.
    pub fn probe(&mut self, way: Way<'_>, lane: u8, length: usize, now: Duration) -> Result<(), Loss> {
        let sealing = way.peer.sealing(lane);
        self.say(way, sealing, &Message::probe(length as u16), (length, 1), now)
    }

    /// The same, so many times in one call.
    pub fn probe_together(
        &mut self,
        way: Way<'_>,
        count: usize,
        length: usize,
        now: Duration,
    ) -> Result<(), Loss> {
        let sealing = way.peer.sealing(self.lane);
        self.say(way, sealing, &Message::probe(length as u16), (length, count), now)
    }

    /// Sends only `words`.
    pub fn tell(&mut self, way: Way<'_>, words: &[u8], now: Duration) -> Result<(), Loss> {
        let sealing = way.peer.sealing(self.lane);
        self.say(way, sealing, words, (way.peer.overhead + words.len(), 1), now)
    }

    /// Says `words` in so many datagrams of `length` bytes.
    fn say(
        &mut self,
        way: Way<'_>,
        mut sealing: MutexGuard<'_, Sealing>,
        words: &[u8],
        (length, count): (usize, usize),
        now: Duration,
    ) -> Result<(), Loss> {
        let mut train = Train::new(self, way, length);
        for _ in 0..count {
            train.add(&mut sealing, length - way.peer.overhead, now, |content| {
                content.fill(0);
                content[..words.len()].copy_from_slice(words);
            })?;
        }
        train.leave()
    }
}

/// Datagrams for one node that leave in as few calls as possible.
struct Train<'a> {
    outgoing: &'a mut Outgoing,
    way: Way<'a>,
    at_once: usize,
}

impl<'a> Train<'a> {
    /// All but the last are of `length` bytes.
    fn new(outgoing: &'a mut Outgoing, way: Way<'a>, length: usize) -> Self {
        (outgoing.used, outgoing.length) = (0, length);
        Self { outgoing, way, at_once: way.at_once(length) }
    }

    /// Adds a datagram with `length` bytes of content, which `write` writes.
    fn add(
        &mut self,
        sealing: &mut Sealing,
        length: usize,
        now: Duration,
        write: impl FnOnce(&mut [u8]),
    ) -> Result<(), Loss> {
        let (Outgoing { buffer, used, length: each, .. }, peer) = (&mut *self.outgoing, self.way.peer);
        let datagram = &mut buffer[*used..*used + length + peer.overhead];
        write(&mut datagram[HEADER..HEADER + length]);
        sealing.seal(datagram, now)?;
        *used += datagram.len();
        if *used / *each >= self.at_once { self.leave() } else { Ok(()) }
    }

    /// Sends the added frames.
    fn leave(&mut self) -> Result<(), Loss> {
        let length = self.outgoing.length;
        let used = std::mem::take(&mut self.outgoing.used);
        if used == 0 {
            return Ok(());
        }
        let datagrams = &self.outgoing.buffer[..used];
        let sent = self.way.send(datagrams, length, &self.outgoing.patience);
        sent.map_err(|error| match error.raw_os_error() {
            Some(libc::EMSGSIZE) => {
                self.way.peer.search(|mtu| mtu.refused(length));
                Loss::TooLong
            }
            _ => Loss::Io(error),
        })
    }
}
