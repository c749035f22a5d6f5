//! `transhume drain`, `transhume undrain`

use std::fmt;
use std::io;
use std::path::Path;
use std::process::{self, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use api::{
    Client, DrainReport, DrainRequest, EnginePart, Errand, Event, Failure as Obstacle, MAX_PARALLEL,
    MoveFigures, MoveReport, NetworkPart, Occurrence, Outcome, PlannedMove, Request,
};
use clap::{Args, value_parser};
use serde::Serialize;

use super::group::{destination, in_words, say_obstacles, tell_in};
use super::lasting;
use super::target::Target;
use super::words;
use crate::failure::{Failure, Result, unexpected};
use crate::figures::{mebibytes, milliseconds};
use crate::{interrupt, output, table};

const EXAMPLES: &str = "Examples:
  transhume drain h1
  transhume drain h1 --to h2,h3 --parallel 4
  transhume drain h1 --dry-run
  transhume drain h1 --json | jq '.moves[].blackout_us'";

const JSON: &str = "JSON output:
  Standard output gets one object: `host`, `moved`, `stayed` (a list of `name` and `why`; absent
  if the drain was ended) and `moves`, in the format of `transhume move --json`. With --dry-run it
  gets a list of objects: `name`, `bytes`, `total_us`, `blackout_us`, `to`, `obstacles` and, if the
  instance cools down, `cools_down_for_s`. Standard error gets one object per line:
    waiting    for an unreachable `host`, or `coordinator`: `why` and `outlook`
    ended      after Ctrl-C: `host`
    not_ended  after Ctrl-C: `message` and `help`
    failed     last, if the drain was ended or refused: `message` and `help`";

/// Moves all instances off a host
///
/// A drained host accepts no new instances until `transhume undrain`. Its instances move, the smallest
/// first, each to the host with the fewest instances that can take it; the cool-down does not apply.
/// Instances that cannot move stay and continue to run.
///
/// Ctrl-C ends the drain: uncommitted moves are rolled back, and the host accepts instances again. A second
/// Ctrl-C returns at once; if the coordinator is down at that moment, the host stays drained. If the
/// coordinator restarts, the command waits for it and drains the rest. A new drain of the same host
/// replaces the previous one, which fails.
#[derive(Args)]
#[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{JSON}"))]
pub struct Drain {
    /// The host
    host: String,
    /// Allowed destinations, separated by commas [default: any host that is up]
    #[arg(long, value_name = "HOST", value_delimiter = ',', value_parser = words::host)]
    to: Vec<String>,
    /// Number of moves at a time: 1 to 32
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u16).range(1..=i64::from(MAX_PARALLEL)))]
    parallel: u16,
    /// Only shows the destination, estimated duration and blockers of each move
    #[arg(long)]
    dry_run: bool,
    /// Prints the report as JSON, without progress
    #[arg(long)]
    json: bool,
}

/// Ends a drain, so that instances can start on the host again
///
/// If the drain is still in progress, its uncommitted moves are rolled back. Instances that have moved stay on their new hosts.
#[derive(Args)]
#[command(after_help = "Example:\n  transhume undrain h1")]
pub struct Undrain {
    /// The host
    host: String,
}

