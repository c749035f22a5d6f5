//! Direct mappings, the initiator's side: a neighbour's pages, mapped so that WRITEs and READs are copies.

use std::sync::Arc;

use fabric::traffic::Traffic;

use crate::attr::{Access, QpState};
use crate::core::{Core, sent_directly};
use crate::handle::Qp;
use crate::memory;
use crate::qp::QueuePair;
pub(crate) use crate::share::memfd::Mapped;
use crate::stream::Gate;
use crate::work::{Payload, Rdma, Sge};

/// Longer messages take the ring, which releases the lock between pieces.
pub(crate) const LONGEST: u32 = 4 << 20;

/// A request of so many bytes waits until no other is before it: the ring would copy it twice.
const WORTH_WAITING: u32 = 16 * 1024;

/// The most direct mappings of one queue pair.
const MAX_DIRECT_MAPPINGS: usize = 256;

/// A part of a neighbour's region that one queue pair may touch.
#[derive(Debug)]
pub(crate) struct DirectMapping {
    /// The region's key, as the application knows it.
    pub rkey: u32,
    /// The virtual address of its first byte, as requests give it.
    pub va: u64,
    pub length: u64,
    pub rights: Access,
    /// The address where it is mapped in this process.
    pub address: u64,
    /// The gate's count for which this mapping is valid.
    pub count: u32,
    /// The neighbour's gate.
    pub gate: Gate,
    /// Keeps it mapped.
    pub _memory: Arc<Mapped>,
}

/// The direct mappings that a queue pair has of its neighbour's memory.
#[derive(Debug, Default)]
pub(crate) struct DirectMappings {
    open: Vec<DirectMapping>,
    /// Keys for which a mapping was requested.
    asked: Vec<u32>,
    /// A mapping was added, and no queued request has used one since.
    pub is_new: bool,
}

impl DirectMappings {
    /// The neighbour has closed its gate, or is gone.
    pub fn clear(&mut self) {
        self.open.clear();
        self.asked.clear();
    }

    /// Forgets direct mappings of another count of the neighbour's gate than `now`, and that they were asked for.
    pub fn close_stale(&mut self, now: u32) {
        self.open.retain(|mapping| mapping.count == now);
        self.ask_again();
    }

    /// Adds memory that the neighbour has exported, if it was requested.
    pub fn add(&mut self, mapping: DirectMapping) {
        let wanted = self.asked.contains(&mapping.rkey) && self.open.len() < MAX_DIRECT_MAPPINGS;
        if wanted && self.open.iter().all(|open| open.rkey != mapping.rkey) {
            self.open.push(mapping);
            self.is_new = true;
        }
    }

    /// The neighbour was not ready: keys without a mapping may be requested again.
    pub fn ask_again(&mut self) {
        self.asked.retain(|rkey| self.open.iter().any(|mapping| mapping.rkey == *rkey));
    }

    /// True once for each key.
    pub fn ask(&mut self, rkey: u32) -> bool {
        let asks = self.asked.len() < MAX_DIRECT_MAPPINGS && !self.asked.contains(&rkey);
        if asks {
            self.asked.push(rkey);
        }
        asks
    }

    #[inline]
    fn find(&self, rkey: u32) -> Option<&DirectMapping> {
        self.open.iter().find(|mapping| mapping.rkey == rkey)
    }
}

impl DirectMapping {
    /// The address of the `length` bytes at `va`, if this mapping contains them and grants `needs`.
    #[inline]
    fn address(&self, va: u64, length: u32, needs: Access) -> Option<u64> {
        let offset = va.checked_sub(self.va)?;
        let end = offset.checked_add(u64::from(length))?;
        (end <= self.length && self.rights.contains(needs)).then(|| self.address + offset)
    }
}

/// A message that was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Copied {
    length: u32,
    reads: bool,
}

impl Copied {
    /// Counts it in the traffic with the neighbour.
    #[inline(always)]
    pub fn count_in(self, traffic: &mut Traffic) {
        let volume = if self.reads { &mut traffic.fetched } else { &mut traffic.sent };
        volume.count(self.length);
    }
}

