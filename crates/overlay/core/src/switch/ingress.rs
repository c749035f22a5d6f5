//! Handles a frame from a local port.

use std::time::Duration;

use super::bucket::Flood;
use super::change::is_notice;
use super::path::{Frame, Passing, front, limit};
use super::probe::Probe;
use super::resolution::{self, Claim, Question, Station};
use super::{Destination, Label, Place, PortId, PortKind, Reason, Switch, To, Verdict};
use crate::ethernet::Front;

/// How long signs of a loop are watched that probes should find, and how much longer at most, before a port is blocked.
const PATIENCE: Duration = Duration::from_secs(3);
const SPREAD_NS: u64 = 4_000_000_000;

impl Switch {
    pub(super) fn enter(
        &mut self,
        port: PortId,
        frame: Frame<'_>,
        now: Duration,
        out: &mut Vec<To>,
    ) -> Result<Verdict, Reason> {
        let front = front(frame.bytes)?;
        let is_open = self.ports.get(port).ok_or(Reason::NoPort)?.admits(now);
        let passing = Passing { frame, front, ingress: self.me, forwarded: false, now };
        if let Some(probe) = Probe::of(&front, frame.bytes) {
            self.check_probe_from_port(&probe, port, now)?;
            is_open?;
            return self.relay(port, &passing, out);
        }
        if is_open == Err(Reason::Muted) {
            let (question, owner) = self.question(port, &passing).ok_or(Reason::Muted)?;
            return Ok(Verdict::Answered(question.answer(front.source, owner)));
        }
        is_open?;
        if is_notice(&front, frame.bytes) {
            return Err(Reason::Spoofed);
        }
        self.admit_from_port(&front, port, now)?;
        if front.destination.is_group() {
            self.learn_claim(&passing);
            return match self.question(port, &passing) {
                Some((question, owner)) if self.answered.is_first(front.source, question.target(), now) => {
                    Ok(Verdict::Answered(question.answer(front.source, owner)))
                }
                _ => self.flood_from_port(port, Flood::Broadcast, &passing, out),
            };
        }
        match self.find(&front, now) {
            Some(Place::Port(to)) if to == port => Err(Reason::SamePort),
            Some(Place::Port(to)) => self.hand_over(to, &passing, out),
            Some(Place::Node(node)) => {
                out.push(self.to_node(Destination::Node(node), node, self.me)?);
                Ok(Verdict::Forwarded)
            }
            None => self.flood_from_port(port, Flood::Unknown, &passing, out),
        }
    }

    /// Whether a frame with this source may come from `port`. Learns where the source is.
    fn admit_from_port(&mut self, front: &Front, port: PortId, now: Duration) -> Result<(), Reason> {
        let Some(managed) = self.managed.get(front.source) else {
            self.learn(front, Place::Port(port), now);
            return Ok(());
        };
        match managed.home {
            Some(Place::Port(home)) if home == port => Ok(()),
            _ => Err(self.found_elsewhere(port, now)),
        }
    }

    /// A managed MAC sends from a port that is not its home. An instance that does so lies. If a LAN does so there is
    /// another way to it, mostly the LAN port of another node, which hears the same of this one. If both were blocked no way
    /// would be left. So that is left to probes, which find the loop and agree; where they do not come through, each node has a
    /// patience of its own, and another one each time.
    fn found_elsewhere(&mut self, id: PortId, now: Duration) -> Reason {
        let Some(port) = self.ports.get_mut(id).filter(|port| port.kind == PortKind::Lan) else {
            return Reason::Spoofed;
        };
        let more = self.nonce.rotate_right(port.loops as u32 % u64::BITS) % SPREAD_NS;
        let patience = PATIENCE + Duration::from_nanos(more);
        if port.suspects(patience, now) {
            self.block(id, now);
        }
        Reason::Loop
    }

    /// Of the ports between which a loop goes one is blocked, on a LAN if one is; of two the higher.
    fn check_probe_from_port(&mut self, probe: &Probe, port: PortId, now: Duration) -> Result<(), Reason> {
        if !self.is_own(probe) {
            return Ok(());
        }
        let both = [port, probe.port];
        let is_lan = |id: &PortId| self.ports.get(*id).is_some_and(|port| port.kind == PortKind::Lan);
        if let Some(port) = both.into_iter().filter(is_lan).max().or(both.into_iter().max()) {
            self.block(port, now);
        }
        Err(Reason::Loop)
    }

    /// A question for the MAC of an instance that is not behind the same port. One that has yet to arrive is answered, too: an
    /// asker without an answer repeats the question only a second later, and is silent meanwhile. A question in the name of a foreign address is
    /// flooded: the address may have moved there.
    fn question(&self, port: PortId, passing: &Passing<'_>) -> Option<(Question, Station)> {
        let question = Question::of(&passing.front, passing.frame.bytes)?;
        let (mac, managed) = self.managed.owner(question.target())?;
        let is_elsewhere = managed.home != Some(Place::Port(port)) && mac != passing.front.source;
        (is_elsewhere && !self.managed.is_disputed(question.asker()))
            .then(|| (question, managed.station(mac)))
    }

    /// Learns from the claims of the sender.
    pub(super) fn learn_claim(&mut self, passing: &Passing<'_>) {
        let sender = passing.front.source;
        match resolution::claim(&passing.front, passing.frame.bytes) {
            Some(Claim::Address(address)) => self.managed.learn_claim(address, sender),
            Some(Claim::Router(address)) => self.managed.learn_router(address, sender),
            None => {}
        }
    }

    fn flood_from_port(
        &mut self,
        from: PortId,
        kind: Flood,
        passing: &Passing<'_>,
        out: &mut Vec<To>,
    ) -> Result<Verdict, Reason> {
        let port = self.ports.get_mut(from).ok_or(Reason::NoPort)?;
        port.floods(passing.now);
        limit(&mut port.flood, kind, passing)?;
        out.extend(self.ports.open(passing.now).filter(|port| *port != from).map(To::Port));
        self.to_everyone(out);
        Ok(Verdict::Flooded)
    }

    /// Another's probe goes to the nodes (one of them may have sent it), but to no port: the probe finds out whether
    /// one LAN has two ways in.
    fn relay(&mut self, from: PortId, passing: &Passing<'_>, out: &mut Vec<To>) -> Result<Verdict, Reason> {
        let port = self.ports.get_mut(from).ok_or(Reason::NoPort)?;
        limit(&mut port.flood, Flood::Probe, passing)?;
        self.to_everyone(out);
        Ok(Verdict::Flooded)
    }

    /// To this node's children in its own tree.
    pub(super) fn to_everyone(&self, out: &mut Vec<To>) {
        let Some(routes) = self.versions.current() else { return };
        let (version, hops) = (routes.version(), routes.most_hops());
        let label = Label { version, ingress: self.me, to: Destination::Everyone, hops };
        out.extend(routes.children(self.me).map(|neighbour| To::Link { neighbour, label }));
    }
}
