//! Traffic that lasts: the lowest rate of each pair during the hold time.

use std::collections::BTreeMap;
use std::time::Duration;

use fabric::Vid;
use planner::Talk;

/// Two instances, the lower identity first.
type Pair = (Vid, Vid);

/// The lowest rates of the present period and of the one before it. A period lasts as long as the hold time, so what both have in
/// common has lasted for one hold time at least, and for two at most.
#[derive(Debug, Default)]
pub struct Sustained {
    began: Option<Duration>,
    pairs: BTreeMap<Pair, Lows>,
}

#[derive(Clone, Copy, Debug)]
struct Lows {
    now: u64,
    before: u64,
    is_seen: bool,
}

impl Sustained {
    /// Takes the present traffic.
    pub fn update(&mut self, now: Duration, hold: Duration, talks: &[Talk]) {
        let is_new = self.began.is_none_or(|began| now.saturating_sub(began) >= hold);
        if is_new {
            self.began = Some(now);
            self.pairs.values_mut().for_each(|lows| (lows.before, lows.now) = (lows.now, u64::MAX));
        }
        self.pairs.values_mut().for_each(|lows| lows.is_seen = false);
        for talk in talks {
            let pair = (talk.one.min(talk.other), talk.one.max(talk.other));
            // A pair that appears within a period was silent before.
            let first = Lows { now: if is_new { talk.rate } else { 0 }, before: 0, is_seen: true };
            let lows = self.pairs.entry(pair).or_insert(first);
            (lows.now, lows.is_seen) = (lows.now.min(talk.rate), true);
        }
        self.pairs.retain(|_, lows| {
            if !lows.is_seen {
                lows.now = 0;
            }
            lows.is_seen || lows.before > 0
        });
    }

    /// The traffic that has lasted.
    pub fn talks(&self) -> Vec<Talk> {
        let talk =
            |(&(one, other), lows): (&Pair, &Lows)| Talk { one, other, rate: lows.now.min(lows.before) };
        self.pairs.iter().map(talk).filter(|talk| talk.rate > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOLD: Duration = Duration::from_secs(60);

    fn talk(rate: u64) -> Talk {
        Talk { one: Vid::new(2).unwrap(), other: Vid::new(1).unwrap(), rate }
    }

    /// The sustained rate after each of these rates, one every 10 s.
    fn after(rates: &[u64]) -> Vec<u64> {
        let mut sustained = Sustained::default();
        let mut at = Duration::ZERO;
        let step = |rate: &u64| {
            let talks: Vec<_> = (*rate > 0).then(|| talk(*rate)).into_iter().collect();
            sustained.update(at, HOLD, &talks);
            at += Duration::from_secs(10);
            sustained.talks().first().map_or(0, |talk| talk.rate)
        };
        rates.iter().map(step).collect()
    }

    #[test]
    fn traffic_counts_when_it_has_lasted_for_the_hold_time_and_at_its_lowest() {
        let found = after(&[9, 9, 5, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9]);
        assert_eq!(found, [0, 0, 0, 0, 0, 0, 5, 5, 5, 5, 5, 5, 9]);
    }

    #[test]
    fn traffic_that_pauses_within_the_hold_time_never_counts() {
        assert!(after(&[9, 9, 9, 0, 0].repeat(20)).iter().all(|rate| *rate == 0));
    }

    #[test]
    fn traffic_that_begins_within_a_period_needs_a_whole_period_more() {
        let found = after(&[0, 0, 0, 0, 0, 0, 0, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7]);
        assert_eq!(found.iter().position(|rate| *rate == 7), Some(18), "period 3 begins at 180 s");
    }
}