/// The outcome of an attempt to execute a request directly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direct {
    Done(Copied),
    /// It goes by the ring.
    Declined,
    /// It goes by the ring; no mapping has this key.
    Unknown(u32),
    /// It goes by the ring; all mappings are void.
    Closed,
}

/// The outcome of an attempt to execute a queued request directly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queued {
    Done(Copied),
    /// It is executed when the requests in flight before it are done.
    Waits,
    /// It goes by the ring.
    Declined,
}

/// The part of the neighbour's memory that a WRITE or READ accesses.
struct Target<'a> {
    mapping: &'a DirectMapping,
    address: u64,
    length: u32,
    reads: bool,
}

/// The target of `rdma`, if a mapping contains it.
#[inline(always)]
fn target<'a>(qp: &'a QueuePair, rdma: &Rdma<'_>) -> Result<Target<'a>, Direct> {
    let Rdma { va, rkey, reads, .. } = *rdma;
    let length = match rdma.payload {
        Payload::Sges([piece]) => piece.length,
        Payload::Inline(_) if reads => 0,
        payload => payload.length(&qp.init.caps).and_then(|length| length.try_into().ok()).unwrap_or(0),
    };
    if length == 0 || length > LONGEST || (reads && qp.attr.max_rd_atomic == 0) {
        return Err(Direct::Declined);
    }
    let mapping = qp.direct_mappings.find(rkey).ok_or(Direct::Unknown(rkey))?;
    let needs = if reads { Access::REMOTE_READ } else { Access::REMOTE_WRITE };
    let address = mapping.address(va, length, needs).ok_or(Direct::Declined)?;
    Ok(Target { mapping, address, length, reads })
}

impl Core {
    /// Executes `rdma` by a copy, if a mapping contains the memory and no request is queued before it.
    #[inline(always)]
    pub fn direct(&mut self, handle: Qp, rdma: &Rdma<'_>) -> Direct {
        let Some(qp) = self.qps.get(handle.0) else { return Direct::Declined };
        let target = match target(qp, rdma) {
            Ok(target) => target,
            Err(outcome) => return outcome,
        };
        if qp.state() != QpState::Rts || !qp.sends.is_empty() {
            return Direct::Declined;
        }
        let outcome = self.copy_directly(qp, rdma.payload, &target);
        if matches!(outcome, Direct::Done(_)) && (rdma.signaled || qp.init.sq_sig_all) {
            let (completion, cq) = (sent_directly(qp, rdma, target.length), qp.init.send_cq);
            self.complete(cq, completion);
        }
        outcome
    }

    /// Executes a WRITE of one piece on the fast path. Returns the link to the neighbour; `None` if [`Self::direct`] has to handle it.
    ///
    /// This is the common case of programs that write much; the many exits of `direct` make that one nearly twice as slow.
    #[inline(always)]
    pub fn write_plainly(&mut self, handle: Qp, rdma: &Rdma<'_>) -> Option<(usize, Copied)> {
        let qp = self.qps.get(handle.0)?;
        let (piece, from) = match rdma.payload {
            Payload::Sges([piece]) => (piece, self.regions.local(qp.init.pd, piece, Access::empty())),
            Payload::Inline([piece]) if piece.length <= qp.init.caps.max_inline => (piece, Some(piece.addr)),
            _ => return None,
        };
        let is_free = qp.state() == QpState::Rts && qp.sends.is_empty();
        if !is_free || piece.length == 0 || piece.length > LONGEST {
            return None;
        }
        let (mapping, at) = (qp.direct_mappings.find(rdma.rkey)?, qp.link?);
        let to = mapping.address(rdma.va, piece.length, Access::REMOTE_WRITE)?;
        let from = from?;
        if !mapping.gate.enter(mapping.count) {
            return None;
        }
        copy(to, from, piece.length, false);
        let done = mapping.gate.leave(mapping.count);
        if done && (rdma.signaled || qp.init.sq_sig_all) {
            let (completion, cq) = (sent_directly(qp, rdma, piece.length), qp.init.send_cq);
            self.complete(cq, completion);
        }
        done.then_some((at, Copied { length: piece.length, reads: false }))
    }

