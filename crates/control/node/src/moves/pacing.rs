//! Limits the rate at which memory is sent.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// A rate limit.
pub struct Pacing {
    /// The limit, in bytes per second.
    limit: Option<u64>,
    next: Instant,
}

impl Pacing {
    /// Limits to `limit` bytes a second, if given.
    pub fn new(limit: Option<u64>) -> Self {
        Self { limit, next: Instant::now() }
    }

    /// Waits until sending is allowed. The runtime's timers count in whole milliseconds, so nothing waits for a time that has passed.
    pub async fn ready(&self) {
        if self.next > Instant::now() {
            sleep_until(self.next).await;
        }
    }

    /// Counts bytes that have just been sent.
    pub fn sent(&mut self, bytes: u64) {
        let pause = |limit: u64| Duration::from_secs_f64(bytes as f64 / limit.max(1) as f64);
        self.next = Instant::now() + self.limit.map_or(Duration::ZERO, pause);
    }

    /// Removes the limit.
    pub fn lift(&mut self) {
        *self = Self::new(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time until all these parts may be sent, one after the other.
    async fn sends(pacing: &mut Pacing, parts: &[u64]) -> Duration {
        let began = Instant::now();
        for bytes in parts {
            pacing.ready().await;
            pacing.sent(*bytes);
        }
        pacing.ready().await;
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_rate_limit_holds_until_it_is_lifted() {
        let mut pacing = Pacing::new(Some(100));
        assert_eq!(sends(&mut pacing, &[100, 50, 150]).await, Duration::from_secs(3));
        pacing.sent(1000);
        pacing.lift();
        assert_eq!(sends(&mut pacing, &[1000; 9]).await, Duration::ZERO);
    }
}
