//! The live display: a picture that is redrawn on a terminal, or
//! a line for each event.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use super::measured::MeasuredMove;
use super::plan::{HOME, HOME_HOST, Options, START_HOST, TRAVELLER};
use super::traffic::{Known, Traffic};
use crate::failure::Result;
use crate::figures::milliseconds;
use crate::output;

/// Interval between redraws.
const FRAME: Duration = Duration::from_millis(250);

/// Number of events in the picture.
const EVENTS: usize = 8;

/// Number of samples in a graph.
const SAMPLES: usize = 60;

/// The display.
pub struct View {
    out: Out,
    state: Arc<Mutex<State>>,
}

/// The kind of output.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Out {
    Picture,
    Lines,
    LinesToStderr,
}

struct State {
    begin: Instant,
    events: VecDeque<String>,
    host: String,
    phase: Option<&'static str>,
    traffic: Option<Traffic>,
    drawn_lines: usize,
    closed: bool,
}

impl View {
    /// A display; it draws if the options say so.
    pub fn new(options: &Options) -> Self {
        let state = State {
            begin: Instant::now(),
            events: VecDeque::new(),
            host: START_HOST.into(),
            phase: None,
            traffic: None,
            drawn_lines: 0,
            closed: false,
        };
        let out = match (options.live, options.json) {
            (true, _) => Out::Picture,
            (false, true) => Out::LinesToStderr,
            (false, false) => Out::Lines,
        };
        let view = Self { out, state: Arc::new(Mutex::new(state)) };
        if out == Out::Picture {
            view.keep_drawing();
        }
        view
    }

    /// Shows this traffic from now on.
    pub fn watch(&self, traffic: &Traffic) {
        self.state().traffic = Some(traffic.clone());
    }

    /// Shows an event.
    pub fn say(&self, text: &str) {
        let mut state = self.state();
        let seconds = state.begin.elapsed().as_secs_f64();
        let line = format!("{seconds:7.2} s  {text}");
        match self.out {
            Out::Lines => {
                // The final result uses the same output, and fails if this does.
                let _ = output::line(&line);
            }
            Out::LinesToStderr => eprintln!("{line}"),
            Out::Picture => state.remember(line),
        }
    }

    /// Shows a phase of a move.
    pub fn phase(&self, name: &'static str) {
        self.state().phase = Some(name);
        if self.out != Out::Picture {
            self.say(&format!("  {name}"));
        }
    }

    /// Shows the end of a move to `host`.
    pub fn moved(&self, host: &str, seen: &MeasuredMove) {
        {
            let mut state = self.state();
            state.phase = None;
            host.clone_into(&mut state.host);
        }
        let rate = self.state().rate();
        let figures = match &seen.machine {
            None => format!(
                "blackout {} for the prober, {} for the workload; now {}",
                milliseconds(seen.probe_us),
                milliseconds(seen.workload_us),
                seen.path
            ),
            Some(machine) => format!(
                "its processors paused for {}, and the network for {} more",
                milliseconds(machine.pause_us),
                milliseconds(machine.gap_us)
            ),
        };
        self.say(&format!("`{TRAVELLER}` runs on {host}: {figures}, {rate}"));
    }

    /// Stops drawing; the last picture stays.
    pub fn close(&self) {
        let mut state = self.state();
        if self.out == Out::Picture {
            // A closed terminal is no reason to fail.
            let _ = state.draw();
        }
        state.closed = true;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    fn keep_drawing(&self) {
        let state = self.state.clone();
        thread::spawn(move || {
            loop {
                {
                    let mut state = locked(&state);
                    if state.closed || state.draw().is_err() {
                        return;
                    }
                }
                thread::sleep(FRAME);
            }
        });
    }
}

fn locked(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().expect("no thread panics while it holds the lock")
}

impl State {
    fn remember(&mut self, line: String) {
        if self.events.len() == EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(line);
    }

    fn rate(&self) -> String {
        let traffic = self.traffic.as_ref().map(Traffic::known);
        let rate = traffic.and_then(|known| known.rates.last().map(|rate| (known.stream.name(), *rate)));
        rate.map_or_else(|| "no traffic yet".into(), |(name, rate)| format!("{name} at {rate:.0} MiB/s"))
    }

    fn draw(&mut self) -> Result<()> {
        let picture = self.picture();
        // Move to the first line of the previous picture, and erase from there.
        let erase = match self.drawn_lines {
            0 => String::new(),
            lines => format!("\x1b[{lines}F\x1b[J"),
        };
        self.drawn_lines = picture.lines().count();
        output::write(erase + &picture)
    }

    fn picture(&self) -> String {
        let mut text = self.hosts();
        if let Some(traffic) = &self.traffic {
            text.push_str(&graphs(&traffic.known()));
        }
        for event in &self.events {
            let _ = writeln!(text, "{event}");
        }
        text
    }

    fn hosts(&self) -> String {
        let mut text = String::new();
        for host in ["h1", "h2", "h3"] {
            let home = if host == HOME_HOST { format!(" [{HOME}]") } else { String::new() };
            let traveller = match (host == self.host, self.phase) {
                (true, Some(phase)) => format!(" [{TRAVELLER}: {phase}]"),
                (true, None) => format!(" [{TRAVELLER}]"),
                (false, _) => String::new(),
            };
            let _ = writeln!(text, "  {host} {home}{traveller}");
        }
        text + "\n"
    }
}

/// The throughput of both programs over time.
fn graphs(known: &Known) -> String {
    let checked: Vec<f64> =
        known.intervals.iter().map(|interval| mebibytes(interval.counts.bytes) * 4.0).collect();
    graph(known.stream.name(), &known.rates) + &graph("verbs-check", &checked) + "\n"
}

fn graph(name: &str, rates: &[f64]) -> String {
    let shown = &rates[rates.len().saturating_sub(SAMPLES)..];
    let last = shown.last().copied().unwrap_or_default();
    format!("  {name:<12} {:<SAMPLES$} {last:>7.0} MiB/s\n", bars(shown))
}

/// A bar for each value, scaled to the largest.
fn bars(values: &[f64]) -> String {
    const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = values.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 7")]
    let level = |value: &f64| LEVELS[((value / most * 7.0).round() as usize).min(7)];
    values.iter().map(level).collect()
}

#[allow(clippy::cast_precision_loss, reason = "shown without decimals")]
fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_largest_value_has_the_highest_bar() {
        assert_eq!(super::bars(&[0.0, 350.0, 700.0]), "▁▅█");
        assert_eq!(super::bars(&[]), "");
    }
}
