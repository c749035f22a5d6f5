//! Parses the output of the programs in the instances, line by line.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Instant;

use api::{Client, Event};
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Result};

/// Number of an instance's last lines that are shown with a failure.
const TAIL: usize = 12;

/// The most samples of each kind: enough for hours.
const CAPACITY: usize = 1 << 17;

/// The first words of ib_write_bw's message when its clock calibration failed.
pub const GAVE_UP: &str = "Correlation coefficient";

/// The traveller's script prints this if its ib_write_bw has ended for another reason.
pub const WRITE_ENDED: &str = "ib_write_bw has ended";

/// The two instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The one that moves.
    Traveller,
    /// The one that stays.
    Home,
}

/// Counts of verbs-check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Operations that completed.
    pub operations: u64,
    /// Messages received.
    pub received: u64,
    /// Bytes verified.
    pub bytes: u64,
    /// Work completions checked.
    pub completions: u64,
}

/// One report of verbs-check.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub struct Interval {
    /// Its end, in seconds since 1970.
    pub at: f64,
    /// What happened in it.
    #[serde(flatten)]
    pub counts: Counts,
    /// The longest time without a completion in the interval.
    pub gap_micros: u64,
}

/// The verdict of verbs-check.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Whether all checks passed.
    pub ok: bool,
    /// The failed check.
    pub reason: Option<String>,
    /// Totals.
    #[serde(flatten)]
    pub counts: Counts,
}

/// A line of verbs-check's output.
#[derive(Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
enum CheckLine {
    Listening,
    Interval(Interval),
    Result(Verdict),
}

/// The parsed state of the traffic.
#[derive(Debug, Default)]
pub struct Known {
    /// verbs-check's server listens.
    pub check_listens: bool,
    /// ib_write_bw's server listens.
    pub write_listens: bool,
    /// Averages of ib_write_bw over a second each, in MiB/s.
    pub write_rates: Vec<f64>,
    /// How often ib_write_bw failed to calibrate its clock and was restarted.
    pub write_restarts: u32,
    /// Reports of the traveller's verbs-check.
    pub intervals: Vec<Interval>,
    /// The verdicts of both ends, in the order of their arrival.
    pub verdicts: Vec<Verdict>,
    failed: Option<String>,
    tails: [Vec<String>; 2],
}

/// The state of the traffic, shared between threads.
#[derive(Clone, Debug, Default)]
pub struct Traffic(Arc<(Mutex<Known>, Condvar)>);

impl Traffic {
    /// The current state.
    pub fn known(&self) -> MutexGuard<'_, Known> {
        self.0.0.lock().expect("no thread panics while it holds the lock")
    }

    /// Waits until `is_so` holds.
    ///
    /// Fails when an instance ends or fails before, or at `deadline`.
    pub fn wait_for(&self, what: &str, deadline: Instant, is_so: impl Fn(&Known) -> bool) -> Result<()> {
        let mut known = self.known();
        loop {
            if is_so(&known) {
                return Ok(());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if known.failed.is_some() || left.is_zero() {
                return Err(known.failure(what));
            }
            known = self.0.1.wait_timeout(known, left).expect("no thread panics while it holds the lock").0;
        }
    }

    /// Parses the output of `end` until it ends.
    pub fn follow(&self, end: End, mut events: Client) {
        let mut line = String::new();
        let problem = loop {
            match events.next_event() {
                Ok(Event::Output { bytes, .. }) => {
                    self.take_text(end, &String::from_utf8_lossy(&bytes.0), &mut line);
                }
                Ok(Event::Exited { code }) => break format!("an instance ended with code {code}"),
                Ok(Event::Failed(failure)) => break failure.message,
                Ok(_) => {}
                Err(error) => break crate::failure::chain(&error),
            }
        };
        self.known().failed.get_or_insert(problem);
        self.0.1.notify_all();
    }

    fn take_text(&self, end: End, text: &str, line: &mut String) {
        let mut known = self.known();
        for piece in text.split_inclusive('\n') {
            line.push_str(piece);
            if line.ends_with('\n') {
                known.take_line(end, line.trim());
                line.clear();
            }
        }
        self.0.1.notify_all();
    }
}

