//! Instances that run before all their memory is there, and their end if it never comes.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use api::{Client, MoveReport, Outcome, Phase};
use e2e::changing::{SCRIPT, end, goes_on, start};
use e2e::fault::{Cast, Fault, Held, Who};
use e2e::program::Program;
use e2e::signal::Signal;
use e2e::testlab::{CLIENT, Followed, TestLab, follow_to, report};

const NAME: &str = "job";
const LIMIT: Duration = Duration::from_secs(60);

/// Begins a move, and cuts the hosts off from each other when it is committed: the instance runs, and its missing pages
/// do not come. Its source is held until then: a move must not be faster.
fn leave_memory_behind(lab: &TestLab, name: &str, cast: &Cast) -> Result<Client> {
    let mut moving = lab.begin_post_copy(name, &cast.destination.to_string())?;
    reach(&mut moving, Phase::Commit)?;
    let _held = Held::new(lab, cast.source)?;
    Fault::Cut(Who::Source, Who::Destination).strike(lab, cast)?;
    reach(&mut moving, Phase::Fetch)?;
    Ok(moving)
}

fn reach(moving: &mut Client, phase: Phase) -> Result<()> {
    match follow_to(moving, phase)? {
        Followed::Reached => Ok(()),
        Followed::Ended(outcome) => bail!("it came to its end before {phase:?}: {outcome:?}"),
    }
}

fn heal(lab: &TestLab, cast: &Cast) -> Result<()> {
    Fault::Cut(Who::Source, Who::Destination).mend(&lab.lab, cast)
}

#[test]
fn changing_memory_arrives_unchanged_and_the_risk_is_reported() -> Result<()> {
    let _shared = e2e::shared();
    let (lab, stop) = (TestLab::up(2)?, Signal::new("changing"));
    // So slow that the program needs some pages before they come by themselves.
    for host in ["h1", "h2"] {
        lab.lab.kill(host.parse()?)?;
        lab.lab.start_with(host.parse()?, &["--move-bandwidth", "32"])?;
    }
    let mut program = start(&lab, NAME, (64, 48), &stop)?;
    let moved = lab.transhume(&["move", NAME, "h2", "--post-copy"])?.success()?;
    let risk = moved.lines.first().is_some_and(|line| line.contains("if its source fails"));
    ensure!(risk, "{moved:?}");
    goes_on(&mut program)?;
    let moved = lab.transhume(&["move", NAME, "h1", "--post-copy", "--json"])?.success()?;
    let MoveReport { engine, phases, .. } = serde_json::from_str(&moved.lines.join("\n"))?;
    ensure!(engine.demanded_bytes > 0 && engine.pushed_bytes > 0, "{engine:?}");
    ensure!(phases.iter().any(|time| time.phase == Phase::Fetch), "{phases:?}");
    goes_on(&mut program)?;
    // As any other, and from where it is whole.
    lab.move_to(NAME, "h2")?;
    end(program, &stop)
}

/// Its files in a file system in memory come with it.
#[test]
fn a_container_moves_with_post_copy() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(2)?;
    let mut run = lab.command(&["run", "--name", NAME, "--host", "h1", "--rootfs", "/"]);
    let mut program =
        Program::start(run.args(["--", "/usr/bin/python3", SCRIPT, "48", "48", "/dev/shm/stop"]))?;
    for host in ["h2", "h1"] {
        goes_on(&mut program)?;
        let mut moving = lab.begin_post_copy(NAME, host)?;
        let MoveReport { outcome, engine, .. } = report(&mut moving)?;
        ensure!(outcome == Outcome::Moved, "{outcome:?}\n{}", lab.logs());
        ensure!(engine.demanded_bytes + engine.pushed_bytes > 0, "{engine:?}");
    }
    goes_on(&mut program)?;
    lab.transhume(&["exec", NAME, "--", "touch", "/dev/shm/stop"])?.success()?;
    let ended = program.end(LIMIT)?.success()?;
    ensure!(ended.lines.last().is_some_and(|line| line == "right"), "{ended:?}");
    Ok(())
}

