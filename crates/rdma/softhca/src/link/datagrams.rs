//! Datagrams in flight between two processes.
//!
//! The link numbers them across all queue pairs, and the sender keeps each one until the peer has taken it. So datagrams
//! survive a lost link, and a move loses none. An unreliable network may drop any datagram; this one drops them only
//! where waiting would be of no use:
//!
//! * no queue pair takes them, or the process is gone;
//! * the receiving queue pair had no receive posted for as long as [`PATIENCE`];
//! * the receiving process took less than half of those in flight in [`LONGEST_WAIT`], though the link was up;
//! * the receiving process has evicted our link state for want of room, or one of both was restored from a checkpoint: then those in
//!   flight may have arrived before, and are not sent again.
//!
//! At most [`MOST`] datagrams or [`MOST_BYTES`] are in flight (back-pressure). Queue pairs with more wait until half of them are taken;
//! their datagrams for other peers wait behind these (head-of-line blocking), so the wait is bounded.

use std::collections::VecDeque;
use std::time::Duration;

use fabric::ProcessId;

use crate::core::Core;
use crate::datagram::Delivery;
use crate::handle::Qp;
use crate::link::outbox::Outbox;
use crate::link::tx::Tx;
use crate::timer::Pause;
use crate::wire::{Header, Malformed, Opcode};

const MOST: usize = 1024;
const MOST_BYTES: usize = 1024 * 1024;

/// How long a datagram waits for a receive to be posted.
const PATIENCE: Duration = Duration::from_millis(100);

/// How long queue pairs wait for room.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// Buffers that are kept for the next datagrams.
const MOST_SPARE: usize = 64;

struct Datagram {
    header: Header,
    bytes: Vec<u8>,
}

/// The datagrams of one link.
#[derive(Default)]
pub(crate) struct Datagrams {
    /// Sent, and not known to be taken.
    outgoing: VecDeque<Datagram>,
    /// The number of the first of these.
    first: u64,
    /// How many of these have left over this stream.
    left: usize,
    /// How many have left over any: the peer may have had them.
    tried: usize,
    /// Their bytes.
    bytes: usize,
    /// The peer has sent its DATAGRAM_ACK over this stream.
    is_greeted: bool,
    /// Queue pairs that wait for room.
    waiting: Vec<Qp>,
    /// There was no room, and less than half has been taken since.
    is_full: bool,
    /// How much longer queue pairs wait for room. Over while it is full: datagrams without room are dropped.
    pub room: Pause,
    /// The time of the last check.
    looked: Duration,
    /// How many of the peer's were taken.
    taken: u64,
    /// Those after them, which wait for a receive.
    arrived: VecDeque<Datagram>,
    arrived_bytes: usize,
    /// How much longer the first of them waits.
    pub patience: Pause,
    spare: Vec<Vec<u8>>,
}

impl Datagrams {
    /// True if another datagram may be sent, or need not be.
    pub fn has_room(&mut self) -> bool {
        if !self.is_full && !self.fits() {
            self.is_full = true;
            self.room = Pause::Noted(LONGEST_WAIT);
        }
        !self.is_full || self.room.is_over()
    }

    fn fits(&self) -> bool {
        self.outgoing.len() < MOST && self.bytes < MOST_BYTES
    }

    /// Queue pairs have waited for room for too long. Returns when that will be; `None` if it is so.
    pub fn wait_longer(&mut self, core: &mut Core, now: Duration) -> Option<Duration> {
        self.looked = now;
        let deadline = self.room.tick(now);
        if deadline.is_none() {
            core.unblocked.append(&mut self.waiting);
        }
        deadline
    }

    /// Wakes `qp` when there is room. Returns whether it did not wait before.
    pub fn wait_for_room(&mut self, qp: Qp) -> bool {
        let is_new = !self.waiting.contains(&qp);
        if is_new {
            self.waiting.push(qp);
        }
        is_new
    }

    /// Queues a datagram if there is room. `gather` appends its bytes.
    pub fn send(&mut self, header: Header, gather: impl FnOnce(&mut Vec<u8>)) {
        if !self.fits() {
            return;
        }
        let mut bytes = self.spare.pop().unwrap_or_default();
        gather(&mut bytes);
        self.bytes += bytes.len();
        self.outgoing.push_back(Datagram { header, bytes });
    }

