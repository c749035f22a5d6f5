//! Receives datagrams from nodes.

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arrayvec::ArrayVec;
use overlay::message::{Answer, Envelope, Message};
use overlay::path_mtu::BASE;
use overlay::segment::merge::{MOST_PIECES, Merger, Segment};
use overlay::segment::vnet::VnetHeader;
use overlay::switch::{From, PortId, To};
use overlay::tunnel::header::{HEADER, Header};

use crate::carrier::{Carrier, Source};
use crate::counters::Counter;
use crate::forwarder::Forwarder;
use crate::lock::lock;
use crate::outgoing::Way;
use crate::peer::Peer;
use crate::plane::Shared;

/// Frames that go one way and have come one after the other, merged where they are pieces of a segment.
#[derive(Default)]
struct Bound<'a> {
    to: Option<To>,
    merger: Merger<'a>,
}

impl<'a> Bound<'a> {
    /// Adds `frame`, which goes `to`. A segment under construction leaves first if this frame does not continue it.
    fn add(&mut self, forwarder: &mut Forwarder, to: To, vnet: VnetHeader, frame: &'a [u8]) {
        let goes_on = self.to == Some(to) && self.merger.push(vnet, frame);
        if goes_on {
            return;
        }
        self.leave(forwarder);
        if let To::Port(port) = to
            && !forwarder.shared.takes_segments(port, &vnet)
        {
            return forwarder.deliver(to, &vnet, frame);
        }
        self.to = Some(to);
        let _ = self.merger.push(vnet, frame);
    }

    /// Sends the read frames on their way: to another node as its host would, and cut only for that.
    fn leave(&mut self, forwarder: &mut Forwarder) {
        let (Some(to), Some(segment)) = (self.to.take(), self.merger.take()) else { return };
        match to {
            To::Port(port) => write(&forwarder.shared, port, &segment),
            To::Link { .. } if segment.payloads.is_empty() => {
                forwarder.deliver(to, &segment.vnet, segment.header)
            }
            To::Link { .. } => forwarder.deliver(to, &segment.vnet, &whole(&segment)),
        }
    }
}

/// Writes a segment to a port.
fn write(shared: &Shared, port: PortId, segment: &Segment<'_, '_>) {
    let vnet = segment.vnet.encode();
    let mut parts: ArrayVec<IoSlice<'_>, { MOST_PIECES + 2 }> = ArrayVec::new();
    parts.extend([IoSlice::new(&vnet), IoSlice::new(segment.header)]);
    parts.extend(segment.payloads.iter().map(|payload| IoSlice::new(payload)));
    if !shared.write(port, &segment.vnet, &parts) {
        shared.write_pieces(port, &segment.vnet, &whole(segment));
    }
}

/// A segment's bytes in one place.
fn whole(segment: &Segment<'_, '_>) -> Vec<u8> {
    [&[segment.header], segment.payloads].concat().concat()
}

impl Forwarder {
    /// Takes in `datagrams`, which stand one behind the other, all of `each` bytes but for a shorter last one, and which
    /// arrived so long before. True if one of them is spoilt: it is of a session, or came behind one of a session, but
    /// its node has not sealed it so.
    pub fn take(&mut self, from: Source, datagrams: &mut [u8], each: usize, waited: Duration) -> bool {
        let (mut bound, mut known) = (Bound::default(), None::<Arc<Peer>>);
        let (bytes, mut is_spoilt) = (datagrams.len(), false);
        // As no node sends them: they are one, or the kernel's merging is wrong.
        let each = if (HEADER..=bytes).contains(&each) { each } else { bytes.max(1) };
        for datagram in datagrams.chunks_mut(each) {
            let Some(header) = Header::decode(datagram) else {
                is_spoilt |= known.is_some();
                self.shared.counters.count(Counter::Stranger);
                continue;
            };
            if known.as_ref().is_none_or(|peer| peer.session != header.session) {
                let before = known.take();
                known = self.shared.peers.of_session(header.session);
                is_spoilt |= before.is_some() && known.is_none();
            }
            let Some(peer) = &known else {
                self.shared.counters.count(Counter::Stranger);
                continue;
            };
            let length = datagram.len();
            match peer.open(&header, datagram, from) {
                Ok(content) => {
                    if peer.is_expected.load(Ordering::Relaxed) {
                        self.shared.peers.heard(peer, self.shared.now());
                    }
                    self.content(peer, content, &header, (from.carrier(), length), &mut bound);
                }
                Err(reason) => {
                    is_spoilt |= reason == Counter::Forged;
                    self.shared.counters.count(reason);
                }
            }
        }
        bound.leave(self);
        if let Some(peer) = known {
            peer.arrived(bytes, self.shared.now().saturating_sub(waited));
        }
        is_spoilt
    }

