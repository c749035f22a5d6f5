//! The quality of a path: round-trip time and loss.
//!
//! The receiver knows from the counters of datagrams how many were sent, and so how many are missing. It reports that now
//! and then, and asks for an echo with each report:
//!
//! ```text
//!   node                                              its peer
//!    │ ─── report: received, lost, stamp ───────────────▶ │  knows what it has lost on its way to the node
//!    │ ◀────────────── echo: stamp ────────────────────── │
//!    now - stamp: the round trip
//! ```
//!
//! While frames pass, and for a while afterwards, this happens once in a second. Then the path is idle: reports are
//! so rare that they cost nothing, and frequent enough to keep address translation (NAT) on the path alive.

use std::time::Duration;

use crate::message::{InvalidMessage, Report};

/// How often there is a report.
const PERIOD: Duration = Duration::from_secs(1);

/// How often on an idle way. Translators of addresses remember for 30 seconds at least, most often.
const IDLE_PERIOD: Duration = Duration::from_secs(10);

/// How long it takes without a frame until a way is idle.
const IDLE_AFTER: Duration = Duration::from_secs(60);

/// How often a train is sent to see how much the way carries, as long as nothing has shown it: one that is cut short on a narrow
/// way, or comes all at once, shows nothing.
const TRAIN_PERIOD: Duration = Duration::from_secs(10);

/// An echo of a report that was sent so long ago is none.
const PATIENCE: Duration = Duration::from_secs(60);

/// A new round trip counts for the inverse of that in the smoothed one (RFC 6298).
const SMOOTHING: u32 = 8;

/// How long a datagram and its answer take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundTrip {
    /// Of late.
    pub smoothed: Duration,
    /// The least since the way is known.
    pub least: Duration,
}

/// The quality of the path in one session.
#[derive(Clone, Debug)]
pub struct PathQuality {
    round_trip: Option<RoundTrip>,
    /// The peer's last report.
    received: u64,
    lost: u64,
    rate: Option<u64>,
    train_at: Option<Duration>,
    reported_at: Duration,
    used_at: Duration,
}

impl PathQuality {
    /// Of a session that begins.
    #[must_use]
    pub fn new(now: Duration) -> Self {
        Self {
            round_trip: None,
            received: 0,
            lost: 0,
            rate: None,
            train_at: None,
            reported_at: now,
            used_at: now,
        }
    }

    /// The state that carries over to the next session. That one does not start as idle: the peer
    /// learns from a report that it is in use.
    #[must_use]
    pub fn of_next_session(&self, now: Duration) -> Self {
        Self { received: 0, lost: 0, used_at: now, ..*self }
    }

    /// True if a report is due. `is_used`: frames have passed since the last call.
    pub fn is_due(&mut self, is_used: bool, now: Duration) -> bool {
        if is_used {
            self.used_at = now;
        }
        let period = if self.is_idle(now) { IDLE_PERIOD } else { PERIOD };
        let is_due = now.saturating_sub(self.reported_at) >= period;
        if is_due {
            self.reported_at = now;
        }
        is_due
    }

    /// True if no frame has passed for a while.
    #[must_use]
    pub fn is_idle(&self, now: Duration) -> bool {
        now.saturating_sub(self.used_at) >= IDLE_AFTER
    }

    /// The report to send now, with counts of the datagrams from the peer.
    #[must_use]
    pub fn report(received: u64, lost: u64, rate: Option<u64>, now: Duration) -> Report {
        // Enough for centuries.
        Report { received, lost, stamp: now.as_nanos() as u64, rate: rate.unwrap_or(0) }
    }

    /// The peer has sent a report. Until now `sealed` datagrams were sealed for it in the session, on all lanes and with all keys.
    ///
    /// # Errors
    /// If it speaks of more than these: it knows of those only that were sealed before one that has come.
    pub fn reported(&mut self, report: &Report, sealed: u64) -> Result<(), InvalidMessage> {
        let received = report.received;
        let sent = received.checked_add(report.lost).filter(|sent| *sent <= sealed).ok_or(InvalidMessage)?;
        // One that was overtaken has nothing to say.
        if (sent, received) >= (self.sent(), self.received) {
            (self.received, self.lost) = (received, report.lost);
            self.rate = Some(report.rate).filter(|rate| *rate > 0);
        }
        Ok(())
    }

