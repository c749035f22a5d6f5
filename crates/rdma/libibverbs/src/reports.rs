//! Reports to the node how much payload the process has exchanged with other instances.
//!
//! The thread looks at most once a second, when it is awake anyway. Some traffic needs no thread: direct copies, and short
//! messages in a ring. So a thread that sleeps without a tick wakes to look, less and less often while there is nothing
//! to report.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use fabric::attach::{MAX_INSTANCES, ToNode, encode};
use fabric::seqpacket;
use softhca::Device;

/// The least and the longest time between two looks.
const SOONEST: Duration = Duration::from_secs(1);
const LATEST: Duration = Duration::from_secs(32);

/// When to look next.
pub(crate) struct Reports {
    earliest: Duration,
    /// From here on a sleeping thread wakes for it.
    latest: Duration,
    pause: Duration,
}

impl Default for Reports {
    fn default() -> Self {
        Self { earliest: Duration::ZERO, latest: Duration::ZERO, pause: SOONEST }
    }
}

impl Reports {
    /// Looks for traffic to report, if it is time to do so. `now`: `CLOCK_MONOTONIC`.
    pub(crate) fn look(&mut self, device: &mut Device, node: BorrowedFd<'_>, now: Duration) {
        if now >= self.earliest {
            self.looked(report(device, node), now);
        }
    }

    /// How long a thread may sleep that nothing else wakes.
    pub(crate) fn longest_sleep(&self, now: Duration) -> Duration {
        self.latest.saturating_sub(now)
    }

    fn looked(&mut self, found: bool, now: Duration) {
        self.pause = if found { SOONEST } else { (self.pause * 2).min(LATEST) };
        self.earliest = now + SOONEST;
        self.latest = now + self.pause;
    }
}

/// Reports traffic that has not been reported yet, and returns whether there was any. What cannot be sent now stays for the next report.
pub(crate) fn report(device: &mut Device, node: BorrowedFd<'_>) -> bool {
    let instances = device.take_traffic(MAX_INSTANCES);
    if instances.is_empty() {
        return false;
    }
    let message = ToNode::Traffic { instances };
    if seqpacket::try_send(node, &encode(&message)).is_err()
        && let ToNode::Traffic { instances } = message
    {
        device.keep_traffic(instances);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn an_idle_process_is_woken_less_and_less_often() {
        let mut reports = Reports::default();
        let mut now = at(100);
        reports.looked(true, now);
        let sleeps = [1, 2, 4, 8, 16, 32, 32];
        for sleep in sleeps.map(at) {
            assert_eq!(reports.longest_sleep(now), sleep);
            now += sleep;
            reports.looked(false, now);
        }
        reports.looked(true, now);
        assert_eq!(reports.longest_sleep(now), SOONEST);
    }
}