    /// Handles the message that `peer` has sent in a datagram of so many bytes by this carrier. Questions are answered
    /// by the same one: an answer through the socket proves that both directions work.
    fn content<'a>(
        &mut self,
        peer: &Peer,
        content: &'a [u8],
        header: &Header,
        (carrier, length): (Carrier, usize),
        bound: &mut Bound<'a>,
    ) {
        let now = self.shared.now();
        match Message::decode(content) {
            Ok(Message::Frame(envelope, frame)) => {
                peer.use_it();
                self.decide_on(peer, &envelope, frame, now);
                if self.goes_many_ways() {
                    // In order with earlier frames.
                    bound.leave(self);
                }
                if let Some(to) = self.spread(&envelope.vnet, frame) {
                    bound.add(self, to, envelope.vnet, frame);
                }
            }
            Ok(Message::Part(envelope, part, bytes)) => {
                peer.use_it();
                let whole = lock(&peer.reassembly).take(&part, bytes, now);
                match whole {
                    Ok(Some(frame)) => {
                        bound.leave(self);
                        self.decide_on(peer, &envelope, &frame, now);
                        if let Some(to) = self.spread(&envelope.vnet, &frame) {
                            self.deliver(to, &envelope.vnet, &frame);
                        }
                    }
                    Ok(None) => {}
                    Err(_) => self.shared.counters.count(Counter::Malformed),
                }
            }
            Ok(Message::Probe(asked)) if usize::from(asked) == length => {
                let answer = Answer { length: asked, lane: header.lane, generation: header.generation };
                // One that is lost is asked for again.
                let back = Way::by(carrier, peer, &self.shared.socket);
                let _ = self.outgoing.tell(back, &answer.encode(), now);
            }
            Ok(Message::Answer(answer)) => {
                if carrier == Carrier::Udp {
                    let length = usize::from(answer.length);
                    peer.search(|mtu| mtu.arrived(length, now));
                    peer.try_bursts(|bursts| bursts.answered(length));
                    // A way that carries shorter ones alone would swallow frames.
                    if length >= BASE {
                        peer.watch(|liveness| liveness.answered(now));
                    }
                }
                peer.sealing(answer.lane).confirm(answer.generation);
            }
            Ok(Message::Report(report)) => {
                if peer.reported(&report).is_err() {
                    self.shared.counters.count(Counter::Malformed);
                    return;
                }
                // The next one asks again.
                let back = Way::by(carrier, peer, &self.shared.socket);
                let _ = self.outgoing.tell(back, &Message::echo(report.stamp), now);
            }
            Ok(Message::Echo(stamp)) => {
                peer.quality().echoed(stamp, now);
            }
            Ok(Message::Probe(_)) | Err(_) => self.shared.counters.count(Counter::Malformed),
        }
    }

    fn decide_on(&mut self, peer: &Peer, envelope: &Envelope, frame: &[u8], now: Duration) {
        let from = From::Link { neighbour: peer.node, label: envelope.label };
        self.decide(from, &envelope.vnet, frame, now);
    }
}
