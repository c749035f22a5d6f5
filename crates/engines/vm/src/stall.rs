//! Notices that the other host takes no data any more. A cut network closes no channel, and the guest may be stopped meanwhile.

use std::time::{Duration, Instant};

use crate::qmp::{QmpError, Result};

/// How long a transfer may stand still. A busy host pauses for a second or two.
const PATIENCE: Duration = Duration::from_secs(10);

/// A transfer, by the bytes that it has moved.
pub struct Transfer {
    moved: u64,
    since: Instant,
}

impl Transfer {
    /// A transfer that begins.
    pub fn new() -> Self {
        Self { moved: 0, since: Instant::now() }
    }

    /// Takes note of the bytes that have been moved so far.
    ///
    /// # Errors
    /// If the number has not changed for too long.
    pub fn moves(&mut self, moved: u64) -> Result<()> {
        self.moves_at(moved, Instant::now())
    }

    fn moves_at(&mut self, moved: u64, now: Instant) -> Result<()> {
        if moved != self.moved {
            *self = Self { moved, since: now };
        }
        if now.saturating_duration_since(self.since) < PATIENCE {
            return Ok(());
        }
        let stalled = format!("the other host has taken no data for {} s", PATIENCE.as_secs());
        Err(QmpError::Refused(stalled))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_that_stands_still_fails_and_a_slow_one_does_not() {
        let begun = Instant::now();
        let mut transfer = Transfer { moved: 0, since: begun };
        for part in 1..5 {
            transfer.moves_at(part.into(), begun + PATIENCE / 2 * part).unwrap();
        }
        let last = begun + PATIENCE * 2;
        transfer.moves_at(4, last + PATIENCE - Duration::from_millis(1)).unwrap();
        let failure = transfer.moves_at(4, last + PATIENCE).unwrap_err().to_string();
        assert_eq!(failure, "the other host has taken no data for 10 s");
    }
}
