//! Rate limit for nodes' reports of failed offloads: each host gets a share of the event log.

use std::collections::HashMap;
use std::time::Duration;

use ::moves::HostName;
use tokio::time::Instant;

use crate::core::Feature;

/// Events of one host per [`PERIOD`]: more than the offloads, links and devices of a host that can fail at once.
const MOST: u32 = 256;
const PERIOD: Duration = Duration::from_secs(3600);

/// Number of recent reports of each host.
#[derive(Default)]
pub struct Misbehaviour(HashMap<HostName, Told>);

struct Told {
    since: Instant,
    events: u32,
}

impl Feature for Misbehaviour {}

impl Misbehaviour {
    /// Whether another event of `host` is logged. Without a limit, one node could push all other events out of the log.
    pub fn admits(&mut self, host: &HostName, now: Instant) -> bool {
        let told = self.0.entry(host.clone()).or_insert(Told { since: now, events: 0 });
        if now.saturating_duration_since(told.since) >= PERIOD {
            *told = Told { since: now, events: 0 };
        }
        told.events = told.events.saturating_add(1);
        if told.events == MOST + 1 {
            tracing::warn!(
                "{host} reports too many failed offloads: further reports are dropped for a while"
            );
        }
        told.events <= MOST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_with_too_many_reports_is_ignored_for_a_while() {
        let (mut notes, now) = (Misbehaviour::default(), Instant::now());
        let [loud, quiet] = ["loud", "quiet"].map(|name| HostName::new(name).unwrap());
        let admitted = (0..3 * MOST).filter(|_| notes.admits(&loud, now)).count();
        assert_eq!(admitted, MOST as usize);
        assert!(notes.admits(&quiet, now));
        assert!(!notes.admits(&loud, now + PERIOD / 2) && notes.admits(&loud, now + PERIOD));
    }
}