    /// Executes request `msn` directly, the next to be transmitted. Requests that are posted faster than they are done would
    /// otherwise stay on the ring for ever.
    pub fn direct_queued(&mut self, handle: Qp, msn: u64) -> Queued {
        let Some(qp) = self.qps.get(handle.0) else { return Queued::Declined };
        let Some(request) = qp.sends.get(msn) else { return Queued::Declined };
        let inline = request.inline.as_ref().map(|bytes| [memory::piece(bytes)]);
        let wr = request.work(inline.as_ref());
        let Some(rdma) = wr.rdma() else { return Queued::Declined };
        let Ok(target) = target(qp, &rdma) else { return Queued::Declined };
        if !qp.is_next(msn) {
            let is_worth_it = target.length >= WORTH_WAITING || qp.direct_mappings.is_new;
            let waits = msn > qp.sends.head() && is_worth_it;
            return if waits { Queued::Waits } else { Queued::Declined };
        }
        let copied = match self.copy_directly(qp, rdma.payload, &target) {
            Direct::Done(copied) => copied,
            Direct::Closed => {
                self.stale.push(handle);
                return Queued::Declined;
            }
            Direct::Declined | Direct::Unknown(_) => return Queued::Declined,
        };
        let reported = request.signaled.then(|| sent_directly(qp, &rdma, target.length));
        let cq = qp.init.send_cq;
        if let Some(qp) = self.qps.get_mut(handle.0) {
            qp.direct_mappings.is_new = false;
            qp.sends.skip();
        }
        if let Some(completion) = reported {
            self.complete(cq, completion);
        }
        Queued::Done(copied)
    }

    /// Copies `payload` to `target`, or fills it from there.
    #[inline(always)]
    fn copy_directly(&self, qp: &QueuePair, payload: Payload<'_>, target: &Target<'_>) -> Direct {
        let Target { mapping, address, length, reads } = *target;
        let local_needs = if reads { Access::LOCAL_WRITE } else { Access::empty() };
        let local = |piece: &Sge| match payload {
            Payload::Inline(_) => Some(piece.addr),
            Payload::Sges(_) => self.regions.local(qp.init.pd, piece, local_needs),
        };
        let (Payload::Sges(pieces) | Payload::Inline(pieces)) = payload;
        // Inside the gate nothing can fail any more. Most messages have one piece, which is looked up once.
        let only = if let [piece] = pieces { local(piece) } else { None };
        if only.is_none() && !(pieces.len() > 1 && pieces.iter().all(|piece| local(piece).is_some())) {
            return Direct::Declined;
        }
        if !mapping.gate.enter(mapping.count) {
            return Direct::Closed;
        }
        match only {
            Some(at) => copy(address, at, length, reads),
            None => copy_pieces(address, pieces, reads, local),
        }
        let copied = Copied { length, reads };
        if mapping.gate.leave(mapping.count) { Direct::Done(copied) } else { Direct::Closed }
    }
}

/// Copies between `pieces`, which `local` finds, and the mapping at `remote`.
fn copy_pieces(remote: u64, pieces: &[Sge], reads: bool, local: impl Fn(&Sge) -> Option<u64>) {
    let mut at = remote;
    for piece in pieces {
        if let Some(address) = local(piece) {
            copy(at, address, piece.length, reads);
        }
        at += u64::from(piece.length);
    }
}

/// Copies `length` bytes between the mapping at `remote` and `local`.
#[inline]
fn copy(remote: u64, local: u64, length: u32, reads: bool) {
    let (to, from) = if reads { (local, remote) } else { (remote, local) };
    // SAFETY: the local piece is registered memory, or inline data that the poster vouches for; the mapping is
    // mapped and as long as the message.
    unsafe { memory::copy(to, from, length as usize) };
}
