//! Frames that are kept for moving MACs.

use std::collections::HashMap;

use fabric::Epoch;
use foldhash::fast::RandomState;

use super::moves::Parcel;
use super::path::Passing;
use super::{Limits, PortId, Reason, To, Verdict};
use crate::mac::Mac;
use crate::segment::VnetHeader;
use crate::topology::NodeId;

/// A frame, and its label.
pub(super) struct KeptFrame {
    vnet: VnetHeader,
    bytes: Box<[u8]>,
    pub ingress: NodeId,
    /// It has been sent on after its MAC already.
    pub forwarded: bool,
}

impl KeptFrame {
    pub fn send(self, to: To) -> Parcel {
        Parcel { to, vnet: self.vnet, bytes: self.bytes }
    }
}

/// Frames for a MAC that is on its way, in their order.
#[derive(Default)]
pub(super) struct Kept {
    pub frames: Vec<KeptFrame>,
    bytes: usize,
}

impl Kept {
    /// Keeps a frame, if there is room beside `in_all` bytes that are kept for all MACs.
    fn keep(&mut self, passing: &Passing<'_>, limits: &Limits, in_all: usize) -> Result<Verdict, Reason> {
        let length = passing.frame.bytes.len();
        let bytes = self.bytes.saturating_add(length);
        let is_full = self.frames.len() >= limits.kept_frames || bytes > limits.kept_bytes;
        if is_full || in_all.saturating_add(length) > limits.kept_bytes_in_all {
            return Err(Reason::KeptFull);
        }
        let Passing { frame, ingress, forwarded, .. } = *passing;
        self.frames.push(KeptFrame { vnet: frame.vnet, bytes: frame.bytes.into(), ingress, forwarded });
        self.bytes = bytes;
        Ok(Verdict::Held)
    }

    /// Appends the frames of `others`.
    pub fn append(&mut self, mut others: Self) {
        self.frames.append(&mut others.frames);
        self.bytes += others.bytes;
    }

    /// All of it goes to `port`.
    pub fn release(self, port: PortId, out: &mut Vec<Parcel>) {
        out.extend(self.frames.into_iter().map(|kept| kept.send(To::Port(port))));
    }
}

/// A MAC that is paused here.
pub(super) struct Leaving {
    pub port: PortId,
    pub kept: Kept,
}

/// A MAC that is prepared here.
pub(super) struct Arriving {
    pub port: PortId,
    /// The epoch that the commit of the move must have.
    pub epoch: Epoch,
    pub committed: bool,
    pub kept: Kept,
}

/// The MACs that are on their way.
#[derive(Default)]
pub(super) struct Moves {
    pub leaving: HashMap<Mac, Leaving, RandomState>,
    pub arriving: HashMap<Mac, Arriving, RandomState>,
}

impl Moves {
    /// Whether `mac` is on its way to this node, or from it.
    pub fn is_moving(&self, mac: Mac) -> bool {
        self.arriving.contains_key(&mac) || self.leaving.contains_key(&mac)
    }

    /// Keeps a frame if its MAC is on `port`, and the port is paused for it.
    pub fn keep(
        &mut self,
        port: PortId,
        passing: &Passing<'_>,
        limits: &Limits,
    ) -> Option<Result<Verdict, Reason>> {
        let (mac, in_all) = (passing.front.destination, self.bytes());
        if let Some(leaving) = self.leaving.get_mut(&mac).filter(|leaving| leaving.port == port) {
            return Some(leaving.kept.keep(passing, limits, in_all));
        }
        let arriving = self.arriving.get_mut(&mac).filter(|arriving| arriving.port == port)?;
        Some(arriving.kept.keep(passing, limits, in_all))
    }

    /// Keeps a frame if its MAC is about to move here.
    pub fn keep_for_arrival(
        &mut self,
        passing: &Passing<'_>,
        limits: &Limits,
    ) -> Option<Result<Verdict, Reason>> {
        let mac = passing.front.destination;
        // Most frames are for others, and need no sum.
        self.arriving.get(&mac)?;
        let in_all = self.bytes();
        let arriving = self.arriving.get_mut(&mac)?;
        Some(arriving.kept.keep(passing, limits, in_all))
    }

    /// How many bytes are kept for all.
    fn bytes(&self) -> usize {
        let leaving = self.leaving.values().map(|leaving| &leaving.kept);
        let arriving = self.arriving.values().map(|arriving| &arriving.kept);
        leaving.chain(arriving).map(|kept| kept.bytes).sum()
    }

    pub fn forget_port(&mut self, port: PortId) {
        self.leaving.retain(|_, leaving| leaving.port != port);
        self.arriving.retain(|_, arriving| arriving.port != port);
    }

    /// How many frames are kept for `mac`.
    pub fn kept(&self, mac: Mac) -> usize {
        let leaving = self.leaving.get(&mac).map(|leaving| &leaving.kept);
        let arriving = self.arriving.get(&mac).map(|arriving| &arriving.kept);
        leaving.into_iter().chain(arriving).map(|kept| kept.frames.len()).sum()
    }
}
