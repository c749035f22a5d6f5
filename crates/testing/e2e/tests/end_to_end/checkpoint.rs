//! Groups are saved while they work, and run again from there on other hosts when nothing of them is left.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use api::{MoveReport, Outcome, State};
use e2e::common_files;
use e2e::mpi;
use e2e::program::{Ended, Program, run};
use e2e::signal::Signal;
use e2e::testlab::TestLab;
use lab::Place;

const LIMIT: Duration = Duration::from_secs(120);

/// A directory for checkpoints, until it is dropped.
struct Checkpoints(PathBuf);

impl Checkpoints {
    fn new(name: &str) -> Result<Self> {
        let folder = common_files::path(&format!("transhume-checkpoints-{}-{name}", process::id()));
        fs::create_dir(&folder)?;
        Ok(Self(folder))
    }

    fn directory(&self, name: &str) -> String {
        self.0.join(name).to_string_lossy().into_owned()
    }
}

impl Drop for Checkpoints {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("{} is left over: {error}", self.0.display());
        }
    }
}

fn reports(ended: &Ended) -> Result<Vec<MoveReport>> {
    serde_json::from_str(&ended.lines.concat()).with_context(|| format!("{ended:?}"))
}

/// Ends all instances.
fn kill_all(lab: &TestLab) -> Result<()> {
    for instance in lab.instances()? {
        lab.transhume(&["kill", &instance.name])?.success()?;
    }
    Ok(())
}

fn save(lab: &TestLab, group: &str, directory: &str) -> Result<Vec<MoveReport>> {
    let saved = reports(&lab.transhume(&["checkpoint", "--group", group, directory, "--json"])?.success()?)?;
    ensure!(saved.iter().all(|report| report.outcome == Outcome::Saved), "{saved:?}");
    Ok(saved)
}

fn restore(lab: &TestLab, directory: &str, to: &str) -> Result<Vec<MoveReport>> {
    let restored = reports(&lab.transhume(&["restore", directory, "--to", to, "--json"])?.success()?)?;
    ensure!(restored.iter().all(|report| report.outcome == Outcome::Restored), "{restored:?}");
    Ok(restored)
}

/// Both ends of the workload are saved together, run on, end, and run again from where they were, twice.
#[test]
fn both_ends_of_connections_run_again_from_where_they_were() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(4)?;
    let checkpoints = Checkpoints::new("ends")?;
    let directory = checkpoints.directory("first");
    let mut check = lab.check_in(Some("job"), "h1", "h2", &["--qps", "8"])?;
    check.progress()?;
    ensure!(save(&lab, "job", &directory)?.len() == 2);
    check.progress()?;
    for to in ["h3,h4", "h1"] {
        kill_all(&lab)?;
        let restored = restore(&lab, &directory, to)?;
        ensure!(restored.len() == 2, "{restored:?}");
        lab.read_again(&mut check)?;
        check.progress()?;
    }
    lab.move_to("server", "h2")?;
    check.progress()?;
    lab.end_check(check)?;
    Ok(())
}

/// Whether `directory` is empty: every failure has taken away its files.
fn is_empty(directory: &str) -> bool {
    fs::read_dir(directory).map_or(true, |mut entries| entries.next().is_none())
}

fn start(lab: &TestLab, name: &str, command: &[&str]) -> Result<()> {
    let run = ["run", "--group", "job", "--name", name, "--host", "h1", "--detach", "--"];
    lab.transhume(&[&run[..], command].concat())?.success().map(drop)
}

fn refused(lab: &TestLab, arguments: &[&str], said: &str) -> Result<()> {
    let ended = lab.transhume(arguments)?;
    ensure!(ended.status.code() == Some(1), "{arguments:?}: {ended:?}");
    let all = [&ended.lines.concat(), &ended.errors].map(String::as_str).concat();
    ensure!(all.contains(said), "{arguments:?} says {all}, and not {said}");
    Ok(())
}

