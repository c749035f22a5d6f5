//! Virtual machines that move between the hosts of a lab.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use api::{Client, Event, MoveReport, Outcome, Phase, State};
use e2e::check::{self, Check};
use e2e::guest::{self, Guest, counted};
use e2e::program::{self, Program};
use e2e::testlab::{TestLab, report};
use e2e::{artifacts, common_files};
use tempfile::NamedTempFile;

const NAME: &str = "guest";

/// How long a guest may take to boot.
const BOOT: Duration = Duration::from_secs(60);

/// The blocks of a disk that the guest writes to, and their size in bytes.
const BLOCKS: u64 = 1024;
const BLOCK: usize = 4096;

/// A machine on h1 that has booted.
struct Booted {
    lab: TestLab,
    address: String,
    _guest: Guest,
}

impl Booted {
    fn begin(options: &[&str], append: &str) -> Result<Self> {
        Self::begin_in(TestLab::up(2)?, options, append)
    }

    fn begin_in(lab: TestLab, options: &[&str], append: &str) -> Result<Self> {
        let guest = Guest::make()?;
        let started = Self::run(&lab, &guest, &[&["--memory", "128M"], options].concat(), append)?;
        ensure!(started.status.success(), "{}\n{}", started.errors, lab.logs());
        let address = lab.instance(NAME)?.address;
        let booted = Self { lab, address, _guest: guest };
        booted.counts_on()?;
        Ok(booted)
    }

    fn run(lab: &TestLab, guest: &Guest, options: &[&str], append: &str) -> Result<program::Ended> {
        let given = guest.options(append);
        let given: Vec<&str> = given.iter().map(String::as_str).collect();
        lab.transhume(&[&["run", "--name", NAME, "--host", "h1", "--detach"], &given[..], options].concat())
    }

    /// The last number on the console, on which all numbers come once and in order.
    fn counted(&self) -> Result<u64> {
        counted(&self.lab.transhume(&["logs", NAME])?.success()?.lines)
    }

    /// Waits until the guest has counted to further numbers.
    fn counts_on(&self) -> Result<u64> {
        let (before, mut now) = (self.counted()?, 0);
        self.lab.eventually("the guest counts on", || {
            now = self.counted()?;
            Ok(now > before + 2)
        })?;
        Ok(now)
    }

    /// Whether the guest answers a request from the other end of the network, in two seconds.
    fn answers(&self) -> Result<()> {
        let ping = ["exec", "h2", "--", "ping", "-c", "3", "-i", "0.2", "-W", "2", &self.address];
        self.lab.transhume(&[&["lab"], &ping[..]].concat())?.success().map(drop)
    }

    /// Begins a move to h2, and waits until memory is being sent.
    fn begin_to_copy(&self) -> Result<Client> {
        let mut moving = self.lab.begin_move(NAME, "h2")?;
        loop {
            match moving.next_event()? {
                Event::Phase { phase: Phase::Precopy, .. } => return Ok(moving),
                event => ensure!(!event.is_last(), "{event:?}"),
            }
        }
    }

    /// Restarts the node of a host with these options.
    fn restart(&self, host: &str, options: &[&str]) -> Result<()> {
        self.lab.lab.kill(host.parse()?)?;
        self.lab.lab.start_with(host.parse()?, options)?;
        self.lab.settled(NAME).map(drop)
    }

    /// The emulators of the lab: of machines that came from another host, or of others.
    fn emulators(&self, is_incoming: bool) -> Vec<lab::process::Identity> {
        self.lab.find(|words| {
            words.first().is_some_and(|word| word.contains("qemu-system"))
                && words.contains(&"-incoming") == is_incoming
        })
    }

    fn kill_emulator(&self, is_incoming: bool) -> Result<()> {
        let found = self.emulators(is_incoming);
        ensure!(found.len() == 1, "{found:?}");
        // SAFETY: no memory is passed; the process is one of this lab's.
        unsafe { libc::kill(found[0].pid, libc::SIGKILL) };
        Ok(())
    }
}

fn outcome(mut moving: Client) -> Result<MoveReport> {
    report(&mut moving)
}

/// Numbers that the guest writes to a disk of [`BLOCKS`] blocks: the last that was written to each.
fn check_disk(path: &Path, counted: u64) -> Result<()> {
    let disk = fs::read(path)?;
    for number in counted.saturating_sub(BLOCKS - 2).max(1)..=counted {
        let block = disk.chunks(BLOCK).nth((number % BLOCKS) as usize).unwrap_or_default();
        let found = String::from_utf8_lossy(block).trim().to_owned();
        ensure!(found == number.to_string(), "block {number} has {found}");
    }
    Ok(())
}

