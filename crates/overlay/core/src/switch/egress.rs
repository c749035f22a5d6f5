//! Handles a frame from another node.

use std::time::Duration;

use super::bucket::{Flood, FloodLimits};
use super::change::is_notice;
use super::path::{Frame, Passing, front, limit};
use super::probe::Probe;
use super::{Destination, Label, Place, Reason, Switch, To, Verdict};
use crate::ethernet::Front;
use crate::mac::Mac;
use crate::topology::{NodeId, Routes};

impl Switch {
    pub(super) fn take(
        &mut self,
        neighbour: NodeId,
        label: Label,
        frame: Frame<'_>,
        now: Duration,
        out: &mut Vec<To>,
    ) -> Result<Verdict, Reason> {
        let routes = self.versions.get(label.version).ok_or(Reason::UnknownVersion)?;
        match label.to {
            Destination::Node(_) if label.ingress == self.me => Err(Reason::Loop),
            Destination::Node(_) if !routes.brings(neighbour, label.ingress) => Err(Reason::ReversePath),
            Destination::Node(node) | Destination::Forwarded(node) if node != self.me => {
                out.push(transit(routes, neighbour, label, node)?);
                Ok(Verdict::Forwarded)
            }
            Destination::Node(_) => self.arrive(label.ingress, false, frame, now, out),
            Destination::Forwarded(_) => self.arrive(label.ingress, true, frame, now, out),
            Destination::Everyone => self.spread(neighbour, label, frame, now, out),
        }
    }

    /// A frame that came in at the node `ingress`, for one MAC, which should be here. `forwarded`: a node has sent it on
    /// after this MAC.
    pub(super) fn arrive(
        &mut self,
        ingress: NodeId,
        forwarded: bool,
        frame: Frame<'_>,
        now: Duration,
        out: &mut Vec<To>,
    ) -> Result<Verdict, Reason> {
        let front = front(frame.bytes)?;
        if front.destination.is_group() {
            return Err(Reason::Malformed);
        }
        let passing = Passing { frame, front, ingress, forwarded, now };
        if forwarded && !self.is_followed(front.destination, now) {
            return Err(Reason::Stale);
        }
        if !self.is_own_forwarded(&passing) {
            self.admit_from_node(&front, ingress, now)?;
        }
        match self.find(&front, now) {
            Some(Place::Port(port)) => self.hand_over(port, &passing, out),
            _ => self.forward_or_keep(&passing, out),
        }
    }

    /// Whether nodes may send on the frames that they received for `mac`. The way of such a frame does not show its
    /// ingress node, so a node that lies about it is believed for so long only.
    fn is_followed(&self, mac: Mac, now: Duration) -> bool {
        self.moves.is_moving(mac) || self.managed.get(mac).is_some_and(|managed| managed.is_followed(now))
    }

    /// A remote MAC has moved here, and a frame of a station here to it comes after that: the source was checked when
    /// the frame left.
    fn is_own_forwarded(&self, passing: &Passing<'_>) -> bool {
        passing.forwarded && passing.ingress == self.me
    }

    /// The destination is not here. It may be about to come, or have left.
    fn forward_or_keep(&mut self, passing: &Passing<'_>, out: &mut Vec<To>) -> Result<Verdict, Reason> {
        if let Some(kept) = self.moves.keep_for_arrival(passing, &self.limits) {
            return kept;
        }
        let managed = self.managed.get(passing.front.destination).ok_or(Reason::Stale)?;
        match managed.home {
            Some(Place::Node(node)) if managed.is_forwarded(passing.now) && !passing.forwarded => {
                out.push(self.to_node(Destination::Forwarded(node), node, passing.ingress)?);
                Ok(Verdict::Forwarded)
            }
            _ => Err(Reason::Stale),
        }
    }

