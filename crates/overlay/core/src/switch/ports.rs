//! Local attachments.
//!
//! ```text
//!            prepare               commit here            resume
//!   Open ───────────────▶ Muted ──────────────▶ Muted ──────────────▶ Open      at a move's destination
//!     ▲                     │ abort
//!     ├─────────────────────┘
//!     │                   unpause
//!     ├───────────── Held, Paused                                               at its source
//!     └─ hold ──▶ Held ── pause ──▶ Paused, also without `hold`
//!                           │ commit elsewhere
//!                           └──▶ Paused, until the port is detached or a MAC is committed to it
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::PortId;
use super::bucket::{FloodLimits, FloodRates};
use super::counters::Reason;

/// How long a port stays blocked after its first loop, since that was last seen.
const FIRST_BLOCK: Duration = Duration::from_secs(5);

/// How long it stays so at most. A port that was open for as long is blocked as for its first loop again.
const LONGEST_BLOCK: Duration = Duration::from_secs(320);

/// The longest silence between two signs of a loop.
const SILENCE: Duration = Duration::from_secs(2);

/// How often a port is probed for loops that may be in one.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// An instance is not probed as long as it sends no more than so many broadcasts in a second. In a loop there are more.
const FEW: u32 = 20;

/// The kind of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PortKind {
    /// An instance.
    Instance,
    /// A physical LAN, on which there may be any number of stations, and other ways to where we are.
    Lan,
}

/// Whether a port's instance runs, with regard to moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Gate {
    /// It does.
    Open,
    /// Not yet.
    Muted,
    /// Not any more, unless its move is rolled back.
    Paused,
    /// It does, and is about to stop: it still sends, but gets nothing any more.
    Held,
}

/// A local attachment.
#[derive(Clone, Debug)]
pub(super) struct Port {
    pub kind: PortKind,
    pub gate: Gate,
    pub flood: FloodLimits,
    /// Loops that were found here.
    pub loops: u64,
    blocked_until: Duration,
    block: Duration,
    /// Whether it was blocked when that was last looked at.
    was_blocked: bool,
    /// Frames that go to all since a second began, and when that was.
    recent: (u32, Duration),
    probed: Option<Duration>,
    /// When a sign of a loop was first and last seen that probes should find.
    suspected: Option<(Duration, Duration)>,
}

impl Port {
    fn new(kind: PortKind, rates: FloodRates) -> Self {
        Self {
            kind,
            gate: Gate::Open,
            flood: FloodLimits::new(rates),
            loops: 0,
            blocked_until: Duration::ZERO,
            block: Duration::ZERO,
            was_blocked: false,
            recent: (0, Duration::ZERO),
            probed: None,
            suspected: None,
        }
    }

    /// Whether frames may come from it.
    #[inline]
    pub fn admits(&self, now: Duration) -> Result<(), Reason> {
        match self.gate {
            _ if self.is_blocked(now) => Err(Reason::Blocked),
            Gate::Open | Gate::Held => Ok(()),
            Gate::Muted => Err(Reason::Muted),
            Gate::Paused => Err(Reason::Paused),
        }
    }

    /// Whether frames may go to it.
    #[inline]
    pub fn takes(&self, now: Duration) -> Result<(), Reason> {
        match self.gate {
            Gate::Held => self.admits(now).and(Err(Reason::Paused)),
            _ => self.admits(now),
        }
    }

    /// Whether it is blocked because of a loop.
    #[inline]
    pub fn is_blocked(&self, now: Duration) -> bool {
        now < self.blocked_until
    }

    /// How long it stays blocked, unless the loop is seen again.
    pub fn blocked_for(&self, now: Duration) -> Duration {
        self.blocked_until.saturating_sub(now)
    }

    /// A loop was found. The port is blocked for it, each time twice as long. One that is blocked stays so while the loop is
    /// there.
    fn found_loop(&mut self, now: Duration) -> bool {
        if self.is_blocked(now) {
            self.blocked_until = now + self.block;
            return false;
        }
        let is_first = self.loops == 0 || now > self.blocked_until + LONGEST_BLOCK;
        self.block = if is_first { FIRST_BLOCK } else { (self.block * 2).min(LONGEST_BLOCK) };
        self.blocked_until = now + self.block;
        self.was_blocked = true;
        self.loops += 1;
        true
    }

    /// Whether a block has ended since this was last called.
    fn has_opened(&mut self, now: Duration) -> bool {
        let has_opened = self.was_blocked && !self.is_blocked(now);
        self.was_blocked &= !has_opened;
        has_opened
    }

    /// A sign of a loop that probes should find, so that it ends. Returns whether it has not ended for as long as `patience`.
    pub fn suspects(&mut self, patience: Duration, now: Duration) -> bool {
        let since = self.suspected.filter(|(_, last)| now <= *last + SILENCE).map_or(now, |(first, _)| first);
        self.suspected = Some((since, now));
        now >= since + patience
    }

    /// A frame that goes to all has come from it.
    pub fn floods(&mut self, now: Duration) {
        const SECOND: Duration = Duration::from_secs(1);
        let (count, since) = self.recent;
        self.recent = if now < since + SECOND { (count.saturating_add(1), since) } else { (1, now) };
    }

    /// True if it may be in a loop. A LAN always may; an instance that bridges to another one's device shows it by its
    /// looping frames.
    fn may_be_in_loop(&self, now: Duration) -> bool {
        self.kind == PortKind::Lan || self.recent.0 > FEW && now < self.recent.1 + 2 * PROBE_INTERVAL
    }

