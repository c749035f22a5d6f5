//! A small guest for virtual machines: the kernel and the drivers of `scripts/guest-image.sh`, with a program of the test as its first.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

use crate::{artifacts, check, common_files, program};

/// Names the folder with the guest's kernel and initial RAM disk, instead of the script.
const VARIABLE: &str = "TRANSHUME_GUEST";

/// Building takes 2 minutes; a guest that is in the cache is there at once.
const BUILD: Duration = Duration::from_secs(300);

/// What the guest runs: `guest.sh` beside the tests.
const SCRIPT: &str = include_str!("../tests/guest.sh");

/// What a guest runs whose program uses RDMA.
const RDMA_SCRIPT: &str = include_str!("../tests/guest-rdma.sh");

/// What a guest runs that harms its host as much as it can.
const HOSTILE_SCRIPT: &str = include_str!("../tests/guest-hostile.sh");

/// The files of the guest. Dropping this deletes those that are not in the cache.
pub struct Guest {
    /// The kernel.
    pub kernel: PathBuf,
    /// The initial RAM disk, whose `/counter` is the test's program.
    pub initrd: PathBuf,
    _folder: TempDir,
}

impl Guest {
    /// Makes the initial RAM disk: the kernel unpacks an archive behind the first one into the same tree.
    ///
    /// # Errors
    /// If the guest cannot be built.
    pub fn make() -> Result<Self> {
        Self::with(SCRIPT, &[])
    }

    /// The same guest with the agent, which it starts when it has begun to count.
    ///
    /// # Errors
    /// If the guest cannot be built, or the agent has not been.
    pub fn with_agent() -> Result<Self> {
        let agent = artifacts::agent()?;
        let agent = fs::read(&agent).with_context(|| format!("{}", agent.display()))?;
        Self::with(SCRIPT, &[("agent".to_owned(), agent)])
    }

    /// A guest whose program uses RDMA: it has the agent, the library and the checking workload.
    ///
    /// # Errors
    /// If the guest cannot be built, or they have not been.
    pub fn with_rdma() -> Result<Self> {
        // The program's interpreter, where the program looks for it, and the libraries of all.
        let system = [
            "/lib64/ld-linux-x86-64.so.2",
            "/lib/x86_64-linux-gnu/libc.so.6",
            "/lib/x86_64-linux-gnu/libgcc_s.so.1",
        ];
        let own =
            [artifacts::agent()?, artifacts::built("libibverbs.so")?, artifacts::built(check::PROGRAM)?];
        let mut files = Vec::new();
        for path in system.map(PathBuf::from).into_iter().chain(own) {
            let name = path.file_name().context("a file")?.to_string_lossy().into_owned();
            let folder = if path.starts_with("/lib64") { "lib64" } else { "rdma" };
            files.push((
                format!("{folder}/{name}"),
                fs::read(&path).with_context(|| format!("{}", path.display()))?,
            ));
        }
        Self::with(RDMA_SCRIPT, &files)
    }

    /// A guest that floods its console, its network and the port of its agent, and resets its machine.
    ///
    /// # Errors
    /// If the guest cannot be built.
    pub fn hostile() -> Result<Self> {
        Self::with(HOSTILE_SCRIPT, &[])
    }

    fn with(script: &str, files: &[(String, Vec<u8>)]) -> Result<Self> {
        let (cache, folder) = (cache()?, common_files::folder()?);
        let mut archive = fs::read(cache.join("initrd")).with_context(|| format!("{}", cache.display()))?;
        archive.resize(archive.len().next_multiple_of(4), 0);
        archive.extend(member("counter", 0o100_755, script.as_bytes()));
        for folder in ["lib64", "rdma"] {
            archive.extend(member(folder, 0o040_755, b""));
        }
        for (name, contents) in files {
            archive.extend(member(name, 0o100_755, contents));
        }
        archive.extend(member("TRAILER!!!", 0, b""));
        let initrd = folder.path().join("initrd");
        fs::write(&initrd, archive)?;
        Ok(Self { kernel: cache.join("vmlinuz"), initrd, _folder: folder })
    }

