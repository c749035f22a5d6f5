//! The peer of a container's move: runc checkpoints the same container, its images are copied, and runc restores it.
//!
//! Both use the machine's own files below a layer, and a program with this much memory. Images are in memory on both sides.

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

/// Time limit of a call.
const LIMIT: Duration = Duration::from_secs(120);

/// How often the program's memory is checked.
const LOOK: Duration = Duration::from_millis(50);

/// The command of a program with this many MiB of distinct pages, which reports when it has filled them.
#[must_use]
pub fn command(mebibytes: u32) -> Vec<String> {
    let program = format!(
        "import os, time\nheld = bytearray({mebibytes} << 20)\nfor at in range(0, len(held), 1 << 20):\n \
         held[at:at + (1 << 20)] = os.urandom(1 << 20)\nprint('ready', flush=True)\n\
         while True: held[0] ^= 1; time.sleep(0.01)"
    );
    ["/usr/bin/python3", "-c", &program].map(str::to_owned).into()
}

/// A directory in memory with a mounted root file system; dropping it removes both.
struct Ground(PathBuf);

impl Ground {
    fn new() -> Result<Self> {
        let ground = Self(PathBuf::from(format!("/dev/shm/transhume-bench-{}", std::process::id())));
        for name in ["layer", "work", "root", "source", "destination"] {
            fs::create_dir_all(ground.0.join(name))?;
        }
        let path = |name: &str| ground.0.join(name).display().to_string();
        let options = format!("lowerdir=/,upperdir={},workdir={}", path("layer"), path("work"));
        let (root, options) = (ground.root()?, CString::new(options)?);
        let kind = c"overlay".as_ptr();
        // SAFETY: all are live C strings.
        let mounted = unsafe { libc::mount(kind, root.as_ptr(), kind, 0, options.as_ptr().cast()) };
        ensure!(mounted == 0, "cannot mount {root:?}: {}", std::io::Error::last_os_error());
        Ok(ground)
    }

    fn root(&self) -> Result<CString> {
        Ok(CString::new(self.0.join("root").as_os_str().as_bytes())?)
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        // If something is left, the next user of the name gets an error that names it.
        if let Ok(root) = self.root() {
            // SAFETY: the path is a live C string.
            let _ = unsafe { libc::umount2(root.as_ptr(), libc::MNT_DETACH) };
        }
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Time for runc to checkpoint a container with this many MiB, and to copy and restore it.
///
/// # Errors
/// If runc is missing or fails.
pub fn checkpoint_and_restore(criu: &Path, mebibytes: u32) -> Result<Duration> {
    let ground = Ground::new()?;
    // There are no connections to lock, for which CRIU would need iptables.
    fs::write(ground.0.join("criu.conf"), "network-lock skip\n")?;
    fs::write(ground.0.join("config.json"), configuration(&ground.0, mebibytes).to_string())?;
    let runc = Runc { criu, folder: &ground.0 };
    runc.call(&["run", "--detach"])?;
    let moved = runc.move_when_ready(mebibytes);
    runc.call(&["delete", "--force"])?;
    moved
}

struct Runc<'a> {
    criu: &'a Path,
    folder: &'a Path,
}

impl Runc<'_> {
    const NAME: &'static str = "bench";

    fn call(&self, words: &[&str]) -> Result<()> {
        let mut command = Command::new("timeout");
        command.arg(LIMIT.as_secs().to_string()).arg("runc").arg("--criu").arg(self.criu);
        let log = self.folder.join("log");
        command
            .arg("--log")
            .arg(&log)
            .arg("--root")
            .arg(self.folder.join("runc"))
            .args(words)
            .arg(Self::NAME);
        // The container inherits these, and cannot be dumped with a file of the host.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let status = command.current_dir(self.folder).status()?;
        let said = fs::read_to_string(&log).unwrap_or_default();
        ensure!(status.success(), "runc {words:?}: {said}");
        Ok(())
    }

    fn move_when_ready(&self, mebibytes: u32) -> Result<Duration> {
        self.wait_for_memory(mebibytes)?;
        let (source, destination) = (self.folder.join("source"), self.folder.join("destination"));
        let path = |folder: &Path| folder.to_str().map(str::to_owned).context("no text");
        let begin = Instant::now();
        self.call(&["checkpoint", "--image-path", &path(&source)?])?;
        for entry in fs::read_dir(&source)? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                fs::copy(entry.path(), destination.join(entry.file_name()))?;
            }
        }
        self.call(&["restore", "--detach", "--image-path", &path(&destination)?])?;
        Ok(begin.elapsed())
    }

    /// The program has its memory when it holds so much.
    fn wait_for_memory(&self, mebibytes: u32) -> Result<()> {
        let state = fs::read(self.folder.join("runc").join(Self::NAME).join("state.json"))?;
        let state: Value = serde_json::from_slice(&state)?;
        let pid = state["init_process_pid"].as_u64().context("runc reports no process")?;
        let end = Instant::now() + LIMIT;
        loop {
            let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
            let held = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
            let held: u64 = held.and_then(|held| held.trim().split(' ').next()?.parse().ok()).unwrap_or(0);
            if held >> 10 >= u64::from(mebibytes) {
                return Ok(());
            }
            ensure!(Instant::now() < end, "the program uses only {held} KiB");
            sleep(LOOK);
        }
    }
}

/// The same configuration as that of our container.
fn configuration(folder: &Path, mebibytes: u32) -> Value {
    let mount = |place: &str, kind: &str| json!({ "destination": place, "type": kind, "source": kind });
    let places = [
        ("/proc", "proc"),
        ("/dev", "tmpfs"),
        ("/dev/pts", "devpts"),
        ("/dev/shm", "tmpfs"),
        ("/sys", "sysfs"),
    ];
    let namespaces = ["pid", "ipc", "uts", "mount", "network"].map(|kind| json!({ "type": kind }));
    let mounts = places.map(|(place, kind)| mount(place, kind));
    json!({
        "ociVersion": "1.0.2",
        "process": { "args": command(mebibytes), "cwd": "/", "user": { "uid": 0, "gid": 0 }, "env": ["PATH=/usr/bin:/bin"] },
        "root": { "path": folder.join("root") },
        "mounts": mounts,
        "annotations": { "org.criu.config": folder.join("criu.conf") },
        "linux": { "namespaces": namespaces },
    })
}
