//! Commands that wait, while the coordinator or a node is killed and started again.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use api::{Instance, MoveReport, State};
use e2e::program::Program;
use e2e::signal::Signal;
use e2e::testlab::TestLab;
use lab::Place;

const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn an_attached_run_goes_on_with_output_and_exit_code() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(1)?;
    let signal = Signal::new("run");
    let path = signal.path().display();
    let script = format!(
        "for i in $(seq 300); do echo $i; sleep 0.01; done; while [ ! -e {path} ]; do sleep 0.1; done; exit 7"
    );
    let mut run = Program::start(&mut lab.command(&["run", "--name", "job", "--", "sh", "-c", &script]))?;
    run.wait_for(LIMIT, |line| (line == "50").then_some(()))?;
    let mut waits = Program::start(&mut lab.command(&["wait", "job"]))?;
    wait_for_connection(&mut waits)?;
    lab.lab.kill(Place::Coordinator)?;
    ensure!(run.is_running()? && waits.is_running()?, "they do not wait");
    lab.lab.start(Place::Coordinator)?;
    run.wait_for(LIMIT, |line| (line == "300").then_some(()))?;
    signal.give()?;
    let ended = run.end(LIMIT)?;
    ensure!(ended.status.code() == Some(7), "{ended:?}");
    let expected: Vec<_> = (1..=300).map(|number| number.to_string()).collect();
    ensure!(ended.lines == expected, "lost or doubled: {ended:?}");
    let waited = waits.end(LIMIT)?;
    ensure!(waited.status.code() == Some(7), "{waited:?}");
    Ok(())
}

#[test]
fn possibly_lost_output_of_a_dead_node_is_reported() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(1)?;
    let signal = Signal::new("lost");
    let path = signal.path().display();
    let script = format!("seq 100; while [ ! -e {path} ]; do sleep 0.1; done; echo RESULT");
    let mut run = Program::start(&mut lab.command(&["run", "--name", "job", "--", "sh", "-c", &script]))?;
    run.wait_for(LIMIT, |line| (line == "100").then_some(()))?;
    lab.lab.kill("h1".parse()?)?;
    lab.lab.start("h1".parse()?)?;
    signal.give()?;
    let ended = run.end(LIMIT)?;
    ensure!(ended.lines.last().is_some_and(|line| line == "RESULT"), "later output is lost: {ended:?}");
    ensure!(ended.status.success() && ended.errors.contains("may be missing"), "{ended:?}");
    let logs = lab.transhume(&["logs", "job"])?.success()?;
    ensure!(logs.lines == ["RESULT"] && logs.errors.contains("restarted"), "{logs:?}");
    Ok(())
}

#[test]
fn output_comes_byte_for_byte() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(1)?;
    let source = Signal::new("bytes");
    let bytes: Vec<u8> = (0..100_000_u32).map(|number| (number * 7 / 3) as u8).collect();
    fs::write(source.path(), &bytes)?;
    let path = source.path().display().to_string();
    let written = lab.command(&["run", "--name", "job", "--", "cat", &path]).output()?;
    ensure!(written.status.success() && written.stdout == bytes, "other bytes came");
    let kept = lab.command(&["logs", "job"]).output()?;
    ensure!(kept.stdout == bytes, "other bytes are kept");
    Ok(())
}

#[test]
fn a_move_says_how_it_ended() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(2)?;
    lab.transhume(&["run", "--name", "job", "--host", "h1", "--detach", "--", "sleep", "1000"])?.success()?;
    for delay in [0, 100, 200, 400] {
        let before = lab.settled("job")?;
        let to = if before.host == "h1" { "h2" } else { "h1" };
        let moves = begin_move(&lab, &before, to)?;
        thread::sleep(Duration::from_millis(delay));
        lab.lab.kill(Place::Coordinator)?;
        lab.lab.start(Place::Coordinator)?;
        let ended = moves.end(LIMIT)?;
        let report: MoveReport = serde_json::from_str(&ended.lines.concat())?;
        let after = lab.settled("job")?.host;
        let expected = if ended.status.success() { &report.to } else { &report.from };
        ensure!(after == *expected, "{ended:?}, but it is on {after}");
    }
    Ok(())
}

/// Waits until a command has made a connection.
fn wait_for_connection(program: &mut Program) -> Result<()> {
    let descriptors = format!("/proc/{}/fd", program.pid());
    let deadline = Instant::now() + LIMIT;
    loop {
        let targets =
            fs::read_dir(&descriptors)?.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
        if targets.into_iter().any(|target| target.to_string_lossy().starts_with("socket:")) {
            return Ok(());
        }
        ensure!(Instant::now() < deadline && program.is_running()?, "it does not connect");
    }
}

/// Starts a move, again if a former one is not cleared away yet, and waits until it is under way or over.
fn begin_move(lab: &TestLab, before: &Instance, to: &str) -> Result<Program> {
    let deadline = Instant::now() + LIMIT;
    loop {
        let mut moves = Program::start(&mut lab.command(&["move", "job", to, "--json"]))?;
        while moves.is_running()? {
            if is_begun(&lab.instance("job")?, before) {
                return Ok(moves);
            }
        }
        if is_begun(&lab.instance("job")?, before) {
            return Ok(moves);
        }
        let refused = moves.end(LIMIT)?;
        ensure!(Instant::now() < deadline && !refused.errors.is_empty(), "{refused:?}");
    }
}

fn is_begun(now: &Instance, before: &Instance) -> bool {
    matches!(now.state, State::Moving { .. }) || now.epoch != before.epoch
}
