//! Rate limits of broadcast and flooded frames.

use std::time::Duration;

/// Nanoseconds of a second: levels are counted in tokens of this many parts.
const PARTS: u64 = 1_000_000_000;

/// How much may pass, in the mean; at a time, so much as in one second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Frames per second.
    pub frames: u32,
    /// Bytes per second.
    pub bytes: u32,
}

/// The limit of flooded frames from one port, or from one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FloodRates {
    /// Frames to a MAC with an unknown place.
    pub unknown: Rate,
    /// Frames to all, or to a group.
    pub broadcast: Rate,
}

/// The kinds of flooded frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flood {
    /// A frame to a MAC with an unknown place.
    Unknown,
    /// A frame to all, or to a group.
    Broadcast,
    /// A loop probe: it has to pass above all when the others are at their limit.
    Probe,
    /// A notice of a change, too.
    Notice,
}

/// Of all nodes' probes, those of hundreds pass; they are for finding loops, and one is enough.
const PROBES: Rate = Rate { frames: 256, bytes: 256 * 64 };

/// More than a node has to say. Stations may send probes, but no notices: these have a limit of their own.
const NOTICES: Rate = Rate { frames: 16, bytes: 16 * 64 };

/// Tokens of one kind.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    rate: u64,
    /// In parts.
    level: u64,
}

impl Bucket {
    fn full(rate: u32) -> Self {
        let rate = u64::from(rate);
        Self { rate, level: rate * PARTS }
    }

    fn refill(&mut self, elapsed: Duration) {
        let elapsed = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        self.level = self.level.saturating_add(elapsed.saturating_mul(self.rate)).min(self.rate * PARTS);
    }

    fn after(&self, tokens: usize) -> Option<u64> {
        self.level.checked_sub((tokens as u64).checked_mul(PARTS)?)
    }
}

/// A limit on frames and bytes.
#[derive(Clone, Copy, Debug)]
struct Limit {
    frames: Bucket,
    bytes: Bucket,
    refilled: Duration,
}

impl Limit {
    fn new(rate: Rate) -> Self {
        let refilled = Duration::ZERO;
        Self { frames: Bucket::full(rate.frames), bytes: Bucket::full(rate.bytes), refilled }
    }

    fn admits(&mut self, bytes: usize, now: Duration) -> bool {
        let elapsed = now.saturating_sub(self.refilled);
        self.refilled = self.refilled.max(now);
        self.frames.refill(elapsed);
        self.bytes.refill(elapsed);
        let (Some(frames), Some(bytes)) = (self.frames.after(1), self.bytes.after(bytes)) else {
            return false;
        };
        (self.frames.level, self.bytes.level) = (frames, bytes);
        true
    }
}

/// The limits of one port or node.
#[derive(Clone, Copy, Debug)]
pub(super) struct FloodLimits {
    unknown: Limit,
    broadcast: Limit,
    probes: Limit,
    notices: Limit,
}

impl FloodLimits {
    pub fn new(rates: FloodRates) -> Self {
        let rates = [rates.unknown, rates.broadcast, PROBES, NOTICES];
        let [unknown, broadcast, probes, notices] = rates.map(Limit::new);
        Self { unknown, broadcast, probes, notices }
    }

    /// Whether a frame of `bytes` may pass now; if so it counts.
    pub fn admits(&mut self, kind: Flood, bytes: usize, now: Duration) -> bool {
        let limit = match kind {
            Flood::Unknown => &mut self.unknown,
            Flood::Broadcast => &mut self.broadcast,
            Flood::Probe => &mut self.probes,
            Flood::Notice => &mut self.notices,
        };
        limit.admits(bytes, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn limits() -> FloodLimits {
        let rate = |frames| Rate { frames, bytes: 1000 };
        FloodLimits::new(FloodRates { unknown: rate(10), broadcast: rate(5) })
    }

    fn passing(limits: &mut FloodLimits, kind: Flood, bytes: usize, now: Duration) -> usize {
        (0..100).filter(|_| limits.admits(kind, bytes, now)).count()
    }

    #[test]
    fn frames_and_bytes_are_limited_separately() {
        let mut limits = limits();
        assert_eq!(passing(&mut limits, Flood::Unknown, 64, SECOND), 10);
        assert_eq!(passing(&mut limits, Flood::Broadcast, 64, SECOND), 5);
        assert_eq!(passing(&mut limits, Flood::Probe, 1025, SECOND), 15);
        assert_eq!(passing(&mut limits, Flood::Notice, 64, SECOND), 16, "also under forged probes");
        assert_eq!(passing(&mut limits, Flood::Unknown, 64, SECOND * 3 / 2), 5);
        assert_eq!(passing(&mut limits, Flood::Unknown, 300, SECOND * 100), 3);
        assert_eq!(passing(&mut limits, Flood::Unknown, 64, SECOND), 1, "time that goes back gives nothing");
    }

    #[test]
    fn a_frame_larger_than_the_bucket_never_passes() {
        assert_eq!(passing(&mut limits(), Flood::Broadcast, 1001, Duration::MAX), 0);
        assert_eq!(passing(&mut limits(), Flood::Broadcast, usize::MAX, Duration::MAX), 0);
    }
}
