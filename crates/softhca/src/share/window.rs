//! The initiator's side: a neighbour's memory, and WRITEs and READs that are copies.

use std::sync::Arc;

use crate::attr::{Access, QpState};
use crate::core::{Core, sent_directly};
use crate::handle::Qp;
use crate::memory;
use crate::qp::QueuePair;
pub(crate) use crate::share::memfd::Mapped;
use crate::stream::Gate;
use crate::work::{Payload, Rdma, Sge};

/// Longer messages go by the ring, which gives the lock up in between.
pub(crate) const LONGEST: u32 = 4 << 20;

/// A request of so many bytes waits until nothing is before it: the ring would copy it twice.
const WORTH_WAITING: u32 = 16 * 1024;

/// Windows of one queue pair.
const MAX_WINDOWS: usize = 256;

/// A part of a neighbour's region that one queue pair may touch.
#[derive(Debug)]
pub(crate) struct Window {
    /// The region's key, as the application knows it.
    pub rkey: u32,
    /// What requests call its first byte.
    pub va: u64,
    pub length: u64,
    pub rights: Access,
    /// Where it is in our memory.
    pub address: u64,
    /// The gate's count while it is open for this window.
    pub count: u32,
    /// The neighbour's.
    pub gate: Gate,
    /// Keeps it mapped.
    pub _memory: Arc<Mapped>,
}

/// What a queue pair knows of its neighbour's memory.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    open: Vec<Window>,
    /// Keys that the neighbour was asked about.
    asked: Vec<u32>,
    /// A window has been opened, and nothing that was queued has gone through one since.
    pub is_new: bool,
}

impl Windows {
    /// The neighbour has closed its gate, or is gone.
    pub fn clear(&mut self) {
        self.open.clear();
        self.asked.clear();
    }

    /// Forgets windows of another count of the neighbour's gate than `now`, and that they were asked for.
    pub fn close_stale(&mut self, now: u32) {
        self.open.retain(|window| window.count == now);
        self.ask_again();
    }

    /// Adds what the neighbour has exported, if it was asked for.
    pub fn add(&mut self, window: Window) {
        let wanted = self.asked.contains(&window.rkey) && self.open.len() < MAX_WINDOWS;
        if wanted && self.open.iter().all(|open| open.rkey != window.rkey) {
            self.open.push(window);
            self.is_new = true;
        }
    }

    /// The neighbour was not ready: what it was asked for is asked for again.
    pub fn ask_again(&mut self) {
        self.asked.retain(|rkey| self.open.iter().any(|window| window.rkey == *rkey));
    }

    /// True once for each key.
    pub fn ask(&mut self, rkey: u32) -> bool {
        let asks = self.asked.len() < MAX_WINDOWS && !self.asked.contains(&rkey);
        if asks {
            self.asked.push(rkey);
        }
        asks
    }

    #[inline]
    fn find(&self, rkey: u32) -> Option<&Window> {
        self.open.iter().find(|window| window.rkey == rkey)
    }
}

impl Window {
    /// Where `length` bytes at `va` are, if this window shows them and `needs` is granted.
    #[inline]
    fn address(&self, va: u64, length: u32, needs: Access) -> Option<u64> {
        let offset = va.checked_sub(self.va)?;
        let end = offset.checked_add(u64::from(length))?;
        (end <= self.length && self.rights.contains(needs)).then(|| self.address + offset)
    }
}

/// What became of a request that was to be done directly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direct {
    Done,
    /// It goes by the ring.
    Declined,
    /// So it does; no window shows this key.
    Unknown(u32),
    /// So it does, and all windows are closed.
    Closed,
}

/// What became of a queued request that might be done directly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queued {
    Done,
    /// It will be, when what is in flight before it is over.
    Waits,
    /// It goes by the ring.
    Declined,
}

/// What a WRITE or READ touches of the neighbour's memory.
struct Target<'a> {
    window: &'a Window,
    address: u64,
    length: u32,
    reads: bool,
}

/// Where `rdma` leads, if a window shows it.
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
    let window = qp.windows.find(rkey).ok_or(Direct::Unknown(rkey))?;
    let needs = if reads { Access::REMOTE_READ } else { Access::REMOTE_WRITE };
    let address = window.address(va, length, needs).ok_or(Direct::Declined)?;
    Ok(Target { window, address, length, reads })
}

