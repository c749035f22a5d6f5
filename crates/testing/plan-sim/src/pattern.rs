//! How loads change with time.

use std::time::Duration;

use crate::cluster::Cluster;
use crate::trace::Trace;

/// A load that changes with time.
pub enum Pattern {
    /// Always the same, with some noise.
    Steady,
    /// Half of the applications pause every few minutes; the others change their partners every two hours.
    Oscillating,
    /// Pairs are silent for most of the time, and instances need their processors for some minutes only.
    Bursty,
    /// As recorded.
    Recorded(Box<Trace>),
}

/// A fast oscillation: faster than the hold time of 5 minutes.
const FAST: u64 = 240;

/// A slow one, longer than the hold time, the cool-down and the hour.
const SLOW: u64 = 4 * 3600;

/// The length of a burst.
const BURST: u64 = 120;

/// The share of an oscillating load in its low phase.
const LOW: u64 = 20;

impl Pattern {
    /// The name for reports.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Steady => "steady",
            Self::Oscillating => "oscillating",
            Self::Bursty => "bursty",
            Self::Recorded(_) => "recorded",
        }
    }

    /// Bytes a second of each flow.
    #[must_use]
    pub fn rates(&self, cluster: &Cluster, at: Duration) -> Vec<u64> {
        let seconds = at.as_secs();
        let rate = |(number, flow): (usize, &crate::cluster::Flow)| match self {
            Self::Steady => noisy(flow.rate, number, seconds),
            Self::Oscillating if application_is_fast(flow.one) => phase(flow.rate, seconds, FAST, 0),
            // Of two flows of an instance, one is high while the other is low.
            Self::Oscillating => phase(flow.rate, seconds, SLOW, number as u64 % 2 * SLOW / 2),
            Self::Bursty => {
                if random(number, seconds / BURST).is_multiple_of(8) {
                    flow.rate
                } else {
                    0
                }
            }
            Self::Recorded(trace) => trace.rate(number, seconds),
        };
        cluster.flows.iter().enumerate().map(rate).collect()
    }

    /// Thousandths of a processor of each instance.
    #[must_use]
    pub fn processors(&self, cluster: &Cluster, at: Duration) -> Vec<u64> {
        let seconds = at.as_secs();
        let cpu = |(number, need): (usize, &crate::cluster::Need)| match self {
            Self::Steady => noisy(need.cpu, number, seconds),
            Self::Oscillating if application_is_fast(number) => phase(2 * need.cpu, seconds, FAST, 0),
            Self::Oscillating => phase(2 * need.cpu, seconds, SLOW, number as u64 % 4 * SLOW / 4),
            Self::Bursty => {
                if random(number, seconds / BURST).is_multiple_of(4) {
                    3 * need.cpu
                } else {
                    need.cpu / 4
                }
            }
            Self::Recorded(trace) => trace.cpu(number, seconds),
        };
        cluster.needs.iter().enumerate().map(cpu).collect()
    }
}

/// Neighbouring numbers mostly belong to one application.
fn application_is_fast(instance: usize) -> bool {
    (instance / 16).is_multiple_of(2)
}

/// `high` in one half of the period, and a share of it in the other.
fn phase(high: u64, seconds: u64, period: u64, shift: u64) -> u64 {
    if (seconds + shift) % period < period / 2 { high } else { high / LOW }
}

/// Up to 10 % more or less.
fn noisy(level: u64, number: usize, seconds: u64) -> u64 {
    level * (90 + random(number, seconds) % 21) / 100
}

/// The same number for the same arguments (SplitMix64).
fn random(number: usize, time: u64) -> u64 {
    let mut state = (number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(time);
    state = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    state ^ (state >> 31)
}
