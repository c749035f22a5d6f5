//! A guest that is installed on a disk, with Debian's programs, the agent and the library: the image of `scripts/guest-image.sh`.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

use crate::guest::{cache, member};
use crate::testlab::TestLab;
use crate::{artifacts, common_files};

/// What each guest runs when it has booted.
const START: &str = "#!/bin/sh
until ip -4 address show dev eth0 | grep -q inet; do sleep 0.1; done
mkdir -p /job
/opt/transhume/transhume-guest >/dev/console 2>&1 &
";

/// Where the guest has the library.
pub const LIBRARY: &str = "/opt/transhume";

/// How long a guest may take to boot.
const BOOT: Duration = Duration::from_secs(120);

/// The files of such guests. Dropping this deletes those that are not in the cache.
pub struct Installed {
    cache: PathBuf,
    initrd: PathBuf,
    _folder: TempDir,
}

impl Installed {
    /// Makes the initial RAM disk, which installs the agent and the library.
    ///
    /// # Errors
    /// If the image cannot be built, or they have not been.
    pub fn make() -> Result<Self> {
        let (cache, folder) = (cache()?, common_files::folder()?);
        let initrd = folder.path().join("initrd");
        let mut archive = fs::read(cache.join("initrd"))?;
        archive.resize(archive.len().next_multiple_of(4), 0);
        for name in ["extra", "extra/etc", "extra/etc/transhume", "extra/opt", "extra/opt/transhume"] {
            archive.extend(member(name, 0o040_755, b""));
        }
        archive.extend(member("extra/etc/transhume/start", 0o100_755, START.as_bytes()));
        let library = fs::read(artifacts::built("libibverbs.so")?)?;
        for name in ["libibverbs.so", "libibverbs.so.1"] {
            archive.extend(member(&format!("extra{LIBRARY}/{name}"), 0o100_755, &library));
        }
        let agent = fs::read(artifacts::built("transhume-guest")?)?;
        archive.extend(member("extra/opt/transhume/transhume-guest", 0o100_755, &agent));
        archive.extend(member("TRAILER!!!", 0, b""));
        File::create(&initrd)?.write_all(&archive)?;
        Ok(Self { cache, initrd, _folder: folder })
    }

    /// The key with which root can log in to a guest by ssh.
    #[must_use]
    pub fn key(&self) -> PathBuf {
        self.cache.join("ssh_key")
    }

    /// Starts a guest on a host, with a local disk of its own.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(&self, lab: &TestLab, name: &str, host: &str, options: &[&str]) -> Result<()> {
        let disk = format!("/var/lib/transhume/disks/{name}.qcow2");
        let base = self.cache.join("disk.img").display().to_string();
        let made = ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", &base, &disk];
        lab.transhume(&[&["lab", "exec", host, "--"], &made[..]].concat())?.success()?;
        let kernel = self.cache.join("vmlinux").display().to_string();
        let (initrd, append) =
            (self.initrd.display().to_string(), format!("quiet transhume.hostname={name}"));
        let run = ["run", "--vm", "--name", name, "--host", host, "--detach", "--disk", &disk];
        let boot = ["--kernel", &kernel, "--initrd", &initrd, "--append", &append];
        lab.transhume(&[&run[..], &boot, options].concat())?.success().map(drop)
    }

    /// Waits until a guest has booted.
    ///
    /// # Errors
    /// If it does not.
    pub fn await_boot(&self, lab: &TestLab, name: &str) -> Result<()> {
        let end = Instant::now() + BOOT;
        loop {
            let console = lab.transhume(&["logs", name])?.success()?.lines;
            if console.iter().any(|line| line.contains("guest is ready")) {
                return Ok(());
            }
            ensure!(Instant::now() < end, "{name} does not boot: {console:?}\n{}", lab.logs());
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// The agent that mpirun calls in the place of ssh: it runs a command in a guest over ssh, and in a container with `exec`.
    ///
    /// # Errors
    /// If an instance is unknown.
    pub fn mpi_agent(&self, lab: &TestLab, guests: &[&str]) -> Result<String> {
        let environment = format!(
            "LD_PRELOAD={LIBRARY}/libibverbs.so.1 LD_LIBRARY_PATH={LIBRARY} UCX_TLS=$UCX_TLS OMPI_ALLOW_RUN_AS_ROOT=1 \
             OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
        );
        let mut cases = String::new();
        for guest in guests {
            let address = lab.instance(guest).context("a guest")?.address;
            cases += &format!("{guest}) address={address} ;;\n");
        }
        let key = self.key();
        let ssh = format!(
            "ssh -F none -i {} -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR",
            key.display()
        );
        // Open MPI's daemon in a guest looks for the agent too, and does not use it.
        let stand_in = "mkdir -p ${0%/*}; ln -sf /bin/true $0";
        Ok(format!(
            "#!/bin/sh\ninstance=$1\nshift\ncase $instance in\n{cases}*) exec $TRANSHUME exec \"$instance\" -- sh -c \"$*\" ;;\nesac\n\
             exec {ssh} root@$address \"{stand_in}; export {environment}; cd /job; $*\"\n"
        ))
    }
}
