//! Metrics for Prometheus: number and duration of moves, and the state of hosts.
//!
//! Counters start at zero with each coordinator, as is usual for Prometheus; gauges show the current state.

use api::{Host, MoveReport, Outcome};
use metrics::{Exposition, Tally, label};

/// Bucket bounds for blackouts, in seconds: from an idle process to a large instance on a slow network.
const BLACKOUTS: [f64; 12] = [0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0];

/// Bucket bounds for the duration of moves.
const DURATIONS: [f64; 12] = [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0, 600.0];

/// Statistics of completed moves.
pub struct Statistics {
    moved: u64,
    saved: u64,
    restored: u64,
    rolled_back: u64,
    ended: u64,
    /// In seconds, of successful moves; moves during which the coordinator restarted are not included.
    blackouts: Tally,
    durations: Tally,
}

impl Default for Statistics {
    fn default() -> Self {
        let (blackouts, durations) = (Tally::new(&BLACKOUTS), Tally::new(&DURATIONS));
        Self { moved: 0, saved: 0, restored: 0, rolled_back: 0, ended: 0, blackouts, durations }
    }
}

impl Statistics {
    /// Adds a move that is over.
    pub fn moved(&mut self, report: &MoveReport) {
        match report.outcome {
            Outcome::Moved => self.moved += 1,
            Outcome::Saved => self.saved += 1,
            Outcome::Restored => self.restored += 1,
            Outcome::RolledBack(_) => self.rolled_back += 1,
            Outcome::Ended(_) => self.ended += 1,
        }
        if report.outcome == Outcome::Moved && !report.restarted {
            self.blackouts.observe(seconds(report.blackout_us));
            self.durations.observe(seconds(report.total_us));
        }
    }

    /// The metrics, with those of `hosts` and the number of moves in progress.
    pub fn exposition(&self, hosts: &[Host], under_way: usize) -> Exposition {
        let mut exposition = Exposition::new("transhume");
        let outcomes = [
            ("moved", self.moved),
            ("saved", self.saved),
            ("restored", self.restored),
            ("rolled_back", self.rolled_back),
            ("ended", self.ended),
        ];
        let outcomes = outcomes.map(|(outcome, count)| (label("outcome", outcome), count));
        let help = "Completed moves by outcome; `ended` means that the instance ended during the move";
        exposition.counters("moves", help, outcomes);
        exposition.gauge("moves_under_way", "Moves in progress", under_way as f64);
        let help = "Blackout of successful moves";
        exposition.tally("move_blackout_seconds", help, &self.blackouts);
        exposition.tally(
            "move_duration_seconds",
            "Duration of moves that were not rolled back",
            &self.durations,
        );
        let each = |value: fn(&Host) -> u32| {
            hosts.iter().map(move |host| (label("host", &host.name), f64::from(value(host))))
        };
        exposition.gauges("host_instances", "Instances on the host", each(|host| host.instances));
        exposition.gauges("host_up", "Whether the host's node is connected", each(|host| host.up.into()));
        exposition.gauges("host_drained", "Whether the host is drained", each(|host| host.drained.into()));
        exposition.gauges(
            "host_draining",
            "Whether a drain of the host is in progress",
            each(|host| host.draining.into()),
        );
        exposition
    }
}

fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use api::{EnginePart, Failure, NetworkPart};
    use fabric::Epoch;

    use super::*;

    #[test]
    fn moves_are_counted_by_outcome_and_measured_if_they_were_made() {
        let report = |outcome, restarted| MoveReport {
            errand: api::Errand::Move,
            name: "a".into(),
            from: "h1".into(),
            to: "h2".into(),
            epoch: Epoch(1),
            outcome,
            restarted,
            total_us: 250_000,
            blackout_us: 60_000,
            phases: Vec::new(),
            network: NetworkPart::default(),
            engine: EnginePart::default(),
            outage: None,
        };
        let mut statistics = Statistics::default();
        let why = || Failure::new("no room", "");
        statistics.moved(&report(Outcome::Moved, false));
        statistics.moved(&report(Outcome::Moved, true));
        statistics.moved(&report(Outcome::RolledBack(why()), false));
        statistics.moved(&report(Outcome::Ended(why()), false));
        let (name, address) = ("h\"1".into(), String::new());
        let machines = None;
        let host = Host {
            name,
            address,
            up: true,
            drained: true,
            draining: false,
            leaving: None,
            instances: 3,
            machines,
        };
        let text = statistics.exposition(&[host], 2).text().unwrap();
        let expected = [
            r#"moves_total{outcome="moved"} 2"#,
            r#"moves_total{outcome="rolled_back"} 1"#,
            r#"moves_total{outcome="ended"} 1"#,
            "moves_under_way 2.0",
            r#"move_blackout_seconds_bucket{le="0.05"} 0"#,
            r#"move_blackout_seconds_bucket{le="0.1"} 1"#,
            "move_blackout_seconds_count 1",
            r#"move_duration_seconds_bucket{le="0.2"} 0"#,
            r#"move_duration_seconds_bucket{le="0.5"} 1"#,
            r#"host_instances{host="h\"1"} 3.0"#,
            r#"host_up{host="h\"1"} 1.0"#,
            r#"host_drained{host="h\"1"} 1.0"#,
            r#"host_draining{host="h\"1"} 0.0"#,
        ];
        for line in expected {
            assert!(text.contains(&format!("\ntranshume_{line}\n")), "{line} is not in\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
    }
}
