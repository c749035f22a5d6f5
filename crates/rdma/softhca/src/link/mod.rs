//! Links: one reliable stream to each peer process, shared by all queue pairs of the two.
//!
//! ```text
//!            a QP needs it         link_up               READY of the peer
//!  ┌──────┐ ───────────▶ ┌───────┐ ────────▶ ┌──────────┐ ────────────▶ ┌────┐
//!  │ DOWN │              │ ASKED │           │ GREETING │               │ UP │
//!  └──▲───┘ ◀─────────── └───────┘           └────┬─────┘               └─┬──┘
//!     │      refused: a pause                     │                       │
//!     └───────────────────────────────────────────┴───────────────────────┘
//!            the stream ends, GOODBYE, protocol violation, suspend
//! ```
//!
//! * [`tx`], [`rx`]: frames out and in.
//! * [`outbox`]: pending control frames, and translations of the peer's handles.
//! * [`datagrams`]: datagrams in flight. * `express`: the fast path for short messages in a ring.
//! * `greeting`: the first frames, and updates of translations. * `exchange`: direct mappings between neighbours.

pub(crate) mod datagrams;
mod exchange;
mod express;
mod greeting;
pub(crate) mod outbox;
pub(crate) mod rx;
pub(crate) mod tx;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use fabric::{Epoch, ProcessId};

use crate::core::Core;
use crate::handle::Qp;
use crate::memory;
use crate::qp::QueuePair;
use crate::responder::Verdict;
use crate::share::direct_mapping::Mapped;
use crate::stream::{Carrier, Interest};
use crate::timer::Pause;
use crate::wire::{Export, HEADER, Header, Malformed, Opcode, Syndrome, flag};

use datagrams::Datagrams;
use express::Express;
use outbox::Outbox;
use rx::{Incoming, Rx, Target};
use tx::Tx;

/// Why a link ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLoss {
    /// The stream ended or failed.
    Broken(io::ErrorKind),
    /// The peer is being moved.
    Goodbye,
    /// The peer violated the protocol.
    Violation(&'static str),
    /// Another stream to the same peer took its place.
    Replaced,
}

impl fmt::Display for LinkLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broken(kind) => write!(f, "the stream ended: {kind}"),
            Self::Goodbye => write!(f, "the peer is being moved"),
            Self::Violation(what) => write!(f, "protocol violation: {what}"),
            Self::Replaced => write!(f, "replaced by a new stream"),
        }
    }
}

impl From<io::Error> for LinkLoss {
    fn from(error: io::Error) -> Self {
        Self::Broken(error.kind())
    }
}

impl From<Malformed> for LinkLoss {
    fn from(malformed: Malformed) -> Self {
        Self::Violation(malformed.0)
    }
}

/// How far a link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Down,
    Asked,
    /// `heard`: the peer's HELLO has arrived.
    Greeting {
        heard: bool,
    },
    Up,
}

/// Frames and bytes staged for one write.
const MAX_FRAMES: usize = 32;
const MAX_STAGED: usize = 256 * 1024;
/// Of these frames, datagrams.
const MAX_DATAGRAMS: usize = MAX_FRAMES / 2;

/// A link to one peer.
pub(crate) struct Link {
    pub peer: ProcessId,
    /// The peer's epoch, from its HELLO.
    pub epoch: Epoch,
    /// Which process by that name it is.
    incarnation: Option<u64>,
    /// The peer's incarnation: tells it from an earlier process with the same identity: its numbers are void.
    pub renewal: u64,
    pub state: State,
    pub stream: Option<Carrier>,
    /// Queue pairs that are connected to the peer.
    pub qps: Vec<Qp>,
    pub out: Outbox,
    pub tx: Tx,
    rx: Rx,
    /// The stream took less than there was.
    pub blocked: bool,
    /// Before it is asked for again.
    pub pause: Pause,
    /// Since when the peer cannot be reached.
    pub unreachable_since: Option<Duration>,
    acks: Vec<Qp>,
    pub sharing: LinkSharing,
    /// The peer has stayed inside our gate, and gets no more direct mappings.
    pub overstayed: bool,
    /// How often it got direct mappings again.
    forgiven: u8,
    pub datagrams: Datagrams,
}