/// Also beside the other end, with which it shares its registered memory.
#[test]
fn rdma_goes_on_over_moves_with_post_copy() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(3)?;
    let mut check = lab.check("h2", "h1", &["--qps", "4"])?;
    for host in ["h3", "h2", "h1"] {
        check.progress()?;
        let mut moving = lab.begin_post_copy(CLIENT, host)?;
        let report = report(&mut moving)?;
        ensure!(report.outcome == Outcome::Moved, "{report:?}\n{}", lab.logs());
        check.progress().with_context(|| format!("at {host}\n{}", lab.logs()))?;
    }
    lab.end_check(check).map(drop)
}

#[test]
fn an_instance_goes_on_when_a_daemon_is_killed_during_post_copy() -> Result<()> {
    let _alone = e2e::alone();
    let (lab, stop) = (TestLab::up(2)?, Signal::new("changing"));
    let mut program = start(&lab, NAME, (64, 48), &stop)?;
    let mut hosts = ["h1", "h2"];
    for who in [Who::Source, Who::Destination, Who::Coordinator] {
        let cast = Cast { source: hosts[0].parse()?, destination: hosts[1].parse()? };
        let moving = leave_memory_behind(&lab, NAME, &cast)?;
        for others in [&[NAME, hosts[0]][..], &["--group", NAME, hosts[1], "--dry-run"]] {
            let refused = lab.transhume(&[&["move"], others].concat())?;
            ensure!(refused.errors.contains("part of the memory of"), "{refused:?}");
        }
        Fault::Kill(who).strike(&lab, &cast)?;
        Fault::Kill(who).mend(&lab.lab, &cast)?;
        heal(&lab, &cast)?;
        drop(moving);
        if who == Who::Coordinator {
            program = Program::start(&mut lab.command(&["logs", "--follow", NAME]))?;
        }
        goes_on(&mut program).with_context(|| format!("{who:?}\n{}", lab.logs()))?;
        let after = lab.settled(NAME)?;
        ensure!(after.host == hosts[1], "{who:?}: {after:?}");
        let only = || Ok(lab.find(|words| words.get(1) == Some(&SCRIPT)).len() == 1);
        lab.eventually("nothing is left at its source", only)?;
        hosts.reverse();
    }
    end(program, &stop)
}

#[test]
fn an_instance_without_its_memory_ends_with_the_reason_and_a_killed_one_ends() -> Result<()> {
    let _alone = e2e::alone();
    let lab = TestLab::up(2)?;
    let cast = Cast { source: "h1".parse()?, destination: "h2".parse()? };
    let stop = Signal::new("changing");
    let program = start(&lab, NAME, (64, 48), &stop)?;
    let mut moving = leave_memory_behind(&lab, NAME, &cast)?;
    kill_stopped(&lab)?;
    heal(&lab, &cast)?;
    let MoveReport { outcome, .. } = report(&mut moving)?;
    let expected = format!("memory of {NAME} was still on host h1");
    ensure!(matches!(&outcome, Outcome::Ended(why) if why.message.contains(&expected)), "{outcome:?}");
    let shown = lab.transhume(&["events"])?.success()?.lines.join("\n");
    ensure!(shown.contains(&expected) && shown.contains("ended in move"), "{shown}");
    drop(program);

    let name = "other";
    let _program = start(&lab, name, (64, 48), &stop)?;
    let _moving = leave_memory_behind(&lab, name, &cast)?;
    lab.transhume(&["kill", name])?.success()?;
    heal(&lab, &cast)?;
    let none = || Ok(lab.find(|words| words.get(1) == Some(&SCRIPT)).is_empty());
    lab.eventually("nothing of it is left", none)
}

/// Kills the stopped processes of the program, with its first process.
fn kill_stopped(lab: &TestLab) -> Result<()> {
    let copies = lab.find(|words| words.get(1) == Some(&SCRIPT));
    let field = |pid: i32, name: &str| -> Result<String> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let value =
            status.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_owned());
        value.with_context(|| format!("no {name} in {status}"))
    };
    for copy in copies {
        if field(copy.pid, "State:")?.starts_with('T') {
            let first: i32 = field(copy.pid, "PPid:")?.parse()?;
            // SAFETY: no memory is passed; the process is one of this lab's.
            ensure!(unsafe { libc::kill(first, libc::SIGKILL) } == 0, "{first} is gone");
            return Ok(());
        }
    }
    bail!("nothing stands still")
}