    /// A frame for everyone: to the children in the tree of its ingress node, and to the ports here.
    fn spread(
        &mut self,
        neighbour: NodeId,
        label: Label,
        frame: Frame<'_>,
        now: Duration,
        out: &mut Vec<To>,
    ) -> Result<Verdict, Reason> {
        let routes = self.versions.get(label.version).ok_or(Reason::UnknownVersion)?;
        if routes.next_hop(label.ingress) != Some(neighbour) {
            return Err(Reason::ReversePath);
        }
        let front = front(frame.bytes)?;
        let passing = Passing { frame, front, ingress: label.ingress, forwarded: false, now };
        let probe = Probe::of(&front, frame.bytes);
        let is_notice = is_notice(&front, frame.bytes);
        let own = if is_notice { Some(Flood::Notice) } else { probe.as_ref().map(|_| Flood::Probe) };
        self.limit_node(own, &passing)?;
        let before = out.len();
        self.pass_on(label, out);
        let delivered = match probe {
            Some(probe) => self.check_probe_from_node(&probe, label.ingress, now),
            None if is_notice => {
                self.on_change_notice(now);
                Ok(())
            }
            None => self.admit_from_node(&front, label.ingress, now).and_then(|()| {
                self.learn_claim(&passing);
                self.deliver(&passing, out)
            }),
        };
        // Others decide for themselves which nodes they believe.
        match delivered {
            Err(reason) if out.len() == before => return Err(reason),
            Err(reason) => self.counters.drop(reason),
            Ok(()) => {}
        }
        Ok(Verdict::Flooded)
    }

    /// Counts a frame of the ingress node for many. `own`: its kind if it is a frame of the nodes' own.
    fn limit_node(&mut self, own: Option<Flood>, passing: &Passing<'_>) -> Result<(), Reason> {
        let many = if passing.front.destination.is_group() { Flood::Broadcast } else { Flood::Unknown };
        let kind = own.unwrap_or(many);
        let rates = self.limits.node_flood;
        let limits = self.node_flood.entry(passing.ingress).or_insert_with(|| FloodLimits::new(rates));
        limit(limits, kind, passing)
    }

    /// To the children in the tree of the ingress node.
    fn pass_on(&mut self, label: Label, out: &mut Vec<To>) {
        let Some(routes) = self.versions.get(label.version) else { return };
        let mut children = routes.children(label.ingress).peekable();
        match next(label) {
            Some(label) => out.extend(children.map(|neighbour| To::Link { neighbour, label })),
            None if children.peek().is_some() => self.counters.drop(Reason::Loop),
            None => {}
        }
    }

    /// To the ports here that take frames for everyone.
    fn deliver(&self, passing: &Passing<'_>, out: &mut Vec<To>) -> Result<(), Reason> {
        let (destination, now) = (passing.front.destination, passing.now);
        let place = if destination.is_group() { None } else { self.find(&passing.front, now) };
        // It came to all nodes. Of two of them each may hold that the MAC is its own, one now and one before a move.
        let managed = self.managed.get(destination);
        let is_settled = managed.is_none_or(|managed| managed.is_settled(now, self.limits.grace));
        match place {
            None => out.extend(self.ports.open(now).map(To::Port)),
            Some(Place::Port(_)) if !is_settled => return Err(Reason::Stale),
            Some(Place::Port(port)) => {
                self.ports.get(port).ok_or(Reason::NoPort)?.admits(now)?;
                out.push(To::Port(port));
            }
            Some(Place::Node(_)) => {}
        }
        Ok(())
    }

    /// Whether a frame with this source may come in at the node `ingress`. Learns where the source is.
    fn admit_from_node(&mut self, front: &Front, ingress: NodeId, now: Duration) -> Result<(), Reason> {
        match self.managed.get(front.source) {
            Some(managed) if managed.sends_from(ingress, now) => Ok(()),
            Some(_) => Err(Reason::Spoofed),
            None => {
                self.learn(front, Place::Node(ingress), now);
                Ok(())
            }
        }
    }

    /// The LAN here brings frames of this node to another node. One of the two blocks its port: the higher.
    fn check_probe_from_node(&mut self, probe: &Probe, ingress: NodeId, now: Duration) -> Result<(), Reason> {
        if !self.is_own(probe) {
            return Ok(());
        }
        if self.me >= ingress {
            self.block(probe.port, now);
        }
        Err(Reason::Loop)
    }
}

/// The label with which a frame goes on; `None` if it has gone far enough.
fn next(label: Label) -> Option<Label> {
    let hops = label.hops.checked_sub(1).filter(|hops| *hops > 0)?;
    Some(Label { hops, ..label })
}

/// A frame between two other nodes goes on by its label alone.
fn transit(routes: &Routes, from: NodeId, label: Label, node: NodeId) -> Result<To, Reason> {
    let neighbour = routes.next_hop(node).ok_or(Reason::Unreachable)?;
    let label = next(label).filter(|_| neighbour != from).ok_or(Reason::Loop)?;
    Ok(To::Link { neighbour, label })
}