/// Memory shared between two neighbours.
#[derive(Default)]
pub(crate) struct LinkSharing {
    /// Direct mappings that the peer has asked for.
    pub asked: VecDeque<Header>,
    /// The peer may have direct mappings to our memory.
    pub exports: bool,
    /// Memory of ours that the peer has been sent since our gate was last closed, with the number of the sending.
    pub given: HashMap<u64, u64>,
    /// Sendings so far.
    pub sent: u64,
    /// Memory of the peer that we have, by the number of its sending, with the count of the peer's gate.
    pub taken: HashMap<u64, (Arc<Mapped>, u32)>,
}

impl Link {
    pub fn new(peer: ProcessId, renewal: u64) -> Self {
        Self {
            peer,
            epoch: Epoch::default(),
            incarnation: None,
            renewal,
            state: State::Down,
            stream: None,
            qps: Vec::new(),
            out: Outbox::default(),
            tx: Tx::default(),
            rx: Rx::default(),
            blocked: false,
            pause: Pause::Over,
            unreachable_since: None,
            acks: Vec::new(),
            sharing: LinkSharing::default(),
            overstayed: false,
            forgiven: 0,
            datagrams: Datagrams::default(),
        }
    }

    /// `handle` is connected to the peer from now on. This is link `at`.
    pub fn attach(&mut self, core: &mut Core, at: usize, handle: Qp) {
        if let Some(qp) = core.qps.get_mut(handle.0) {
            (qp.link, qp.place) = (Some(at), self.qps.len());
        }
        self.qps.push(handle);
    }

    /// Detaches `handle` from this link.
    pub fn detach(&mut self, core: &mut Core, handle: Qp) {
        self.out.unschedule(handle);
        let place = core.qps.get(handle.0).map_or(usize::MAX, |qp| qp.place);
        if self.qps.get(place) != Some(&handle) {
            return;
        }
        self.qps.swap_remove(place);
        self.sharing.asked.retain(|request| core.qp_names.by_real(request.dst_qpn) != Some(handle.0));
        if let Some(moved) = self.qps.get(place).and_then(|moved| core.qps.get_mut(moved.0)) {
            moved.place = place;
        }
    }

    /// True if something is known of the peer that counts: which datagrams it has had, or its misdeeds.
    pub fn is_known(&self) -> bool {
        self.incarnation.is_some() && self.datagrams.is_numbered() || self.has_misbehaved()
    }

    /// True if it has ever stayed inside a gate that was closed.
    pub fn has_misbehaved(&self) -> bool {
        self.overstayed || self.forgiven != 0
    }

    /// The peer has left its node. Its successor may be another process, which was not killed inside a gate; or it
    /// is the same process, which could repeat this by leaving for a moment, so the number of times is bounded.
    pub fn forgive(&mut self) {
        /// More than a program is ended there by chance.
        const OFTEN: u8 = 4;
        if self.overstayed && self.forgiven < OFTEN {
            self.overstayed = false;
            self.forgiven += 1;
        }
    }

    /// True if it is unused now.
    pub fn is_idle(&self) -> bool {
        self.state == State::Down && self.qps.is_empty() && self.datagrams.is_idle()
    }

    /// True if surely nothing has arrived.
    #[inline]
    pub fn is_quiet(&self) -> bool {
        self.stream.as_ref().is_none_or(Carrier::is_quiet)
    }

    /// True if several messages had better leave together.
    #[inline]
    pub fn gathers(&self) -> bool {
        self.state == State::Up && self.stream.as_ref().is_some_and(|stream| stream.gathers())
    }

    /// The readiness to wait for. A peer that sends much and does not read the answers is not read from until it does.
    pub fn interest(&self) -> Interest {
        Interest { reads: !(self.blocked && self.out.is_overfull()), writes: self.blocked }
    }

    /// True if there is something to send, now or when the stream takes more.
    #[inline]
    pub fn has_output(&self) -> bool {
        !self.tx.is_empty() || self.has_frames()
    }

    /// True if there is a frame to be made.
    #[inline]
    fn has_frames(&self) -> bool {
        !self.out.is_idle() || self.datagrams.has_next()
    }

