//! A command's own process ends with it, if the user asks for that.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use api::{Phase, State};
use e2e::program::Program;
use e2e::testlab::{TestLab, follow_to};
use lab::Place;

const LIMIT: Duration = Duration::from_secs(60);

fn ensure_ended(lab: &TestLab, name: &str) -> Result<()> {
    let end = Instant::now() + LIMIT;
    while lab.instance(name).is_ok_and(|instance| matches!(instance.state, State::Starting | State::Running))
    {
        ensure!(Instant::now() < end, "`{name}` runs on: {:?}", lab.instance(name));
    }
    Ok(())
}

#[test]
fn a_run_that_is_interrupted_before_its_host_has_answered_ends() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(1)?;
    let host: Place = "h1".parse()?;
    lab.lab.cut(Place::Coordinator, host)?;
    let mut command = lab.command(&["run", "--host", "h1", "--name", "job", "--", "sleep", "100"]);
    let mut run = Program::start(&mut command)?;
    let end = Instant::now() + LIMIT;
    while lab.instance("job").is_err() {
        ensure!(Instant::now() < end && run.is_running()?, "it is not being started");
    }
    run.signal(libc::SIGINT)?;
    lab.lab.heal(Place::Coordinator, host)?;
    let ended = run.end(LIMIT)?;
    ensure!(ended.errors.contains("as soon as its host has started it"), "{ended:?}");
    ensure_ended(&lab, "job")
}

#[test]
fn a_run_that_is_interrupted_while_it_moves_ends() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(2)?;
    for (signal, phase) in
        [(libc::SIGINT, Phase::Prepare), (libc::SIGTERM, Phase::Dump), (libc::SIGHUP, Phase::Resume)]
    {
        let name = format!("job-{signal}");
        let mut command = lab.command(&["run", "--host", "h1", "--name", &name, "--", "sleep", "100000"]);
        let mut run = Program::start(&mut command)?;
        lab.started(&name, &mut run)?;
        let mut moving = lab.begin_move(&name, "h2")?;
        follow_to(&mut moving, phase)?;
        run.signal(signal)?;
        let ended = run.end(LIMIT)?;
        ensure!(ended.status.code() == Some(137), "{phase:?}: {ended:?}\n{}", lab.logs());
        ensure_ended(&lab, &name)?;
    }
    Ok(())
}

#[test]
fn a_run_ends_when_its_output_is_closed() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(1)?;
    let mut command = lab.command(&["run", "--name", "job", "--", "yes"]);
    let mut run = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    BufReader::new(run.stdout.take().context("no output")?).read_line(&mut line)?;
    let status = run.wait()?;
    ensure!(line == "y\n" && status.code().is_none_or(|code| code == 141), "{line:?}, {status}");
    ensure_ended(&lab, "job")
}