/// Runs a command on a host.
fn on(lab: &TestLab, host: &str, command: &[&str]) -> Result<program::Ended> {
    lab.transhume(&[&["lab", "exec", host, "--"], command].concat())?.success()
}

#[test]
fn a_machine_moves_and_loses_neither_output_nor_blocks() -> Result<()> {
    let _shared = e2e::shared();
    let disk = NamedTempFile::new_in(common_files::PARENT)?;
    disk.as_file().set_len(BLOCKS * BLOCK as u64)?;
    let option = format!("{},shared", disk.path().display());
    let booted = Booted::begin(&["--disk", &option], "dirty=4 disks=vda")?;
    for host in ["h2", "h1", "h2"] {
        let before = booted.counts_on()?;
        let report = booted.lab.move_to(NAME, host)?;
        let outage = report.outage.context("the move reports no outage")?;
        ensure!((1..=outage.processors_us).contains(&outage.link_us), "{report:?}");
        ensure!((1..=report.blackout_us).contains(&outage.processors_us), "{report:?}");
        booted.answers()?;
        ensure!(booted.counts_on()? > before);
        ensure!(booted.emulators(true).len() + booted.emulators(false).len() == 1);
    }
    booted.lab.transhume(&["kill", NAME])?.success()?;
    booted.lab.eventually("the machine has ended", || {
        let ended = matches!(booted.lab.instance(NAME)?.state, State::Exited { .. });
        Ok(ended && booted.emulators(true).is_empty())
    })?;
    check_disk(disk.path(), booted.counted()?)
}

/// QEMU 10 does as many rounds as are needed, and slows a guest down that writes faster than its memory is sent.
#[test]
fn a_machine_moves_between_releases_of_qemu_while_it_writes_fast() -> Result<()> {
    let _shared = e2e::shared();
    let newer = guest::qemu_10()?;
    let booted = Booted::begin(&[], "dirty=16")?;
    booted.restart("h2", &["--move-bandwidth", "16", "--qemu", newer.to_str().context("a path")?])?;
    for host in ["h2", "h1", "h2"] {
        booted.lab.move_to(NAME, host)?;
        booted.answers()?;
        booted.counts_on()?;
    }
    Ok(())
}

/// Each host has files of its own in the folder of the disk.
#[test]
fn a_local_disk_moves_along() -> Result<()> {
    const DISK: &str = "/var/lib/transhume/disks/guest.img";
    const LAYER: &str = "/var/lib/transhume/disks/guest.qcow2";
    let _shared = e2e::shared();
    let lab = TestLab::up(2)?;
    on(&lab, "h1", &["truncate", "--size", &(BLOCKS * BLOCK as u64).to_string(), DISK])?;
    on(&lab, "h2", &["touch", DISK])?;
    let base = NamedTempFile::new_in(common_files::PARENT)?;
    base.as_file().set_len(BLOCKS * BLOCK as u64)?;
    let below = base.path().to_str().context("a path")?;
    on(&lab, "h1", &["qemu-img", "create", "-q", "-f", "qcow2", "-b", below, "-F", "raw", LAYER])?;
    let booted = Booted::begin_in(lab, &["--disk", DISK, "--disk", LAYER], "dirty=4 disks=vda,vdb")?;
    let lab = &booted.lab;
    let refused = lab.transhume(&["move", NAME, "h2"])?;
    ensure!(refused.errors.contains(&format!("{DISK} exists there already")), "{}", refused.errors);
    on(lab, "h2", &["rm", DISK])?;

    for (from, to) in [("h1", "h2"), ("h2", "h1")] {
        lab.move_to(NAME, to)?;
        booted.counts_on()?;
        for disk in [DISK, LAYER] {
            on(lab, from, &["test", "-e", &format!("{disk}.moved-away"), "-a", "!", "-e", disk])?;
        }
    }
    lab.transhume(&["kill", NAME])?.success()?;
    lab.eventually("the machine has ended", || {
        Ok(matches!(lab.instance(NAME)?.state, State::Exited { .. }) && booted.emulators(true).is_empty())
    })?;
    let copy = NamedTempFile::new_in(common_files::PARENT)?;
    let to = copy.path().to_str().context("a path")?;
    on(lab, "h1", &["cp", DISK, to])?;
    check_disk(copy.path(), booted.counted()?)?;
    on(lab, "h1", &["qemu-img", "convert", "-O", "raw", LAYER, to])?;
    check_disk(copy.path(), booted.counted()?)
}

