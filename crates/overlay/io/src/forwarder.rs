//! The path of one thread's frames from the switch to ports and nodes.

use std::sync::Arc;
use std::time::Duration;

use overlay::segment::vnet::VnetHeader;
use overlay::switch::{Frame, From, Parcel, PortId, To, Verdict};

use crate::counters::Counter;
use crate::lock::lock;
use crate::meters::Meter;
use crate::outgoing::{Outgoing, Way};
use crate::plane::Shared;

/// See the module.
pub(crate) struct Forwarder {
    pub shared: Arc<Shared>,
    pub outgoing: Outgoing,
    ways: Vec<To>,
}

impl Forwarder {
    /// `lane`: the lane that seals; others may use it, too.
    pub fn new(shared: Arc<Shared>, lane: u8) -> Self {
        Self { shared, outgoing: Outgoing::new(lane), ways: Vec::new() }
    }

    /// Carries `frame`, which the TAP of `port` has handed over with `vnet`, to its destination. `meter` counts frames
    /// that the switch does not drop: a LAN's own traffic is not the overlay's.
    pub fn carry(&mut self, port: PortId, vnet: &VnetHeader, frame: &[u8], meter: &Meter) {
        let now = self.shared.now();
        if self.carry_on(From::Port(port), vnet, frame) {
            meter.count(vnet, frame, now);
        }
    }

    /// Carries `frame`, which came with `vnet`, to where it belongs. False if it is dropped.
    pub fn carry_on(&mut self, from: From, vnet: &VnetHeader, frame: &[u8]) -> bool {
        let is_carried = self.decide(from, vnet, frame, self.shared.now());
        if let Some(to) = self.spread(vnet, frame) {
            self.deliver(to, vnet, frame);
        }
        is_carried
    }

    /// Lets the switch decide on `frame`, which came with `vnet`. [`Self::spread`] sends it. False if it is
    /// dropped.
    pub fn decide(&mut self, from: From, vnet: &VnetHeader, frame: &[u8], now: Duration) -> bool {
        self.ways.clear();
        let frame = Frame { vnet: *vnet, bytes: frame };
        let verdict = lock(&self.shared.switch).forward(from, frame, now, &mut self.ways);
        let is_dropped = matches!(verdict, Verdict::Dropped(_));
        if let (Verdict::Answered(answer), From::Port(port)) = (verdict, from) {
            self.deliver(To::Port(port), &VnetHeader::default(), &answer);
        }
        !is_dropped
    }

    /// True if the last decision has several destinations.
    pub fn goes_many_ways(&self) -> bool {
        self.ways.len() > 1
    }

    /// Sends the last decided frame to all its destinations but the last, which is returned.
    pub fn spread(&mut self, vnet: &VnetHeader, frame: &[u8]) -> Option<To> {
        let last = self.ways.pop()?;
        for at in 0..self.ways.len() {
            self.deliver(self.ways[at], vnet, frame);
        }
        Some(last)
    }

    /// Sends `frame` one way.
    pub fn deliver(&mut self, to: To, vnet: &VnetHeader, frame: &[u8]) {
        match to {
            To::Port(port) => self.shared.write_frame(port, vnet, frame),
            To::Link { neighbour, label } => {
                let Some(peer) = self.shared.peers.of_node(neighbour) else {
                    return self.shared.counters.count(Counter::NoPeer);
                };
                let now = self.shared.now();
                if let Err(loss) =
                    self.outgoing.send(Way::to(&peer, &self.shared.socket), label, vnet, frame, now)
                {
                    self.shared.counters.count(Counter::from(&loss));
                }
            }
        }
    }

    /// Sends frames that the switch has kept, or made.
    pub fn deliver_all(&mut self, parcels: Vec<Parcel>) {
        for Parcel { to, vnet, bytes } in parcels {
            self.deliver(to, &vnet, &bytes);
        }
    }
}