    /// The options of `transhume run` for it; `append` are further arguments for the kernel and the program.
    #[must_use]
    pub fn options(&self, append: &str) -> Vec<String> {
        let text = |path: &Path| path.display().to_string();
        let append = format!("--append=quiet rdinit=/counter {append}");
        let options = ["--vm", "--kernel", &text(&self.kernel), "--initrd", &text(&self.initrd)];
        options.into_iter().map(str::to_owned).chain([append]).collect()
    }
}

/// The command line of an emulator that runs `guest` outside of Transhume, with its NIC on the TAP `tap`. Its output is the console.
#[must_use]
pub fn plain_emulator(guest: &Guest, tap: &str, mac: &str, append: &str) -> Vec<String> {
    let Guest { kernel, initrd, .. } = guest;
    let append = format!("console=ttyS0 quiet rdinit=/counter {append}");
    let (netdev, device) = (
        format!("tap,id=net0,ifname={tap},script=no,downscript=no"),
        format!("virtio-net-pci,netdev=net0,mac={mac},romfile="),
    );
    let (kernel, initrd) = (kernel.display().to_string(), initrd.display().to_string());
    let words = [
        "qemu-system-x86_64",
        "-nodefaults",
        "-accel",
        "tcg",
        "-m",
        "128M",
        "-display",
        "none",
        "-serial",
        "stdio",
        "-netdev",
        &netdev,
        "-device",
        &device,
        "-kernel",
        &kernel,
        "-initrd",
        &initrd,
        "-append",
        &append,
    ];
    words.map(str::to_owned).to_vec()
}

/// The folder with the guest's kernel, initial RAM disk and root disk.
///
/// # Errors
/// If the guest cannot be built.
pub fn cache() -> Result<PathBuf> {
    env::var_os(VARIABLE).map_or_else(|| named_by("guest-image.sh"), |folder| Ok(folder.into()))
}

/// QEMU 10, which is beside the installed QEMU if that is older.
///
/// # Errors
/// If it cannot be unpacked.
pub fn qemu_10() -> Result<PathBuf> {
    named_by("qemu-10.sh")
}

/// The path that a script prints, which it makes first if necessary.
fn named_by(script: &str) -> Result<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../scripts").join(script);
    let ended = program::run(&mut Command::new(&script), BUILD)?.success()?;
    ended.lines.last().map(PathBuf::from).with_context(|| format!("{} names no path", script.display()))
}

/// A member of an archive in cpio's `newc` format.
pub(crate) fn member(name: &str, mode: u32, contents: &[u8]) -> Vec<u8> {
    let length = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
    let fields = [0, mode, 0, 0, 1, 0, length(contents.len()), 0, 0, 0, 0, length(name.len() + 1), 0];
    let mut member = String::from("070701");
    member.extend(fields.map(|field| format!("{field:08x}")));
    let mut member = [member.as_bytes(), name.as_bytes(), b"\0"].concat();
    member.resize(member.len().next_multiple_of(4), 0);
    member.extend(contents);
    member.resize(member.len().next_multiple_of(4), 0);
    member
}

/// The numbers that the guest has counted, from its console.
///
/// # Errors
/// If one is missing or comes twice, or the guest reports a fault.
pub fn counted(console: &[String]) -> Result<u64> {
    let mut last = None;
    for line in console {
        let line = line.trim_end();
        ensure!(!line.contains("BAD") && !line.contains("panic") && !line.contains("BUG:"), "{line}");
        // The last line may be incomplete.
        let Some(number) = line.strip_prefix("count ").and_then(|number| number.strip_suffix(" .")) else {
            continue;
        };
        let number: u64 = number.parse()?;
        ensure!(last.is_none_or(|last| number == last + 1), "{number} follows {last:?}");
        last = Some(number);
    }
    Ok(last.unwrap_or(0))
}
