//! The available rate of a path, measured by the receiver.
//!
//! Datagrams that were sent back to back arrive with the spacing that the bottleneck and its other traffic impose: bytes over
//! time of such a train are the available rate at that moment (packet-train
//! dispersion; Dovrolis, Ramanathan and Moore, "What do packet dispersion techniques measure?"). Most traffic of programs is
//! trains. The best of them in the last minute counts: others may have been delayed by their sender.

use std::time::Duration;

/// A train ends when nothing has come for so long,
const GAP: Duration = Duration::from_millis(2);

/// or when it has taken so long.
const LONGEST: Duration = Duration::from_millis(20);

/// A shorter train is ignored: the receiver counts in steps of this time.
const SHORTEST: Duration = Duration::from_micros(50);

/// Bytes of the shortest train that counts.
const LEAST: u64 = 16 * 1024;

/// The time is divided into so long slots,
const SLOT: Duration = Duration::from_secs(10);

/// so many of which are kept.
const SLOTS: usize = 6;

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct PathRate {
    train: Option<Train>,
    /// The best of a slot, in bytes per second, and the slot's number.
    best: [(u64, u64); SLOTS],
}

#[derive(Clone, Copy, Debug)]
struct Train {
    begun: Duration,
    last: Duration,
    /// Bytes that have come after those with which it began.
    bytes: u64,
}

impl PathRate {
    /// So many bytes have come.
    pub fn arrived(&mut self, bytes: usize, now: Duration) {
        let Some(train) = &mut self.train else { return self.begin(now) };
        if now.saturating_sub(train.last) > GAP {
            let ended = *train;
            self.note(ended);
            return self.begin(now);
        }
        train.bytes += bytes as u64;
        train.last = now;
        if now.saturating_sub(train.begun) >= LONGEST {
            let ended = *train;
            self.note(ended);
            self.begin(now);
        }
    }

    fn begin(&mut self, now: Duration) {
        self.train = Some(Train { begun: now, last: now, bytes: 0 });
    }

    fn note(&mut self, Train { begun, last, bytes }: Train) {
        let took = last.saturating_sub(begun);
        if took < SHORTEST || bytes < LEAST {
            return;
        }
        let rate = (bytes as f64 / took.as_secs_f64()) as u64;
        let slot = slot(last);
        let best = &mut self.best[slot as usize % SLOTS];
        *best = if best.1 == slot { (best.0.max(rate), slot) } else { (rate, slot) };
    }

    /// Bytes per second; `None` if no train has come in the last minute.
    pub fn best(&mut self, now: Duration) -> Option<u64> {
        if let Some(train) = self.train.take_if(|train| now.saturating_sub(train.last) > GAP) {
            self.note(train);
        }
        let oldest = slot(now).saturating_sub(SLOTS as u64 - 1);
        let recent = self.best.iter().filter(|(rate, slot)| *rate > 0 && *slot >= oldest);
        recent.map(|(rate, _)| *rate).max()
    }
}

fn slot(time: Duration) -> u64 {
    time.as_secs() / SLOT.as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGIN: Duration = Duration::from_secs(1000);
    const DATAGRAM: usize = 1472;

    /// Lets a train of so many datagrams come by a way of so many bytes per second. Returns when it is over.
    fn train(rate: &mut PathRate, count: u32, bytes_per_second: u64, begin: Duration) -> Duration {
        let pause = Duration::from_secs_f64(DATAGRAM as f64 / bytes_per_second as f64);
        for number in 0..count {
            rate.arrived(DATAGRAM, begin + pause * number);
        }
        begin + pause * count
    }

    fn assert_near(found: Option<u64>, expected: u64) {
        let found = found.unwrap();
        assert!(found.abs_diff(expected) < expected / 20, "{found} instead of {expected}");
    }

    #[test]
    fn trains_measure_the_rate_of_the_path() {
        for bytes_per_second in [1_000_000, 12_500_000, 125_000_000] {
            let mut rate = PathRate::default();
            let end = train(&mut rate, 40, bytes_per_second, BEGIN);
            assert_near(rate.best(end + GAP * 2), bytes_per_second);
        }
    }

    #[test]
    fn a_stream_without_a_pause_is_many_trains() {
        let mut rate = PathRate::default();
        let end = train(&mut rate, 10_000, 12_500_000, BEGIN);
        assert_near(rate.best(end), 12_500_000);
    }

    #[test]
    fn the_best_of_the_last_minute_counts() {
        let mut rate = PathRate::default();
        train(&mut rate, 40, 12_500_000, BEGIN);
        train(&mut rate, 40, 1_000_000, BEGIN + SLOT);
        assert_near(rate.best(BEGIN + SLOT * 2), 12_500_000);
        assert_near(rate.best(BEGIN + SLOT * 6), 1_000_000);
        assert_eq!(rate.best(BEGIN + SLOT * 7), None);
    }

    #[test]
    fn single_datagrams_give_no_rate() {
        let mut rate = PathRate::default();
        for number in 0..1000 {
            rate.arrived(DATAGRAM, BEGIN + GAP * 2 * number);
        }
        train(&mut rate, 5, 12_500_000, BEGIN + SLOT);
        // All at one time: the receiver delayed it.
        (0..100).for_each(|_| rate.arrived(DATAGRAM, BEGIN + SLOT + GAP * 9));
        assert_eq!(rate.best(BEGIN + SLOT + GAP * 20), None);
    }
}
