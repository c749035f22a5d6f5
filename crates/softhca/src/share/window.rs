//! The initiator's side: a neighbour's memory, and WRITEs and READs that are copies.

use std::sync::Arc;

use crate::attr::{Access, QpState};
use crate::core::{Core, sent_directly};
use crate::handle::Qp;
use crate::memory;
pub(crate) use crate::share::pages::Mapped;
use crate::stream::Gate;
use crate::work::{Payload, SendOp, SendWr, Sge, WcOpcode};

/// Longer messages go by the ring, which gives the lock up in between.
const LONGEST: u32 = 4 << 20;

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
        self.asked.retain(|rkey| self.open.iter().any(|window| window.rkey == *rkey));
    }

    /// Adds what the neighbour has exported, if it was asked for.
    pub fn add(&mut self, window: Window) {
        let wanted = self.asked.contains(&window.rkey) && self.open.len() < MAX_WINDOWS;
        if wanted && self.open.iter().all(|open| open.rkey != window.rkey) {
            self.open.push(window);
        }
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

impl Core {
    /// Does `wr` by copying, if it is a WRITE or READ of memory that a window shows, and nothing is
    /// queued before it.
    #[inline]
    pub fn direct(&mut self, handle: Qp, wr: &SendWr<'_>) -> Direct {
        let (va, rkey, reads) = match wr.op {
            SendOp::Write { va, rkey } => (va, rkey, false),
            SendOp::Read { va, rkey } => (va, rkey, true),
            _ => return Direct::Declined,
        };
        let Some(qp) = self.qps.get_mut(handle.0) else { return Direct::Declined };
        let length = match wr.payload {
            Payload::Sges([piece]) => piece.length,
            _ => wr.check(&qp.init.caps).unwrap_or(0),
        };
        let is_first = qp.state() == QpState::Rts && qp.sends.is_empty();
        if !is_first || length == 0 || length > LONGEST || (reads && qp.attr.max_rd_atomic == 0) {
            return Direct::Declined;
        }
        let Some(window) = qp.windows.find(rkey) else { return Direct::Unknown(rkey) };
        let needs = if reads { Access::REMOTE_READ } else { Access::REMOTE_WRITE };
        let Some(remote) = window.address(va, length, needs) else { return Direct::Declined };
        let local_needs = if reads { Access::LOCAL_WRITE } else { Access::empty() };
        let local = |piece: &Sge| match wr.payload {
            Payload::Inline(_) => Some(piece.addr),
            Payload::Sges(_) => self.regions.local(qp.init.pd, piece, local_needs),
        };
        let (Payload::Sges(pieces) | Payload::Inline(pieces)) = wr.payload;
        // Inside the gate nothing can fail any more. Most messages have one piece, and it is looked up once.
        let only = if let [piece] = pieces { local(piece) } else { None };
        if only.is_none() && !(pieces.len() > 1 && pieces.iter().all(|piece| local(piece).is_some())) {
            return Direct::Declined;
        }
        if !window.gate.enter(window.count) {
            return Direct::Closed;
        }
        match only {
            Some(at) => copy(remote, at, length, reads),
            None => copy_pieces(remote, pieces, reads, local),
        }
        if !window.gate.leave(window.count) {
            return Direct::Closed;
        }
        if wr.signaled || qp.init.sq_sig_all {
            let opcode = if reads { WcOpcode::RdmaRead } else { WcOpcode::RdmaWrite };
            let (completion, cq) = (sent_directly(qp, wr.wr_id, opcode, length), qp.init.send_cq);
            self.complete(cq, completion);
        }
        Direct::Done
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
