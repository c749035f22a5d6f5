//! Memory that travels while its program goes on to change it.

use std::time::Duration;

use anyhow::{Result, ensure};
use api::{Client, Copying, EnginePart, Event, MoveReport, Outcome, Phase};
use e2e::changing::{SCRIPT, end, goes_on, start};
use e2e::fault::{Cast, Fault, Who};
use e2e::program::Program;
use e2e::signal::Signal;
use e2e::testlab::{TestLab, report};

const NAME: &str = "job";
const LIMIT: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;

/// Starts the node of h1 again, which sends so many MiB a second while an instance runs.
fn limit(lab: &TestLab, mebibytes: u64) -> Result<()> {
    lab.lab.kill("h1".parse()?)?;
    lab.lab.start_with("h1".parse()?, &["--move-bandwidth", &mebibytes.to_string()])?;
    Ok(())
}

/// Begins a move to h2, and waits until memory has been sent.
fn begin_to_copy(lab: &TestLab) -> Result<(Client, Copying)> {
    let mut moving = lab.begin_move(NAME, "h2")?;
    loop {
        match moving.next_event()? {
            Event::Copying(copying) if copying.sent_bytes > 0 => return Ok((moving, copying)),
            event => ensure!(!event.is_last(), "{event:?}"),
        }
    }
}

#[test]
fn changing_memory_arrives_unchanged() -> Result<()> {
    let _shared = e2e::shared();
    let (lab, stop) = (TestLab::up(2)?, Signal::new("changing"));
    let mut program = start(&lab, NAME, (64, 16), &stop)?;
    for host in ["h2", "h1", "h2"] {
        goes_on(&mut program)?;
        // At least the private pages.
        let EnginePart { image_bytes, precopied_bytes, .. } = lab.move_to(NAME, host)?.engine;
        ensure!(
            precopied_bytes >= 32 * MIB && image_bytes > precopied_bytes,
            "{precopied_bytes} of {image_bytes}"
        );
    }
    end(program, &stop)
}

/// Files that are mapped in the `/dev/shm` of a container, as MPI and UCX do it.
#[test]
fn changing_files_in_memory_arrive_unchanged() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(2)?;
    let mut run = lab.command(&["run", "--name", NAME, "--host", "h1", "--rootfs", "/"]);
    run.args(["--", "/usr/bin/python3", SCRIPT, "48", "8", "/dev/shm/stop", "/dev/shm"]);
    let mut program = Program::start(&mut run)?;
    for host in ["h2", "h1"] {
        goes_on(&mut program)?;
        let EnginePart { image_bytes, precopied_bytes, .. } = lab.move_to(NAME, host)?.engine;
        let later = image_bytes - precopied_bytes;
        ensure!(precopied_bytes >= 48 * MIB && later < 40 * MIB, "{precopied_bytes} of {image_bytes}");
    }
    goes_on(&mut program)?;
    lab.transhume(&["exec", NAME, "--", "touch", "/dev/shm/stop"])?.success()?;
    let ended = program.end(LIMIT)?.success()?;
    ensure!(ended.lines.last().is_some_and(|line| line == "right"), "{ended:?}");
    Ok(())
}

#[test]
fn an_instance_runs_on_at_its_source_when_a_daemon_is_killed_during_pre_copy() -> Result<()> {
    let _shared = e2e::shared();
    let (lab, stop) = (TestLab::up(2)?, Signal::new("changing"));
    let mut program = start(&lab, NAME, (32, 1), &stop)?;
    let cast = Cast { source: "h1".parse()?, destination: "h2".parse()? };
    for who in [Who::Source, Who::Destination, Who::Coordinator] {
        limit(&lab, 1)?;
        let before = lab.settled(NAME)?;
        let (moving, _) = begin_to_copy(&lab)?;
        Fault::Kill(who).strike(&lab, &cast)?;
        Fault::Kill(who).mend(&lab.lab, &cast)?;
        drop(moving);
        let after = lab.settled(NAME)?;
        ensure!((&after.host, after.epoch) == (&before.host, before.epoch), "{who:?}: {after:?}");
        let copies = lab.find(|words| words.get(1) == Some(&SCRIPT));
        ensure!(copies.len() == 1, "{who:?}: {copies:?}");
        if who == Who::Coordinator {
            program = Program::start(&mut lab.command(&["logs", "--follow", NAME]))?;
        }
        goes_on(&mut program)?;
        lab.lab.kill(cast.source)?;
        lab.lab.start(cast.source)?;
        lab.move_to(NAME, "h2")?;
        lab.move_to(NAME, "h1")?;
    }
    end(program, &stop)
}

#[test]
fn a_limit_holds_up_nobody_who_stands_still() -> Result<()> {
    const LIMIT: u64 = 4;
    let _alone = e2e::alone();
    let (lab, stop) = (TestLab::up(2)?, Signal::new("changing"));
    let program = start(&lab, NAME, (24, 24), &stop)?;
    limit(&lab, LIMIT)?;
    let (mut moving, copying) = begin_to_copy(&lab)?;
    is_true(&copying, LIMIT)?;
    lab.transhume(&["cancel", NAME])?.success()?;
    let MoveReport { outcome, blackout_us, phases, .. } = report(&mut moving)?;
    ensure!(matches!(outcome, Outcome::RolledBack(_)) && blackout_us == 0, "{outcome:?}");
    let copies_only =
        |phase: Phase| matches!(phase, Phase::Prepare | Phase::Precopy | Phase::RollBack | Phase::Destroy);
    ensure!(phases.iter().all(|time| copies_only(time.phase)), "{phases:?}");

    let MoveReport { engine, .. } = lab.move_to(NAME, "h2")?;
    let stopped_us = engine.dump_us + engine.transfer_us;
    let at_the_limit_us = (engine.image_bytes - engine.precopied_bytes) * 1_000_000 / (LIMIT * MIB);
    ensure!(at_the_limit_us > 4_000_000 && stopped_us < at_the_limit_us / 2, "{engine:?}");
    end(program, &stop)
}

/// The limit determines how long the rest takes; the machine adds to that.
fn is_true(copying: &Copying, limit: u64) -> Result<()> {
    let Copying { memory_bytes, sent_bytes, look, left_us } = *copying;
    let least_us = (memory_bytes - sent_bytes) * 1_000_000 / (limit * MIB);
    ensure!(look == 1 && memory_bytes >= 24 * MIB, "{copying:?}");
    ensure!(left_us.is_some_and(|left| left >= least_us * 9 / 10), "{copying:?}");
    Ok(())
}