#[test]
fn one_instance_with_a_blocker_prevents_the_checkpoint_or_restore_of_its_group() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(2)?;
    let checkpoints = Checkpoints::new("all")?;
    let directory = checkpoints.directory("new/whole");
    let lock = Signal::new("checkpoint-lock");
    start(&lab, "a", &["sleep", "1000"])?;
    start(&lab, "b", &["flock", lock.path().to_str().context("a path")?, "sleep", "1000"])?;
    refused(&lab, &["checkpoint", "--group", "jbo", &directory], "no instance belongs to group `jbo`")?;
    lab.eventually("one is pinned", || {
        Ok(!lab.transhume(&["move", "b", "h2", "--dry-run"])?.status.success())
    })?;
    refused(
        &lab,
        &["checkpoint", "--group", "job", &directory],
        "group job was not saved and continues to run",
    )?;
    ensure!(is_empty(&directory), "something is left in {directory}");
    lab.transhume(&["kill", "b"])?.success()?;
    start(&lab, "b", &["sleep", "1000"])?;
    save(&lab, "job", &directory)?;
    refused(&lab, &["checkpoint", "--group", "job", &directory], "already contains a checkpoint")?;
    refused(&lab, &["restore", &directory], "an instance `a` already exists")?;
    kill_all(&lab)?;
    refused(&lab, &["restore", &checkpoints.directory("old")], "cannot read a checkpoint in")?;
    refused(&lab, &["restore", &directory, "--to", "h7"], "no host `h7`")?;
    let pages =
        fs::read_dir(&directory)?.filter_map(Result::ok).map(|entry| entry.path().join("pages-1.img"));
    let pages = pages.into_iter().find(|path| path.exists()).context("images")?;
    let whole = fs::read(&pages)?;
    fs::write(&pages, &whole[..whole.len() - 1])?;
    refused(&lab, &["restore", &directory], "is damaged")?;
    ensure!(lab.instances()?.iter().all(|it| !matches!(it.state, State::Running)), "{:?}", lab.instances());
    fs::write(&pages, &whole)?;
    ensure!(restore(&lab, &directory, "h2")?.len() == 2);
    Ok(())
}

#[test]
fn an_unfinished_checkpoint_of_a_killed_coordinator_is_removed() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(1)?;
    let checkpoints = Checkpoints::new("unfinished")?;
    let directory = checkpoints.directory("unfinished");
    // So that it takes much longer to save it than to kill the coordinator.
    let large =
        "import time; memory = bytearray(b'x') * (512 << 20); print('full', flush=True); time.sleep(1000)";
    start(&lab, "a", &["/usr/bin/python3", "-c", large])?;
    start(&lab, "b", &["sleep", "1000"])?;
    lab.eventually("it has its memory", || Ok(lab.transhume(&["logs", "a"])?.success()?.lines == ["full"]))?;
    let saving = Program::start(&mut lab.command(&["checkpoint", "--group", "job", &directory]))?;
    lab.eventually("something is written", || Ok(!is_empty(&directory)))?;
    let coordinator: Place = "coordinator".parse()?;
    lab.lab.kill(coordinator)?;
    lab.lab.start(coordinator)?;
    let ended = saving.end(LIMIT)?;
    ensure!(ended.errors.contains("it is unknown whether group job was saved"), "{ended:?}");
    lab.eventually("useless files are removed", || Ok(is_empty(&directory)))?;
    ensure!(lab.instances()?.iter().all(|it| matches!(it.state, State::Running)), "{:?}", lab.instances());
    Ok(())
}

/// After a kill of any daemon: the group runs on, and is saved or is not; it runs again whole, or not at all.
#[test]
fn a_group_is_saved_and_restored_as_a_whole_or_not_at_all_when_a_daemon_is_killed() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(4)?;
    let checkpoints = Checkpoints::new("killed")?;
    let mut check = lab.check_in(Some("job"), "h1", "h2", &["--qps", "2"])?;
    let whole = checkpoints.directory("whole");
    check.progress()?;
    save(&lab, "job", &whole)?;
    for (round, victim) in ["coordinator", "h1", "coordinator", "h2"].into_iter().enumerate() {
        let directory = checkpoints.directory(&format!("{round}"));
        let errand = ["checkpoint", "--group", "job", &directory, "--json"];
        let ended = interrupted(&lab, &errand, victim, 80 + 80 * round as u64)?;
        if victim == "coordinator" {
            lab.read_again(&mut check)?;
        }
        let is_saved = Path::new(&directory).join("checkpoint.json").exists();
        ensure!(is_saved || !ended.status.success(), "{ended:?}\n{}", lab.logs());
        for name in ["server", "client"] {
            lab.settled(name)?;
        }
        check.progress().with_context(|| lab.logs())?;
    }
    for (round, victim) in ["coordinator", "h3", "coordinator", "h4"].into_iter().enumerate() {
        kill_all(&lab)?;
        let errand = ["restore", &whole, "--to", "h3,h4", "--json"];
        let ended = interrupted(&lab, &errand, victim, 80 + 80 * round as u64)?;
        lab.eventually("all run, or none", || {
            let states: Vec<_> = lab.instances()?.into_iter().map(|instance| instance.state).collect();
            let running = states.iter().filter(|state| matches!(state, State::Running)).count();
            let ended =
                states.iter().filter(|it| matches!(it, State::Exited { .. } | State::Lost { .. })).count();
            Ok((running == 2 && ended == 0) || (running == 0 && ended == states.len()))
        })
        .with_context(|| format!("after {victim} was killed: {ended:?}\n{}", lab.logs()))?;
    }
    kill_all(&lab)?;
    restore(&lab, &whole, "h3,h4")?;
    lab.read_again(&mut check)?;
    check.progress().with_context(|| format!("{:?} {}", lab.instances(), lab.logs()))?;
    lab.end_check(check)?;
    Ok(())
}

