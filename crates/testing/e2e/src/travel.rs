//! Programs that work while their instances move alternately.

use std::fs;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use api::State;
use lab::Place;

use crate::program::{Ended, Program, run};
use crate::testlab::TestLab;
use crate::ucx;

/// Number of moves while a program works.
const MOVES: usize = 10;

/// Placeholder for the server's address in a command.
const ADDRESS: &str = "ADDRESS";

/// Placeholder for the amount of work in a command.
const WORK: &str = "WORK";

/// The placeholder in a command for the result of [`ucx::without_mpi`].
const WITHOUT_MPI: &str = "WITHOUT_MPI";

/// How often a program is given more work because it was done before all moves were.
const ATTEMPTS: u32 = 4;

/// Files that perftest keeps open for its XRC domains. A program moves only to a host that has its open files.
const KEPT_OPEN: [&str; 2] = ["/tmp/xrc_domain_client", "/tmp/xrc_domain_server"];

/// How long a program may take for the work that is left after the last move.
pub const LIMIT: Duration = Duration::from_secs(100);

/// A program that does an amount of work, and says by its end whether all went well.
#[derive(Clone, Copy, Debug)]
pub struct Traveller {
    /// The side that is there first, if there are two.
    pub server: Option<Server>,
    /// The only or the other side; `ADDRESS` in it stands for the server's, `WORK` for the amount of work,
    /// `WITHOUT_MPI` for the options that UCX's benchmark needs.
    pub client: &'static [&'static str],
    /// Further environment variables of both sides.
    pub environment: &'static [(&'static str, &'static str)],
    /// The amount of work that outlasts the moves where moves take their usual time.
    pub work: u32,
    /// A part of the client's output that shows success; empty if its exit status alone shows it.
    pub report: &'static str,
}

/// The side of a program that is there first.
#[derive(Clone, Copy, Debug)]
pub struct Server {
    /// Its command, with `WORK` and `WITHOUT_MPI` as in the client's.
    pub command: &'static [&'static str],
    /// The TCP port on which it listens; a client that comes through the connection manager waits for it.
    pub port: Option<u16>,
    /// Whether it ends after its client, and says by its exit status that all went well.
    pub ends: bool,
}

impl Traveller {
    /// Lets the program work in a lab of its own, while its sides move ten times in turn.
    ///
    /// # Errors
    /// If a move fails, or the program does not end well.
    pub fn travel(&self) -> Result<()> {
        let _shared = crate::shared();
        let lab = TestLab::up(3)?;
        with_enough(self.work, |attempt, work| self.attempt(&lab, attempt, work))
            .with_context(|| format!("{:?}", self.client))
    }

    /// Whether the program worked for longer than its moves took. It has ended well.
    fn attempt(&self, lab: &TestLab, attempt: u32, work: u32) -> Result<bool> {
        let work = work.to_string();
        let (here, there) = (format!("client-{attempt}"), format!("server-{attempt}"));
        for host in lab.lab.hosts() {
            run(lab.lab.command(Place::Host(host), "touch")?.args(KEPT_OPEN), LIMIT)?;
        }
        let server = self.server.map(|server| self.serve(lab, &there, server, &work)).transpose()?;
        let address = server.as_ref().map_or("", |(_, address)| address);
        let mut client = self.start(lab, &here, "h2", &filled(self.client, &work, address))?;
        lab.started(&here, &mut client)?;
        wait_until_it_works(lab, &filled(self.client, &work, address), &mut client)?;
        let instances = [here.as_str(), there.as_str()];
        let lasted = move_in_turn(lab, &instances[..1 + usize::from(server.is_some())])?;
        let client = client.end(LIMIT).and_then(Ended::success);
        let ends = self.server.is_some_and(|server| server.ends);
        let served = server.filter(|_| ends).map(|(server, _)| {
            // A server may wait for ever after its client has failed.
            let limit = if client.is_ok() { LIMIT } else { Duration::ZERO };
            server.end(limit).and_then(Ended::success)
        });
        let client = client.with_context(|| format!("the server: {served:?}\n{}", lab.logs()))?;
        served.transpose().with_context(|| format!("the server, after {:?}", client.lines))?;
        let reported = self.report.is_empty() || client.lines.iter().any(|line| line.contains(self.report));
        ensure!(reported, "no `{}` in {:?}", self.report, client.lines);
        Ok(lasted)
    }

