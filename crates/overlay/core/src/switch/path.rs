//! The processing of a frame.

use std::time::Duration;

use ring::hmac;

use super::bucket::{Flood, FloodLimits};
use super::learned::{Key, Lesson};
use super::probe::Probe;
use super::{Destination, From, Label, Place, PortId, Reason, Switch, To, Verdict};
use crate::ethernet::Front;
use crate::segment::VnetHeader;
use crate::topology::NodeId;

/// A frame, and its pending offload work. The switch passes that on unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The offload work that a device has left to others.
    pub vnet: VnetHeader,
    /// The frame.
    pub bytes: &'a [u8],
}

impl<'a> Frame<'a> {
    /// A frame with which all is done.
    #[must_use]
    pub fn whole(bytes: &'a [u8]) -> Self {
        Self { vnet: VnetHeader::default(), bytes }
    }
}

/// A frame on its way through the switch.
pub(super) struct Passing<'a> {
    pub frame: Frame<'a>,
    pub front: Front,
    /// Where it came in from a port.
    pub ingress: NodeId,
    /// Whether a node has sent it on after its MAC.
    pub forwarded: bool,
    pub now: Duration,
}

impl Switch {
    /// Decides the fate of `frame`. Adds its destinations to `out`.
    ///
    /// `now` is the time since any fixed moment, and does not go back.
    pub fn forward(&mut self, from: From, frame: Frame<'_>, now: Duration, out: &mut Vec<To>) -> Verdict {
        let result = match from {
            From::Port(port) => self.enter(port, frame, now, out),
            From::Link { neighbour, label } => self.take(neighbour, label, frame, now, out),
            From::ShortCut(node) => self.arrive(node, false, frame, now, out),
        };
        let verdict = result.unwrap_or_else(Verdict::Dropped);
        self.counters.count(&verdict);
        verdict
    }

    /// The place of the destination, if it is known.
    #[inline]
    pub(super) fn find(&self, front: &Front, now: Duration) -> Option<Place> {
        match self.managed.get(front.destination) {
            Some(managed) => managed.home,
            None => self.learned.find(Key::new(front.destination, front.vlan), now),
        }
    }

    pub(super) fn learn(&mut self, front: &Front, place: Place, now: Duration) {
        match self.learned.learn(Key::new(front.source, front.vlan), place, now) {
            Lesson::Known => {}
            Lesson::Displaced => self.counters.displaced += 1,
            Lesson::Full => self.counters.not_learned += 1,
            Lesson::Flap => self.counters.flaps += 1,
        }
    }

    pub(super) fn is_own(&self, probe: &Probe) -> bool {
        probe.node == self.me && probe.nonce == self.probe_nonce(probe.port)
    }

    /// The secret in the probes of `port`, known only to stations that receive them: a station with the secret of one port could have another
    /// one blocked.
    pub(super) fn probe_nonce(&self, port: PortId) -> u64 {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.nonce.to_be_bytes());
        let tag = hmac::sign(&key, &port.0.to_be_bytes());
        tag.as_ref().first_chunk().map_or(0, |first| u64::from_be_bytes(*first))
    }

    /// A loop goes through `port`.
    pub(super) fn block(&mut self, port: PortId, now: Duration) {
        if self.ports.found_loop(port, now) {
            self.lan_has_changed(now);
        }
    }

    /// One frame to one local port: it goes there, or is kept if its MAC is on its way.
    pub(super) fn hand_over(
        &mut self,
        port: PortId,
        passing: &Passing<'_>,
        out: &mut Vec<To>,
    ) -> Result<Verdict, Reason> {
        match self.ports.get(port).ok_or(Reason::NoPort)?.takes(passing.now) {
            Ok(()) => {
                out.push(To::Port(port));
                Ok(Verdict::Forwarded)
            }
            Err(Reason::Blocked) => Err(Reason::Blocked),
            Err(reason) => self.moves.keep(port, passing, &self.limits).unwrap_or(Err(reason)),
        }
    }

    /// The first hop to `node`, with the topology that is in use.
    pub(super) fn to_node(&self, to: Destination, node: NodeId, ingress: NodeId) -> Result<To, Reason> {
        let routes = self.versions.current().ok_or(Reason::Unreachable)?;
        let neighbour = routes.next_hop(node).ok_or(Reason::Unreachable)?;
        let label = Label { version: routes.version(), ingress, to, hops: routes.most_hops() };
        Ok(To::Link { neighbour, label })
    }
}

/// The front of a frame that a switch may pass on.
pub(super) fn front(frame: &[u8]) -> Result<Front, Reason> {
    let front = Front::of(frame).filter(|front| front.source.is_station()).ok_or(Reason::Malformed)?;
    match front.destination.0 {
        [0x01, 0x80, 0xc2, 0, 0, last] if last < 0x10 => Err(Reason::LinkLocal),
        _ => Ok(front),
    }
}

pub(super) fn limit(limits: &mut FloodLimits, kind: Flood, passing: &Passing<'_>) -> Result<(), Reason> {
    if limits.admits(kind, passing.frame.bytes.len(), passing.now) {
        return Ok(());
    }
    Err(if kind == Flood::Unknown { Reason::UnknownLimit } else { Reason::BroadcastLimit })
}
