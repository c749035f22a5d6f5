//! What nodes tell of offloads that misbehave, of which each host has a share of the event log.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ::moves::HostName;

/// Events of one host in a [`PERIOD`]. More than a host has offloads, links and devices that could be switched off at once.
const MOST: u32 = 256;
const PERIOD: Duration = Duration::from_secs(3600);

/// How much each host has told lately.
#[derive(Default)]
pub struct Misbehaviour(HashMap<HostName, Told>);

struct Told {
    since: Instant,
    events: u32,
}

impl Misbehaviour {
    /// Whether another event of `host` is noted. A node that tells ever more would push all others out of the log.
    pub fn admits(&mut self, host: &HostName, now: Instant) -> bool {
        let told = self.0.entry(host.clone()).or_insert(Told { since: now, events: 0 });
        if now.saturating_duration_since(told.since) >= PERIOD {
            *told = Told { since: now, events: 0 };
        }
        told.events = told.events.saturating_add(1);
        if told.events == MOST + 1 {
            tracing::warn!("{host} tells of ever more offloads that misbehave: no more is noted for a while");
        }
        told.events <= MOST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_tells_ever_more_is_not_heard_for_a_while_and_others_are() {
        let (mut notes, now) = (Misbehaviour::default(), Instant::now());
        let [loud, quiet] = ["loud", "quiet"].map(|name| HostName::new(name).unwrap());
        let admitted = (0..3 * MOST).filter(|_| notes.admits(&loud, now)).count();
        assert_eq!(admitted, MOST as usize);
        assert!(notes.admits(&quiet, now));
        assert!(!notes.admits(&loud, now + PERIOD / 2) && notes.admits(&loud, now + PERIOD));
    }
}
