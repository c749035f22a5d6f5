//! Estimates how long a move will take, from past moves.
//!
//! The model is a line: a fixed time for each move plus a time for each byte, fitted to the last moves by least squares. Sizes far
//! beyond those of past moves get no estimate.

use std::collections::VecDeque;

use api::{EnginePart, MoveFigures, MoveReport, Outcome};

/// Number of past moves that are remembered; the oldest are dropped.
const MOST: usize = 64;

/// Below this size in bytes, size does not influence the estimate.
const SMALL: u64 = 16 << 20;

/// How many times larger than the largest past move an instance may be.
const REACH: u64 = 2;

/// The last moves.
#[derive(Default)]
pub struct Experience(VecDeque<MoveFigures>);

/// The expected duration of a move, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// From the begin of the move to its end.
    pub total_us: u64,
    /// The blackout.
    pub blackout_us: u64,
}

impl Experience {
    /// Adds the figures of a completed move.
    pub fn learn(&mut self, figures: MoveFigures) {
        self.0.truncate(MOST - 1);
        self.0.push_front(figures);
    }

    /// Adds a move that is over. Ignores moves that were rolled back, have no measurements, or were made with post-copy.
    pub fn learn_from(&mut self, report: &MoveReport) {
        let EnginePart { image_bytes, precopied_bytes, demanded_bytes, pushed_bytes, .. } = report.engine;
        let is_whole = demanded_bytes + pushed_bytes == 0;
        if report.outcome == Outcome::Moved && !report.restarted && is_whole {
            self.learn(MoveFigures {
                total_us: report.total_us,
                blackout_us: report.blackout_us,
                image_bytes,
                precopied_bytes,
                fetched_bytes: 0,
            });
        }
    }

    /// The estimate for a move of this size; `None` if no past move was of a similar size.
    pub fn estimate(&self, bytes: u64) -> Option<Estimate> {
        let largest = self.0.iter().map(size).max()?;
        let bytes = bytes.max(SMALL);
        if bytes > largest.saturating_mul(REACH) {
            return None;
        }
        let of = |figure: fn(&MoveFigures) -> u64| self.fitted(bytes as f64, figure);
        Some(Estimate { total_us: of(|of| of.total_us)?, blackout_us: of(|of| of.blackout_us)? })
    }

    /// The value of the best-fitting, non-decreasing line at `bytes`.
    fn fitted(&self, bytes: f64, figure: fn(&MoveFigures) -> u64) -> Option<u64> {
        let points = || self.0.iter().map(|of| (size(of) as f64, figure(of) as f64));
        let count = self.0.len() as f64;
        let (sizes, times) =
            points().fold((0.0, 0.0), |(sizes, times), (size, time)| (sizes + size, times + time));
        let (mean_size, mean_time) = (sizes / count, times / count);
        let spread: f64 = points().map(|(size, _)| (size - mean_size).powi(2)).sum();
        let common: f64 = points().map(|(size, time)| (size - mean_size) * (time - mean_time)).sum();
        // If all sizes are alike, their times determine no slope.
        let tells = (spread / count).sqrt() > mean_size / 4.0;
        let slope = if tells { (common / spread).max(0.0) } else { 0.0 };
        let least = points().map(|(_, time)| time).reduce(f64::min)?;
        // The estimate for a small instance is not below the fastest past move.
        Some((mean_time + slope * (bytes - mean_size)).max(least) as u64)
    }
}

fn size(of: &MoveFigures) -> u64 {
    of.image_bytes.max(SMALL)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Past moves as pairs of MiB and duration.
    fn experience(of: &[(u64, u64)]) -> Experience {
        let mut experience = Experience::default();
        for (size, total_us) in of {
            let (blackout_us, image_bytes) = (total_us / 2, size * MIB);
            experience.learn(MoveFigures {
                total_us: *total_us,
                blackout_us,
                image_bytes,
                precopied_bytes: 0,
                fetched_bytes: 0,
            });
        }
        experience
    }

    fn total(of: &[(u64, u64)], size: u64) -> Option<u64> {
        experience(of).estimate(size * MIB).map(|estimate| estimate.total_us)
    }

    #[test]
    fn an_estimate_fits_the_last_moves() {
        assert_eq!(total(&[], 100), None);
        assert_eq!(total(&[(100, 20), (200, 30)], 400), Some(50), "10 for a move, and 1 for each 10 MiB");
        assert_eq!(total(&[(100, 20), (200, 30)], 0), Some(20), "not less than the fastest past move");
        assert_eq!(total(&[(100, 30), (200, 20)], 300), Some(25), "a larger one is not faster");
        assert_eq!(experience(&[(100, 20)]).estimate(1).unwrap().blackout_us, 10);
    }

    #[test]
    fn moves_of_similar_size_do_not_define_a_slope() {
        assert_eq!(total(&[(100, 20), (200, 30)], 401), None, "no past move was so large");
        assert_eq!(total(&[(100, 20), (101, 30)], 200), Some(25), "all were alike");
        assert_eq!(total(&[(0, 20), (1, 30), (9, 40)], 32), Some(30), "all sizes are small");
    }

    #[test]
    fn old_moves_are_forgotten() {
        let moves: Vec<_> = std::iter::once((1, 1_000_000)).chain([(1, 10); MOST]).collect();
        assert_eq!(total(&moves, 1), Some(10));
    }
}
