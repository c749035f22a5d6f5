//! `transhume move`

use std::fmt;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::process::ExitCode;

use api::{
    Client, Copying, Event, Failure as Obstacle, Fetching, MoveReport, MoveRequest, Outcome, Phase, Request,
};
use clap::Args;
use serde::Serialize;

use super::group::GroupTransfer;
use super::lasting;
use super::target::{Target, unexpected};
use super::words;
use crate::failure::{Failure, Result};
use crate::{WRONG_USAGE, interrupt, output, table};

/// Moves an instance, or all of a group, to other hosts
///
/// Its RDMA and TCP connections go on. Ctrl-C asks for a rollback and waits for the outcome: past
/// the commit point the move goes forward all the same. A second Ctrl-C leaves at once, and the
/// move goes on without this command; `transhume cancel` ends it then. For which host a move waits is said when it takes long. If the
/// coordinator goes away, this waits for it and says how the move ended: a coordinator that comes back
/// rolls back what was not yet committed.
///
/// The instances of a group (`transhume run --group`) move together: none is suspended before all can be, and all arrive or
/// all run on where they were. Several hosts are named with commas; instances that are on one of them stay, the others are spread over them.
///
/// An instance that has moved and cools down (`--cool-down` of `transhume run` and `transhume coordinator`) is left where it is, and
/// with it its group: it is said for how long. With --force it moves nevertheless.
///
/// With --post-copy it runs at its new host before all its memory is there: its memory is sent once while it runs, and what has changed
/// since is fetched afterwards, first of all what it touches. So it stands still the shorter, the more it writes. The risk: until
/// all is fetched its memory is on two hosts. If the old one is lost in that time, the instance is ended, since a part of its memory
/// is gone. If the old one cannot be reached, the instance waits for it. It can be ended with `transhume kill`, and not be moved. And
/// processes that have forked share no memory that is fetched: each gets its own copy, which a container's `--memory` must have room for.
///
/// With --json all that goes to standard error is JSON as well, one object a line: `risk` before a --post-copy, `copying` with `memory_bytes`, `sent_bytes`, `look` and
/// `left_us` while memory is sent and the instance runs, `fetching` with `fetched_bytes` and `missing_bytes` after --post-copy, `waiting` with `host`, `why` and `outlook` (`host` may be `coordinator`), after a Ctrl-C `cancelling` with `name`, or `not_cancelled`, and last `failed` if there is no
/// report; the latter two with `message` and `help`. Of a group there is a list of reports,
/// and a dry run writes a list of objects with `name`, `to` and `obstacles`.
#[derive(Args)]
#[command(name = "move", allow_missing_positional = true)]
#[command(
    override_usage = "transhume move [OPTIONS] <NAME> <HOST>\n       transhume move [OPTIONS] --group <G> <HOST>[,<HOST>…]"
)]
#[command(
    after_help = "Examples:\n  transhume move job1 h3\n  transhume move job1 h3 --dry-run\n  transhume move job1 h3 --force\n  \
                        transhume move job1 h3 --post-copy\n  \
                        transhume move --group job h3,h4\n  \
                        transhume move job1 h3 --json | jq .blackout_us"
)]
pub struct Arguments {
    /// The instance's name
    #[arg(conflicts_with = "group")]
    name: Option<String>,
    /// The host to which it goes; for a group, all hosts where it is to be
    #[arg(required = true)]
    host: String,
    /// Moves all instances of this group, together
    #[arg(long, value_name = "G")]
    group: Option<String>,
    /// Only says what stands in the way
    #[arg(long)]
    dry_run: bool,
    /// Moves also what cools down after its last move
    #[arg(long)]
    force: bool,
    /// Lets it run before all its memory is there: if its old host is lost meanwhile, it is ended
    #[arg(long, conflicts_with = "group")]
    post_copy: bool,
    /// Writes the report as JSON; how far it is, failures and for which host it waits go to standard error, as JSON
    #[arg(long)]
    json: bool,
}

