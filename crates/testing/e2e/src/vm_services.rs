//! Services in a virtual machine with Debian, their clients outside, and the other way round, through moves of the machine. Each has one
//! connection for all of its time, and checks all that comes.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lab::Place;
use lab::layout::address;
use tempfile::TempDir;

use crate::check::{self, Check};
use crate::guest::cache;
use crate::program::{Ended, Program, run};
use crate::testlab::TestLab;
use crate::{artifacts, common_files};

const NAME: &str = "guest";

/// The disk of the machine that each host has for itself.
const LOCAL: &str = "/var/lib/transhume/disks/local.img";

/// How long a command may take. The guest is emulated, and busy.
const LIMIT: Duration = Duration::from_secs(90);

/// How long one of the programs works after all moves.
const END: Duration = Duration::from_secs(120);

/// A machine with Debian, in a lab of two hosts.
pub struct Debian {
    lab: TestLab,
    folder: TempDir,
    address: String,
}

/// A program that works through all moves.
pub struct Work {
    /// Its name in the table.
    pub name: &'static str,
    /// Whether it ends by itself.
    pub ends: bool,
    program: Program,
}

impl Debian {
    /// Boots the machine on the first host, with a root disk and a further disk that both hosts share, and a local disk.
    ///
    /// # Errors
    /// If that fails.
    pub fn boot() -> Result<Self> {
        let (lab, folder, guest) = (TestLab::up(2)?, common_files::folder()?, cache()?);
        let path = |name: &str| folder.path().join(name).display().to_string();
        let base = guest.join("disk.img").display().to_string();
        let (root, shared) = (path("root.qcow2"), path("shared.img"));
        run(
            Command::new("qemu-img").args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b", &base, &root]),
            LIMIT,
        )?;
        fs::File::create(&shared)?.set_len(64 << 20)?;
        fs::copy(guest.join("ssh_key"), path("client_key"))?;
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
        for name in ["clients.py", "numbered_streams.py"] {
            fs::copy(tests.join(name), path(name))?;
        }
        for name in ["transhume-guest", "libibverbs.so", check::PROGRAM] {
            fs::copy(artifacts::built(name)?, path(name))?;
        }
        lab.transhume(&["lab", "exec", "h1", "--", "truncate", "--size", "64M", LOCAL])?.success()?;
        let (kernel, initrd) = (guest.join("vmlinux"), guest.join("initrd"));
        let mut command =
            lab.command(&["run", "--vm", "--name", NAME, "--host", "h1", "--detach", "--memory", "512M"]);
        command.arg("--kernel").arg(kernel).arg("--initrd").arg(initrd).args(["--append", "quiet"]);
        for disk in [format!("{root},shared"), format!("{shared},shared"), LOCAL.to_owned()] {
            command.args(["--disk", &disk]);
        }
        run(&mut command, LIMIT)?;
        let address = lab.instance(NAME)?.address;
        let debian = Self { lab, folder, address };
        debian.await_shell()?;
        debian.copy_files()?;
        Ok(debian)
    }

    fn await_shell(&self) -> Result<()> {
        let end = Instant::now() + LIMIT;
        while !Program::start(&mut self.inside("true")?)?.end(LIMIT)?.status.success() {
            let console = || self.lab.transhume(&["logs", NAME]).map(|logs| logs.lines.join("\n"));
            ensure!(Instant::now() < end, "no shell answers:\n{}", console()?);
            thread::sleep(Duration::from_millis(500));
        }
        Ok(())
    }

    /// Holds a connection open that later commands share: a handshake takes an emulated guest ten seconds.
    fn keep_connection(&self) -> Result<Program> {
        let line = self.shell("sleep 100000").join(" ").replacen("ssh ", "exec ssh -M ", 1);
        let shell = Program::start(&mut self.outside(&["sh", "-c", &line])?)?;
        let (socket, end) = (self.folder.path().join("shell"), Instant::now() + LIMIT);
        while !socket.exists() {
            ensure!(Instant::now() < end, "no connection to the guest");
            thread::sleep(Duration::from_millis(100));
        }
        Ok(shell)
    }

    /// The guest gets the folder of the programs under the same name.
    fn copy_files(&self) -> Result<()> {
        let folder = self.path();
        let names = "clients.py numbered_streams.py transhume-guest libibverbs.so verbs-check";
        let copy = format!(
            "mkdir -p {folder} && tar -x -C {folder} && ln -s libibverbs.so {folder}/libibverbs.so.1"
        );
        let inside = self.shell(&copy);
        let script = format!("tar -c -C {folder} {names} | {}", inside.join(" "));
        run(self.outside(&["sh", "-c", &script])?.arg("sh"), LIMIT).map(drop)
    }

    fn path(&self) -> String {
        self.folder.path().display().to_string()
    }

    /// The words that run `script` in the guest; the last one is quoted.
    fn shell(&self, script: &str) -> Vec<String> {
        let options = "-F none -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR";
        let mut words: Vec<String> = ["ssh", "-i"].map(str::to_owned).into();
        words.push(format!("{}/client_key", self.path()));
        words.push(format!("-S {}/shell", self.path()));
        words.extend(options.split(' ').map(str::to_owned));
        words.push(format!("root@{}", self.address));
        words.push(format!("'{script}'"));
        words
    }

    /// A command in the guest. It has no single quotes.
    fn inside(&self, script: &str) -> Result<Command> {
        let line = format!("exec {}", self.shell(script).join(" "));
        self.outside(&["sh", "-c", &line])
    }

