//! A lab for a test, with the user's command line.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use api::{Client, Event, Instance, MoveReport, MoveRequest, Outcome, Phase, Request, State};
use lab::layout::Layout;
use lab::mark::Marks;
use lab::process::{Identity, file};
use lab::record::Record;
use lab::{Files, Lab, LabName, Spec};

use crate::check::Check;
use crate::program::{Ended, Program, is_listening};
use crate::{artifacts, check, interrupt};

/// Time limit of a command, including a move.
const LIMIT: Duration = Duration::from_secs(60);

/// Time limit for an instance to start, or to settle after a fault.
const SETTLE: Duration = Duration::from_secs(60);

/// Polling interval of the coordinator.
const LOOK: Duration = Duration::from_millis(20);

/// A lab, removed with all that is in it when it is dropped, or when this process is interrupted.
pub struct TestLab {
    /// The lab itself.
    pub lab: Lab,
    name: LabName,
    program: PathBuf,
}

impl TestLab {
    /// A lab of `hosts` hosts with a name that no other test has.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn up(hosts: u16) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("t{:x}n", process::id());
        let name: LabName = format!("{prefix}{number:x}").parse()?;
        interrupt::removes_labs(prefix)?;
        let program = artifacts::built("transhume")?;
        artifacts::environment()?;
        let lab = Lab::up(&Spec { name: name.clone(), hosts, program: program.clone(), files: files()? })?;
        Ok(Self { lab, name, program })
    }

    /// A command of the command line, for this lab.
    #[must_use]
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["--lab", self.name.as_str()]).args(arguments);
        command.env_remove(api::SOCKET_VARIABLE);
        command
    }

    /// The program of the command line.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Runs a command to its end, successful or not.
    ///
    /// # Errors
    /// If it takes too long.
    pub fn transhume(&self, arguments: &[&str]) -> Result<Ended> {
        Program::start(&mut self.command(arguments))?.end(LIMIT)
    }

    /// The lab's name.
    #[must_use]
    pub fn name(&self) -> &LabName {
        &self.name
    }

    /// The socket of the coordinator.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        Layout::of(&self.name).socket()
    }

    /// All instances, including ended ones.
    ///
    /// # Errors
    /// If the coordinator does not answer.
    pub fn instances(&self) -> Result<Vec<Instance>> {
        let list = self.transhume(&["ps", "--json"])?.success()?.lines.join("\n");
        Ok(serde_json::from_str(&list)?)
    }

    /// The instance `name`.
    ///
    /// # Errors
    /// If there is none, or the coordinator does not answer.
    pub fn instance(&self, name: &str) -> Result<Instance> {
        self.instances()?
            .into_iter()
            .find(|instance| instance.name == name)
            .with_context(|| format!("no {name}"))
    }

    /// Waits until the instance runs and no move of it is in progress.
    ///
    /// # Errors
    /// If it does not within a minute.
    pub fn settled(&self, name: &str) -> Result<Instance> {
        let end = Instant::now() + SETTLE;
        loop {
            match self.instance(name) {
                Ok(instance) if instance.state == State::Running => return Ok(instance),
                found if Instant::now() > end => {
                    return Err(anyhow!("{name} has not come to rest: {found:?}\n{}", self.logs()));
                }
                _ => std::thread::sleep(LOOK),
            }
        }
    }

    /// Waits until the condition holds; `what` describes it.
    ///
    /// # Errors
    /// If it does not hold within a minute, or cannot be evaluated.
    pub fn eventually(&self, what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
        let end = Instant::now() + SETTLE;
        while !is_so()? {
            ensure!(Instant::now() < end, "timed out waiting for: {what}\n{}", self.logs());
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// The last lines of each daemon's log.
    #[must_use]
    pub fn logs(&self) -> String {
        let layout = Layout::of(&self.name);
        let hosts = u16::try_from(self.lab.hosts().count()).unwrap_or(0);
        let mut text = String::new();
        for place in lab::Place::all(hosts) {
            let log = std::fs::read_to_string(layout.log(place)).unwrap_or_default();
            let lines: Vec<_> = log.lines().collect();
            text += &format!("== {place}\n{}\n", lines[lines.len().saturating_sub(30)..].join("\n"));
        }
        text
    }

    /// Moves an instance with the command line.
    ///
    /// # Errors
    /// If it did not arrive.
    pub fn move_to(&self, name: &str, host: &str) -> Result<MoveReport> {
        let ended = self.transhume(&["move", name, host, "--json"])?;
        let report = self.report(&ended).with_context(|| format!("moving {name} to {host}"))?;
        ensure!(
            report.outcome == Outcome::Moved,
            "{name} did not arrive at {host}: {report:?}\n{}",
            self.logs()
        );
        Ok(report)
    }

    fn report(&self, ended: &Ended) -> Result<MoveReport> {
        let text = ended.lines.join("\n");
        serde_json::from_str(&text).map_err(|_| anyhow!("{text}\n{}\n{}", ended.errors, self.logs()))
    }

    /// Asks for a move and returns the connection on which its events come.
    ///
    /// # Errors
    /// If the coordinator does not answer.
    pub fn begin_move(&self, name: &str, host: &str) -> Result<Client> {
        self.begin(name, host, false)
    }

    /// The same, of a move after which memory is fetched.
    ///
    /// # Errors
    /// As [`TestLab::begin_move`].
    pub fn begin_post_copy(&self, name: &str, host: &str) -> Result<Client> {
        self.begin(name, host, true)
    }

    fn begin(&self, name: &str, host: &str, post_copy: bool) -> Result<Client> {
        let (name, host) = (name.into(), host.into());
        let request = MoveRequest { name, host, dry_run: false, force: false, post_copy, within_s: None };
        let client = Client::send(&self.socket(), &Request::Move(request))?;
        client.set_limit(Some(LIMIT))?;
        Ok(client)
    }

    /// Waits until the instance `name`, which `run` starts, is there; it may have ended since.
    ///
    /// # Errors
    /// If it does not start.
    pub fn started(&self, name: &str, run: &mut Program) -> Result<Instance> {
        let end = Instant::now() + SETTLE;
        loop {
            let runs = run.is_running()?;
            match self.instance(name) {
                Ok(instance) if instance.state != State::Starting => return Ok(instance),
                _ if runs && Instant::now() < end => std::thread::sleep(LOOK),
                found => bail!("{name} does not start: {found:?}, {:?}\n{}", run.take_lines(), self.logs()),
            }
        }
    }

    /// Waits until `program`, which `run` started as an instance, listens on TCP port `port`.
    ///
    /// # Errors
    /// If it does not.
    pub fn listening(&self, run: &mut Program, program: &[&str], port: u16) -> Result<()> {
        let end = Instant::now() + SETTLE;
        loop {
            let running = self.find(|words| words == program);
            if running.iter().any(|process| is_listening(process.pid.unsigned_abs(), port)) {
                return Ok(());
            }
            if Instant::now() > end || !run.is_running()? {
                bail!("{program:?} does not listen: {:?}\n{}", run.take_lines(), self.logs());
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Starts `program`, which will listen on `port`, as instance `name` on `host`; returns it when it does, with
    /// its address.
    ///
    /// # Errors
    /// If it cannot be started or does not listen.
    pub fn serve(&self, name: &str, host: &str, program: &[&str], port: u16) -> Result<(Program, String)> {
        let mut command = self.command(&["run", "--name", name, "--host", host, "--"]);
        let mut server = Program::start(command.args(program))?;
        let instance = self.started(name, &mut server)?;
        self.listening(&mut server, program, port)?;
        Ok((server, instance.address))
    }

    /// Starts the checking workload with its ends on two hosts. The client is the instance `client`,
    /// the server the instance `server`.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn check(&self, server: &str, client: &str, options: &[&str]) -> Result<Check> {
        self.check_in(None, server, client, options)
    }

    /// The same, with both ends in a group.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn check_in(
        &self,
        group: Option<&str>,
        server: &str,
        client: &str,
        options: &[&str],
    ) -> Result<Check> {
        let group = group.map(|group| ["--group", group]);
        let start = |name: &'static str, host: &str, program: &str| {
            let run = ["run", "--name", name, "--host", host];
            self.command(
                &[&run[..], group.as_ref().map_or(&[], |group| &group[..]), &["--", program]].concat(),
            )
        };
        Check::start(
            |program| Ok(start(SERVER, server, program)),
            |program| Ok(start(CLIENT, client, program)),
            || Ok(self.instance(SERVER)?.address),
            options,
        )
    }

    /// Reads the checking workload's output again from its begin: a killed coordinator has cut off the reader.
    ///
    /// # Errors
    /// If the command cannot be started.
    pub fn read_again(&self, check: &mut Check) -> Result<()> {
        for (name, side) in [(SERVER, &mut check.server), (CLIENT, &mut check.client)] {
            *side = Program::start(&mut self.command(&["logs", "--follow", name]))?;
        }
        Ok(())
    }

    /// Tells the checking workload to stop, and waits for its successful end.
    ///
    /// # Errors
    /// If anything was lost, duplicated, reordered or corrupted.
    pub fn end_check(&self, check: Check) -> Result<serde_json::Value> {
        let client =
            self.find(|words| words.len() > 1 && words[0].ends_with(check::PROGRAM) && words[1] == "client");
        ensure!(!client.is_empty(), "the checking workload has ended");
        for process in client {
            // SAFETY: no memory is passed; the process is one of this lab's.
            unsafe { libc::kill(process.pid, libc::SIGTERM) };
        }
        check.end(LIMIT).map_err(|error| error.context(self.logs()))
    }

    /// The processes of the lab's daemons and instances with a command line that `wanted` accepts.
    pub fn find(&self, wanted: impl Fn(&[&str]) -> bool) -> Vec<Identity> {
        let id = Record::read(&Layout::of(&self.name)).map(|record| record.id);
        let marks = Marks::new(id.as_deref(), std::iter::empty());
        let marked: HashSet<i32> = marks.processes().map(|process| process.pid).collect();
        let is_wanted = |process: &Identity| {
            let line = std::fs::read(file(process.pid, "cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).into_owned();
            wanted(&line.split_terminator('\0').collect::<Vec<_>>())
        };
        // An instance's first process is marked; its command is a child of that.
        let is_ours = |process: &Identity| {
            marked.contains(&process.pid) || parent(process.pid).is_some_and(|pid| marked.contains(&pid))
        };
        lab::process::all().filter(is_ours).filter(is_wanted).collect()
    }
}

/// Each host has its own, but all see the tests' programs, wherever this repository is.
fn files() -> Result<Files> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").canonicalize()?;
    Ok(Files::Own { shared: vec![repository] })
}

fn parent(pid: i32) -> Option<i32> {
    let status = std::fs::read_to_string(file(pid, "status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:")).and_then(|pid| pid.trim().parse().ok())
}

/// The checking workload's instances.
pub const SERVER: &str = "server";
/// See [`SERVER`].
pub const CLIENT: &str = "client";

/// The progress of a move.
#[derive(Debug)]
pub enum Followed {
    /// To the begin of the wanted phase.
    Reached,
    /// To its end, without that phase.
    Ended(Outcome),
}

/// Follows `moving` up to the begin of `phase`, or to its end.
///
/// # Errors
/// If the move was refused, or the connection ends early, as when the coordinator is killed.
pub fn follow_to(moving: &mut Client, wanted: Phase) -> Result<Followed> {
    loop {
        match moving.next_event()? {
            Event::Phase { phase, .. } if phase == wanted => return Ok(Followed::Reached),
            Event::Moved(report) => return Ok(Followed::Ended(report.outcome)),
            Event::Failed(failure) => bail!("{failure}"),
            _ => {}
        }
    }
}

/// Follows `moving` to its end.
///
/// # Errors
/// As [`follow_to`].
pub fn outcome(moving: &mut Client) -> Result<Outcome> {
    report(moving).map(|report| report.outcome)
}

/// The same, with everything that is reported about the move.
///
/// # Errors
/// As [`follow_to`].
pub fn report(moving: &mut Client) -> Result<MoveReport> {
    let end = Instant::now() + LIMIT;
    loop {
        match moving.next_event()? {
            Event::Moved(report) => return Ok(*report),
            Event::Failed(failure) => bail!("{failure}"),
            event => ensure!(Instant::now() < end, "the move does not end: {event:?}"),
        }
    }
}

impl Drop for TestLab {
    fn drop(&mut self) {
        interrupt::stand_still_if_it_has_come();
        if let Err(error) = Lab::down(&self.name) {
            eprintln!("lab {} is left over: {error}", self.name);
        }
    }
}
