//! Moves in a lab, through the command line, under the checking workload.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use api::{Outcome, Phase, State};
use e2e::program::{self, Program};
use e2e::signal::Signal;
use e2e::testlab::{CLIENT, Followed, SERVER, TestLab, follow_to, outcome, report};

/// Moves in a row. `TRANSHUME_E2E_MOVES` sets another number.
const MOVES: usize = 100;

/// How long a program may take to end after its last move.
const LIMIT: Duration = Duration::from_secs(60);

/// A blackout that is worth a line, in microseconds.
const LONG: u64 = 2_000_000;

fn moves() -> usize {
    std::env::var("TRANSHUME_E2E_MOVES").ok().and_then(|text| text.parse().ok()).unwrap_or(MOVES)
}

#[test]
fn moves_in_a_row_lose_nothing() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(3)?;
    let mut check = lab.check("h1", "h2", &["--qps", "16"])?;
    let started = Instant::now();
    let mut blackouts = Vec::new();
    let mut hosts = [0, 1];
    for round in 0..moves() {
        check.progress().with_context(|| format!("before move {round}\n{}", lab.logs()))?;
        let end = round % 2;
        // Each end goes on to the next host but one or the next, so that both are at times on the same.
        hosts[end] = (hosts[end] + 1 + round / 2 % 2) % 3;
        let host = format!("h{}", hosts[end] + 1);
        let report = lab.move_to([SERVER, CLIENT][end], &host).with_context(|| format!("move {round}"))?;
        ensure!(report.network.queue_pairs == 16, "{report:?}");
        if report.blackout_us > LONG {
            println!("move {round} was slow: {report:?}");
        }
        blackouts.push(report.blackout_us);
    }
    check.progress()?;
    let result = lab.end_check(check)?;
    blackouts.sort_unstable();
    println!(
        "{} moves in {:.1} s, median blackout {} ms, longest {} ms; {result}",
        blackouts.len(),
        started.elapsed().as_secs_f64(),
        blackouts[blackouts.len() / 2] / 1000,
        blackouts[blackouts.len() - 1] / 1000,
    );
    Ok(())
}

#[test]
fn connections_are_established_during_moves() -> Result<()> {
    const PORT: u16 = 9100;
    let _shared = e2e::shared();
    let lab = TestLab::up(3)?;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/connections.py");
    let stop = Signal::new("connections");
    let command = ["/usr/bin/python3", script, "serve", &PORT.to_string()];
    let (_server, address) = lab.serve(SERVER, "h1", &command, PORT)?;
    let mut asking = lab.lab.command("h3".parse()?, "/usr/bin/python3")?;
    asking.args([script, "ask", &address, &PORT.to_string()]).arg(stop.path());
    let mut asking = Program::start(&mut asking)?;
    for host in ["h2", "h1", "h2", "h1"] {
        asking.take_lines();
        asking.wait_for(LIMIT, |line| (line == "connected").then_some(()))?;
        lab.move_to(SERVER, host)?;
    }
    stop.give()?;
    asking.end(LIMIT)?.success()?;
    Ok(())
}

#[test]
fn options_of_the_workload_survive_moves() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(3)?;
    for options in [
        &["--qps", "4", "--events"] as &[&str],
        &["--qps", "8", "--srq"],
        &["--qps", "2", "--max-size", "1000000"],
    ] {
        let mut check = lab.check("h1", "h2", options)?;
        for (name, host) in [(CLIENT, "h3"), (SERVER, "h3"), (CLIENT, "h1"), (SERVER, "h2")] {
            check.progress()?;
            lab.move_to(name, host).with_context(|| format!("with {options:?}"))?;
        }
        check.progress()?;
        lab.end_check(check).with_context(|| format!("with {options:?}"))?;
    }
    Ok(())
}

#[test]
fn a_cancelled_move_is_rolled_back_and_a_second_one_succeeds() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(3)?;
    let mut check = lab.check("h1", "h2", &["--qps", "4"])?;
    for phase in [Phase::Prepare, Phase::Suspend, Phase::Dump, Phase::Transfer, Phase::Restore] {
        check.progress()?;
        let before = lab.instance(CLIENT)?;
        let mut moving = lab.begin_move(CLIENT, if before.host == "h2" { "h3" } else { "h2" })?;
        let outcome = match follow_to(&mut moving, phase)? {
            Followed::Ended(outcome) => outcome,
            Followed::Reached => {
                api::Client::ask(&lab.socket(), &api::Request::Cancel { name: CLIENT.into() })?;
                outcome(&mut moving)?
            }
        };
        let after = lab.settled(CLIENT)?;
        let stayed = after.host == before.host && after.epoch == before.epoch;
        ensure!(stayed == matches!(outcome, Outcome::RolledBack(_)), "{phase:?}: {outcome:?}, but {after:?}");
        check.progress().with_context(|| format!("after a cancel in {phase:?}\n{}", lab.logs()))?;
    }
    let host = lab.instance(CLIENT)?.host;
    lab.move_to(CLIENT, if host == "h3" { "h1" } else { "h3" })?;
    check.progress()?;
    lab.end_check(check).map(drop)
}