    /// The peer has sent back the stamp of a report.
    pub fn echoed(&mut self, stamp: u64, now: Duration) {
        let Some(sample) = now.checked_sub(Duration::from_nanos(stamp)).filter(|time| *time < PATIENCE)
        else {
            return;
        };
        let smoothed = |before: Duration| (before * (SMOOTHING - 1) + sample) / SMOOTHING;
        self.round_trip = Some(match self.round_trip {
            None => RoundTrip { smoothed: sample, least: sample },
            Some(RoundTrip { smoothed: before, least }) => {
                RoundTrip { smoothed: smoothed(before), least: least.min(sample) }
            }
        });
    }

    /// How long a datagram and its answer take; `None` before the first answer.
    #[must_use]
    pub fn round_trip(&self) -> Option<RoundTrip> {
        self.round_trip
    }

    /// Datagrams that were sent to the peer, by its own knowledge.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.received + self.lost
    }

    /// The best rate at which the peer has received in the last minute of its reports, in bytes per second; `None` if it is
    /// unknown.
    #[must_use]
    pub fn rate(&self) -> Option<u64> {
        self.rate
    }

    /// True if a train is due now, with which the peer can measure the rate.
    pub fn train_is_due(&mut self, now: Duration) -> bool {
        let is_due =
            self.rate.is_none() && self.train_at.is_none_or(|last| now.saturating_sub(last) >= TRAIN_PERIOD);
        if is_due {
            self.train_at = Some(now);
        }
        is_due
    }

    /// The ones of them that it has not received.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGIN: Duration = Duration::from_secs(1000);
    const MILLISECOND: Duration = Duration::from_millis(1);

    /// When reports are due in so many seconds, if frames pass until `used`.
    fn due(quality: &mut PathQuality, begin: Duration, used: u64, seconds: u64) -> Vec<u64> {
        let ticks = 1..=seconds * 10;
        let is_due = |tick: &u64| quality.is_due(tick / 10 <= used, begin + MILLISECOND * 100 * *tick as u32);
        ticks.filter(is_due).map(|tick| tick / 10).collect()
    }

    #[test]
    fn reports_are_due_as_long_as_frames_pass_and_seldom_when_none_do() {
        let mut quality = PathQuality::new(BEGIN);
        let seconds: Vec<u64> = (1..=180).collect();
        assert_eq!(due(&mut quality, BEGIN, 180, 180), seconds);
        let later = BEGIN + Duration::from_secs(180);
        let expected: Vec<u64> = (1..=60).chain((70..=120).step_by(10)).collect();
        assert_eq!(due(&mut quality, later, 0, 120), expected);
        let later = later + Duration::from_secs(120);
        assert!(quality.is_idle(later));
        assert_eq!(due(&mut quality, later, 3, 4), [1, 2, 3, 4], "it is used again");
        assert!(!quality.is_idle(later));
    }

    #[test]
    fn trains_are_sent_seldom_and_only_while_the_rate_is_not_known() {
        let mut quality = PathQuality::new(BEGIN);
        let trains = |quality: &mut PathQuality, seconds: std::ops::Range<u32>| {
            seconds
                .filter(|at| quality.train_is_due(BEGIN + Duration::from_secs(1) * *at))
                .collect::<Vec<_>>()
        };
        assert_eq!(trains(&mut quality, 0..25), [0, 10, 20]);
        quality.reported(&Report { received: 5, lost: 0, stamp: 0, rate: 7 }, 9).unwrap();
        assert!(quality.rate() == Some(7) && trains(&mut quality, 25..90).is_empty());
        quality.reported(&Report { received: 6, lost: 0, stamp: 0, rate: 0 }, 9).unwrap();
        assert_eq!(trains(&mut quality, 90..95), [90]);
        let mut next = quality.of_next_session(BEGIN + Duration::from_secs(95));
        assert!(trains(&mut next, 95..100).is_empty());
    }

    #[test]
    fn a_session_that_takes_the_place_of_another_reports_soon() {
        let mut quality = PathQuality::new(BEGIN);
        quality.reported(&Report { received: 5, lost: 1, stamp: 0, rate: 7 }, 6).unwrap();
        quality.echoed(BEGIN.as_nanos() as u64, BEGIN + MILLISECOND);
        assert!(quality.is_idle(BEGIN + IDLE_AFTER));
        let mut next = quality.of_next_session(BEGIN + IDLE_AFTER);
        assert!(next.is_due(false, BEGIN + IDLE_AFTER + PERIOD) && !next.is_idle(BEGIN + IDLE_AFTER));
        assert_eq!((next.sent(), next.lost(), next.round_trip()), (0, 0, quality.round_trip()));
    }

    #[test]
    fn round_trips_are_smoothed_and_the_least_is_kept() {
        let (mut quality, mut now) = (PathQuality::new(BEGIN), BEGIN);
        let mut pass = |quality: &mut PathQuality, time: Duration| {
            let stamp = PathQuality::report(0, 0, None, now).stamp;
            now += time;
            quality.echoed(stamp, now);
            quality.round_trip().unwrap()
        };
        let round_trip = |smoothed: u32, least: u32| RoundTrip {
            smoothed: MILLISECOND * smoothed,
            least: MILLISECOND * least,
        };
        assert_eq!(pass(&mut quality, MILLISECOND * 16), round_trip(16, 16));
        assert_eq!(pass(&mut quality, MILLISECOND * 8), round_trip(15, 8));
        for _ in 0..100 {
            pass(&mut quality, MILLISECOND * 24);
        }
        let end = pass(&mut quality, MILLISECOND * 24);
        assert!(end.smoothed > MILLISECOND * 23 && end.least == MILLISECOND * 8, "{end:?}");
    }

    #[test]
    fn unknown_stamps_are_not_round_trips() {
        let mut quality = PathQuality::new(BEGIN);
        let stamps = [BEGIN + MILLISECOND, Duration::from_nanos(u64::MAX), BEGIN - PATIENCE, Duration::ZERO];
        for stamp in stamps {
            quality.echoed(stamp.as_nanos() as u64, BEGIN);
        }
        assert_eq!(quality.round_trip(), None);
    }

    #[test]
    fn the_newest_report_counts() {
        let mut quality = PathQuality::new(BEGIN);
        let mut report = |received, lost| {
            quality.reported(&Report { received, lost, stamp: 0, rate: 0 }, 35).unwrap();
            (quality.sent(), quality.lost())
        };
        assert_eq!(report(10, 1), (11, 1));
        assert_eq!(report(30, 5), (35, 5));
        assert_eq!(report(20, 3), (35, 5), "it was overtaken");
        assert_eq!(report(33, 2), (35, 2), "some came late");
        assert_eq!(report(30, 5), (35, 2), "it was overtaken");
    }

    #[test]
    fn a_report_of_more_than_was_sent_is_refused() {
        let mut quality = PathQuality::new(BEGIN);
        let mut report = |received, lost, sealed| {
            let result = quality.reported(&Report { received, lost, stamp: 0, rate: 7 }, sealed);
            (result.is_ok(), quality.sent(), quality.lost(), quality.rate())
        };
        let refused = (false, 0, 0, None);
        for (received, lost) in [(1 << 63, (1 << 63) - 1), (u64::MAX, u64::MAX), (21, 0), (0, 21), (18, 3)] {
            assert_eq!(report(received, lost, 20), refused, "{received} and {lost}");
        }
        assert_eq!(report(18, 2, 20), (true, 20, 2, Some(7)));
        assert_eq!(report(19, 1, 30), (true, 20, 1, Some(7)), "one came late");
    }
}
