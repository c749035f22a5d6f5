//! Faults in each phase of a move: the workload is unharmed, the instance is where its coordinator
//! says, and a second move succeeds.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use api::{Outcome, Phase};
use e2e::check::Check;
use e2e::fault::{Cast, Fault, SmallDisk, Who};
use e2e::testlab::{CLIENT, Followed, SERVER, TestLab, follow_to, outcome};
use lab::{Lab, Place};

/// The phases in which something can go wrong.
const PHASES: [Phase; 8] = [
    Phase::Prepare,
    Phase::Suspend,
    Phase::Dump,
    Phase::Transfer,
    Phase::Restore,
    Phase::Commit,
    Phase::Resume,
    Phase::Destroy,
];

/// Lets `fault` strike in each phase of a move of the checking workload's client.
fn in_each_phase(fault: Fault) -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(3)?;
    let mut check = lab.check("h1", "h2", &["--qps", "4"])?;
    for phase in PHASES {
        strike(&lab, &mut check, fault, phase)
            .with_context(|| format!("{fault:?} in {phase:?}\n{}", lab.logs()))?;
    }
    lab.end_check(check).map(drop)
}

fn strike(lab: &TestLab, check: &mut Check, fault: Fault, phase: Phase) -> Result<()> {
    check.progress().context("before the fault")?;
    let before = lab.settled(CLIENT)?;
    let to = if before.host == "h2" { "h3" } else { "h2" };
    let cast = Cast { source: before.host.parse()?, destination: to.parse()? };
    let mut moving = lab.begin_move(CLIENT, to)?;
    let followed = follow_to(&mut moving, phase)?;
    let outcome = match followed {
        Followed::Ended(outcome) => Some(outcome),
        Followed::Reached => {
            fault.strike(lab, &cast)?;
            fault.mend(&lab.lab, &cast)?;
            // With a killed coordinator the connection on which the outcome comes is gone.
            outcome(&mut moving).ok()
        }
    };
    let after = lab.settled(CLIENT)?;
    let expected = match outcome {
        Some(Outcome::Moved) => to,
        Some(Outcome::RolledBack(_) | Outcome::Ended(_)) => &before.host,
        Some(other) => anyhow::bail!("it was to be moved, and is {other:?}"),
        None => &after.host,
    };
    ensure!(after.host == *expected, "the outcome is {outcome:?}, but {after:?}");
    if fault == Fault::Kill(Who::Coordinator) {
        lab.read_again(check)?;
    }
    check.progress().context("after the fault")?;
    let next = if after.host == "h3" { "h2" } else { "h3" };
    lab.move_to(CLIENT, next).context("the second move")?;
    check.progress().context("after the second move")
}

#[test]
fn a_move_commits_or_rolls_back_when_the_destination_is_killed() -> Result<()> {
    in_each_phase(Fault::Kill(Who::Destination))
}

#[test]
fn a_move_commits_or_rolls_back_when_the_source_is_killed() -> Result<()> {
    in_each_phase(Fault::Kill(Who::Source))
}

#[test]
fn a_move_commits_or_rolls_back_when_the_coordinator_is_killed() -> Result<()> {
    in_each_phase(Fault::Kill(Who::Coordinator))
}

#[test]
fn a_move_commits_or_rolls_back_when_criu_is_killed() -> Result<()> {
    in_each_phase(Fault::KillCriu)
}

#[test]
fn a_move_commits_or_rolls_back_when_its_hosts_are_cut_off_from_each_other() -> Result<()> {
    in_each_phase(Fault::Cut(Who::Source, Who::Destination))
}

#[test]
fn a_move_commits_or_rolls_back_when_its_destination_is_cut_off_from_the_coordinator() -> Result<()> {
    in_each_phase(Fault::Cut(Who::Destination, Who::Coordinator))
}

#[test]
fn a_disk_that_is_too_small_is_noticed_before_the_blackout() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(2)?;
    let mut check = lab.check("h1", "h1", &["--qps", "4"])?;
    let place: Place = "h2".parse()?;
    check.progress()?;
    {
        let _disk = SmallDisk::new(&lab, place, "1m")?;
        wait_for_host(&lab.lab, place)?;
        let ended = lab.transhume(&["move", CLIENT, "h2"])?;
        ensure!(!ended.status.success(), "the image found room: {ended:?}");
        ensure!(ended.errors.contains("room for"), "the reason is not given: {ended:?}");
        check.progress()?;
    }
    wait_for_host(&lab.lab, place)?;
    lab.move_to(CLIENT, "h2").context("the second move")?;
    check.progress()?;
    lab.end_check(check).map(drop)
}

#[test]
fn rolls_back_when_destination_disk_fills() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(2)?;
    let mut check = lab.check("h1", "h1", &["--qps", "4"])?;
    let place: Place = "h2".parse()?;
    check.progress()?;
    {
        let disk = SmallDisk::new(&lab, place, "64m")?;
        wait_for_host(&lab.lab, place)?;
        let mut moving = lab.begin_move(CLIENT, "h2")?;
        follow_to(&mut moving, Phase::Suspend)?;
        disk.fill()?;
        let outcome = outcome(&mut moving)?;
        let Outcome::RolledBack(why) = &outcome else { bail!("the image found room: {outcome:?}") };
        let named = why.message.contains("h2") && why.message.contains("no room");
        ensure!(named && why.remedy.contains("choose another host"), "the reason is not given: {why:?}");
        ensure!(lab.settled(CLIENT)?.host == "h1", "the instance is not where it was");
        check.progress().context("after the full disk")?;
    }
    wait_for_host(&lab.lab, place)?;
    lab.move_to(CLIENT, "h2").context("the second move")?;
    lab.move_to(SERVER, "h2")?;
    check.progress()?;
    lab.end_check(check).map(drop)
}

/// Waits until the node at `place` is registered with its coordinator.
fn wait_for_host(lab: &Lab, place: Place) -> Result<()> {
    let end = std::time::Instant::now() + Duration::from_secs(20);
    loop {
        let status = lab.status()?;
        let host = status.hosts.iter().find(|host| host.name.to_string() == place.to_string());
        if host.is_some_and(|host| host.registered == Some(true)) {
            return Ok(());
        }
        ensure!(std::time::Instant::now() < end, "the node at {place} does not register");
        std::thread::sleep(Duration::from_millis(20));
    }
}
