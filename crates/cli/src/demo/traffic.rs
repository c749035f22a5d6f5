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

/// The message with which iperf3 ends when it is told to. It has others for a connection that fails.
const STREAM_STOPPED: &str = "iperf3: interrupt";

/// How iperf3 reports any error.
const STREAM_FAILED: &str = "iperf3: error";

/// The guest of the demo prints this, followed by a code, when its fio has ended.
const DISK_ENDED: &str = "fio has ended with ";

/// The program whose throughput is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stream {
    /// ib_write_bw, which travels as verbs-check's client does.
    #[default]
    WriteBandwidth,
    /// iperf3, whose client stays as verbs-check's does.
    Iperf,
}

impl Stream {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::WriteBandwidth => "ib_write_bw",
            Self::Iperf => "iperf3",
        }
    }

    /// The end of its client, and of verbs-check's.
    fn clients(self) -> End {
        match self {
            Self::WriteBandwidth => End::Traveller,
            Self::Iperf => End::Home,
        }
    }
}

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
    /// The program whose throughput is shown.
    pub stream: Stream,
    /// Its averages over a second each, in MiB/s.
    pub rates: Vec<f64>,
    /// iperf3 has ended because it was told to, and not because its connection had failed.
    pub stream_was_stopped: bool,
    /// fio has ended, and every block that it has read was as it had written it.
    pub disk_was_verified: bool,
    /// The blocks that it has read.
    pub disk_blocks: u64,
    /// How often ib_write_bw failed to calibrate its clock and was restarted.
    pub write_restarts: u32,
    /// Reports of verbs-check's client.
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
    /// No output yet.
    pub fn new(stream: Stream) -> Self {
        Self(Arc::new((Mutex::new(Known { stream, ..Known::default() }), Condvar::new())))
    }

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
        // On a console, a prompt may be before it.
        let object = line.find('{').map_or("", |begin| &line[begin..]);
        let event = serde_json::from_str(object);
        if !matches!(event, Ok(CheckLine::Interval(_))) {
            self.keep_in_tail(end, line);
        }
        match event {
            Ok(CheckLine::Listening) => self.check_listens = true,
            Ok(CheckLine::Interval(interval)) if end == self.stream.clients() => {
                keep(&mut self.intervals, interval);
            }
            Ok(CheckLine::Interval(_)) => {}
            Ok(CheckLine::Result(verdict)) => self.take_verdict(verdict),
            Err(_) => match self.stream {
                Stream::WriteBandwidth => self.take_perftest(end, line),
                Stream::Iperf => self.take_machine(line),
            },
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
            keep(&mut self.rates, rate);
        }
    }

    /// A line of the machine's console, or of its peer's iperf3.
    fn take_machine(&mut self, line: &str) {
        if line.starts_with(STREAM_STOPPED) {
            self.stream_was_stopped = true;
        } else if line.starts_with(STREAM_FAILED) {
            self.failed.get_or_insert_with(|| line.to_owned());
        } else if let Some((_, code)) = line.split_once(DISK_ENDED) {
            self.disk_was_verified = code == "0" && self.disk_blocks > 0;
            if !self.disk_was_verified {
                let what = format!("fio failed with code {code} after {} blocks", self.disk_blocks);
                self.failed.get_or_insert(what);
            }
        } else if let Some((_, issued)) = line.split_once("issued rwts: total=") {
            // Reads, then writes. It reads what it has written.
            self.disk_blocks = issued.split(',').next().and_then(|reads| reads.parse().ok()).unwrap_or(0);
        } else if let Some(rate) = stream_rate(line) {
            keep(&mut self.rates, rate);
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

/// The rate in a line of iperf3 for an interval, and none in its sums.
fn stream_rate(line: &str) -> Option<f64> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let is_sum = words.last().is_some_and(|last| matches!(*last, "sender" | "receiver"));
    let unit = words.iter().position(|word| *word == "MBytes/sec").filter(|_| !is_sum)?;
    words.get(unit.checked_sub(1)?)?.parse().ok()
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
        assert_eq!(known.rates, [262.48]);
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

    #[test]
    fn the_programs_of_a_machine_report_rates_and_how_they_ended() {
        let traffic = Traffic::new(Stream::Iperf);
        let mut rest = String::new();
        let home = "[  5]   0.00-1.00   sec   512 KBytes  0.50 MBytes/sec    0    1.12 MBytes\n\
                    iperf3: interrupt - the client has terminated\n\
                    [  5]   0.00-3.50   sec  3.38 MBytes  0.96 MBytes/sec    0             sender\n";
        traffic.take_text(End::Home, home, &mut rest);
        let console = "root@guest:~# {\"event\":\"listening\",\"address\":\"x\"}\r\n\
                       issued rwts: total=512,538,0,0 short=0,0,0,0 dropped=0,0,0,0\r\n\
                       fio has ended with 0\r\n";
        traffic.take_text(End::Traveller, console, &mut rest);
        let known = traffic.known();
        assert_eq!((&known.rates[..], known.disk_blocks), (&[0.5][..], 512));
        assert!(known.stream_was_stopped && known.disk_was_verified && known.check_listens);
        drop(known);
        traffic.take_text(End::Traveller, "fio has ended with 1\n", &mut rest);
        assert!(traffic.known().failure("fio").to_string().contains("fio failed with code 1 after 512"));
    }
}