    /// True if data can be sent at once, by present knowledge.
    pub fn has_work(&self) -> bool {
        !self.blocked && self.has_output()
    }

    /// The same, if acknowledgements that wait for company do not count.
    pub fn has_urgent_work(&self) -> bool {
        !self.blocked && (!self.tx.is_empty() || self.out.is_urgent() || self.datagrams.has_next())
    }

    /// Drops the stream and all that only it knew. Queue pairs go on with the next one.
    pub fn close(&mut self, core: &mut Core) {
        self.state = State::Down;
        self.close_direct_mappings(core);
        self.sharing = LinkSharing::default();
        self.stream = None;
        self.blocked = false;
        self.tx.reset();
        self.rx.reset();
        self.datagrams.interrupt();
        for handle in self.out.reset() {
            if let Some(qp) = core.qps.get_mut(handle.0) {
                qp.scheduled = false;
            }
        }
        for &handle in &self.qps {
            core.interrupt_requests(handle);
            if let Some(qp) = core.qps.get_mut(handle.0) {
                qp.responder.interrupt();
            }
        }
    }

    /// Queues `handle` for transmission, if the link is up.
    #[inline]
    pub fn schedule(&mut self, core: &mut Core, handle: Qp) {
        if self.state == State::Up
            && let Some(qp) = core.qps.get_mut(handle.0)
        {
            self.out.schedule(qp, handle);
        }
    }

