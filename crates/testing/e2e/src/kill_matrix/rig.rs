//! A lab of two hosts with one machine, whose guest counts on its console and writes each number to a block of its disk.

use std::fmt::{self, Display};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use api::State;
use lab::layout::Layout;
use lab::process::{Identity, file};
use lab::{Place, daemons};
use tempfile::NamedTempFile;

use super::Roles;
use super::remains::{self, Resources};
use crate::common_files;
use crate::guest::{Guest, counted};
use crate::testlab::TestLab;

/// The machine's name.
pub const NAME: &str = "guest";

/// The local disk, of which each host has its own file.
const LOCAL: &str = "/var/lib/transhume/disks/guest.img";

/// The blocks of the disk that the guest writes to, and their size in bytes.
const BLOCKS: u64 = 1024;
const BLOCK: usize = 4096;

/// How long a host may take to remove what belongs to a machine that is gone, and a process to appear.
const LIMIT: Duration = Duration::from_secs(20);

/// Polling interval of what is left of a machine.
const LOOK: Duration = Duration::from_millis(20);

/// Polling interval of an emulator that starts: it takes a hundred milliseconds until the engine hears it.
const SOON: Duration = Duration::from_millis(1);

/// The kind of the machine's disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// One file that both hosts see.
    Shared,
    /// A file of each host, whose contents move along.
    Local,
}

impl Display for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Shared => "shared",
            Self::Local => "local",
        })
    }
}

/// The lab, and its machine.
pub struct Rig {
    /// The lab.
    pub lab: TestLab,
    guest: Guest,
    storage: Storage,
    shared: NamedTempFile,
    /// The resources of each host without a machine.
    without: [(Place, Resources); 2],
}

impl Rig {
    /// Makes the lab, and boots the machine on its first host.
    ///
    /// # Errors
    /// If that fails.
    pub fn begin(storage: Storage) -> Result<Self> {
        let lab = TestLab::up(2)?;
        let layout = Layout::of(lab.name());
        let places: [Place; 2] = ["h1".parse()?, "h2".parse()?];
        let without = places.map(|place| (place, remains::of(&layout, place)));
        let shared = NamedTempFile::new_in(common_files::PARENT)?;
        let rig = Self { lab, guest: Guest::make()?, storage, shared, without };
        rig.shared.as_file().set_len(BLOCKS * BLOCK as u64)?;
        if storage == Storage::Local {
            fs::File::create_new(rig.disk_at(places[0])?)?.set_len(BLOCKS * BLOCK as u64)?;
        }
        rig.boot(places[0])?;
        Ok(rig)
    }

    fn boot(&self, place: Place) -> Result<()> {
        let disk = match self.storage {
            Storage::Shared => format!("{},shared", self.shared.path().display()),
            Storage::Local => LOCAL.to_owned(),
        };
        let options = self.guest.options("dirty=4 disks=vda");
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let place = place.to_string();
        let run = ["run", "--name", NAME, "--host", &place, "--detach", "--memory", "128M", "--disk", &disk];
        self.lab.transhume(&[&run, &options[..]].concat())?.success()?;
        self.counts_on().map(drop)
    }

    /// The last number on the console, on which all numbers come once and in order.
    ///
    /// # Errors
    /// If one is missing or comes twice, or the guest has found a fault.
    pub fn counted(&self) -> Result<u64> {
        counted(&self.lab.transhume(&["logs", NAME])?.success()?.lines)
    }

    /// Waits until the guest has counted to further numbers.
    ///
    /// # Errors
    /// If it does not.
    pub fn counts_on(&self) -> Result<u64> {
        let (before, mut now) = (self.counted()?, 0);
        self.lab.eventually("the guest counts on", || {
            now = self.counted()?;
            Ok(now > before + 2)
        })?;
        Ok(now)
    }

    /// The host of the machine, and the other one.
    ///
    /// # Errors
    /// If the machine does not run.
    pub fn roles(&self) -> Result<Roles> {
        let source: Place = self.lab.settled(NAME)?.host.parse()?;
        let other = self.without.iter().map(|(place, _)| *place).find(|place| *place != source);
        Ok(Roles { source, destination: other.context("two hosts")? })
    }

    /// Waits until no move of the machine is in progress. Returns its host, or `None` if it has ended.
    ///
    /// # Errors
    /// If it does not come to rest.
    pub fn settled(&self) -> Result<Option<Place>> {
        let mut found = None;
        self.lab.eventually("the machine has come to rest", || {
            let instance = self.lab.instance(NAME)?;
            found = match instance.state {
                State::Running => Some(Some(instance.host.parse()?)),
                State::Exited { .. } | State::Lost { .. } => Some(None),
                _ => None,
            };
            Ok(found.is_some())
        })?;
        found.context("it has come to rest")
    }

    /// Moves the machine to the other host.
    ///
    /// # Errors
    /// If it does not arrive.
    pub fn move_on(&self) -> Result<()> {
        self.lab.move_to(NAME, &self.roles()?.destination.to_string()).map(drop)
    }

    /// Checks a machine that runs: there is one copy, it counts, its disk has all numbers, and nothing is left over.
    ///
    /// # Errors
    /// If a promise is broken.
    pub fn check(&self) -> Result<()> {
        let counted = self.counts_on()?;
        let Roles { source: here, destination: away } = self.roles()?;
        self.check_disk(&self.disk_at(here)?, counted)?;
        self.eventually(|| self.left_over(away))?;
        ensure!(self.emulators(here)?.len() == 1, "{here} has {} emulators", self.emulators(here)?.len());
        Ok(())
    }

