//! Virtual machines that move between the hosts of a lab.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use api::{Client, Event, ExecRequest, MoveReport, Outcome, Phase, Request, State};
use e2e::check::{self, Check};
use e2e::desk::Desk;
use e2e::guest::{self, Guest, counted};
use e2e::overlay::{instance, net};
use e2e::pings::Pings;
use e2e::program::{self, Program};
use e2e::testlab::{TestLab, report};
use e2e::{artifacts, common_files};
use fabric::session::WindowSize;
use tempfile::NamedTempFile;

const NAME: &str = "guest";

/// The program that takes what the guest sends.
const RECEIVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/lines.py");

/// How long a guest may take to boot.
const BOOT: Duration = Duration::from_secs(60);

/// How long a command may take to be refused in a guest without an agent.
const AGENT_LIMIT: Duration = Duration::from_secs(3);

/// The blocks of a disk that the guest writes to, and their size in bytes.
const BLOCKS: u64 = 1024;
const BLOCK: usize = 4096;

/// A machine on h1 that has booted.
struct Booted {
    lab: TestLab,
    address: String,
    guest: Guest,
}

impl Booted {
    fn begin(options: &[&str], append: &str) -> Result<Self> {
        Self::begin_in(TestLab::up(2)?, options, append)
    }

    fn begin_in(lab: TestLab, options: &[&str], append: &str) -> Result<Self> {
        Self::boot(lab, Guest::make()?, options, append)
    }

