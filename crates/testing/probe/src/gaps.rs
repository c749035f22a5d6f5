//! Gaps: times without an answer.

use std::time::{Duration, Instant};

/// Shorter gaps are ignored: on a busy machine the scheduler causes them.
pub const LEAST: Duration = Duration::from_millis(2);

/// The most gaps that are stored. Later ones are dropped.
const CAPACITY: usize = 1 << 16;

/// A time without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The last answer before it.
    pub from: Instant,
    /// The first answer after it.
    pub to: Instant,
    /// Number of packets in between that were never answered.
    pub lost: u64,
}

impl Gap {
    /// The length of the gap.
    #[must_use]
    pub fn duration(&self) -> Duration {
        self.to.saturating_duration_since(self.from)
    }
}

/// The gaps of [`LEAST`] or more between answers.
#[derive(Clone, Debug, Default)]
pub struct Gaps {
    last: Option<(u64, Instant)>,
    answered: u64,
    found: Vec<Gap>,
}

impl Gaps {
    /// Records the answer to packet `sequence`. An answer after that of a later packet is ignored.
    pub fn note(&mut self, sequence: u64, now: Instant) {
        let Some((before, from)) = self.last else {
            self.last = Some((sequence, now));
            self.answered = 1;
            return;
        };
        if sequence <= before {
            return;
        }
        self.answered += 1;
        self.last = Some((sequence, now));
        let gap = Gap { from, to: now, lost: sequence - before - 1 };
        if gap.duration() >= LEAST && self.found.len() < CAPACITY {
            self.found.push(gap);
        }
    }

    /// Number of packets answered in order.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.answered
    }

    /// The time of the last answer.
    #[must_use]
    pub fn last_answer(&self) -> Option<Instant> {
        self.last.map(|(_, at)| at)
    }

    /// The longest gap that overlaps the time from `from` to `to`; `None` if all were shorter than
    /// [`LEAST`].
    #[must_use]
    pub fn longest_within(&self, from: Instant, to: Instant) -> Option<Gap> {
        let overlapping = self.found.iter().filter(|gap| gap.to >= from && gap.from <= to);
        overlapping.max_by_key(|gap| gap.duration()).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_gap_of_a_time_is_found_with_its_losses() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut gaps = Gaps::default();
        for (sequence, millis) in [(0, 0), (1, 1), (41, 101), (40, 102), (42, 103), (60, 403)] {
            gaps.note(sequence, at(millis));
        }
        let first = gaps.longest_within(at(0), at(102)).unwrap();
        assert_eq!((first.duration(), first.lost), (Duration::from_millis(100), 39));
        assert_eq!(gaps.longest_within(at(200), at(500)).unwrap().lost, 17);
        assert_eq!(gaps.longest_within(at(500), at(600)), None);
        assert_eq!(gaps.answered(), 5);
    }
}