impl Arguments {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        let Self { name, host, group, dry_run, force, post_copy, json } = self;
        let made = match (name, group) {
            (Some(name), _) => Transfer { name, host, dry_run, force, post_copy, json }.make(target),
            (None, Some(group)) => hosts(&host)
                .and_then(|hosts| GroupTransfer { group, hosts, dry_run, force, json }.make(target)),
            (None, None) => Err(Failure::new(
                format!("it is not said what is to be moved to {host}"),
                "name an instance before the host, or a group with `--group`",
            )
            .with_code(WRONG_USAGE)),
        };
        made.map_err(|failure| if json { failure.in_json() } else { failure })
    }
}

/// The hosts that are named with commas in between.
fn hosts(text: &str) -> Result<Vec<String>> {
    let hosts: std::result::Result<_, String> = text.split(',').map(words::host).collect();
    let help = "name one host, or several with one comma between two: `h2,h3`";
    hosts.map_err(|why| Failure::new(format!("{why}: `{text}`"), help).with_code(WRONG_USAGE))
}

/// A move of one instance.
struct Transfer {
    name: String,
    host: String,
    dry_run: bool,
    force: bool,
    post_copy: bool,
    json: bool,
}

impl Transfer {
    fn make(self, target: &Target) -> Result<ExitCode> {
        let (name, host) = (self.name.clone(), self.host.clone());
        let Self { dry_run, force, post_copy, .. } = self;
        let request = MoveRequest { name, host, dry_run, force, post_copy };
        self.tell_risk()?;
        let events = target.send(&Request::Move(request))?;
        if !self.dry_run {
            let outlook = format!("the move is being rolled back: {} runs on where it was", self.name);
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

    /// Says what is at stake before anything is done.
    fn tell_risk(&self) -> Result<()> {
        if !self.post_copy {
            return Ok(());
        }
        let (name, host) = (&self.name, &self.host);
        let risk = format!(
            "{name} runs at {host} before all its memory is there; if its old host is lost before that, {name} is ended"
        );
        if self.json {
            tell(&serde_json::json!({ "risk": risk }));
            return Ok(());
        }
        output::line(&format!("post-copy: {risk}"))
    }

    /// Shows progress until the last event, and returns that.
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

    /// Says what stands in the way, as the move would.
    fn checked(&self, obstacles: Vec<Obstacle>) -> Result<ExitCode> {
        let code = if obstacles.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        if self.json {
            output::json(&serde_json::json!({ "obstacles": obstacles }))?;
        } else if obstacles.is_empty() {
            output::line("nothing stands in the way")?;
            if self.post_copy {
                output::line(
                    "it stands still for what it has beside memory, and for what of that cannot come later",
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

    /// Goes on following the move with the next coordinator.
    fn again(&self, socket: &Path, begun: Option<u64>) -> Result<Client> {
        let name = self.name.clone();
        match begun.filter(|_| !self.dry_run) {
            Some(id) => follow_again(self.json, socket, name, id),
            None => Err(Failure::new(
                format!("the coordinator went away before it said anything of the move of `{name}`"),
                "`transhume ps` shows where it is when the coordinator is back; then try again",
            )),
        }
    }
}

/// Follows the move of the instance `name` on, with the next coordinator.
pub fn follow_again(json: bool, socket: &Path, name: String, id: u64) -> Result<Client> {
    let errand = format!("to hear how the move of `{name}` ends");
    let outlook = format!("how the move of {name} ends is said when it is back");
    lasting::send_again_as(json, socket, &Request::FollowMove { name, id }, &errand, &outlook)
}

/// What the second Ctrl-C does.
const LEAVE: &str =
    "waiting for the outcome; Ctrl-C again leaves at once, and it goes on without this command";

/// Lets a Ctrl-C cancel the move of the instance `name`; `outlook` says what comes of that.
pub fn cancel_on_interrupt(target: &Target, name: String, outlook: String, json: bool) -> io::Result<()> {
    let (socket, cancel) = (target.socket(), Request::Cancel { name: name.clone() });
    let ask = move || Client::send(&socket, &cancel)?.next_event();
    interrupt::on_first(move || {
        let answer = match ask() {
            Ok(Event::Failed(failure)) => Interrupted::NotCancelled(failure),
            Ok(_) => Interrupted::Cancelling { name, outlook },
            // The next coordinator rolls back by itself what the one before had not committed.
            Err(error) => Interrupted::NotCancelled(Obstacle::new(
                error.to_string(),
                "what is not committed is rolled back when the coordinator is back",
            )),
        };
        if json { tell(&answer) } else { eprintln!("{answer}\n{LEAVE}") }
    })
}

/// What has come of a Ctrl-C.
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

/// Writes a line of JSON to standard error.
pub fn tell(what: &impl Serialize) {
    if let Ok(line) = serde_json::to_string(what) {
        eprintln!("{line}");
    }
}

/// A move as it goes on.
enum Progress {
    /// Only for which host it waits, on standard error.
    Json,
    /// A line for each phase, and on a terminal the bytes in the line of their phase.
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
            tell(&Event::Copying(copying));
            return Ok(());
        }
        self.behind_the_phase(in_words(copying))
    }

    fn fetching(&mut self, fetching: Fetching) -> Result<()> {
        if matches!(self, Self::Json) {
            tell(&Event::Fetching(fetching));
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
            tell(event);
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

/// How far a pre-copy is.
fn in_words(copying: Copying) -> String {
    let Copying { memory_bytes, sent_bytes, look, left_us } = copying;
    let (sent, memory) = (mebibytes(sent_bytes), mebibytes(memory_bytes));
    let left = left_us.map(|left| format!(", about {} s left", left.div_ceil(1_000_000))).unwrap_or_default();
    format!("{sent} sent, look {look} at {memory}{left}")
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
            let message = format!("{} was moved, and has ended: {reason}", report.name);
            Err(Obstacle::new(message, &reason.remedy).into())
        }
        Outcome::Ended(reason) => {
            let message = format!("{} was not moved: {reason}", report.name);
            Err(Obstacle::new(message, &reason.remedy).into())
        }
        Outcome::RolledBack(reason) => {
            let message = format!("{} was not moved and runs on at {}: {reason}", report.name, report.from);
            Err(Obstacle::new(message, &reason.remedy).into())
        }
    }
}

/// A report for people.
fn render(report: &MoveReport) -> String {
    if report.restarted {
        let MoveReport { name, from, to, epoch, .. } = report;
        let outcome = if report.outcome == Outcome::Moved { "moved" } else { "not moved" };
        return format!(
            "\n{name} {from} → {to}, epoch {}: {outcome}; the coordinator went away meanwhile, so its times are lost\n",
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
        "\n{} {} → {}, epoch {}: {} in all{}\n\n{}",
        report.name,
        report.from,
        report.to,
        report.epoch.0,
        milliseconds(report.total_us),
        blackout(report),
        table::render(["PHASE", "AT", "TOOK"], &rows),
    )
}

/// What the instance's peers saw of the move; nothing, if it was not suspended.
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

/// How much came after the instance; nothing, if nothing did.
fn fetched(demanded: u64, pushed: u64) -> String {
    match demanded + pushed {
        0 => String::new(),
        bytes => format!(", {} after it, {} of it on demand", mebibytes(bytes), mebibytes(demanded)),
    }
}

/// How much a move has sent, and how much of that while the instance ran.
pub fn sent(bytes: u64, precopied: u64) -> String {
    match precopied {
        0 => mebibytes(bytes),
        _ => format!("{}, {} of it before the blackout", mebibytes(bytes), mebibytes(precopied)),
    }
}

/// A phase's name.
pub fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Prepare => "prepare",
        Phase::Precopy => "pre-copy",
        Phase::Suspend => "suspend",
        Phase::Dump => "dump",
        Phase::Transfer => "transfer",
        Phase::Restore => "restore",
        Phase::Commit => "commit",
        Phase::Resume => "resume",
        Phase::Fetch => "fetch",
        Phase::Destroy => "destroy",
        Phase::RollBack => "roll back",
    }
}

/// A time in milliseconds, with one decimal.
pub fn milliseconds(microseconds: u64) -> String {
    format!("{}.{} ms", microseconds / 1000, microseconds % 1000 / 100)
}

/// A size in MiB, with one decimal.
pub fn mebibytes(bytes: u64) -> String {
    let tenths = bytes * 10 / (1024 * 1024);
    format!("{}.{} MiB", tenths / 10, tenths % 10)
}
