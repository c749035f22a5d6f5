//! The lab's daemons: starts, finds and kills the coordinator and the nodes.

use std::fs::{self, File, OpenOptions};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::error::Doing;
use crate::layout::{Layout, control_address, metrics_address};
use crate::network::namespace_file;
use crate::process::{Identity, wait_for_end};
use crate::record::{Record, write_json};
use crate::{Error, Host, Place, Result, files, mark};

/// Time limit for a killed daemon to end.
const END_LIMIT: Duration = Duration::from_secs(10);

/// Number of log lines in an error.
const TAIL_LINES: usize = 12;

/// Creates the keys of the coordinator and of all nodes.
///
/// # Errors
/// [`Error::Tool`] with the program's output.
pub fn make_keys(layout: &Layout, record: &Record) -> Result<()> {
    let mut command = Command::new(&record.program);
    command.arg("pki").arg("--dir").arg(layout.pki());
    command.args(Place::all(record.hosts).map(|place| place.to_string())).env(mark::VARIABLE, &record.id);
    let output = command
        .stdin(Stdio::null())
        .output()
        .doing(|| format!("cannot start {}", record.program.display()))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Error::Tool { command: "transhume pki".into(), output: said })
}

/// Starts the daemon at `place`, with additional `options`, detached from the caller's terminal and session.
///
/// # Errors
/// [`Error::AlreadyRunning`], and the errors of starting a process and of writing its files.
pub fn start(layout: &Layout, record: &Record, place: Place, options: &[&str]) -> Result<Identity> {
    if running(layout, place).is_some() {
        return Err(Error::AlreadyRunning(describe(place)));
    }
    let state = layout.state(place);
    private::directory(&state).doing(|| format!("cannot create {}", state.display()))?;
    let log = open_log(&layout.log(place))?;
    let errors = log.try_clone().doing(|| "cannot duplicate a descriptor".into())?;
    let mut command = command(layout, record, place);
    command.args(options).env(mark::VARIABLE, &record.id);
    let child = command
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(errors)
        .spawn()
        .doing(|| format!("cannot start {}", describe(place)))?;
    let identity = i32::try_from(child.id()).ok().and_then(Identity::of);
    let identity = identity.ok_or_else(|| failure(layout, place, "ended at once"))?;
    write_json(&layout.pid_file(place), &identity)?;
    Ok(identity)
}

/// Kills the daemon at `place` with SIGKILL, and waits for its end. Instances continue to run.
/// A daemon that does not run is not an error.
///
/// # Errors
/// [`Error::WillNotEnd`].
pub fn kill(layout: &Layout, place: Place) -> Result<()> {
    let Some(handle) = running(layout, place).and_then(Identity::open) else { return Ok(()) };
    handle.kill();
    let left = wait_for_end(vec![handle], Instant::now() + END_LIMIT);
    match left.first() {
        Some(handle) => Err(Error::WillNotEnd { count: 1, pid: handle.identity().pid }),
        None => Ok(()),
    }
}

/// The process of the daemon at `place`, if it runs.
#[must_use]
pub fn running(layout: &Layout, place: Place) -> Option<Identity> {
    let text = fs::read(layout.pid_file(place)).ok()?;
    serde_json::from_slice(&text).ok().filter(|identity: &Identity| identity.is_running())
}

/// The error for a daemon that failed.
#[must_use]
pub fn failure(layout: &Layout, place: Place, problem: &str) -> Error {
    let log = layout.log(place);
    Error::Daemon { what: describe(place), problem: problem.to_owned(), tail: tail(&log), log }
}

/// `setsid` and `nsenter` become the program, so that it has the PID of the child.
fn command(layout: &Layout, record: &Record, place: Place) -> Command {
    let namespace = namespace_file(&layout.namespace(place));
    let mut command = Command::new("setsid");
    command.arg("nsenter").arg(format!("--net={}", namespace.display()));
    if let Some(mounts) = files::namespace_file(layout, place) {
        command.arg(format!("--mount={}", mounts.display()));
    }
    command.arg("--").arg(&record.program);
    match place {
        Place::Coordinator => coordinator_arguments(&mut command, layout),
        Place::Host(host) => node_arguments(&mut command, layout, host),
    }
    command.arg("--listen").arg(control_address(place).to_string());
    command.arg("--pki").arg(layout.pki()).arg("--state").arg(layout.state(place));
    command
}

fn coordinator_arguments(command: &mut Command, layout: &Layout) {
    command.arg("coordinator").arg("--socket").arg(layout.socket());
    command.arg("--metrics").arg(metrics_address(Place::Coordinator).to_string());
}

fn node_arguments(command: &mut Command, layout: &Layout, host: Host) {
    let coordinator = control_address(Place::Coordinator);
    command.args(["node", "--name", &host.to_string(), "--join", &coordinator.to_string()]);
    command.arg("--metrics").arg(metrics_address(Place::Host(host)).to_string());
    command.arg("--images").arg(layout.images_in_memory().join(host.to_string()));
    command.arg("--images").arg(layout.state(Place::Host(host)).join("images"));
}

fn describe(place: Place) -> String {
    match place {
        Place::Coordinator => "the coordinator".to_owned(),
        Place::Host(host) => format!("the node of {host}"),
    }
}

fn open_log(path: &Path) -> Result<File> {
    let opened = private::open(path, OpenOptions::new().create(true).append(true));
    opened.doing(|| format!("cannot open {}", path.display()))
}

/// The last lines of a log, indented.
fn tail(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<_> = text.lines().collect();
    let last = &lines[lines.len().saturating_sub(TAIL_LINES)..];
    if last.is_empty() { "  (empty)".into() } else { format!("  {}", last.join("\n  ")) }
}
