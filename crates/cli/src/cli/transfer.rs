//! `transhume move`

use std::fmt;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::process::ExitCode;

use api::{
    Client, Copying, Event, Failure as Obstacle, Fetching, MoveReport, MoveRequest, Outage, Outcome, Phase,
    Request,
};
use clap::Args;
use serde::Serialize;

use super::group::GroupTransfer;
use super::lasting;
use super::target::Target;
use super::words;
use crate::failure::{Failure, Result, unexpected};
use crate::figures::{mebibytes, milliseconds, phase_name};
use crate::{WRONG_USAGE, interrupt, output, table};

const EXAMPLES: &str = "Examples:
  transhume move job1 h3
  transhume move job1 h3 --dry-run
  transhume move job1 h3 --force
  transhume move job1 h3 --post-copy
  transhume move job1 h3 --within 30s
  transhume move --group job h3,h4
  transhume move job1 h3 --json | jq .blackout_us";

const JSON: &str = "JSON output:
  Standard output gets the report; with --group a list of reports, and with --group --dry-run a
  list of objects with `name`, `to` and `obstacles`. Standard error gets one object per line:
    risk           before a move with --post-copy
    copying        during pre-copy: `memory_bytes`, `sent_bytes`, `look` (round) and `left_us`
    fetching       after --post-copy: `fetched_bytes` and `missing_bytes`
    waiting        for an unreachable `host`, or `coordinator`: `why` and `outlook`
    cancelling     after Ctrl-C: `name`
    not_cancelled  after Ctrl-C: `message` and `help`
    failed         last, if there is no report: `message` and `help`";

/// Moves an instance, or all instances of a group, to another host
///
/// Its RDMA and TCP connections stay open. Ctrl-C rolls the move back, unless it has passed its commit point; a
/// second Ctrl-C returns at once, and the move goes on (`transhume cancel` cancels it). If the coordinator
/// restarts, the command waits for it and reports the result: uncommitted moves are rolled back.
///
/// With --group, all instances of the group arrive, or all stay. They are spread over the given hosts; instances
/// that are already on one of these hosts stay there.
///
/// During the cool-down after a move (`--cool-down`), another move needs --force.
///
/// With --post-copy, the instance runs on its destination before all its memory is there, so its blackout does not grow with the
/// rate at which it writes memory. Pages are sent once before, and changed pages are fetched afterwards, those in demand first. If the
/// source fails before all pages are there, the instance is lost; while the source is unreachable, the instance waits for
/// missing pages. Until then it cannot be moved again, but it can be killed. Forked processes no longer share fetched pages, so a
/// container's `--memory` must allow for a copy each.
#[derive(Args)]
#[command(name = "move", allow_missing_positional = true)]
#[command(
    override_usage = "transhume move [OPTIONS] <NAME> <HOST>\n       transhume move [OPTIONS] --group <G> <HOST>[,<HOST>…]"
)]
#[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{JSON}"))]
pub struct Arguments {
    /// The instance's name
    #[arg(conflicts_with = "group")]
    name: Option<String>,
    /// The destination; for a group, one host or several, separated by commas
    #[arg(required = true)]
    host: String,
    /// Moves all instances of this group, together
    #[arg(long, value_name = "G")]
    group: Option<String>,
    /// Only reports blockers
    #[arg(long)]
    dry_run: bool,
    /// Overrides the cool-down
    #[arg(long)]
    force: bool,
    /// Runs the instance on the destination before all its memory is there; if the source fails meanwhile, the instance is lost
    #[arg(long, conflicts_with = "group")]
    post_copy: bool,
    /// Rolls the move back if it has not committed after this time
    #[arg(long, value_name = "DURATION", value_parser = words::seconds, conflicts_with = "group")]
    within: Option<u64>,
    /// Prints the report as JSON; progress and failures go to standard error as JSON
    #[arg(long)]
    json: bool,
}

impl Arguments {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        let Self { name, host, group, dry_run, force, post_copy, within, json } = self;
        let made = match (name, group) {
            (Some(name), _) => Transfer { name, host, dry_run, force, post_copy, within, json }.make(target),
            (None, Some(group)) => hosts(&host)
                .and_then(|hosts| GroupTransfer { group, hosts, dry_run, force, json }.make(target)),
            (None, None) => Err(Failure::new(
                format!("neither an instance nor a group to move to {host} was given"),
                "pass an instance before the host, or a group with `--group`",
            )
            .with_code(WRONG_USAGE)),
        };
        made.map_err(|failure| if json { failure.in_json() } else { failure })
    }
}

