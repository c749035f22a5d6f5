//! Queues of posted receives: a queue pair's own, or a shared one.

use std::collections::VecDeque;

use crate::errno::Errno;
use crate::work::Sge;

/// Posted receives, first in, first out.
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    requests: VecDeque<Posted>,
    /// The elements of all requests, one after the other.
    sges: VecDeque<Sge>,
    depth: u32,
    max_sge: u32,
}

#[derive(Clone, Copy, Debug)]
struct Posted {
    wr_id: u64,
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

    pub fn post(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), Errno> {
        if sges.len() > self.max_sge as usize {
            return Err(Errno::INVALID);
        }
        if self.len() >= self.depth {
            return Err(Errno::NO_MEMORY);
        }
        self.sges.extend(sges);
        self.requests.push_back(Posted { wr_id, sges: sges.len() as u32 });
        Ok(())
    }

    /// Takes the oldest receive into `to`. False if there is none.
    pub fn take(&mut self, to: &mut Receive) -> bool {
        let Some(posted) = self.requests.pop_front() else { return false };
        to.wr_id = posted.wr_id;
        to.sges.clear();
        // Mostly there is one: a `drain` takes longer to set up.
        to.sges.extend((0..posted.sges).filter_map(|_| self.sges.pop_front()));
        true
    }
}