/// The command, during which `victim` is killed and started again.
fn interrupted(lab: &TestLab, errand: &[&str], victim: &str, after_ms: u64) -> Result<Ended> {
    let victim: Place = victim.parse()?;
    let running = Program::start(&mut lab.command(errand))?;
    sleep(Duration::from_millis(after_ms));
    lab.lab.kill(victim)?;
    lab.lab.start(victim)?;
    running.end(LIMIT)
}

/// Eight ranks in four containers, and one with mpirun, which has started them by ssh.
#[test]
fn an_mpi_job_ends_well_after_all_of_it_was_killed() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(4)?;
    let checkpoints = Checkpoints::new("mpi")?;
    let directory = checkpoints.directory("ring");
    let folder = Folder::new()?;
    for (name, host) in [("rank1", "h1"), ("rank2", "h2"), ("rank3", "h1"), ("rank4", "h2")] {
        folder.run(&lab, name, host, SSHD)?;
    }
    folder.run(&lab, "mpirun", "h1", MPIRUN)?;
    let mut job = Program::start(&mut lab.command(&["logs", "--follow", "mpirun"]))?;
    job.wait_for(LIMIT, |line| (line == "100 turns").then_some(()))?;
    let saved = save(&lab, "ring", &directory)?;
    ensure!(saved.len() == 5, "{saved:?}");
    job.require_running()?;
    kill_all(&lab)?;
    restore(&lab, &directory, "h3,h4")?;
    let ended = Program::start(&mut lab.command(&["logs", "--follow", "mpirun"]))?.end(LIMIT)?;
    ensure!(ended.lines.iter().any(|line| line.ends_with(mpi::REPORT)), "{ended:?}");
    Ok(())
}

/// Until mpirun comes, which reaches each container by its name.
const SSHD: &str = "mkdir -p /run/sshd && exec /usr/sbin/sshd -D -e -f /dev/null -h /job/key -o UsePAM=no -o StrictModes=no \
                    -o AuthorizedKeysFile=/job/key.pub";

const MPIRUN: &str = "exec mpirun --host rank1:2,rank2:2,rank3:2,rank4:2 --bind-to none --mca mpi_yield_when_idle 1 \
                      --mca plm_rsh_args '-F none -i /job/key -o BatchMode=yes -o StrictHostKeyChecking=no -o LogLevel=ERROR' \
                      --mca pml ucx -x LD_LIBRARY_PATH -x UCX_TLS=rc_verbs,ud_verbs:aux,self \
                      /usr/bin/python3 -m mpi4py -rc threads=False ring.py 300";

/// The folder that a job's containers share as `/job`, until it is dropped.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Result<Self> {
        const RING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../examples/mpi/ring.py");
        let folder = common_files::folder()?;
        fs::copy(RING, folder.path().join("ring.py"))?;
        let key = folder.path().join("key");
        run(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(key), LIMIT)?;
        Ok(Self(folder))
    }

    fn run(&self, lab: &TestLab, name: &str, host: &str, line: &str) -> Result<()> {
        let volume = format!("{}:/job", self.0.path().display());
        let place = ["run", "--group", "ring", "--name", name, "--host", host, "--detach"];
        let container = ["--rootfs", "/", "--volume", &volume, "--directory", "/job"];
        let root = ["--env", "OMPI_ALLOW_RUN_AS_ROOT=1", "--env", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"];
        let command = ["--", "sh", "-c", line];
        lab.transhume(&[&place[..], &container, &root, &command].concat())?.success().map(drop)
    }
}
