//! The output: lines for people, or one JSON object per line.

use std::io::{self, Write as _};

use serde::Serialize;

use crate::endpoint::Failure;
use crate::meter::{Counts, Gap, Interval, Meter};

/// Prints to standard output.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    json: bool,
}

#[derive(Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
enum Line<'a> {
    Listening {
        address: &'a str,
    },
    Interval {
        #[serde(flatten)]
        interval: &'a Interval,
    },
    Result {
        ok: bool,
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        #[serde(flatten)]
        counts: Counts,
        elapsed: f64,
        longest_gap: Gap,
    },
}

impl Report {
    /// A report for people, or for programs.
    #[must_use]
    pub fn new(json: bool) -> Self {
        Self { json }
    }

    /// The server listens on `address`.
    pub fn listening(self, address: &str) {
        self.print(&Line::Listening { address }, || format!("listening on {address}"));
    }

    /// An interval has passed.
    pub fn interval(self, interval: &Interval) {
        self.print(&Line::Interval { interval }, || {
            let Counts { operations, received, bytes, .. } = interval.counts;
            let gap = millis(interval.gap_micros);
            let elapsed = interval.elapsed;
            format!("{elapsed:9.3} s  {operations:>8} done  {received:>8} received  {bytes:>12} B  gap {gap:.3} ms")
        });
    }

    /// The run is over.
    pub fn result(self, outcome: &Result<(), Failure>, meter: &Meter) {
        let reason = match outcome {
            Ok(()) => None,
            Err(Failure::Violation(violation)) => Some(violation.to_string()),
            Err(Failure::Error(error)) => Some(format!("{error:#}")),
        };
        let (counts, longest_gap) = (meter.total(), meter.longest_gap());
        let elapsed = meter.elapsed(std::time::Instant::now()).as_secs_f64();
        let verdict =
            reason.as_deref().map_or("all checks passed".into(), |reason| format!("WRONG: {reason}"));
        let line = Line::Result { ok: outcome.is_ok(), reason, counts, elapsed, longest_gap };
        self.print(&line, || {
            let Counts { operations, received, bytes, completions } = counts;
            let gap = millis(longest_gap.micros);
            format!(
                "{verdict}\n{operations} operations done, {received} messages received, {completions} completions \
                 and {bytes} bytes checked in {elapsed:.1} s; longest gap {gap:.3} ms"
            )
        });
    }

    fn print(self, line: &Line<'_>, in_words: impl FnOnce() -> String) {
        let text = if self.json { serde_json::to_string(line).unwrap_or_default() } else { in_words() };
        let mut output = io::stdout().lock();
        // A closed output is no reason to stop checking.
        let _ = writeln!(output, "{text}").and_then(|()| output.flush());
    }
}

#[allow(clippy::cast_precision_loss, reason = "times of this length are exact enough")]
fn millis(micros: u64) -> f64 {
    micros as f64 / 1000.0
}