impl Drain {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        let json = self.json;
        self.make(target).map_err(|failure| if json { failure.in_json() } else { failure })
    }

    fn make(self, target: &Target) -> Result<ExitCode> {
        let request = Request::Drain(DrainRequest {
            host: self.host.clone(),
            to: self.to.clone(),
            parallel: self.parallel,
            dry_run: self.dry_run,
        });
        let mut events = target.send(&request)?;
        let is_ended = Arc::new(AtomicBool::new(false));
        if !self.dry_run {
            undrain_on_interrupt(target, self.host.clone(), is_ended.clone(), self.json)?;
        }
        let (mut moves, mut lost, began) = (Vec::new(), false, SystemTime::now());
        loop {
            match events.next_event() {
                Ok(Event::Draining { instances }) => self.say_begin(instances)?,
                Ok(Event::MoveOver(report)) => {
                    self.say_move(&report)?;
                    moves.push(*report);
                }
                Ok(Event::Remaining { instances, time_us }) => self.say_rest(instances, time_us)?,
                Ok(Event::Drained(report)) => {
                    if lost {
                        self.add_untold(target, began, &mut moves)?;
                    }
                    return self.drained(report, moves);
                }
                Ok(Event::Plan(plan)) => return self.planned(&plan),
                Ok(Event::Failed(failure)) => {
                    self.ended(&moves)?;
                    return Err(self.suggest(target, failure));
                }
                Ok(event) if event.is_last() => return Err(unexpected(&event)),
                Ok(event) => tell_in(self.json, &event),
                Err(error) if error.is_loss() => {
                    let errand = format!("to drain {}", self.host);
                    let outlook = format!("then the rest of {} is drained", self.host);
                    lost = true;
                    let socket = target.socket();
                    events = lasting::send_again_as(self.json, &socket, &request, &errand, &outlook)?;
                    if is_ended.load(Ordering::Relaxed) {
                        self.ended(&moves)?;
                        return Err(self.end_again(&socket));
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Ends the drain that was just requested from the restarted coordinator, because the user has cancelled it.
    fn end_again(&self, socket: &Path) -> Failure {
        // A drain that has not begun does not begin without this command.
        let _ = Client::send(socket, &undrain(&self.host)).and_then(|mut client| client.next_event());
        let message = format!("the drain of {} was ended", self.host);
        Failure::new(message, "`transhume hosts` shows whether the host is still drained")
    }

    /// Prints the moves made by a drain that was ended, as JSON; nothing if there were none.
    fn ended(&self, moves: &[MoveReport]) -> Result<()> {
        if !self.json || moves.is_empty() {
            return Ok(());
        }
        output::json(&serde_json::json!({ "host": self.host, "moved": moved(moves), "moves": moves }))
    }

    /// Adds moves that completed while the coordinator was unreachable, from the event log.
    /// Their figures are known if the log has them.
    fn add_untold(&self, target: &Target, began: SystemTime, moves: &mut Vec<MoveReport>) -> Result<()> {
        let since = began.duration_since(UNIX_EPOCH).unwrap_or_default();
        let since_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        let mut events = target.send(&Request::Events { after: 0, since_ms, follow: false })?;
        loop {
            match events.next_event()? {
                Event::Logged(event) => {
                    if let Some(report) = self.untold(event.what, moves) {
                        self.say_move(&report)?;
                        moves.push(report);
                    }
                }
                Event::Done => return Ok(()),
                Event::Failed(failure) => return Err(failure.into()),
                event => return Err(unexpected(&event)),
            }
        }
    }

    /// The report of a move that left this host and is not among `moves`.
    fn untold(&self, what: Occurrence, moves: &[MoveReport]) -> Option<MoveReport> {
        let Occurrence::Moved { instance, from, to, epoch, figures, .. } = what else { return None };
        // An instance leaves at most once: none moves to a drained host.
        let is_told = moves.iter().any(|of| of.name == instance && of.outcome == Outcome::Moved);
        (from == self.host && !is_told).then(|| {
            let restarted = figures.is_none();
            let MoveFigures { total_us, blackout_us, image_bytes, precopied_bytes, .. } =
                figures.unwrap_or_default();
            MoveReport {
                errand: Errand::Move,
                name: instance,
                from,
                to,
                epoch,
                outcome: Outcome::Moved,
                restarted,
                total_us,
                blackout_us,
                phases: Vec::new(),
                network: NetworkPart::default(),
                engine: EnginePart { image_bytes, precopied_bytes, ..EnginePart::default() },
                outage: None,
            }
        })
    }

    /// Adds a suggestion for a misspelt host to the failure.
    fn suggest(&self, target: &Target, failure: Obstacle) -> Failure {
        let names = std::iter::once(&self.host).chain(&self.to);
        names.fold(failure.into(), |failure, name| target.suggest_host(failure, name))
    }

    fn say_begin(&self, instances: u32) -> Result<()> {
        if self.json {
            return Ok(());
        }
        output::line(&format!("draining {}: {} to move", self.host, counted(instances as usize)))
    }

    fn say_rest(&self, instances: u32, time_us: Option<u64>) -> Result<()> {
        if self.json || instances == 0 {
            return Ok(());
        }
        let time = time_us.map(|time| format!(", about {} s", time.div_ceil(1_000_000))).unwrap_or_default();
        output::line(&format!("  {} left{time}", counted(instances as usize)))
    }

    fn say_move(&self, report: &MoveReport) -> Result<()> {
        if self.json {
            return Ok(());
        }
        output::line(&in_words(report))
    }

    fn drained(&self, report: DrainReport, moves: Vec<MoveReport>) -> Result<ExitCode> {
        // Includes moves that a previous coordinator reported.
        let moved = moved(&moves);
        let DrainReport { host, stayed, .. } = report;
        if self.json {
            let code = if stayed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
            let report =
                serde_json::json!({ "host": host, "moved": moved, "stayed": stayed, "moves": moves });
            return output::json(&report).map(|()| code);
        }
        if stayed.is_empty() {
            output::line(&format!("{host} is drained: {} moved", counted(moved)))?;
            return Ok(ExitCode::SUCCESS);
        }
        for left in &stayed {
            let message = format!("{} stays on {host} and continues to run: {}", left.name, left.why);
            eprintln!("{}", Failure::from(Obstacle::new(message, &left.why.remedy)));
        }
        let message = format!("{} moved, but {} stayed on {host}", counted(moved), stayed.len());
        let help = format!("fix the causes and drain {host} again, or use `transhume undrain {host}`");
        Err(Failure::new(message, help))
    }

    fn planned(&self, plan: &[PlannedMove]) -> Result<ExitCode> {
        let is_possible = plan.iter().all(|planned| planned.to.is_some());
        let code = if is_possible { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        if self.json {
            return output::json(&plan).map(|()| code);
        }
        let figure = |figure: Option<u64>, text: fn(u64) -> String| figure.map_or_else(|| "-".into(), text);
        let row = |planned: &PlannedMove| {
            [
                planned.name.clone(),
                destination(planned),
                figure(planned.bytes, mebibytes),
                figure(planned.total_us, milliseconds),
                figure(planned.blackout_us, milliseconds),
            ]
        };
        let rows: Vec<_> = plan.iter().map(row).collect();
        output::write(table::render(["INSTANCE", "TO", "SIZE", "ABOUT", "BLACKOUT"], &rows))?;
        for planned in plan {
            if let Some(seconds) = planned.cools_down_for_s {
                let time = api::in_words(seconds);
                output::line(&format!("{} cools down for another {time}, but moves anyway", planned.name))?;
            }
        }
        say_obstacles(plan);
        Ok(code)
    }
}

impl Undrain {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        match target.ask(&undrain(&self.host)).map_err(|failure| target.suggest_host(failure, &self.host))? {
            Event::Done => Ok(ExitCode::SUCCESS),
            event => Err(unexpected(&event)),
        }
    }
}

fn moved(moves: &[MoveReport]) -> usize {
    moves.iter().filter(|report| report.outcome == Outcome::Moved).count()
}

fn counted(instances: usize) -> String {
    if instances == 1 { "1 instance".into() } else { format!("{instances} instances") }
}

/// Printed after the first Ctrl-C.
const LEAVE: &str = "waiting for the result; press Ctrl-C again to return at once";

fn undrain(host: &str) -> Request {
    Request::Undrain { host: host.to_owned() }
}

/// Makes Ctrl-C end the drain. `is_ended` prevents a new request to a restarted coordinator.
fn undrain_on_interrupt(
    target: &Target,
    host: String,
    is_ended: Arc<AtomicBool>,
    json: bool,
) -> io::Result<()> {
    let socket = target.socket();
    interrupt::on_first(move || {
        is_ended.store(true, Ordering::Relaxed);
        let answer = Client::send(&socket, &undrain(&host)).and_then(|mut client| client.next_event());
        let (answer, is_refused) = match answer {
            // The drain has not begun, and does not begin without this command.
            Ok(Event::Failed(failure)) => (Interrupted::NotEnded(failure), true),
            Ok(_) => (Interrupted::Ended { host }, false),
            Err(error) => {
                let help = format!(
                    "the drain ends when the coordinator is back; press Ctrl-C again to return at once and leave {host} drained"
                );
                (Interrupted::NotEnded(Obstacle::new(error.to_string(), help)), false)
            }
        };
        if json {
            output::json_aside(&answer)
        } else {
            eprintln!("{answer}")
        }
        if is_refused {
            process::exit(1);
        }
    })
}

/// The result of a Ctrl-C.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Interrupted {
    Ended { host: String },
    NotEnded(Obstacle),
}

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended { host } => write!(f, "the drain has ended: {host} accepts instances again\n{LEAVE}"),
            Self::NotEnded(why) => Failure::from(why.clone()).fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use fabric::Epoch;

    use super::*;

    #[test]
    fn drain_adds_unreported_moves_once() {
        let drain = Drain { host: "h1".into(), to: Vec::new(), parallel: 1, dry_run: false, json: false };
        let figures = MoveFigures { total_us: 9, blackout_us: 5, ..MoveFigures::default() };
        let moved = |from: &str, figures| Occurrence::Moved {
            instance: "a".into(),
            from: from.into(),
            to: "h2".into(),
            id: 1,
            epoch: Epoch(1),
            figures,
        };
        let measured = drain.untold(moved("h1", Some(figures)), &[]).unwrap();
        assert_eq!((measured.restarted, measured.total_us, measured.blackout_us), (false, 9, 5));
        assert!(drain.untold(moved("h1", None), &[]).unwrap().restarted);
        assert!(drain.untold(moved("h1", Some(figures)), &[measured]).is_none(), "it was reported");
        assert!(drain.untold(moved("h3", Some(figures)), &[]).is_none(), "it left another host");
    }
}