    /// After the end of the machine: checks that its disk at `place` is whole, and that nothing is left over. Boots it there again.
    ///
    /// # Errors
    /// If a promise is broken.
    pub fn begin_again(&self, place: Place, counted: u64) -> Result<()> {
        self.check_disk(&self.disk_at(place)?, counted)?;
        for (host, _) in &self.without {
            self.eventually(|| self.left_over_but(*host, *host == place))?;
        }
        self.boot(place)
    }

    /// The emulator at `place`, as soon as it is there.
    ///
    /// # Errors
    /// If none appears.
    pub fn emulator_soon(&self, place: Place) -> Result<Identity> {
        let end = Instant::now() + LIMIT;
        loop {
            if let Some(emulator) = self.recorded_emulator(place) {
                return Ok(emulator);
            }
            ensure!(Instant::now() < end, "no emulator appears at {place}\n{}", self.lab.logs());
            std::thread::sleep(SOON);
        }
    }

    /// The emulator of the machine that the engine at `place` has recorded: a child of the first process.
    fn recorded_emulator(&self, place: Place) -> Option<Identity> {
        let first = self.record(place)?["first"]["pid"].as_i64()?;
        let children = fs::read_to_string(format!("/proc/{first}/task/{first}/children")).ok()?;
        let child: i32 = children.split_whitespace().next()?.parse().ok()?;
        let line = fs::read(file(child, "cmdline")).ok()?;
        let program = line.split(|byte| *byte == 0).next()?;
        String::from_utf8_lossy(program).contains("qemu-system").then(|| Identity::of(child)).flatten()
    }

    /// The engine's record of the machine at `place`.
    fn record(&self, place: Place) -> Option<serde_json::Value> {
        let path = Layout::of(self.lab.name()).state(place).join("machines").join(format!("{NAME}.json"));
        serde_json::from_slice(&fs::read(path).ok()?).ok()
    }

    /// Kills the emulator at `place`.
    ///
    /// # Errors
    /// If there is none.
    pub fn kill_emulator(&self, place: Place) -> Result<()> {
        let emulator = self.emulator_soon(place)?.open().context("the emulator has ended")?;
        emulator.kill();
        Ok(())
    }

    /// Whether `place` has recorded that it holds the whole machine.
    #[must_use]
    pub fn is_held(&self, place: Place) -> bool {
        self.record(place).is_some_and(|record| record["state"] == "Held")
    }

    /// The emulators of `place`, which run in the folder of its node's engine.
    fn emulators(&self, place: Place) -> Result<Vec<Identity>> {
        let folder = Layout::of(self.lab.name()).state(place).join("machines");
        let inode = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino()));
        let folder = inode(&folder).with_context(|| format!("{}", folder.display()))?;
        let is_here = |found: &Identity| inode(&file(found.pid, "cwd")).is_ok_and(|its| its == folder);
        let found = self.lab.find(|words| words.first().is_some_and(|word| word.contains("qemu-system")));
        Ok(found.into_iter().filter(is_here).collect())
    }

    fn node(&self, place: Place) -> Result<i32> {
        let node = daemons::running(&Layout::of(self.lab.name()), place);
        node.map(|node| node.pid).with_context(|| format!("no node runs at {place}"))
    }

    /// The file of the machine's disk at `place`.
    fn disk_at(&self, place: Place) -> Result<PathBuf> {
        Ok(match self.storage {
            Storage::Shared => self.shared.path().to_owned(),
            Storage::Local => remains::seen_from_outside(self.node(place)?, Path::new(LOCAL)),
        })
    }

    /// Checks that each block has the last number that was written there, or one that the guest has written since.
    fn check_disk(&self, path: &Path, counted: u64) -> Result<()> {
        let disk = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
        for number in counted.saturating_sub(BLOCKS - 2).max(1)..=counted {
            let block = disk.chunks(BLOCK).nth((number % BLOCKS) as usize).unwrap_or_default();
            let found = String::from_utf8_lossy(block).trim().to_owned();
            let is_newer = |found: u64| found > counted && found % BLOCKS == number % BLOCKS;
            let is_right = found.parse().is_ok_and(|found| found == number || is_newer(found));
            ensure!(is_right, "block {number} has {found:?}");
        }
        Ok(())
    }

    /// Waits until `what_is_left` is nothing.
    fn eventually(&self, what_is_left: impl Fn() -> Result<Resources>) -> Result<()> {
        let end = Instant::now() + LIMIT;
        loop {
            let left = what_is_left()?;
            if left.is_empty() {
                return Ok(());
            }
            ensure!(Instant::now() < end, "left over: {left:?}\n{}", self.lab.logs());
            std::thread::sleep(LOOK);
        }
    }

    fn left_over(&self, place: Place) -> Result<Resources> {
        self.left_over_but(place, false)
    }

    /// What belongs to a machine at `place`, which has none. Its disk stays there if it has ended there.
    fn left_over_but(&self, place: Place, keeps_disk: bool) -> Result<Resources> {
        let (_, without) =
            self.without.iter().find(|(host, _)| *host == place).context("a host of the lab")?;
        let mut left: Resources =
            remains::of(&Layout::of(self.lab.name()), place).difference(without).cloned().collect();
        left.extend(self.emulators(place)?.iter().map(|emulator| format!("emulator {}", emulator.pid)));
        let disk = self.disk_at(place)?;
        if self.storage == Storage::Local && !keeps_disk && disk.exists() {
            left.insert(disk.display().to_string());
        }
        Ok(left)
    }
}
