//! Jobs with virtual machines: groups and drains, also together with containers.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use api::{MoveReport, Outcome};
use e2e::artifacts;
use e2e::check::{self, Check};
use e2e::guest::Guest;
use e2e::program::{Ended, Program};
use e2e::testlab::{CLIENT, SERVER, TestLab};

/// How long a guest may take to boot.
const BOOT: Duration = Duration::from_secs(60);

/// The group of all instances.
const GROUP: &str = "job";

/// Starts a machine of the group, and follows its console.
fn start_machine(
    lab: &TestLab,
    name: &str,
    guest: &Guest,
    append: &str,
    options: &[&str],
) -> Result<Program> {
    let given = guest.options(append);
    let given: Vec<&str> = given.iter().map(String::as_str).collect();
    let run = ["run", "--name", name, "--group", GROUP, "--host", "h1"];
    Program::start(&mut lab.command(&[&run[..], options, &given].concat()))
}

/// The checking workload, whose server runs in a machine and whose client in a container, both on h1 and in one group.
fn machine_and_container(lab: &TestLab, guest: &Guest) -> Result<Check> {
    let mut server = start_machine(lab, SERVER, guest, "", &["--memory", "256M"])?;
    let listening = server.wait_for(BOOT, check::listening).with_context(|| lab.logs())?;
    let port = listening.rsplit(':').next().context("no port")?;
    let address = format!("{}:{port}", lab.instance(SERVER)?.address);

    let program = artifacts::built(check::PROGRAM)?;
    let run = ["run", "--name", CLIENT, "--group", GROUP, "--host", "h1", "--rootfs", "/", "--"];
    let line = ["client", &address, "--qps", "8", "--max-size", "4096"];
    let client = Program::start(lab.command(&run).arg(program).args(line).args(check::COMMON))?;
    Ok(Check { server, client })
}

fn reports(ended: &Ended) -> Result<Vec<MoveReport>> {
    serde_json::from_str(&ended.lines.concat()).with_context(|| format!("{ended:?}"))
}

/// Runs a command for several instances, all of which have this outcome.
fn all(lab: &TestLab, command: &[&str], count: usize, outcome: &Outcome) -> Result<()> {
    let ended = lab.transhume(&[command, &["--json"]].concat())?.success().with_context(|| lab.logs())?;
    let reports = reports(&ended)?;
    let is_so = reports.len() == count && reports.iter().all(|report| report.outcome == *outcome);
    ensure!(is_so, "{reports:?}");
    Ok(())
}

/// Where the instances are, in the order of their names.
fn hosts(lab: &TestLab) -> Result<[String; 2]> {
    Ok([lab.settled(CLIENT)?.host, lab.settled(SERVER)?.host])
}

#[test]
fn a_machine_and_a_container_move_as_a_group_and_leave_a_drained_host() -> Result<()> {
    let _shared = e2e::shared();
    let (lab, guest) = (TestLab::up(3)?, Guest::with_rdma()?);
    let mut check = machine_and_container(&lab, &guest)?;
    for (to, expected) in [("h2,h3", ["h2", "h3"]), ("h1", ["h1", "h1"])] {
        check.progress().with_context(|| lab.logs())?;
        all(&lab, &["move", "--group", GROUP, to], 2, &Outcome::Moved)?;
        ensure!(hosts(&lab)? == expected, "{:?}", hosts(&lab)?);
    }
    check.progress().with_context(|| lab.logs())?;
    lab.transhume(&["drain", "h1", "--json"])?.success()?;
    ensure!(hosts(&lab)?.iter().all(|host| host != "h1"), "{:?}", hosts(&lab)?);
    check.progress().with_context(|| lab.logs())?;
    lab.end_check(check).map(drop)
}