    fn boot(lab: TestLab, guest: Guest, options: &[&str], append: &str) -> Result<Self> {
        let started = Self::run(&lab, &guest, &[&["--memory", "128M"], options].concat(), append)?;
        ensure!(started.status.success(), "{}\n{}", started.errors, lab.logs());
        let address = lab.instance(NAME)?.address;
        let booted = Self { lab, address, guest };
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

    /// Runs a command in the guest.
    fn exec(&self, options: &[&str], command: &[&str]) -> Result<program::Ended> {
        self.lab.transhume(&[&["exec"][..], options, &[NAME, "--"], command].concat())
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

    /// The emulators of the machine: those that began with what came from another host, or others.
    fn emulators(&self, is_incoming: bool) -> Vec<lab::process::Identity> {
        let name = format!("guest={NAME}");
        self.lab.find(|words| {
            words.first().is_some_and(|word| word.contains("qemu-system"))
                && words.contains(&name.as_str())
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

/// On the overlay, with an address by DHCP: a process there asks it all the time, and another one gets what it sends.
#[test]
fn a_machine_moves_and_loses_neither_output_nor_blocks_nor_frames() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(2)?;
    net(&lab, &["layout", "star"])?;
    let receive = [&instance("receiver", "h2")[..], &["/usr/bin/python3", RECEIVER]].concat();
    let mut receiver = Program::start(&mut lab.command(&receive))?;
    let receiving = lab.started("receiver", &mut receiver)?.address;
    let disk = NamedTempFile::new_in(common_files::PARENT)?;
    disk.as_file().set_len(BLOCKS * BLOCK as u64)?;
    let option = format!("{},shared", disk.path().display());
    let append = format!("dhcp dirty=4 disks=vda sends={receiving}");
    let booted = Booted::begin_in(lab, &["--disk", &option], &append)?;
    let mut pings = Pings::start(&booted.lab, &instance("asker", "h2"), &booted.address)?;
    for host in ["h2", "h1", "h2"] {
        let before = booted.counts_on()?;
        pings.go_on()?;
        let report = booted.lab.move_to(NAME, host)?;
        let outage = report.outage.context("the move reports no outage")?;
        ensure!((1..=outage.processors_us).contains(&outage.link_us), "{report:?}");
        ensure!((1..=report.blackout_us).contains(&outage.processors_us), "{report:?}");
        pings.go_on().with_context(|| booted.lab.logs())?;
        receiver.wait_for(BOOT, |line| line.starts_with("received").then_some(()))?;
        ensure!(booted.counts_on()? > before);
        ensure!(booted.emulators(true).len() + booted.emulators(false).len() == 1);
    }
    pings.none_is_lost()?;
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
    let folder = newer.parent().context("a folder")?;
    for host in ["h2", "h1", "h2"] {
        booted.lab.move_to(NAME, host)?;
        booted.answers()?;
        booted.counts_on()?;
        let is_newer = |words: &[&str]| words.first().is_some_and(|word| Path::new(word).starts_with(folder));
        ensure!(host != "h2" || !booted.lab.find(is_newer).is_empty(), "{} does not run", newer.display());
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
            on(lab, to, &["sh", "-c", &format!("test $(stat -c %a {disk}) = 600")])?;
        }
        on(lab, to, &["sh", "-c", &format!("qemu-img info -U {LAYER} | grep -q '^backing file: {below}'")])?;
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
    let since = Instant::now();
    let refused = booted.exec(&[], &["true"])?;
    ensure!(refused.status.code() == Some(126) && since.elapsed() < AGENT_LIMIT, "{refused:?}");
    ensure!(refused.errors.contains("no agent has connected"), "{}", refused.errors);
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
    let source = booted.emulators(true).into_iter().min_by_key(|process| process.start_time);
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

/// `transhume kill` is over when the machine has ended.
#[test]
fn a_killed_machine_powers_down_first_and_loses_power_if_it_does_not() -> Result<()> {
    let _shared = e2e::shared();
    let booted = Booted::begin(&[], "")?;
    let lab = &booted.lab;
    let exit = |options: &[&str]| {
        let begun = Instant::now();
        lab.transhume(&[&["kill", NAME], options].concat())?.success()?;
        ensure!([true, false].iter().all(|is_incoming| booted.emulators(*is_incoming).is_empty()));
        match lab.instance(NAME)?.state {
            State::Exited { code } => Ok((code, begun.elapsed())),
            state => anyhow::bail!("{state:?}"),
        }
    };
    let (code, _) = exit(&["--grace", "1m"])?;
    ensure!(code == 0, "the emulator of a guest that powers down ends by itself, not with {code}");

    for (options, at_least, at_most) in [(["--grace", "2s"], 2, 60), (["--grace", "0"], 0, 2)] {
        let started = Booted::run(lab, &booted.guest, &["--memory", "128M"], "deaf")?;
        ensure!(started.status.success(), "{}", started.errors);
        booted.counts_on()?;
        let (code, elapsed) = exit(&options)?;
        ensure!(code == 137 && (at_least..at_most).contains(&elapsed.as_secs()), "{code} {elapsed:?}");
    }
    Ok(())
}

/// The guest answers each number that is typed; the console's whole output shows that none is lost or doubled.
#[test]
fn a_console_is_typed_at_over_moves_by_one_client_at_a_time() -> Result<()> {
    const NUMBERS: u32 = 400;
    /// So many numbers are on their way: fewer than the guest's terminal holds.
    const AHEAD: u32 = 20;
    let _shared = e2e::shared();
    let booted = Booted::begin(&[], "shell")?;
    let lab = &booted.lab;
    let attach = || -> Result<Desk> {
        let desk = Desk::start(lab, &["console", NAME])?;
        lab.eventually("the console has the terminal", || Ok(!desk.is_cooked()?))?;
        Ok(desk)
    };
    let mut desk = attach()?;
    desk.press("echo $((6 * 7))\n")?;
    desk.expect("\n42\r\n")?;
    let second = lab.transhume(&["console", NAME])?;
    ensure!(second.errors.contains("another client is attached"), "{}", second.errors);
    desk.press("\x1d")?;
    lab.eventually("the console is left", || Ok(desk.client.try_wait()?.is_some()))?;
    ensure!(desk.client.wait()?.success() && desk.is_cooked()?);

    let mut desk = attach()?;
    desk.press("stty -echo; while read number; do echo \"got $number\"; done\n")?;
    let is_over = AtomicBool::new(false);
    let last = thread::scope(|scope| -> Result<u32> {
        let typing = scope.spawn(|| -> Result<u32> {
            for number in 1.. {
                desk.press(&format!("{number}\n"))?;
                if number > AHEAD {
                    desk.expect(&format!("got {}\r\n", number - AHEAD))?;
                }
                if number >= NUMBERS && is_over.load(Ordering::Relaxed) {
                    desk.expect(&format!("got {number}\r\n"))?;
                    return Ok(number);
                }
            }
            unreachable!()
        });
        let moved = ["h2", "h1"].iter().try_for_each(|host| lab.move_to(NAME, host).map(drop));
        is_over.store(true, Ordering::Relaxed);
        let last = typing.join().map_err(|_| anyhow!("the typist has panicked"))?;
        moved.and(last)
    })?;
    let lines = lab.transhume(&["logs", NAME])?.success()?.lines;
    let got: Vec<u32> =
        lines.iter().filter_map(|line| line.trim_end().strip_prefix("got ")?.parse().ok()).collect();
    ensure!(got == (1..=last).collect::<Vec<_>>(), "{got:?}");
    lab.transhume(&["run", "--name", "job", "--detach", "--", "sleep", "100"])?.success()?;
    let refused = lab.transhume(&["console", "job"])?;
    ensure!(refused.errors.contains("`job` is no virtual machine"), "{}", refused.errors);
    Ok(())
}

/// Files with the limits of the cgroups of the lab's machines, in either version, with their values.
fn cgroups(lab: &TestLab) -> Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    for hierarchy in ["/sys/fs/cgroup", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/pids"]
    {
        for folder in fs::read_dir(hierarchy).into_iter().flatten().flatten() {
            let name = folder.file_name().to_string_lossy().into_owned();
            if !(name.contains(&lab.name().to_string()) && name.contains("machines")) {
                continue;
            }
            for file in ["memory.limit_in_bytes", "memory.max", "cpu.cfs_quota_us", "cpu.max", "pids.max"] {
                if let Ok(value) = fs::read_to_string(folder.path().join(file)) {
                    found.push((file.to_owned(), value.trim().to_owned()));
                }
            }
        }
    }
    Ok(found)
}

/// With a display, which moves along.
#[test]
fn a_machine_has_limits_and_reserved_memory_and_a_display_on_either_host() -> Result<()> {
    const BANNER: &str = "import os, socket, stat, sys
path = sys.argv[1]
assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
screen = socket.socket(socket.AF_UNIX)
screen.connect(path)
print(screen.recv(12).decode().strip())";
    let _shared = e2e::shared();
    let lab = TestLab::up(2)?;
    let hosts: Vec<api::Host> =
        serde_json::from_str(&lab.transhume(&["hosts", "--json"])?.success()?.lines.join("\n"))?;
    ensure!(hosts.len() == 2);
    let booted = Booted::begin_in(lab, &["--vnc", "--accel", "tcg"], "")?;
    let lab = &booted.lab;
    let limits =
        |text: &str| -> Result<bool> { Ok(cgroups(lab)?.iter().any(|(_, value)| value.starts_with(text))) };
    for host in ["h1", "h2"] {
        if host == "h2" {
            lab.move_to(NAME, host)?;
        }
        let path = lab.instance(NAME)?.vnc.context("a display")?;
        let banner =
            lab.transhume(&["lab", "exec", host, "--", "python3", "-c", BANNER, &path])?.success()?;
        ensure!(banner.lines == ["RFB 003.008"], "{banner:?}");
        ensure!(
            limits(&((128 + 256) << 20).to_string())? && limits("200000")? && limits("129")?,
            "{:?}",
            cgroups(lab)?
        );
        lab.lab.kill(host.parse()?)?;
        lab.lab.start(host.parse()?)?;
        lab.settled(NAME)?;
    }
    let most = (memory_available()? >> 20).saturating_sub(512);
    let half = |name: &str| {
        let options =
            ["--name", name, "--host", "h1", "--detach", "--memory", &format!("{}M", most * 6 / 10)];
        let guest = booted.guest.options("");
        let guest: Vec<&str> = guest.iter().map(String::as_str).collect();
        lab.transhume(&[&["run"], &options[..], &guest[..]].concat())
    };
    half("large")?.success()?;
    let refused = half("second")?;
    ensure!(refused.errors.contains("MiB are free"), "{}", refused.errors);
    lab.transhume(&["kill", "--grace", "0", "large"])?.success()?;
    lab.transhume(&["kill", "--grace", "0", NAME])?.success()?;
    lab.eventually("the cgroups are removed", || Ok(cgroups(lab)?.is_empty()))
}

/// The memory that programs can use, in bytes.
fn memory_available() -> Result<u64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:")).context("MemAvailable")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? << 10)
}

/// The node that has the destination's emulator says so before the machine is stopped.
#[test]
fn a_host_that_cannot_run_the_machine_refuses_it_before_it_stops() -> Result<()> {
    let _shared = e2e::shared();
    let booted = Booted::begin(&[], "")?;
    let lab = &booted.lab;
    lab.transhume(&["lab", "kill", "h2"])?.success()?;
    program::run(lab.command(&["lab", "start", "h2"]).env("TRANSHUME_QEMU", "/nowhere"), BOOT)?.success()?;
    lab.eventually("the host says that it has no emulator", || {
        let listed = lab.transhume(&["hosts"])?.success()?.lines;
        Ok(listed.iter().any(|line| line.starts_with("h1") && line.contains("QEMU "))
            && listed.iter().any(|line| line.starts_with("h2") && line.contains("no QEMU")))
    })?;
    let refused = lab.transhume(&["move", NAME, "h2"])?;
    ensure!(refused.errors.contains("host h2: /nowhere is not installed"), "{}", refused.errors);
    booted.counts_on().map(drop)
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
    refused(&["--cloud-init", "/nowhere/user-data"], "/nowhere/user-data cannot be used: No such file")?;
    refused(&["--cloud-init", "/etc/passwd"], "begins with neither `#cloud-config` nor `#!`")?;
    refused(&["--disk", "/nowhere/disk.img"], "/nowhere/disk.img cannot be read")?;
    refused(&["--cpus", "1.5"], "a whole number from 1 to 64")
}

/// A command at a terminal in the guest, its output and its exit code.
fn at_a_terminal(lab: &TestLab, script: &str) -> Result<(String, i32)> {
    let request = ExecRequest {
        name: NAME.into(),
        command: ["sh", "-c", script].map(str::to_owned).into(),
        environment: Vec::new(),
        directory: Some("/tmp".into()),
        user: None,
        input: true,
        terminal: Some(WindowSize { rows: 24, columns: 80 }),
        for_own: false,
        console: false,
    };
    let mut client = Client::send(&lab.socket(), &Request::Exec(request))?;
    let mut text = String::new();
    loop {
        match client.next_event()? {
            Event::Written { bytes, .. } => text += &String::from_utf8_lossy(&bytes.0),
            Event::Exited { code } => return Ok((text, code)),
            Event::InputTaken { .. } => {}
            other => bail!("{other:?}"),
        }
    }
}

#[test]
fn commands_in_a_guest_lose_nothing_over_moves_and_restarts_of_nodes() -> Result<()> {
    const COUNT: &str = "i=0; while [ $i -lt 400 ]; do i=$((i+1)); echo $i; usleep 20000; done; exit 9";
    let _shared = e2e::shared();
    let booted = Booted::boot(TestLab::up(2)?, Guest::with_agent()?, &[], "")?;
    let lab = &booted.lab;
    lab.eventually("the agent has connected", || Ok(booted.exec(&[], &["true"])?.status.success()))?;

    let ended =
        booted.exec(&["--env", "A=b", "--directory", "/tmp"], &["sh", "-c", "echo $A; pwd; exit 7"])?;
    ensure!(ended.status.code() == Some(7) && ended.lines == ["b", "/tmp"], "{ended:?}");
    ensure!(booted.exec(&[], &["/nowhere/x"])?.status.code() == Some(127));
    let mut fed = lab.command(&["exec", "--stdin", NAME, "--", "wc", "-c"]);
    let mut fed = fed.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    fed.stdin.take().context("an input")?.write_all(&vec![b'x'; 1_000_000])?;
    let fed = fed.wait_with_output()?;
    ensure!(String::from_utf8_lossy(&fed.stdout).trim() == "1000000", "{fed:?}");
    ensure!(at_a_terminal(lab, "pwd; stty size; exit 3")? == ("/tmp\r\n24 80\r\n".into(), 3));

    let mut counting = Program::start(&mut lab.command(&["exec", NAME, "--", "sh", "-c", COUNT]))?;
    counting.wait_for(BOOT, |line| (line == "5").then_some(()))?;
    for host in ["h2", "h1"] {
        lab.move_to(NAME, host)?;
    }
    lab.lab.kill("h1".parse()?)?;
    lab.lab.start("h1".parse()?)?;
    let ended = counting.end(BOOT)?;
    let expected: Vec<String> = (1..=400).map(|number| number.to_string()).collect();
    ensure!(ended.status.code() == Some(9) && ended.lines == expected, "{ended:?}");
    booted.counts_on().map(drop)
}

/// The kernel of the guest reads the disk, and the guest installs the agent from it.
#[test]
fn a_disk_with_tools_has_the_same_bytes_on_each_host() -> Result<()> {
    const READ: &str =
        "echo 3 >/proc/sys/vm/drop_caches; sha256sum /dev/vda; cat /seed/user-data /seed/meta-data";
    let _shared = e2e::shared();
    let user_data = NamedTempFile::new()?;
    fs::write(user_data.path(), "#!/bin/sh\necho from the user\n")?;
    let user_data = user_data.path().to_str().context("a path")?;
    let options = ["--tools", "--cloud-init", user_data];
    let booted = Booted::begin(&options, "seed=vda")?;
    let lab = &booted.lab;
    lab.eventually("the agent has connected", || Ok(booted.exec(&[], &["true"])?.status.success()))?;
    let found = booted.exec(&[], &["sh", "-c", READ])?.success()?;
    ensure!(found.lines.contains(&"echo from the user".to_owned()), "{found:?}");
    ensure!(found.lines.contains(&format!("local-hostname: {NAME}")), "{found:?}");
    for host in ["h2", "h1"] {
        lab.move_to(NAME, host)?;
        lab.eventually("the agent has connected again", || {
            Ok(booted.exec(&[], &["true"])?.status.success())
        })?;
        ensure!(booted.exec(&[], &["sh", "-c", READ])?.success()?.lines == found.lines);
    }
    ensure!(booted.exec(&[], &["sh", "-c", "echo >/dev/vda"])?.status.code() == Some(1));
    booted.counts_on().map(drop)
}