    /// Sends queued data, until the stream is full or `budget` bytes have left.
    pub fn transmit(&mut self, core: &mut Core, budget: &mut usize) -> Result<(), LinkLoss> {
        self.acknowledge_express(core, budget);
        while let Some(stream) = self.stream.as_mut() {
            let before = self.tx.left();
            self.blocked = match self.tx.flush(&mut **stream) {
                Ok(done) => !done,
                Err(error) => {
                    if memory::is_fault(&error) {
                        self.tx.fail_front_request(core);
                    }
                    return Err(error.into());
                }
            };
            *budget = budget.saturating_sub(before - self.tx.left());
            if self.blocked || self.state != State::Up || *budget == 0 {
                return Ok(());
            }
            if !self.has_frames() {
                return Ok(());
            }
            self.fill(core);
            if self.tx.is_empty() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Takes in arrived data, until nothing is there or `budget` bytes have come. True if there was any.
    pub fn receive(&mut self, core: &mut Core, budget: &mut usize) -> Result<bool, LinkLoss> {
        let mut received = false;
        while *budget > 0 && !self.out.is_overfull() {
            match self.receive_express(core, budget, &mut received)? {
                Express::Done => break,
                Express::LongWay => {}
                Express::Buffered => {
                    self.digest(core)?;
                    continue;
                }
            }
            let Some(stream) = self.stream.as_mut() else { break };
            let (bytes, more) = match self.rx.read(core, &mut self.out, &mut **stream) {
                Ok((0, _)) => return Err(LinkLoss::Broken(io::ErrorKind::UnexpectedEof)),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            };
            received = true;
            *budget = budget.saturating_sub(bytes);
            self.digest(core)?;
            if !more {
                break;
            }
        }
        Ok(received)
    }

    /// Works off the buffered frames.
    fn digest(&mut self, core: &mut Core) -> Result<(), LinkLoss> {
        loop {
            if let Some(incoming) = self.rx.incoming.take() {
                self.take_payload(core, incoming)?;
                if self.rx.incoming.is_some() {
                    return Ok(());
                }
                continue;
            }
            let Some(bytes) = self.rx.buffered().first_chunk::<HEADER>() else { return Ok(()) };
            let header = Header::decode(bytes)?;
            if rx::is_handled_whole(header.opcode) {
                if self.rx.buffered().len() < HEADER + header.length as usize {
                    return Ok(());
                }
                self.collected_frame(core, &header)?;
                self.rx.consume(HEADER + header.length as usize);
            } else {
                self.rx.consume(HEADER);
                self.begin_frame(core, &header)?;
            }
        }
    }

    /// A frame with a short payload that is handled as a whole.
    fn collected_frame(&mut self, core: &mut Core, header: &Header) -> Result<(), LinkLoss> {
        let payload = &self.rx.buffered()[HEADER..HEADER + header.length as usize];
        match header.opcode {
            Opcode::Hello => {
                let payload = payload.to_vec();
                self.on_hello(core, &payload)
            }
            Opcode::Translate => {
                let payload = payload.to_vec();
                self.on_translate(header, &payload)
            }
            Opcode::Datagram | Opcode::DatagramImm => {
                self.require_up()?;
                self.datagrams.arrive(core, &mut self.out, self.peer, header, payload)?;
                Ok(())
            }
            Opcode::Export => {
                self.require_up()?;
                let export = Export::decode(payload)?;
                self.on_export(core, header, &export);
                Ok(())
            }
            _ => {
                self.require_up()?;
                let (words, _) = payload.as_chunks::<8>();
                let operand = |at: usize| words.get(at).map_or(0, |word| u64::from_le_bytes(*word));
                let operands = [operand(0), operand(1)];
                if let Verdict::Place(qp) = core.begin_request(self.peer, &mut self.out, header)? {
                    core.end_request(qp, &mut self.out, header, operands);
                }
                Ok(())
            }
        }
    }

    fn begin_frame(&mut self, core: &mut Core, header: &Header) -> Result<(), LinkLoss> {
        if header.is_request() {
            self.require_up()?;
            if header.flags & flag::ACKNOWLEDGES != 0 {
                let ack = Header { opcode: Opcode::Ack, msn: header.va, length: 0, ..*header };
                self.begin_answer(core, &ack)?;
            }
            let target = match core.begin_request(self.peer, &mut self.out, header)? {
                Verdict::Place(qp) => Target::Request(qp, core.incarnation(qp)),
                Verdict::Discard => Target::Discard,
            };
            return self.take_payload(core, Incoming { header: *header, target, placed: 0 });
        }
        match header.opcode {
            Opcode::Ready => self.on_ready(core),
            Opcode::Goodbye => Err(LinkLoss::Goodbye),
            Opcode::TranslateAck => {
                self.out.confirm(header.msn);
                Ok(())
            }
            Opcode::DatagramAck => {
                self.require_up()?;
                self.datagrams.on_acknowledgement(core, header.msn)?;
                Ok(())
            }
            Opcode::MapRequest => {
                self.require_up()?;
                self.on_map_request(header);
                Ok(())
            }
            Opcode::SelectSrq => {
                self.require_up()?;
                core.select_srq(self.peer, &self.out, header);
                Ok(())
            }
            Opcode::Resync => {
                self.require_up()?;
                core.on_resync(self.peer, &mut self.out, header);
                Ok(())
            }
            Opcode::Barrier => {
                self.require_up()?;
                core.on_barrier(self.peer, &mut self.out, header);
                Ok(())
            }
            Opcode::BarrierAck => {
                self.require_up()?;
                self.end_barrier(core, header);
                Ok(())
            }
            _ => {
                self.require_up()?;
                self.begin_answer(core, header)
            }
        }
    }

    /// Asks the peer for `qp`, now or when both have greeted each other.
    pub fn ask_for_barrier(&mut self, qp: &QueuePair) {
        if self.state == State::Up {
            self.out.control(qp.ask_for_barrier(&self.out.lookup));
        }
    }

    /// The peer has read all frames that were sent for an earlier incarnation of a queue pair.
    fn end_barrier(&mut self, core: &mut Core, header: &Header) {
        let Some(handle) = core.qp_names.by_real(header.dst_qpn).map(Qp) else { return };
        let qp = core.qps.get_mut(handle.0).filter(|qp| qp.peer == Some(self.peer));
        if let Some(qp) = qp.filter(|qp| qp.awaits_barrier && qp.barrier() == header.imm) {
            qp.awaits_barrier = false;
            self.schedule(core, handle);
        }
    }

    /// A frame that answers requests of ours.
    fn begin_answer(&mut self, core: &mut Core, header: &Header) -> Result<(), LinkLoss> {
        let handle = core.qp_names.by_real(header.dst_qpn).map(Qp);
        let handle = handle.filter(|qp| core.qps.get(qp.0).is_some_and(|qp| qp.peer == Some(self.peer)));
        let Some(handle) = handle else {
            self.rx.incoming = Some(Incoming { header: *header, target: Target::Discard, placed: 0 });
            return Ok(());
        };
        if !self.tx.is_empty() {
            // An honest peer acknowledges received data; one that acknowledges unsent data must not make us
            // read memory that the application then takes back.
            let covers = u64::from(matches!(header.opcode, Opcode::ReadResponse | Opcode::AtomicResponse));
            self.tx.copy_out(handle, header.msn.saturating_add(covers));
        }
        match header.opcode {
            Opcode::Ack => core.on_ack(handle, header)?,
            Opcode::Nak => core.on_nak(handle, header)?,
            Opcode::ResyncAck => core.on_resync_ack(handle, header),
            Opcode::AtomicResponse => core.on_atomic_response(handle, header)?,
            _ => {
                let wanted = core.begin_read_response(handle, header)?;
                let target = Target::ReadData(handle, core.incarnation(handle));
                let target = if wanted { target } else { Target::Discard };
                self.rx.incoming = Some(Incoming { header: *header, target, placed: 0 });
                return Ok(());
            }
        }
        if core.has_more_requests(handle) {
            self.schedule(core, handle);
        }
        Ok(())
    }

    /// Puts the payload of `incoming` in its place, or the part that has arrived: the rest may come later.
    fn take_payload(&mut self, core: &mut Core, mut incoming: Incoming) -> Result<(), LinkLoss> {
        self.rx.place_buffered(core, &mut self.out, &mut incoming);
        if incoming.left() == 0 {
            return self.end_frame(core, &incoming);
        }
        self.rx.incoming = Some(incoming);
        Ok(())
    }

    /// The payload of `incoming` is in place.
    fn end_frame(&mut self, core: &mut Core, incoming: &Incoming) -> Result<(), LinkLoss> {
        match incoming.target {
            Target::Discard => {}
            Target::Request(qp, incarnation) => {
                if core.executes(qp, incarnation) {
                    core.end_request(qp, &mut self.out, &incoming.header, [0; 2]);
                } else if incoming.header.is_last() {
                    self.out.refuse_unknown(&incoming.header, Syndrome::NotReady);
                }
            }
            Target::ReadData(qp, incarnation) => {
                if core.incarnation(qp) == incarnation {
                    core.end_read_response(qp, &incoming.header)?;
                    self.schedule(core, qp);
                }
            }
        }
        Ok(())
    }

    fn require_up(&self) -> Result<(), LinkLoss> {
        if self.state == State::Up { Ok(()) } else { Err(LinkLoss::Violation("a request before READY")) }
    }

    /// Stages frames for one write: controls first, then datagrams, then a segment of each queue pair in turn, then
    /// acknowledgements.
    fn fill(&mut self, core: &mut Core) {
        let Self { out, tx, acks, datagrams, .. } = self;
        let mut frames = 0;
        while frames < MAX_FRAMES
            && let Some(header) = out.next_control()
        {
            tx.frame(&header);
            frames += 1;
        }
        for _ in 0..MAX_DATAGRAMS {
            if !datagrams.has_next() || tx.left() >= MAX_STAGED {
                break;
            }
            datagrams.stage(tx);
            out.take_datagram_ack();
        }
        while frames < MAX_FRAMES
            && tx.left() < MAX_STAGED
            && let Some(handle) = out.next_ready()
        {
            let has_sent = core.next_frame(handle, &out.lookup, tx);
            frames += usize::from(has_sent);
            let Some(qp) = core.qps.get_mut(handle.0) else { continue };
            if has_sent && qp.has_more() {
                out.again(handle);
            } else {
                qp.scheduled = false;
            }
        }
        // Acknowledgements that no SEND carries.
        out.take_acks(acks);
        core.acks_sent += u64::from(!acks.is_empty());
        for handle in acks.drain(..) {
            core.acknowledgement(handle, &out.lookup).into_iter().for_each(|ack| tx.frame(&ack));
        }
        if out.take_datagram_ack() {
            core.acks_sent += 1;
            tx.frame(&datagrams.acknowledgement());
        }
    }
}
