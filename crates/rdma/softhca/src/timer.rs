//! Pauses, without reading a clock.
//!
//! A pause is requested when its reason arrives, starts when the user next passes the time, and
//! is stopped while the device is suspended, since the next host has another clock.

use std::time::Duration;

/// A pause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Pause {
    /// None.
    #[default]
    Over,
    /// To last this long.
    Noted(Duration),
    /// To last until then.
    Until(Duration),
}

impl Pause {
    pub fn is_over(self) -> bool {
        self == Self::Over
    }

    /// Starts it, or ends it if its time has come. Returns its deadline.
    pub fn tick(&mut self, now: Duration) -> Option<Duration> {
        if let Self::Noted(length) = *self {
            *self = Self::Until(now + length);
        }
        match *self {
            Self::Until(deadline) if deadline > now => Some(deadline),
            _ => {
                *self = Self::Over;
                None
            }
        }
    }

    /// Keeps the remaining time for another clock.
    pub fn freeze(&mut self, now: Duration) {
        if let Self::Until(deadline) = *self {
            *self = Self::Noted(deadline.saturating_sub(now));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_starts_at_the_first_tick_and_survives_a_change_of_clocks() {
        let second = Duration::from_secs(1);
        let mut pause = Pause::Noted(second * 3);
        assert_eq!(pause.tick(second * 100), Some(second * 103));
        pause.freeze(second * 101);
        assert_eq!(pause.tick(second * 5), Some(second * 7));
        assert_eq!(pause.tick(second * 7), None);
        assert!(pause.is_over());
    }
}
