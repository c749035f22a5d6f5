//! Jobs with virtual machines: groups, drains and checkpoints, also together with containers.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use api::{MoveReport, Outcome, State};
use e2e::check::{self, Check};
use e2e::guest::{Guest, counted};
use e2e::program::{Ended, Program};
use e2e::testlab::{CLIENT, SERVER, TestLab};
use e2e::{artifacts, common_files};

/// How long a guest may take to boot.
const BOOT: Duration = Duration::from_secs(60);

/// The group of all instances.
const GROUP: &str = "job";

/// The blocks of a disk that the guest writes to, and their size in bytes.
const BLOCKS: usize = 1024;
const BLOCK: usize = 4096;

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

fn kill_all(lab: &TestLab) -> Result<()> {
    for instance in lab.instances()? {
        lab.transhume(&["kill", &instance.name])?.success()?;
    }
    lab.eventually("all have ended", || {
        Ok(lab.instances()?.iter().all(|instance| matches!(instance.state, State::Exited { .. })))
    })
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

#[test]
fn a_machine_and_a_container_run_again_from_a_checkpoint_with_their_connections() -> Result<()> {
    let _shared = e2e::shared();
    let (lab, guest, folder) = (TestLab::up(3)?, Guest::with_rdma()?, common_files::folder()?);
    let directory = folder.path().join("saved").display().to_string();
    let mut check = machine_and_container(&lab, &guest)?;
    check.progress().with_context(|| lab.logs())?;
    all(&lab, &["checkpoint", "--group", GROUP, &directory], 2, &Outcome::Saved)?;
    check.progress().with_context(|| lab.logs())?;
    kill_all(&lab)?;
    all(&lab, &["restore", &directory, "--to", "h2,h3"], 2, &Outcome::Restored)?;
    lab.read_again(&mut check)?;
    check.progress().with_context(|| lab.logs())?;
    all(&lab, &["move", "--group", GROUP, "h1"], 2, &Outcome::Moved)?;
    check.progress().with_context(|| lab.logs())?;
    lab.end_check(check).map(drop)
}

/// The number in each block of a disk; 0 in one that has not been written to.
fn numbers(disk: &[u8]) -> Result<Vec<u64>> {
    let number = |block: &[u8]| {
        let text = String::from_utf8_lossy(block);
        let text = text.trim_matches(['\0', ' ']);
        if text.is_empty() { Ok(0) } else { text.parse().with_context(|| format!("a block has {text}")) }
    };
    disk.chunks(BLOCK).map(number).collect()
}

/// The disk of the machine that ran on after the checkpoint stays where it was, and has nothing to do with the restored one.
#[test]
fn a_saved_machine_counts_on_from_the_saved_number_with_the_disk_of_that_moment() -> Result<()> {
    const DISK: &str = "/var/lib/transhume/disks/guest.img";
    let _shared = e2e::shared();
    let (lab, guest, folder) = (TestLab::up(2)?, Guest::make()?, common_files::folder()?);
    let directory = folder.path().join("saved").display().to_string();
    let on = |host: &str, command: &[&str]| {
        lab.transhume(&[&["lab", "exec", host, "--"], command].concat())?.success()
    };
    on("h1", &["truncate", "--size", &(BLOCKS * BLOCK).to_string(), DISK])?;
    let options = ["--memory", "128M", "--detach", "--disk", DISK];
    start_machine(&lab, "guest", &guest, "dirty=4 disks=vda", &options)?.end(BOOT)?.success()?;
    let lines = || Ok::<_, anyhow::Error>(lab.transhume(&["logs", "guest"])?.success()?.lines);
    lab.eventually("the guest counts", || Ok(counted(&lines()?)? > 2))?;

    let before = counted(&lines()?)?;
    all(&lab, &["checkpoint", "--group", GROUP, &directory], 1, &Outcome::Saved)?;
    let after = counted(&lines()?)?;
    lab.eventually("the guest counts on", || Ok(counted(&lines()?)? > after + 20))?;
    kill_all(&lab)?;
    let (refused, last) = (lab.transhume(&["restore", &directory, "--to", "h1"])?, counted(&lines()?)?);
    let said = format!("{DISK} exists there already");
    ensure!(refused.lines.concat().contains(&said) || refused.errors.contains(&said), "{refused:?}");

    all(&lab, &["restore", &directory, "--to", "h2"], 1, &Outcome::Restored)?;
    let mut restored = Vec::new();
    lab.eventually("the guest counts on", || {
        restored = lines()?;
        Ok(counted(&restored)? > before + 2)
    })?;
    lab.transhume(&["kill", "guest"])?.success()?;
    let now = counted(&lines()?)?;
    ensure!(now < last, "the restored machine has counted beyond the former one: {now}, {last}");
    let copy = folder.path().join("disk");
    on("h2", &["cp", DISK, &copy.display().to_string()])?;
    for (block, number) in numbers(&fs::read(&copy)?)?.into_iter().enumerate() {
        let block = block as u64;
        // The last number may be on the disk before it is on the console.
        let expected = if (1..=now).contains(&block) { block } else { 0 };
        ensure!(number == expected || (block == now + 1 && number == block), "block {block} has {number}");
    }
    Ok(())
}