impl Core {
    /// Does `rdma` by copying, if a window shows the memory, and nothing is queued before it.
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
        if outcome == Direct::Done && (rdma.signaled || qp.init.sq_sig_all) {
            let (completion, cq) = (sent_directly(qp, rdma, target.length), qp.init.send_cq);
            self.complete(cq, completion);
        }
        outcome
    }

    /// Does a WRITE of one piece, if nothing stands in its way. False if it is for [`Self::direct`].
    ///
    /// What programs that write much do most, without what makes `direct` nearly twice as long: its many ways out.
    #[inline(always)]
    pub fn write_plainly(&mut self, handle: Qp, rdma: &Rdma<'_>) -> bool {
        let Some(qp) = self.qps.get(handle.0) else { return false };
        let (piece, from) = match rdma.payload {
            Payload::Sges([piece]) => (piece, self.regions.local(qp.init.pd, piece, Access::empty())),
            Payload::Inline([piece]) if piece.length <= qp.init.caps.max_inline => (piece, Some(piece.addr)),
            _ => return false,
        };
        let is_free = qp.state() == QpState::Rts && qp.sends.is_empty();
        if !is_free || piece.length == 0 || piece.length > LONGEST {
            return false;
        }
        let Some(window) = qp.windows.find(rdma.rkey) else { return false };
        let Some(to) = window.address(rdma.va, piece.length, Access::REMOTE_WRITE) else { return false };
        let Some(from) = from else { return false };
        if !window.gate.enter(window.count) {
            return false;
        }
        copy(to, from, piece.length, false);
        let done = window.gate.leave(window.count);
        if done && (rdma.signaled || qp.init.sq_sig_all) {
            let (completion, cq) = (sent_directly(qp, rdma, piece.length), qp.init.send_cq);
            self.complete(cq, completion);
        }
        done
    }

    /// The same for request `msn`, the next to be transmitted. What is posted faster than it is done would
    /// otherwise stay on the ring for ever.
    pub fn direct_queued(&mut self, handle: Qp, msn: u64) -> Queued {
        let Some(qp) = self.qps.get(handle.0) else { return Queued::Declined };
        let Some(request) = qp.sends.get(msn) else { return Queued::Declined };
        let inline = request.inline.as_ref().map(|bytes| [memory::piece(bytes)]);
        let wr = request.work(inline.as_ref());
        let Some(rdma) = wr.rdma() else { return Queued::Declined };
        let Ok(target) = target(qp, &rdma) else { return Queued::Declined };
        if !qp.is_next(msn) {
            let is_worth_it = target.length >= WORTH_WAITING || qp.windows.is_new;
            let waits = msn > qp.sends.head() && is_worth_it;
            return if waits { Queued::Waits } else { Queued::Declined };
        }
        match self.copy_directly(qp, rdma.payload, &target) {
            Direct::Done => {}
            Direct::Closed => {
                self.stale.push(handle);
                return Queued::Declined;
            }
            Direct::Declined | Direct::Unknown(_) => return Queued::Declined,
        }
        let reported = request.signaled.then(|| sent_directly(qp, &rdma, target.length));
        let cq = qp.init.send_cq;
        if let Some(qp) = self.qps.get_mut(handle.0) {
            qp.windows.is_new = false;
            qp.sends.skip();
        }
        if let Some(completion) = reported {
            self.complete(cq, completion);
        }
        Queued::Done
    }

    /// Copies `payload` to `target`, or fills it from there.
    #[inline(always)]
    fn copy_directly(&self, qp: &QueuePair, payload: Payload<'_>, target: &Target<'_>) -> Direct {
        let Target { window, address, length, reads } = *target;
        let local_needs = if reads { Access::LOCAL_WRITE } else { Access::empty() };
        let local = |piece: &Sge| match payload {
            Payload::Inline(_) => Some(piece.addr),
            Payload::Sges(_) => self.regions.local(qp.init.pd, piece, local_needs),
        };
        let (Payload::Sges(pieces) | Payload::Inline(pieces)) = payload;
        // Inside the gate nothing can fail any more. Most messages have one piece, and it is looked up once.
        let only = if let [piece] = pieces { local(piece) } else { None };
        if only.is_none() && !(pieces.len() > 1 && pieces.iter().all(|piece| local(piece).is_some())) {
            return Direct::Declined;
        }
        if !window.gate.enter(window.count) {
            return Direct::Closed;
        }
        match only {
            Some(at) => copy(address, at, length, reads),
            None => copy_pieces(address, pieces, reads, local),
        }
        if window.gate.leave(window.count) { Direct::Done } else { Direct::Closed }
    }
}

/// Copies between `pieces`, which `local` finds, and the window at `remote`.
fn copy_pieces(remote: u64, pieces: &[Sge], reads: bool, local: impl Fn(&Sge) -> Option<u64>) {
    let mut at = remote;
    for piece in pieces {
        if let Some(address) = local(piece) {
            copy(at, address, piece.length, reads);
        }
        at += u64::from(piece.length);
    }
}

/// Copies `length` bytes between the window at `remote` and `local`.
#[inline]
fn copy(remote: u64, local: u64, length: u32, reads: bool) {
    let (to, from) = if reads { (local, remote) } else { (remote, local) };
    // SAFETY: the local piece is registered memory, or inline data that the poster vouches for; the window is
    // mapped and as long as the message.
    unsafe { memory::copy(to, from, length as usize) };
}
