//! Shared receive queues.

use crate::attr::SrqAttr;
use crate::handle::{Cq, Pd, Xrcd};
use crate::receive_queue::ReceiveQueue;

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct SharedReceiveQueue {
    pub pd: Pd,
    /// As applications know it.
    pub number: u32,
    pub xrc: Option<Xrc>,
    pub receives: ReceiveQueue,
    /// Below this many receives an event is due; 0: none is asked for.
    limit: u32,
}

/// The part of a queue that XRC targets need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Xrc {
    /// The domain of the targets that may use it.
    pub xrcd: Xrcd,
    /// Where receives complete.
    pub cq: Cq,
}

impl SharedReceiveQueue {
    pub fn new(pd: Pd, number: u32, xrc: Option<Xrc>, attr: &SrqAttr) -> Self {
        Self { pd, number, xrc, receives: ReceiveQueue::new(attr.max_wr, attr.max_sge), limit: 0 }
    }

    pub fn attributes(&self) -> SrqAttr {
        SrqAttr { max_wr: self.receives.depth(), max_sge: self.receives.max_sge(), limit: self.limit }
    }

    pub fn set_limit(&mut self, limit: u32) {
        self.limit = limit;
    }

    /// True once after the limit was set.
    pub fn fell_below_limit(&mut self) -> bool {
        let fell = self.receives.len() < self.limit;
        if fell {
            self.limit = 0;
        }
        fell
    }
}
