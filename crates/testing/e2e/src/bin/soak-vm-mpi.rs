//! `make soak-vm-mpi`: HPC Challenge on two virtual machines and two containers over RDMA. While it runs, one machine moves, both move
//! as a group, and a host is drained. Its own checks must pass.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use api::{MoveReport, Outcome};
use e2e::installed::Installed;
use e2e::program::Program;
use e2e::testlab::TestLab;
use e2e::{common_files, hpcc};
use serde_json::Value;

/// Time limit of HPC Challenge, in which all moves are made.
const LIMIT: Duration = Duration::from_secs(900);

/// The size of the largest matrix: an emulated processor is slow.
const SIZE: u32 = 200;

/// The machines and the containers, with their hosts.
const MACHINES: [(&str, &str); 2] = [("vm1", "h1"), ("vm2", "h2")];
const CONTAINERS: [(&str, &str); 2] = [("rank1", "h1"), ("rank2", "h2")];

/// The group of the machines.
const GROUP: &str = "machines";

fn main() -> Result<()> {
    let (lab, guest, folder) = (TestLab::up(3)?, Installed::make()?, common_files::folder()?);
    start(&lab, &guest, folder.path())?;
    let agent = folder.path().join("agent");
    fs::write(&agent, guest.mpi_agent(&lab, &MACHINES.map(|(name, _)| name))?)?;
    fs::set_permissions(&agent, fs::Permissions::from_mode(0o755))?;
    fs::write(folder.path().join(hpcc::INPUT), hpcc::input(SIZE))?;

    let begin = Instant::now();
    let mut running = Program::start(&mut mpirun(&lab, &agent))?;
    lab.eventually("HPC Challenge runs", || {
        let found = lab.transhume(&["exec", "rank1", "--", "pgrep", "-x", "hpcc"])?;
        Ok(found.status.success() || !running.is_running()?)
    })?;
    if !running.is_running()? {
        bail!("mpirun has ended: {:?}", running.end(LIMIT)?);
    }
    for command in [&["move", "vm1", "h3"][..], &["move", "--group", GROUP, "h1"], &["drain", "h1"]] {
        let blackouts = moved(&lab, command).with_context(|| lab.logs())?;
        println!("{}: blackouts {blackouts:?} ms", command.join(" "));
        ensure!(
            running.is_running()?,
            "HPC Challenge ended before all moves were made: {:?}",
            running.take_lines()
        );
    }
    let ended = running.end(LIMIT)?;
    let seconds = begin.elapsed().as_secs();
    ended.success()?;
    let output = fs::read_to_string(folder.path().join(hpcc::OUTPUT))?;
    hpcc::check(&output)?;
    hpcc::checks(&output).for_each(|line| println!("{line}"));
    println!("HPC Challenge has passed its checks after {seconds} s");
    Ok(())
}

/// Starts all instances, and returns when the machines have booted.
fn start(lab: &TestLab, guest: &Installed, folder: &Path) -> Result<()> {
    let volume = format!("{}:/job", folder.display());
    for (name, host) in MACHINES {
        guest.start(lab, name, host, &["--group", GROUP, "--memory", "512M"])?;
    }
    for (name, host) in CONTAINERS {
        let run = ["run", "--name", name, "--host", host, "--detach", "--rootfs", "/", "--volume", &volume];
        lab.transhume(&[&run[..], &["--directory", "/job", "--", "sleep", "infinity"]].concat())?
            .success()?;
    }
    MACHINES.iter().try_for_each(|(name, _)| guest.await_boot(lab, name))
}

/// A rank in each instance. The first writes the output, in the folder that the containers share.
fn mpirun(lab: &TestLab, agent: &Path) -> Command {
    let hosts: Vec<&str> = CONTAINERS.iter().chain(&MACHINES).map(|(name, _)| *name).collect();
    let mut command = lab.command(&["lab", "exec", "h3", "--", "mpirun"]);
    command.args(["--mca", "plm_rsh_agent"]).arg(agent).args(["--host", &hosts.join(","), "--wdir", "/job"]);
    // There are more ranks than processors.
    command.args(["--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]);
    command.args(["--mca", "pml", "ucx", "--mca", "osc", "ucx", "-x", "UCX_TLS", "hpcc"]);
    command.env("UCX_TLS", "rc_verbs,ud_verbs:aux,self");
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.env("TRANSHUME", format!("{} --lab {}", lab.program().display(), lab.name()));
    command
}

/// Runs a command that moves instances, and returns their blackouts in milliseconds.
fn moved(lab: &TestLab, command: &[&str]) -> Result<Vec<u64>> {
    let mut program = lab.command(command);
    let ended = Program::start(program.arg("--json"))?.end(LIMIT)?.success()?;
    let told: Value = serde_json::from_str(&ended.lines.concat())?;
    let reports = match told {
        Value::Array(reports) => reports,
        Value::Object(ref report) if report.contains_key("moves") => {
            told["moves"].as_array().cloned().unwrap_or_default()
        }
        report => vec![report],
    };
    let reports: Vec<MoveReport> = serde_json::from_value(reports.into())?;
    let all_moved = reports.iter().all(|report| report.outcome == Outcome::Moved);
    ensure!(all_moved && !reports.is_empty(), "{reports:?}");
    Ok(reports.iter().map(|report| report.blackout_us / 1000).collect())
}