/// Parses a list of hosts, separated by commas.
fn hosts(text: &str) -> Result<Vec<String>> {
    let hosts: std::result::Result<_, String> = text.split(',').map(words::host).collect();
    let help = "pass one host, or several separated by commas: `h2,h3`";
    hosts.map_err(|why| Failure::new(format!("{why}: `{text}`"), help).with_code(WRONG_USAGE))
}

/// A move of one instance.
struct Transfer {
    name: String,
    host: String,
    dry_run: bool,
    force: bool,
    post_copy: bool,
    within: Option<u64>,
    json: bool,
}

impl Transfer {
    fn make(self, target: &Target) -> Result<ExitCode> {
        let (name, host) = (self.name.clone(), self.host.clone());
        let Self { dry_run, force, post_copy, within, .. } = self;
        let request = MoveRequest { name, host, dry_run, force, post_copy, within_s: within };
        self.tell_risk()?;
        let events = target.send(&Request::Move(request))?;
        if !self.dry_run {
            let outlook = format!("rolling back the move: {} continues to run on its source", self.name);
            cancel_on_interrupt(target, self.name.clone(), outlook, self.json)?;
        }
        let progress = if self.json { Progress::Json } else { Progress::to_stdout() };
        let suggest = |failure| target.suggest_instance(target.suggest_host(failure, &self.host), &self.name);
        match self.follow(&target.socket(), events, progress).map_err(suggest)? {
            Event::Checked { obstacles } => self.checked(obstacles),
            Event::Moved(report) => moved(&report, self.json),
            event => Err(unexpected(&event)),
        }
    }

    /// Prints the risk of post-copy before the move.
    fn tell_risk(&self) -> Result<()> {
        if !self.post_copy {
            return Ok(());
        }
        let (name, host) = (&self.name, &self.host);
        let risk = format!(
            "{name} will run on {host} before all its memory is there; if its source fails meanwhile, {name} is lost"
        );
        if self.json {
            output::json_aside(&serde_json::json!({ "risk": risk }));
            return Ok(());
        }
        output::line(&format!("post-copy: {risk}"))
    }