    /// True if something is kept for the peer.
    pub fn is_waiting(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// True if no datagram is kept for the peer, and no queue pair waits for it.
    pub fn is_idle(&self) -> bool {
        self.outgoing.is_empty() && self.arrived.is_empty() && self.waiting.is_empty()
    }

    /// True if both sides count from here on.
    pub fn is_numbered(&self) -> bool {
        self.first != 0 || self.taken != 0
    }

    /// True if something can leave over this stream.
    #[inline]
    pub fn has_next(&self) -> bool {
        self.left < self.outgoing.len() && self.is_greeted
    }

    /// Stages the next datagram, with a piggybacked acknowledgement.
    pub fn stage(&mut self, tx: &mut Tx) {
        let Some(datagram) = self.outgoing.get(self.left) else { return };
        let msn = self.first + self.left as u64;
        tx.frame(&Header { msn, va: self.taken, ..datagram.header });
        tx.copy(&datagram.bytes);
        tx.traffic.sent.count(datagram.header.length);
        self.left += 1;
        self.tried = self.tried.max(self.left);
    }

    /// The frame that acknowledges the peer's datagrams.
    pub fn acknowledgement(&self) -> Header {
        Header { msn: self.taken, ..Header::new(Opcode::DatagramAck) }
    }

    /// The peer has taken all before `msn`.
    pub fn on_acknowledgement(&mut self, core: &mut Core, msn: u64) -> Result<(), Malformed> {
        if !self.is_greeted {
            self.count_from(msn)?;
        }
        // Datagrams that a lost stream carried may have arrived.
        let sent = if self.is_greeted { self.left } else { self.outgoing.len() };
        let taken = msn.checked_sub(self.first).filter(|taken| *taken <= sent as u64);
        let taken = taken.ok_or(Malformed("acknowledgement of a datagram that was not sent"))? as usize;
        self.left = self.left.saturating_sub(taken);
        self.is_greeted = true;
        for _ in 0..taken {
            self.forget_first();
        }
        self.note_room(core);
        Ok(())
    }

    /// The peer's first acknowledgement over this stream, with the number that it expects.
    ///
    /// The peer never had dropped ones: numbers of the queued ones continue after those it has. If it has had more than were ever sent, one of both was restored
    /// from a checkpoint: it may have had all that were sent.
    fn count_from(&mut self, msn: u64) -> Result<(), Malformed> {
        /// Beyond any real number of datagrams.
        const ABSURD: u64 = 1 << 62;
        if msn >= ABSURD {
            return Err(Malformed("a datagram number beyond the last one sent"));
        }
        if msn > self.first + self.tried as u64 {
            self.drop_tried();
            self.first = msn;
        }
        self.first = self.first.min(msn);
        Ok(())
    }

    fn drop_tried(&mut self) {
        for _ in 0..self.tried {
            self.forget_first();
        }
    }

    fn note_room(&mut self, core: &mut Core) {
        if self.outgoing.len() <= MOST / 2 && self.bytes <= MOST_BYTES / 2 {
            self.has_all_room(core);
        }
    }

    fn has_all_room(&mut self, core: &mut Core) {
        self.is_full = false;
        self.room = Pause::Over;
        core.unblocked.append(&mut self.waiting);
    }

    fn forget_first(&mut self) {
        let Some(Datagram { mut bytes, .. }) = self.outgoing.pop_front() else { return };
        self.first += 1;
        self.tried = self.tried.saturating_sub(1);
        self.bytes -= bytes.len();
        if self.spare.len() < MOST_SPARE {
            bytes.clear();
            self.spare.push(bytes);
        }
    }

    /// A datagram of `peer` arrives.
    pub fn arrive(
        &mut self,
        core: &mut Core,
        out: &mut Outbox,
        peer: ProcessId,
        header: &Header,
        bytes: &[u8],
    ) -> Result<(), Malformed> {
        if ProcessId::of_qpn(peer.vid, header.src_qpn) != Some(peer) {
            return Err(Malformed("a datagram from a queue pair of another process"));
        }
        if header.msn != self.taken + self.arrived.len() as u64 {
            return Err(Malformed("a datagram out of order"));
        }
        self.on_acknowledgement(core, header.va)?;
        if self.arrived.is_empty() && core.deliver_datagram(peer, header, bytes) == Delivery::Over {
            self.take(out, header);
            return Ok(());
        }
        if self.arrived.len() >= MOST || self.arrived_bytes >= MOST_BYTES {
            return Err(Malformed("more datagrams in flight than allowed"));
        }
        if self.arrived.is_empty() {
            self.patience = Pause::Noted(PATIENCE);
        }
        self.arrived_bytes += bytes.len();
        self.arrived.push_back(Datagram { header: *header, bytes: bytes.to_vec() });
        core.datagrams_wait = true;
        Ok(())
    }

    fn take(&mut self, out: &mut Outbox, header: &Header) {
        self.taken += 1;
        out.acknowledge_datagram(header.length);
    }

    /// Delivers datagrams that have waited for a receive, if possible. Returns whether some still wait.
    pub fn deliver(&mut self, core: &mut Core, out: &mut Outbox, peer: ProcessId) -> bool {
        while let Some(first) = self.arrived.front() {
            let header = first.header;
            if core.deliver_datagram(peer, &header, &first.bytes) == Delivery::Waits {
                if self.patience.is_over() {
                    self.patience = Pause::Noted(PATIENCE);
                }
                return true;
            }
            self.arrived_bytes -= first.bytes.len();
            self.arrived.pop_front();
            self.take(out, &header);
            self.patience = Pause::Over;
        }
        false
    }

    /// The first datagram has waited for too long, and is dropped, with all that come for its receiver.
    pub fn drop_after_timeout(&mut self, core: &mut Core) {
        if let Some(first) = self.arrived.front() {
            core.run_dry(&first.header);
        }
    }

    /// Forgets the state of a stream. Datagrams that the peer has not taken are sent again over the next one.
    pub fn interrupt(&mut self) {
        self.left = 0;
        self.is_greeted = false;
        self.arrived.clear();
        self.arrived_bytes = 0;
        self.patience = Pause::Over;
        // It goes on with the next stream: a peer that is away because it moves takes nothing meanwhile.
        self.room.freeze(self.looked);
    }

    /// The peer is gone: drops unacknowledged datagrams.
    pub fn drop_outgoing(&mut self, core: &mut Core) {
        while self.is_waiting() {
            self.forget_first();
        }
        self.left = 0;
        self.has_all_room(core);
    }

    /// The peer is another process with the same identity, or has evicted our state: numbers start again. It may have had those in flight.
    pub fn restart(&mut self, core: &mut Core) {
        self.drop_tried();
        self.note_room(core);
        self.first = 0;
        self.taken = 0;
    }
}