    fn serve(&self, lab: &TestLab, name: &str, server: Server, work: &str) -> Result<(Program, String)> {
        let command = filled(server.command, work, "");
        let mut program = self.start(lab, name, "h1", &command)?;
        let instance = lab.started(name, &mut program)?;
        if let Some(port) = server.port {
            let words: Vec<&str> = command.iter().map(String::as_str).collect();
            lab.listening(&mut program, &words, port)?;
        }
        Ok((program, instance.address))
    }

    fn start(&self, lab: &TestLab, name: &str, host: &str, command: &[String]) -> Result<Program> {
        let mut run = lab.command(&["run", "--name", name, "--host", host, "--"]);
        Program::start(run.args(command).envs(self.environment.iter().copied()))
    }
}

/// Waits until `command`, which `run` started, has used so much processor time that it is past its preparations. In these it
/// may be in a call that ends early when a program is stopped for a move (signal(7): receiving with a time limit,
/// say), which some programs take for a failure.
fn wait_until_it_works(lab: &TestLab, command: &[String], run: &mut Program) -> Result<()> {
    const ENOUGH: Duration = Duration::from_millis(300);
    const LOOK: Duration = Duration::from_millis(20);
    while run.is_running()? {
        let running = lab.find(|words| words == command);
        if running.iter().any(|process| processor_time(process.pid).is_some_and(|used| used >= ENOUGH)) {
            break;
        }
        thread::sleep(LOOK);
    }
    Ok(())
}

/// The processor time that process `pid` itself has used.
fn processor_time(pid: i32) -> Option<Duration> {
    const TICK: Duration = Duration::from_millis(10);
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let ticks = stat.rsplit(')').next()?.split_whitespace().nth(11)?.parse::<u32>().ok()?;
    Some(TICK * ticks)
}

/// Does `attempt`, which gets a number and an amount of work, until the work has lasted for longer than the moves.
///
/// # Errors
/// The errors of an attempt, or if the work never lasts.
pub fn with_enough(work: u32, mut attempt: impl FnMut(u32, u32) -> Result<bool>) -> Result<()> {
    for number in 0..ATTEMPTS {
        if attempt(number, work << number)? {
            return Ok(());
        }
    }
    bail!("its work ends before all moves are made")
}

fn filled(command: &[&str], work: &str, address: &str) -> Vec<String> {
    let words = command.iter().flat_map(|word| match *word {
        WITHOUT_MPI => ucx::without_mpi(),
        _ => std::slice::from_ref(word),
    });
    words.map(|word| word.replace(WORK, work).replace(ADDRESS, address)).collect()
}

/// Moves `instances` ten times in turn. The first is on host `h2` and the others on `h1`: it goes away, the others come
/// after it, it comes back, and so on. `false` if one of them ends before that.
///
/// # Errors
/// If one that runs does not arrive.
pub fn move_in_turn(lab: &TestLab, instances: &[&str]) -> Result<bool> {
    for round in 0..MOVES {
        let instance = instances[round % instances.len()];
        let host = ["h3", "h1"][round / instances.len() % 2];
        match lab.move_to(instance, host) {
            Ok(_) => {}
            Err(_) if instances.iter().any(|instance| has_ended(lab, instance)) => return Ok(false),
            Err(error) => return Err(error.context(format!("move {round}"))),
        }
    }
    Ok(true)
}

fn has_ended(lab: &TestLab, instance: &str) -> bool {
    lab.instance(instance).is_ok_and(|found| matches!(found.state, State::Exited { .. }))
}