    /// Whether a loop probe is due; if so it counts as sent. One that is blocked is probed, too: while probes come back the
    /// loop is still there.
    fn probes(&mut self, now: Duration) -> bool {
        let is_due = self.probed.is_none_or(|probed| now >= probed + PROBE_INTERVAL);
        let is_asked = self.may_be_in_loop(now) || self.is_blocked(now);
        let probes = is_asked && is_due && self.gate == Gate::Open;
        if probes {
            self.probed = Some(now);
        }
        probes
    }
}

/// The ports of a node, in ascending order: flooded frames leave them in the same order every time.
#[derive(Default)]
pub(super) struct Ports(BTreeMap<PortId, Port>);

impl Ports {
    pub fn attach(&mut self, id: PortId, kind: PortKind, rates: FloodRates) {
        self.0.insert(id, Port::new(kind, rates));
    }

    pub fn detach(&mut self, id: PortId) -> bool {
        self.0.remove(&id).is_some()
    }

    #[inline]
    pub fn get(&self, id: PortId) -> Option<&Port> {
        self.0.get(&id)
    }

    pub fn get_mut(&mut self, id: PortId) -> Option<&mut Port> {
        self.0.get_mut(&id)
    }

    pub fn iter(&self) -> impl Iterator<Item = (PortId, &Port)> {
        self.0.iter().map(|(id, port)| (*id, port))
    }

    /// The ports that take frames for all.
    pub fn open(&self, now: Duration) -> impl Iterator<Item = PortId> {
        self.iter().filter(move |(_, port)| port.takes(now).is_ok()).map(|(id, _)| id)
    }

    pub fn set_gate(&mut self, id: PortId, gate: Gate) {
        if let Some(port) = self.0.get_mut(&id) {
            port.gate = gate;
        }
    }

    /// A loop goes through the port. Returns whether it is blocked from now on.
    pub fn found_loop(&mut self, id: PortId, now: Duration) -> bool {
        self.0.get_mut(&id).is_some_and(|port| port.found_loop(now))
    }

    /// Looks whether blocks have ended since this was last called.
    pub fn have_opened(&mut self, now: Duration) -> bool {
        self.0.values_mut().fold(false, |opened, port| port.has_opened(now) | opened)
    }

    /// Whether there is one on a LAN.
    pub fn have_lan(&self) -> bool {
        self.0.values().any(|port| port.kind == PortKind::Lan)
    }

    /// Those on a LAN that is not blocked.
    pub fn open_lans(&self, now: Duration) -> impl Iterator<Item = PortId> {
        self.open(now).filter(|id| self.0.get(id).is_some_and(|port| port.kind == PortKind::Lan))
    }

    /// The ports that a loop probe leaves now.
    pub fn due_probes(&mut self, now: Duration) -> impl Iterator<Item = PortId> {
        self.0.iter_mut().filter_map(move |(id, port)| port.probes(now).then_some(*id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::switch::Limits;

    const SECOND: Duration = Duration::from_secs(1);

    fn ports() -> Ports {
        let mut ports = Ports::default();
        let rates = Limits::default().port_flood;
        ports.attach(PortId(1), PortKind::Lan, rates);
        ports.attach(PortId(2), PortKind::Instance, rates);
        ports
    }

    #[test]
    fn blocks_grow_are_bounded_and_forgotten() {
        let (mut ports, id) = (ports(), PortId(1));
        let mut now = SECOND;
        let mut blocks = vec![];
        for _ in 0..9 {
            assert!(ports.found_loop(id, now));
            assert!(!ports.have_opened(now));
            assert!(!ports.found_loop(id, now), "a blocked port is not blocked again");
            blocks.push(ports.get(id).unwrap().blocked_for(now).as_secs());
            now += ports.get(id).unwrap().blocked_for(now);
            assert!(!ports.get(id).unwrap().is_blocked(now));
            assert!(ports.have_opened(now) && !ports.have_opened(now));
        }
        assert_eq!(blocks, [5, 10, 20, 40, 80, 160, 320, 320, 320]);
        now += LONGEST_BLOCK + SECOND;
        assert!(ports.found_loop(id, now));
        assert_eq!(ports.get(id).unwrap().blocked_for(now), FIRST_BLOCK);
        assert!(!ports.found_loop(PortId(3), now));
    }

    #[test]
    fn a_block_lasts_while_the_loop_is_seen() {
        let (mut ports, id) = (ports(), PortId(1));
        assert!(ports.found_loop(id, SECOND));
        for now in 2..100 {
            assert!(!ports.found_loop(id, SECOND * now), "that is the same loop");
        }
        let port = ports.get(id).unwrap();
        assert!(port.is_blocked(SECOND * 103) && !port.is_blocked(SECOND * 104));
        assert_eq!(port.loops, 1);
    }

    #[test]
    fn lans_are_probed_every_second_also_when_they_are_blocked() {
        let mut ports = ports();
        let due = |ports: &mut Ports, now| ports.due_probes(now).collect::<Vec<_>>();
        assert_eq!(due(&mut ports, SECOND), [PortId(1)]);
        assert_eq!(due(&mut ports, SECOND * 3 / 2), []);
        assert_eq!(due(&mut ports, SECOND * 2), [PortId(1)]);
        ports.found_loop(PortId(1), SECOND * 2);
        assert_eq!(due(&mut ports, SECOND * 4), [PortId(1)]);
        ports.set_gate(PortId(1), Gate::Paused);
        assert_eq!(due(&mut ports, SECOND * 6), []);
    }
}
