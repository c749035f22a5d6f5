//! Queues of posted receives, of one queue pair or shared.

use std::collections::VecDeque;

use crate::errno::Errno;
use crate::work::Sge;

/// Posted receives, first in, first out.
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    requests: VecDeque<Posted>,
    /// The elements of all requests but for their first ones, one after the other.
    sges: VecDeque<Sge>,
    depth: u32,
    max_sge: u32,
}

#[derive(Clone, Copy, Debug)]
struct Posted {
    wr_id: u64,
    /// Mostly it is the only one.
    first: Sge,
    sges: u32,
}

/// A receive that was taken from its queue.
#[derive(Debug, Default)]
pub(crate) struct Receive {
    pub wr_id: u64,
    pub sges: Vec<Sge>,
}

impl Receive {
    /// Bytes that it has room for.
    pub fn room(&self) -> u64 {
        self.sges.iter().map(|sge| u64::from(sge.length)).sum()
    }
}

impl ReceiveQueue {
    pub fn new(depth: u32, max_sge: u32) -> Self {
        Self { requests: VecDeque::new(), sges: VecDeque::new(), depth, max_sge }
    }

    pub fn len(&self) -> u32 {
        self.requests.len() as u32
    }

    pub fn depth(&self) -> u32 {
        self.depth
    }

    pub fn max_sge(&self) -> u32 {
        self.max_sge
    }

    /// False if more receives are posted than would fit.
    pub fn resize(&mut self, depth: u32) -> bool {
        let fits = self.len() <= depth;
        if fits {
            self.depth = depth;
        }
        fits
    }

    #[inline]
    pub fn post(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), Errno> {
        if sges.len() > self.max_sge as usize {
            return Err(Errno::INVALID);
        }
        if self.len() >= self.depth {
            return Err(Errno::NO_MEMORY);
        }
        let first = sges.first().copied().unwrap_or_default();
        if sges.len() > 1 {
            self.sges.extend(&sges[1..]);
        }
        self.requests.push_back(Posted { wr_id, first, sges: sges.len() as u32 });
        Ok(())
    }

    /// Takes the oldest receive into `to`. False if there is none.
    pub fn take(&mut self, to: &mut Receive) -> bool {
        let Some(posted) = self.requests.pop_front() else { return false };
        to.wr_id = posted.wr_id;
        to.sges.clear();
        if posted.sges > 0 {
            to.sges.push(posted.first);
            to.sges.extend((1..posted.sges).filter_map(|_| self.sges.pop_front()));
        }
        true
    }

    /// The oldest receive, if it has exactly one element: its `wr_id`, and the element.
    #[inline]
    pub fn front(&self) -> Option<(u64, Sge)> {
        self.requests.front().filter(|posted| posted.sges == 1).map(|posted| (posted.wr_id, posted.first))
    }

    /// Drops the receive that [`Self::front`] has shown.
    #[inline]
    pub fn drop_front(&mut self) {
        self.requests.pop_front();
    }
}