    /// A command on the second host.
    fn outside(&self, words: &[&str]) -> Result<Command> {
        let place: Place = "h2".parse()?;
        let mut command = self.lab.lab.command(place, words[0])?;
        command.args(&words[1..]);
        Ok(command)
    }

    /// Starts everything, each for so many seconds.
    ///
    /// # Errors
    /// If something does not start.
    pub fn work(&self, seconds: u64) -> Result<(Vec<Work>, Check)> {
        let (folder, address, here) = (self.path(), self.address.clone(), address("h2".parse()?).to_string());
        let seconds = seconds.to_string();
        let mut works =
            vec![Work { name: "commands in the guest", ends: false, program: self.keep_connection()? }];
        let daemons = "setsid redis-server --bind 0.0.0.0 --protected-mode no --dir /tmp >/dev/null 2>&1 & \
                       setsid iperf3 --server --one-off >/dev/null 2>&1 & sleep 2";
        run(&mut self.inside(daemons)?, LIMIT)?;
        let mut redis =
            self.outside(&["redis-server", "--bind", &here, "--protected-mode", "no", "--dir", "/tmp"])?;
        let redis = Program::start(&mut redis)?;
        let script = |name: &str| format!("{folder}/{name}");
        let (clients, streams) = (script("clients.py"), script("numbered_streams.py"));
        works.push(Work { name: "redis-server outside", ends: false, program: redis });
        let mut begin = |name: &'static str, command: Result<Command>, is_ready: &str| {
            let mut program = Program::start(&mut command?)?;
            if !is_ready.is_empty() {
                program
                    .wait_for(LIMIT, |line| line.contains(is_ready).then_some(()))
                    .with_context(|| name)?;
            }
            works.push(Work { name, ends: true, program });
            Ok::<_, anyhow::Error>(())
        };
        let fio = |name: &str, disk: &str| {
            self.inside(&format!(
                "fio --name={name} --filename=/dev/{disk} --size=32m --bs=4k --rw=randwrite --direct=1 --rate_iops=40 \
                 --verify=crc32c --verify_backlog=256 --verify_fatal=1 --time_based --runtime={seconds}"
            ))
        };
        begin("fio, shared disk", fio("shared", "vdb"), "")?;
        begin("fio, local disk", fio("local", "vdc"), "")?;
        let serve = format!("python3 {streams} serve 0.0.0.0 7500 {seconds}");
        begin("stream, guest's end", self.inside(&serve), "listening")?;
        begin(
            "stream from outside",
            self.outside(&["python3", &streams, "connect", &address, "7500", &seconds]),
            "working",
        )?;
        begin(
            "stream, other end",
            self.outside(&["python3", &streams, "serve", &here, "7501", &seconds]),
            "listening",
        )?;
        let connect = format!("python3 {streams} connect {here} 7501 {seconds}");
        begin("stream from the guest", self.inside(&connect), "working")?;
        let work = ["python3", &clients, "work", &address, &folder, &seconds, "2M"];
        begin("redis, ssh and iperf3", self.outside(&work), "working")?;
        begin(
            "redis from the guest",
            self.inside(&format!("python3 {clients} count {here} {seconds}")),
            "working",
        )?;
        Ok((works, self.check()?))
    }

    /// The checking workload with 16 queue pairs, whose server is in the guest.
    fn check(&self) -> Result<Check> {
        let folder = self.path();
        run(&mut self.inside(&format!("{folder}/transhume-guest >/dev/null 2>&1 & sleep 2"))?, LIMIT)?;
        let server = format!(
            "cd {folder} && LD_LIBRARY_PATH={folder} LD_PRELOAD={folder}/libibverbs.so.1 ./verbs-check server --json \
             --stall-limit 60 --report-interval 0.2"
        );
        let mut server = Program::start(&mut self.inside(&server)?)?;
        let listening = server.wait_for(LIMIT, check::listening)?;
        let port = listening.rsplit(':').next().context("no port")?;
        let program = artifacts::built(check::PROGRAM)?;
        let line = ["client", &format!("{}:{port}", self.address), "--qps", "16", "--max-size", "4096"];
        let mut client = self.lab.command(&["run", "--name", "client", "--host", "h2", "--"]);
        let options = ["--json", "--stall-limit", "60", "--report-interval", "0.2"];
        let client = Program::start(client.arg(program).args(line).args(options))?;
        Ok(Check { server, client })
    }

    /// Moves the machine to and fro. Returns the blackout of each move, in milliseconds.
    ///
    /// # Errors
    /// If a move fails, or a program ends before the last one.
    pub fn travel(&self, moves: usize, works: &mut [Work], check: &mut Check) -> Result<Vec<u64>> {
        let mut blackouts = Vec::new();
        for host in ["h2", "h1"].iter().cycle().take(moves) {
            let report = self.lab.move_to(NAME, host)?;
            blackouts.push(report.blackout_us / 1000);
            println!(
                "moved to {host}: total {} ms, blackout {} ms",
                report.total_us / 1000,
                report.blackout_us / 1000
            );
            check.progress().with_context(|| self.lab.logs())?;
        }
        for work in works {
            work.program.require_running().context(work.name)?;
        }
        Ok(blackouts)
    }

    /// The end of a program that has worked through the moves.
    ///
    /// # Errors
    /// If it reports an error.
    pub fn end(work: Work) -> Result<Ended> {
        work.program.end(END).and_then(Ended::success).context(work.name)
    }

    /// The end of the checking workload.
    ///
    /// # Errors
    /// If anything was lost, doubled or changed.
    pub fn end_check(&self, check: Check) -> Result<()> {
        self.lab.end_check(check).map(drop)
    }
}
