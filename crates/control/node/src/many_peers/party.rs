//! A simulated party that is busy for a time with each message.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

/// A time of tokio's clock: its resolution, a millisecond, stands for a tenth of a microsecond.
pub fn ticks(micros: f64) -> Duration {
    Duration::from_millis((micros * 10.0).round() as u64)
}

/// A time of tokio's clock in microseconds.
pub fn micros(ticks: Duration) -> f64 {
    ticks.as_millis() as f64 / 10.0
}

pub async fn hop() {
    sleep(ticks(super::HOP)).await;
}

/// The threads of a daemon or a process. Each does one task after the other.
pub struct Threads {
    free_at: Mutex<Vec<Instant>>,
    busy: bool,
}

impl Threads {
    /// `count` threads; if they are not `busy`, they do everything at once.
    pub fn new(count: usize, busy: bool) -> Self {
        Self { free_at: Mutex::new(vec![Instant::now(); count]), busy }
    }

    /// Waits for a free thread, and until it has done the task.
    pub async fn work(&self, cost: f64) {
        if self.busy {
            sleep_until(self.take_turn(cost)).await;
        }
    }

    fn take_turn(&self, cost: f64) -> Instant {
        let mut free_at = self.free_at.lock().unwrap();
        let next = free_at.iter_mut().min().unwrap();
        *next = (*next).max(Instant::now()) + ticks(cost);
        *next
    }
}