#[test]
fn a_machine_runs_on_if_the_destinations_emulator_or_node_dies() -> Result<()> {
    let _shared = e2e::shared();
    let booted = Booted::begin(&[], "dhcp dirty=4")?;
    let moving = booted.begin_to_copy()?;
    booted.kill_emulator(true)?;
    let report = outcome(moving)?;
    ensure!(report.outcome != Outcome::Moved, "{report:?}");
    booted.lab.settled(NAME)?;
    booted.counts_on()?;
    booted.answers()?;
    ensure!(booted.emulators(true).is_empty() && booted.emulators(false).len() == 1);

    // A machine outlives its node, and the next node finds it.
    booted.restart("h1", &["--move-bandwidth", "1"])?;
    let late = booted.lab.transhume(&["move", NAME, "h2", "--within", "2s"])?;
    ensure!(!late.status.success() && late.errors.contains("not done within 2 s"), "{}", late.errors);
    booted.counts_on()?;
    booted.restart("h1", &[])?;
    booted.lab.move_to(NAME, "h2")?;
    booted.answers()?;

    // Without its emulator, nothing is left of it anywhere.
    let mut moving = booted.lab.begin_move(NAME, "h1")?;
    booted.lab.eventually("the other emulator is there", || Ok(booted.emulators(true).len() == 2))?;
    let source = booted.emulators(true).into_iter().min_by_key(|process| process.pid);
    // SAFETY: no memory is passed; the process is one of this lab's.
    source.iter().for_each(|source| unsafe {
        libc::kill(source.pid, libc::SIGKILL);
    });
    while moving.next_event().is_ok_and(|event| !event.is_last()) {}
    booted.lab.eventually("no copy is left", || {
        let ended = matches!(booted.lab.instance(NAME)?.state, State::Exited { .. } | State::Lost { .. });
        Ok(ended && booted.emulators(true).is_empty() && booted.emulators(false).is_empty())
    })
}

/// The program is the server of the checking workload, whose client is a process on the other host.
#[test]
fn a_program_in_a_machine_keeps_its_queue_pairs_over_moves() -> Result<()> {
    let _shared = e2e::shared();
    let (lab, guest) = (TestLab::up(2)?, Guest::with_rdma()?);
    let options = guest.options("");
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let run = [&["run", "--name", NAME, "--host", "h1", "--memory", "512M"], &options[..]].concat();
    let mut server = Program::start(&mut lab.command(&run))?;
    let listening = server.wait_for(BOOT, check::listening).with_context(|| lab.logs())?;
    let port = listening.rsplit(':').next().context("no port")?;
    let server_address = format!("{}:{port}", lab.instance(NAME)?.address);

    let program = artifacts::built(check::PROGRAM)?;
    let line = ["client", &server_address, "--qps", "16", "--max-size", "4096"];
    let mut client = lab.command(&["run", "--name", "client", "--host", "h2", "--"]);
    let client = Program::start(client.arg(program).args(line).args(check::COMMON))?;
    let mut check = Check { server, client };
    for (name, host) in [(NAME, "h2"), ("client", "h1"), (NAME, "h1"), ("client", "h2")] {
        check.progress().with_context(|| lab.logs())?;
        lab.move_to(name, host)?;
    }
    check.progress().with_context(|| lab.logs())?;
    lab.end_check(check).map(drop)
}

#[test]
fn bad_options_are_refused_in_words() -> Result<()> {
    let _shared = e2e::shared();
    let (lab, guest) = (TestLab::up(1)?, Guest::make()?);
    let refused = |options: &[&str], reason: &str| {
        let ended = Booted::run(&lab, &guest, options, "")?;
        ensure!(!ended.status.success() && ended.errors.contains(reason), "{options:?}: {}", ended.errors);
        Ok(())
    };
    refused(&["--machine", "pc-q35-99.0"], "no machine type `pc-q35-99.0`")?;
    refused(&["--cpu-model", "abacus"], "no CPU model `abacus`")?;
    refused(&["--memory", "900G"], "MiB are free")?;
    refused(&["--disk", "/nowhere/disk.img"], "/nowhere/disk.img cannot be read")?;
    refused(&["--cpus", "1.5"], "a whole number from 1 to 64")
}
