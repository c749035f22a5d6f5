//! A virtual machine that harms its host as much as it can: the node's memory and time stay bounded, and others are served.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use api::{Outcome, State};
use e2e::guest::Guest;
use e2e::program::Program;
use e2e::testlab::{TestLab, report};
use lab::layout::Layout;
use lab::{Place, daemons};

const NAME: &str = "hostile";

/// How long a guest may take to boot.
const BOOT: Duration = Duration::from_secs(60);

/// How long the node is watched while the guest floods it.
const WATCHED: Duration = Duration::from_secs(6);

/// The memory and the processor time that a node has used so far.
fn usage(lab: &TestLab, host: &str) -> Result<(u64, Duration)> {
    let place: Place = host.parse()?;
    let node = daemons::running(&Layout::of(lab.name()), place).context("the node has ended")?;
    let status = fs::read_to_string(format!("/proc/{}/status", node.pid))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no memory")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse()?;
    let stat = fs::read_to_string(format!("/proc/{}/stat", node.pid))?;
    let (_, fields) = stat.rsplit_once(')').context("a line of stat")?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>()? + fields[12].parse::<u64>()?;
    Ok((kib >> 10, Duration::from_millis(ticks * 10)))
}

#[test]
fn a_hostile_machine_harms_neither_its_node_nor_its_neighbours() -> Result<()> {
    let _shared = e2e::shared();
    let (lab, guest) = (TestLab::up(2)?, Guest::hostile()?);
    let count = "i=0; while :; do i=$((i + 1)); echo $i; sleep 0.05; done";
    let mut neighbour = Program::start(
        lab.command(&["run", "--name", "neighbour", "--host", "h1", "--"]).args(["sh", "-c", count]),
    )?;
    let options = guest.options("");
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let run = [&["run", "--name", NAME, "--host", "h1", "--memory", "128M"], &options[..]].concat();
    let mut output = Program::start(&mut lab.command(&run))?;
    output.wait_for(BOOT, |line| line.contains("hostile guest").then_some(()))?;

    let (_, before) = usage(&lab, "h1")?;
    let begun = Instant::now();
    while begun.elapsed() < WATCHED {
        output.take_lines();
        std::thread::sleep(Duration::from_millis(100));
    }
    let (memory, after) = usage(&lab, "h1")?;
    println!("node: {memory} MiB, {:?} of processor time in {WATCHED:?}", after - before);
    ensure!(memory < 256, "the node takes {memory} MiB");
    ensure!(after - before < WATCHED, "the node takes {:?} in {WATCHED:?}", after - before);
    neighbour.take_lines();
    neighbour.wait_for(Duration::from_secs(5), |line| line.parse::<u64>().ok())?;

    let moved = report(&mut lab.begin_move(NAME, "h2")?)?.outcome;
    ensure!(moved == Outcome::Moved, "{moved:?}");
    // The other emulator floods on, into the other node.
    ensure!(usage(&lab, "h2")?.0 < 256);
    lab.move_to("neighbour", "h2")?;
    neighbour.take_lines();
    neighbour.wait_for(Duration::from_secs(5), |line| line.parse::<u64>().ok())?;
    lab.transhume(&["kill", NAME])?.success()?;
    lab.eventually("it has ended", || Ok(matches!(lab.instance(NAME)?.state, State::Exited { .. })))
}

/// A reset is the guest's own affair: it boots again, before, during or after a move.
#[test]
fn a_machine_that_resets_itself_again_and_again_moves() -> Result<()> {
    let _shared = e2e::shared();
    let (lab, guest) = (TestLab::up(2)?, Guest::hostile()?);
    let options = guest.options("reset=1");
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let run = [&["run", "--name", NAME, "--host", "h1", "--memory", "128M"], &options[..]].concat();
    let mut output = Program::start(&mut lab.command(&run))?;
    for host in ["h2", "h1"] {
        output.wait_for(BOOT, |line| line.contains("hostile guest").then_some(()))?;
        let outcome = report(&mut lab.begin_move(NAME, host)?)?.outcome;
        ensure!(outcome == Outcome::Moved, "{outcome:?}");
    }
    output.take_lines();
    output.wait_for(BOOT, |line| line.contains("hostile guest").then_some(()))
}