#[test]
fn a_kill_during_a_move_ends_the_instance() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(2)?;
    let command = ["sleep", "100000"];
    let phases = [Phase::Prepare, Phase::Suspend, Phase::Dump, Phase::Restore, Phase::Commit, Phase::Destroy];
    for phase in phases {
        let name = format!("job-{phase:?}").to_lowercase();
        let run = ["run", "--name", &name, "--host", "h1", "--detach", "--"];
        lab.transhume(&[&run[..], &command].concat())?.success()?;
        let mut moving = lab.begin_move(&name, "h2")?;
        if let Followed::Ended(outcome) = follow_to(&mut moving, phase)? {
            ensure!(outcome == Outcome::Moved, "{phase:?}: {outcome:?}");
        }
        lab.transhume(&["kill", &name])?.success().with_context(|| format!("in {phase:?}"))?;
        let state = lab.instance(&name)?.state;
        ensure!(state == State::Exited { code: 137 }, "{phase:?}: {state:?}\n{}", lab.logs());
        let end = Instant::now() + LIMIT;
        while !lab.find(|words| words == command).is_empty() {
            ensure!(Instant::now() < end, "{phase:?}: its processes are left over\n{}", lab.logs());
        }
    }
    Ok(())
}

#[test]
fn daemons_have_precedence_and_programs_keep_their_scheduling_policies() -> Result<()> {
    let _alone = e2e::alone();
    let lab = TestLab::up(2)?;
    let [fifo, nice, plain] = [1, 2, 3].map(|number| format!("sleep {number}{}", std::process::id()));
    let script = format!("chrt --fifo 5 {fifo} & nice -n 7 {nice} & exec {plain}");
    lab.transhume(&["run", "--name", "job", "--host", "h1", "--detach", "--", "sh", "-c", &script])?
        .success()?;
    let daemons = scheduling(|line| line.contains(&format!("/lab-{}/", lab.name())))?;
    ensure!(daemons == ["RR 1 -"; 3], "{daemons:?}");
    for host in ["h2", "h1"] {
        lab.move_to("job", host)?;
        for (command, expected) in [(&fifo, "FF 5 -"), (&nice, "TS - 7"), (&plain, "TS - 0")] {
            let found = scheduling(|line| line == *command)?;
            ensure!(found == [expected], "`{command}` on {host}: {found:?} instead of {expected}");
        }
    }
    Ok(())
}

/// Scheduling class, real-time priority and nice value of the processes with a command line that `wanted`
/// accepts.
fn scheduling(wanted: impl Fn(&str) -> bool) -> Result<Vec<String>> {
    let all = program::run(Command::new("ps").args(["-ewwo", "cls=,rtprio=,ni=,args="]), LIMIT)?.lines;
    let of_one = |line: &String| {
        let mut words = line.split_whitespace();
        let class = words.by_ref().take(3).collect::<Vec<_>>().join(" ");
        wanted(&words.collect::<Vec<_>>().join(" ")).then_some(class)
    };
    Ok(all.iter().filter_map(of_one).collect())
}

/// One is dumped at a time on a machine; the one that has to wait is suspended only then.
#[test]
fn a_move_waits_for_other_dumps_while_its_instance_works() -> Result<()> {
    const WAIT: Duration = Duration::from_secs(2);
    let _alone = e2e::alone();
    let lab = TestLab::up(2)?;
    let mut check = lab.check("h1", "h1", &["--qps", "4"])?;
    check.progress()?;
    let other = private::lock::try_take(Path::new(fabric::DUMP_LOCK))?.context("there is another dump")?;
    let mut moving = lab.begin_move(CLIENT, "h2")?;
    ensure!(matches!(follow_to(&mut moving, Phase::Suspend)?, Followed::Reached), "it has ended");
    std::thread::sleep(WAIT);
    check.progress().context("while it waits")?;
    drop(other);
    let report = report(&mut moving)?;
    let outside = report.total_us - report.blackout_us;
    ensure!(report.outcome == Outcome::Moved && Duration::from_micros(outside) >= WAIT, "{report:?}");
    check.progress()?;
    lab.end_check(check).map(drop)
}

#[test]
fn a_dry_run_changes_nothing() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(2)?;
    let mut check = lab.check("h1", "h2", &["--qps", "1"])?;
    check.progress()?;
    lab.transhume(&["move", CLIENT, "h1", "--dry-run"])?.success()?;
    let after = lab.instance(CLIENT)?;
    ensure!(after.host == "h2" && after.epoch.0 == 0, "{after:?}");
    check.progress()?;
    lab.end_check(check).map(drop)
}
