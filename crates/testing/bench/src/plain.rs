//! The peer of a move: plain CRIU dumps the same program with as many queue pairs, its images are
//! copied, and CRIU restores it.
//!
//! The program is the checking workload, and it ends well afterwards. Before the dump it lets go of its links,
//! as before a move, since CRIU cannot dump it otherwise; that time is not counted.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use e2e::artifacts::built;
use e2e::check;
use e2e::pair::{FIRST, Pair, Place, command};
use e2e::program::Program;

/// How long CRIU, or the workload's end, may take.
const LIMIT: Duration = Duration::from_secs(60);

/// The time of each step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steps {
    /// `criu dump`.
    pub dump: Duration,
    /// Copying the images.
    pub copy: Duration,
    /// `criu restore`.
    pub restore: Duration,
}

impl Steps {
    /// All of it.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.dump + self.copy + self.restore
    }
}

/// A folder that is gone when it is dropped.
struct Folder(PathBuf);

impl Folder {
    /// An empty folder beside the state of labs, on the same file system.
    fn new() -> Result<Self> {
        let path = PathBuf::from(format!("{}/bench-{}", lab::layout::RUN, std::process::id()));
        for name in ["source", "destination"] {
            fs::create_dir_all(path.join(name))?;
        }
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A name that remains shows in the next error of a user of that name.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Dumps, copies and restores the workload's client with `options`.
///
/// # Errors
/// If CRIU fails, or the workload does not end well.
pub fn dump_and_restore(criu: &Path, options: &[&str]) -> Result<Steps> {
    let folder = Folder::new()?;
    let pair = Pair::new(Place::TwoHosts)?;
    let mut server =
        Program::start(command(&pair.first, built(check::PROGRAM)?)?.arg("server").args(check::COMMON))?;
    let address = server.wait_for(LIMIT, check::listening)?;
    let port = address.rsplit(':').next().context("the address has no port")?;
    let mut client = Client::start(&pair, &format!("{FIRST}:{port}"), options)?;
    check::wait_for_progress(&mut server)?;
    pair.fabric.suspend(&pair.second)?;
    let steps = client.steps(criu, &pair, &folder.0)?;
    pair.fabric.resume(&pair.second, 1)?;
    check::wait_for_progress(&mut server).context("after the restore")?;
    server.signal(libc::SIGTERM)?;
    server.end(LIMIT)?.success()?;
    Ok(steps)
}

/// The program that is dumped. It has a PID namespace of its own, so that its PID is free when it is restored,
/// and no output, so that no pipe leads out.
struct Client {
    starter: Child,
    restored: Option<i32>,
}

impl Client {
    fn start(pair: &Pair, server: &str, options: &[&str]) -> Result<Self> {
        let mut client = command(&pair.second, "unshare")?;
        client.args(["--pid", "--fork", "setsid"]).arg(built(check::PROGRAM)?);
        client.args(["client", server, "--stall-limit", "30"]).args(options);
        client.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Self { starter: client.spawn()?, restored: None })
    }

    fn steps(&mut self, criu: &Path, pair: &Pair, folder: &Path) -> Result<Steps> {
        let pid = &self.child()?.to_string();
        let (source, destination) = (folder.join("source"), folder.join("destination"));
        let dump = timed(|| self.criu(criu, pair, &source, &["dump", "--tree", pid]))?;
        self.starter.wait()?;
        let copy = timed(|| copy(&source, &destination))?;
        let pid_file = destination.join("pid");
        let restore = ["restore", "--restore-detached", "--pidfile", pid_file.to_str().context("no text")?];
        let restore = timed(|| self.criu(criu, pair, &destination, &restore))?;
        self.restored = Some(fs::read_to_string(&pid_file)?.trim().parse()?);
        Ok(Steps { dump, copy, restore })
    }

    /// The program itself; its starter waits for it.
    fn child(&self) -> Result<i32> {
        let starter = self.starter.id();
        let children = fs::read_to_string(format!("/proc/{starter}/task/{starter}/children"))?;
        Ok(children.trim().parse()?)
    }

    fn criu(&self, criu: &Path, pair: &Pair, images: &Path, arguments: &[&str]) -> Result<()> {
        let mut command = Command::new("timeout");
        command.arg(LIMIT.as_secs().to_string()).arg(criu).args(arguments).arg("--images-dir").arg(images);
        command.args(["--tcp-established", "--network-lock", "nftables", "--manage-cgroups=ignore", "-v1"]);
        let output = pair.second.enter(&mut command).output()?;
        ensure!(output.status.success(), "criu {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        for pid in [self.child().ok(), self.restored].into_iter().flatten() {
            // SAFETY: no memory is passed.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        // It may have ended by itself.
        let _ = self.starter.kill();
        let _ = self.starter.wait();
    }
}

fn timed(work: impl FnOnce() -> Result<()>) -> Result<Duration> {
    let started = Instant::now();
    work()?;
    Ok(started.elapsed())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}