    /// Shows progress until the last event, and returns it.
    fn follow(&self, socket: &Path, mut events: Client, mut progress: Progress) -> Result<Event> {
        let mut begun = None;
        loop {
            match events.next_event() {
                Ok(Event::Begun { id }) => begun = Some(id),
                Ok(Event::Phase { phase, at_us }) => progress.phase(phase, at_us)?,
                Ok(Event::Copying(copying)) => progress.copying(copying)?,
                Ok(Event::Fetching(fetching)) => progress.fetching(fetching)?,
                Ok(Event::Transferred { bytes, total }) => progress.bytes(bytes, total)?,
                Ok(waiting @ Event::Waiting { .. }) => progress.waiting(&waiting)?,
                Ok(Event::Failed(failure)) => {
                    progress.end()?;
                    return Err(failure.into());
                }
                Ok(last) => {
                    progress.end()?;
                    return Ok(last);
                }
                Err(error) if error.is_loss() => {
                    progress.end()?;
                    events = self.again(socket, begun)?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Prints the blockers that the check found.
    fn checked(&self, obstacles: Vec<Obstacle>) -> Result<ExitCode> {
        let code = if obstacles.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        if self.json {
            output::json(&serde_json::json!({ "obstacles": obstacles }))?;
        } else if obstacles.is_empty() {
            output::line("no blockers")?;
            if self.post_copy {
                output::line(
                    "the blackout includes the transfer of all state except memory, and of memory that post-copy cannot fetch",
                )?;
            }
        } else {
            obstacles.into_iter().for_each(|obstacle| eprintln!("{}", self.hindered(obstacle)));
        }
        Ok(code)
    }

    fn hindered(&self, obstacle: Obstacle) -> Failure {
        let (name, host) = (&self.name, &self.host);
        let message = format!("{name} cannot be moved to {host}: {}", obstacle.message);
        Obstacle { message, ..obstacle }.into()
    }

    /// Follows the move with the restarted coordinator.
    fn again(&self, socket: &Path, begun: Option<u64>) -> Result<Client> {
        let name = self.name.clone();
        match begun.filter(|_| !self.dry_run) {
            Some(id) => follow_again(self.json, socket, name, id),
            None => Err(Failure::new(
                format!("connection to the coordinator lost before it confirmed the move of `{name}`"),
                "when the coordinator is back, check with `transhume ps` and try again",
            )),
        }
    }
}

/// Follows the move of the instance `name` with the restarted coordinator.
pub fn follow_again(json: bool, socket: &Path, name: String, id: u64) -> Result<Client> {
    let errand = format!("to learn the result of the move of `{name}`");
    let outlook = format!("the result of the move of {name} follows when it is back");
    lasting::send_again_as(json, socket, &Request::FollowMove { name, id }, &errand, &outlook)
}

/// Printed after the first Ctrl-C.
const LEAVE: &str =
    "waiting for the result; press Ctrl-C again to return at once, while the operation goes on";

/// Makes Ctrl-C cancel the move of the instance `name`; `outlook` tells the user the consequence.
pub fn cancel_on_interrupt(target: &Target, name: String, outlook: String, json: bool) -> io::Result<()> {
    let (socket, cancel) = (target.socket(), Request::Cancel { name: name.clone() });
    let ask = move || Client::send(&socket, &cancel)?.next_event();
    interrupt::on_first(move || {
        let answer = match ask() {
            Ok(Event::Failed(failure)) => Interrupted::NotCancelled(failure),
            Ok(_) => Interrupted::Cancelling { name, outlook },
            // The restarted coordinator rolls back what its predecessor had not committed.
            Err(error) => Interrupted::NotCancelled(Obstacle::new(
                error.to_string(),
                "uncommitted moves are rolled back when the coordinator is back",
            )),
        };
        if json { output::json_aside(&answer) } else { eprintln!("{answer}\n{LEAVE}") }
    })
}

/// The result of a Ctrl-C.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Interrupted {
    Cancelling {
        name: String,
        #[serde(skip)]
        outlook: String,
    },
    NotCancelled(Obstacle),
}

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cancelling { outlook, .. } => f.write_str(outlook),
            Self::NotCancelled(why) => Failure::from(why.clone()).fmt(f),
        }
    }
}

/// Output of a move's progress.
enum Progress {
    /// JSON lines on standard error.
    Json,
    /// A line for each phase; on a terminal, the line also shows the bytes transferred.
    Lines { live: bool, open: bool },
}

impl Progress {
    fn to_stdout() -> Self {
        Self::Lines { live: io::stdout().is_terminal(), open: false }
    }

    fn phase(&mut self, phase: Phase, at_us: u64) -> Result<()> {
        let line = format!("{:>10}  {}", milliseconds(at_us), phase_name(phase));
        match self {
            Self::Json => Ok(()),
            Self::Lines { live: false, .. } => output::line(&line),
            Self::Lines { live: true, open } => {
                let before = if *open { "\n" } else { "" };
                *open = true;
                output::write(format!("{before}{line}"))
            }
        }
    }

    fn bytes(&mut self, bytes: u64, total: Option<u64>) -> Result<()> {
        let total = total.map(|total| format!(" of {}", mebibytes(total))).unwrap_or_default();
        self.behind_the_phase(format!("{}{total}", mebibytes(bytes)))
    }

    fn copying(&mut self, copying: Copying) -> Result<()> {
        if matches!(self, Self::Json) {
            output::json_aside(&Event::Copying(copying));
            return Ok(());
        }
        self.behind_the_phase(in_words(copying))
    }

    fn fetching(&mut self, fetching: Fetching) -> Result<()> {
        if matches!(self, Self::Json) {
            output::json_aside(&Event::Fetching(fetching));
            return Ok(());
        }
        let Fetching { fetched_bytes, missing_bytes } = fetching;
        self.behind_the_phase(format!("{}, {} missing", mebibytes(fetched_bytes), mebibytes(missing_bytes)))
    }

    fn behind_the_phase(&mut self, text: String) -> Result<()> {
        let Self::Lines { live: true, .. } = self else { return Ok(()) };
        // Save the cursor, write, erase the rest of the line, restore the cursor.
        output::write(format!("\x1b7  {text}\x1b[K\x1b8"))
    }

    fn waiting(&mut self, event: &Event) -> Result<()> {
        let Event::Waiting { host, why, outlook } = event else { return Ok(()) };
        if matches!(self, Self::Json) {
            output::json_aside(event);
            return Ok(());
        }
        self.end()?;
        output::line(&format!("            waiting for host {host}: {why}; {outlook}"))
    }