impl Known {
    fn take_line(&mut self, end: End, line: &str) {
        let event = serde_json::from_str(line);
        if !matches!(event, Ok(CheckLine::Interval(_))) {
            self.keep_in_tail(end, line);
        }
        match event {
            Ok(CheckLine::Listening) => self.check_listens = true,
            Ok(CheckLine::Interval(interval)) if end == End::Traveller => keep(&mut self.intervals, interval),
            Ok(CheckLine::Interval(_)) => {}
            Ok(CheckLine::Result(verdict)) => self.take_verdict(verdict),
            Err(_) => self.take_perftest(end, line),
        }
    }

    fn keep_in_tail(&mut self, end: End, line: &str) {
        let tail = &mut self.tails[end as usize];
        if tail.len() == TAIL {
            tail.remove(0);
        }
        tail.push(line.to_owned());
    }

    fn take_verdict(&mut self, verdict: Verdict) {
        if !verdict.ok {
            let reason = verdict.reason.as_deref().unwrap_or("no reason given");
            self.failed.get_or_insert(format!("verbs-check failed: {reason}"));
        }
        self.verdicts.push(verdict);
    }

    fn take_perftest(&mut self, end: End, line: &str) {
        if line.contains("Waiting for client") {
            self.write_listens = true;
        }
        if end == End::Home {
            return;
        }
        if line.starts_with(GAVE_UP) {
            self.write_restarts += 1;
        } else if line == WRITE_ENDED {
            self.failed.get_or_insert_with(|| line.to_owned());
        } else if let Some(rate) = average_rate(line) {
            keep(&mut self.write_rates, rate);
        }
    }

    fn failure(&self, awaited: &str) -> Failure {
        let reason = self.failed.as_deref().unwrap_or("timeout");
        let tails = self.tails.iter().flatten().map(|line| format!("\n    {line}")).collect::<String>();
        Failure::new(format!("no sign of {awaited}: {reason}"), format!("the last output:{tails}"))
    }
}

fn keep<T>(list: &mut Vec<T>, value: T) {
    if list.len() < CAPACITY {
        list.push(value);
    }
}

/// The average bandwidth in a line of results of ib_write_bw: size, iterations, peak, average in
/// MiB/s, messages in millions per second.
fn average_rate(line: &str) -> Option<f64> {
    let numbers: Option<Vec<f64>> = line.split_whitespace().map(|word| word.parse().ok()).collect();
    match numbers?[..] {
        [_size, _iterations, _peak, average, _messages] => Some(average),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_both_programs_are_told_apart() {
        let traffic = Traffic::default();
        let mut rest = String::new();
        traffic.take_text(
            End::Home,
            "{\"event\":\"listening\",\"address\":\"x\"}\n* Waiting for cli",
            &mut rest,
        );
        traffic.take_text(End::Home, "ent to connect... *\n", &mut rest);
        let mut rest = String::new();
        let written = " 65536      4200             0.00               262.48             0.004200\n\
            {\"event\":\"interval\",\"at\":1.5,\"elapsed\":1.0,\"operations\":2,\"received\":3,\"bytes\":4,\
             \"completions\":5,\"gap_micros\":600}\n\
            {\"event\":\"result\",\"ok\":true,\"operations\":2,\"received\":3,\"bytes\":4,\"completions\":5,\
             \"elapsed\":1.0,\"longest_gap\":{\"micros\":6,\"began\":1.0}}\n";
        traffic.take_text(End::Traveller, written, &mut rest);
        let known = traffic.known();
        assert!(known.check_listens && known.write_listens);
        assert_eq!(known.write_rates, [262.48]);
        assert_eq!((known.intervals[0].counts.bytes, known.intervals[0].gap_micros), (4, 600));
        assert!(known.verdicts[0].ok);
    }

    #[test]
    fn reports_why_ib_write_bw_ended() {
        let traffic = Traffic::default();
        let mut rest = String::new();
        traffic.take_text(End::Traveller, "Correlation coefficient r^2: 0.803922 < 0.9\n", &mut rest);
        assert_eq!(traffic.known().write_restarts, 1);
        assert_eq!(traffic.known().failed, None);
        let interval = "{\"event\":\"interval\",\"at\":1.5,\"elapsed\":1.0,\"operations\":2,\"received\":3,\
                        \"bytes\":4,\"completions\":5,\"gap_micros\":600}\n";
        let ended = format!(" Completion with error\n{}ib_write_bw has ended\n", interval.repeat(TAIL));
        traffic.take_text(End::Traveller, &ended, &mut rest);
        let failure = traffic.known().failure("traffic").to_string();
        assert!(failure.contains("no sign of traffic: ib_write_bw has ended"), "{failure}");
        assert!(failure.contains("Completion with error"), "{failure}");
    }
}
