//! The rounds of a pre-copy: decides which one is the last, and estimates progress and remaining time from measurements.
//!
//! A round takes the time to read all memory, or to send its new pages, whichever is longer. The ratio of new pages in the last two
//! rounds predicts those of the next ones; after the first round there is no such ratio, and no further pages are expected.

use std::time::Duration;

use rpc::wire::Measurement;
use tokio::time::Instant;

use super::meter::Reading;

/// The limit of rounds.
const MOST: u32 = 8;

/// The bytes that may be left for the blackout, which take some milliseconds.
const ENOUGH: u64 = 4 << 20;

/// The rounds of one pre-copy.
pub struct Rounds {
    /// The number of the current round, from 1.
    number: u32,
    /// The new bytes of the previous round.
    before: Option<u64>,
    /// The measurements at the begin of this round.
    begin: Reading,
    began: Instant,
    /// The rate limit, in bytes a second.
    limit: Option<u64>,
}

impl Rounds {
    /// Begins the first round.
    pub fn new(limit: Option<u64>) -> Self {
        let (begin, began) = (Reading::default(), Instant::now());
        Self { number: 1, before: None, begin, began, limit }
    }

    /// Ends the current round, and begins the next one unless it was the last.
    pub fn next(&mut self, now: Reading) -> bool {
        let new = now.given - self.begin.given;
        if self.is_last(self.number, self.before, new) {
            return false;
        }
        (self.number, self.before, self.begin) = (self.number + 1, Some(new), now);
        true
    }

    /// Whether no further round helps: little is new, or the program writes memory faster than it is sent.
    fn is_last(&self, number: u32, before: Option<u64>, new: u64) -> bool {
        new <= ENOUGH || before.is_some_and(|before| new > before / 2) || number == MOST
    }

    /// The progress of the pre-copy.
    pub fn measurement(&self, now: Reading) -> Measurement {
        let left = self.left(now, self.began.elapsed());
        Measurement::Precopying {
            memory: now.expected,
            sent: now.sent,
            look: self.number,
            left_us: left.map(|left| u64::try_from(left.as_micros()).unwrap_or(u64::MAX)),
        }
    }

    /// The estimated remaining time after `elapsed`; `None` if there is no estimate yet.
    fn left(&self, now: Reading, elapsed: Duration) -> Option<Duration> {
        let pace = Pace::of(now, elapsed, self.limit)?;
        let (seen, new) = (now.seen - self.begin.seen, now.given - self.begin.given);
        if seen == 0 {
            return None;
        }
        let unseen = now.expected.saturating_sub(seen);
        let more = new as f64 * unseen as f64 / seen as f64;
        let mut left = pace.takes(unseen, (now.given - now.sent) + more as u64);
        let (mut number, mut before, mut new) = (self.number, self.before, new + more as u64);
        let share = before.map_or(0.0, |before| new as f64 / before.max(1) as f64);
        while !self.is_last(number, before, new) {
            (number, before, new) = (number + 1, Some(new), (new as f64 * share) as u64);
            left += pace.takes(now.expected, new);
        }
        Some(Duration::try_from_secs_f64(left).unwrap_or(Duration::MAX))
    }
}

/// The seconds to read a byte of memory, and to send one.
struct Pace {
    reading: f64,
    sending: f64,
}

impl Pace {
    fn of(now: Reading, elapsed: Duration, limit: Option<u64>) -> Option<Self> {
        let per_byte = |time: Duration, bytes: u64| time.as_secs_f64() / bytes as f64;
        let reading = (now.seen > 0).then(|| per_byte(elapsed.saturating_sub(now.waited), now.seen))?;
        let least = limit.map_or(0.0, |limit| 1.0 / limit.max(1) as f64);
        let sending = if now.sent > 0 { per_byte(now.sending, now.sent) } else { 0.0 };
        Some(Self { reading, sending: sending.max(least) })
    }

    /// Reading and sending run at the same time.
    fn takes(&self, read: u64, sent: u64) -> f64 {
        (self.reading * read as f64).max(self.sending * sent as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn rounds(number: u32, before: Option<u64>, begin: Reading, limit: Option<u64>) -> Rounds {
        let before = before.map(|mebibytes| mebibytes * MIB);
        Rounds { number, before, begin, began: Instant::now(), limit }
    }

    /// Sizes are in MiB; sending has taken `seconds`, and reading has waited for it all the time.
    fn reading(expected: u64, seen: u64, given: u64, sent: u64, seconds: u64) -> Reading {
        let sending = Duration::from_secs(seconds);
        let [expected, seen, given, sent] = [expected, seen, given, sent].map(|mebibytes| mebibytes * MIB);
        Reading { expected, seen, given, sent, sending, waited: sending }
    }

    fn left(rounds: &Rounds, now: Reading, seconds: u64) -> Option<f64> {
        rounds.left(now, Duration::from_secs(seconds)).map(|left| left.as_secs_f64())
    }

    #[test]
    fn the_first_round_takes_the_time_of_sending_and_the_second_reads_all_again() {
        let first = rounds(1, None, Reading::default(), None);
        assert_eq!(left(&first, Reading::default(), 1), None);
        // 10 MiB a second are sent, and 25 read.
        let now = reading(1000, 250, 250, 200, 20);
        assert_eq!(left(&first, now, 30), Some(80.0 + 40.0));
    }

    #[test]
    fn a_rate_limit_is_part_of_the_estimate_even_if_less_was_sent() {
        let first = rounds(1, None, Reading::default(), Some(2 * MIB));
        let begun =
            Reading { sending: Duration::from_millis(1), waited: Duration::ZERO, ..reading(100, 9, 9, 1, 0) };
        // 99 MiB are left to send, at 2 MiB a second; of reading it is only known that it was fast.
        let left = first.left(begun, Duration::from_millis(9)).unwrap().as_secs_f64();
        assert!((left - 49.5 - 0.1).abs() < 1e-6, "{left}");
    }

    #[test]
    fn new_pages_are_expected_to_decrease_at_the_same_ratio() {
        // The first round has sent everything; half of the second has found a tenth of that new: 20 MiB are expected in it, and 4
        // MiB in the third.
        let second = rounds(2, Some(100), reading(100, 100, 100, 100, 10), None);
        let now = reading(100, 150, 110, 110, 11);
        assert_eq!(left(&second, now, 11), Some(1.0 + 0.4));
        // With as many new pages as before, this round is the last.
        let now = reading(100, 150, 150, 150, 15);
        assert_eq!(left(&second, now, 15), Some(5.0));
    }

    #[test]
    fn the_last_round_finds_little_or_not_less_than_before() {
        let next = |number, before, new| {
            rounds(number, before, Reading::default(), None).next(reading(0, 0, new, 0, 0))
        };
        assert!(next(1, None, 5) && !next(1, None, 4));
        assert!(next(2, Some(20), 10) && !next(2, Some(20), 11));
        assert!(next(7, Some(200), 10) && !next(8, Some(200), 10));
    }
}