    fn end(&mut self) -> Result<()> {
        match self {
            Self::Lines { open, .. } if *open => {
                *open = false;
                output::line("")
            }
            _ => Ok(()),
        }
    }
}

/// The progress of pre-copy.
fn in_words(copying: Copying) -> String {
    let Copying { memory_bytes, sent_bytes, look, left_us } = copying;
    let (sent, memory) = (mebibytes(sent_bytes), mebibytes(memory_bytes));
    let left = left_us.map(|left| format!(", about {} s left", left.div_ceil(1_000_000))).unwrap_or_default();
    format!("{sent} sent, round {look} over {memory}{left}")
}

fn moved(report: &MoveReport, json: bool) -> Result<ExitCode> {
    if json {
        output::json(report)?;
    } else {
        output::write(render(report))?;
    }
    match &report.outcome {
        Outcome::Moved | Outcome::Saved | Outcome::Restored => Ok(ExitCode::SUCCESS),
        Outcome::RolledBack(_) | Outcome::Ended(_) if json => Ok(ExitCode::FAILURE),
        Outcome::Ended(reason) if report.phases.iter().any(|time| time.phase == Phase::Fetch) => {
            let message = format!("{} was moved, but has ended: {reason}", report.name);
            Err(Obstacle::new(message, &reason.remedy).into())
        }
        Outcome::Ended(reason) => {
            let message = format!("{} was not moved: {reason}", report.name);
            Err(Obstacle::new(message, &reason.remedy).into())
        }
        Outcome::RolledBack(reason) => {
            let message =
                format!("{} was not moved and continues to run on {}: {reason}", report.name, report.from);
            Err(Obstacle::new(message, &reason.remedy).into())
        }
    }
}

/// A report as text.
fn render(report: &MoveReport) -> String {
    if report.restarted {
        let MoveReport { name, from, to, epoch, .. } = report;
        let outcome = if report.outcome == Outcome::Moved { "moved" } else { "not moved" };
        return format!(
            "\n{name} {from} → {to}, epoch {}: {outcome}; figures lost because the coordinator restarted\n",
            epoch.0
        );
    }
    let rows: Vec<_> = report
        .phases
        .iter()
        .map(|time| {
            [phase_name(time.phase).to_owned(), milliseconds(time.at_us), milliseconds(time.elapsed_us)]
        })
        .collect();
    format!(
        "\n{} {} → {}, epoch {}: {} in all{}{}\n\n{}",
        report.name,
        report.from,
        report.to,
        report.epoch.0,
        milliseconds(report.total_us),
        blackout(report),
        outage(report),
        table::render(["PHASE", "AT", "TOOK"], &rows),
    )
}

/// The blackout as peers measured it; empty if the instance was not suspended.
fn blackout(report: &MoveReport) -> String {
    let (network, engine) = (&report.network, &report.engine);
    if report.blackout_us == 0 {
        return String::new();
    }
    format!(
        ", blackout {} (network part {}; {} QPs, {} memory regions, {})",
        milliseconds(report.blackout_us),
        milliseconds(network.total_us()),
        network.queue_pairs,
        network.memory_regions,
        sent(engine.image_bytes, engine.precopied_bytes)
            + &fetched(engine.demanded_bytes, engine.pushed_bytes),
    )
}

/// The outage of a virtual machine; empty for other instances.
fn outage(report: &MoveReport) -> String {
    report.outage.map_or_else(String::new, |Outage { processors_us, link_us }| {
        format!(
            "; its processors were stopped for {}, and its network was cut for {}",
            milliseconds(processors_us),
            milliseconds(link_us)
        )
    })
}

/// The bytes fetched after the resume; empty if there were none.
fn fetched(demanded: u64, pushed: u64) -> String {
    match demanded + pushed {
        0 => String::new(),
        bytes => format!(", {} after it, {} of it on demand", mebibytes(bytes), mebibytes(demanded)),
    }
}

/// The bytes sent, and the share that was sent by pre-copy.
pub fn sent(bytes: u64, precopied: u64) -> String {
    match precopied {
        0 => mebibytes(bytes),
        _ => format!("{}, {} of it before the blackout", mebibytes(bytes), mebibytes(precopied)),
    }
}
