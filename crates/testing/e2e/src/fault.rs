//! Faults in a lab, and their repair.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use lab::layout::Layout;
use lab::process::Identity;
use lab::{Lab, Place, daemons};

use crate::program::{Program, run};
use crate::testlab::TestLab;

/// How long mounting may take.
const LIMIT: std::time::Duration = std::time::Duration::from_secs(10);

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A daemon is killed, and started again.
    Kill(Who),
    /// Every CRIU of the lab is killed.
    KillCriu,
    /// A partition between two places for a while.
    Cut(Who, Who),
}

/// The role of a daemon in a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// The coordinator.
    Coordinator,
    /// The node from which the instance goes.
    Source,
    /// The node to which it goes.
    Destination,
}

/// The assignment of roles.
#[derive(Clone, Copy, Debug)]
pub struct Cast {
    /// The node from which the instance goes.
    pub source: Place,
    /// The node to which it goes.
    pub destination: Place,
}

impl Cast {
    fn place(&self, who: Who) -> Place {
        match who {
            Who::Coordinator => Place::Coordinator,
            Who::Source => self.source,
            Who::Destination => self.destination,
        }
    }
}

impl Fault {
    /// Injects the fault.
    ///
    /// # Errors
    /// If it cannot be injected.
    pub fn strike(self, lab: &TestLab, cast: &Cast) -> Result<()> {
        match self {
            Self::Kill(who) => lab.lab.kill(cast.place(who))?,
            Self::Cut(one, other) => lab.lab.cut(cast.place(one), cast.place(other))?,
            Self::KillCriu => {
                // The engine runs CRIU as `criu swrk`.
                let criu = lab
                    .find(|words| words.first().is_some_and(|word| word.rsplit('/').next() == Some("criu")));
                criu.into_iter().filter_map(Identity::open).for_each(|process| process.kill());
            }
        }
        Ok(())
    }

    /// Repairs the fault.
    ///
    /// # Errors
    /// If a daemon does not start.
    pub fn mend(self, lab: &Lab, cast: &Cast) -> Result<()> {
        match self {
            Self::Kill(who) => lab.start(cast.place(who))?,
            Self::Cut(..) => lab.heal_all()?,
            Self::KillCriu => {}
        }
        Ok(())
    }
}

/// Small file systems for the image directories of a node, so that its disk is soon full. Dropping this
/// unmounts them.
pub struct SmallDisk<'a> {
    lab: &'a TestLab,
    place: Place,
    folders: Vec<PathBuf>,
}

impl<'a> SmallDisk<'a> {
    /// Limits the images of the node at `place`, which has no instances, to `size` in the syntax of `mount`.
    ///
    /// # Errors
    /// If it cannot be mounted.
    pub fn new(lab: &'a TestLab, place: Place, size: &str) -> Result<Self> {
        lab.lab.kill(place)?;
        let mut disk = Self { lab, place, folders: Vec::new() };
        let layout = Layout::of(lab.name());
        let in_memory = layout.images_in_memory().join(place.to_string());
        for folder in [in_memory, layout.state(place).join("images")] {
            fs::create_dir_all(&folder)?;
            let mut mount = lab.lab.command(place, "mount")?;
            run(mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]).arg(&folder), LIMIT)?;
            disk.folders.push(folder);
        }
        lab.lab.start(place)?;
        Ok(disk)
    }

    /// Fills the remaining space. The node is stopped meanwhile, so that no move is faster.
    ///
    /// # Errors
    /// If the node does not run, or a file cannot be made.
    pub fn fill(&self) -> Result<()> {
        let _held = Held::new(self.lab, self.place)?;
        for folder in &self.folders {
            let mut fill = self.lab.lab.command(self.place, "dd")?;
            let file = format!("of={}", folder.join("filler").display());
            // It fails when there is no more room.
            Program::start(fill.args(["if=/dev/zero", "bs=4k", &file]))?.end(LIMIT)?;
        }
        Ok(())
    }

    fn remove(&self) -> Result<()> {
        self.lab.lab.kill(self.place)?;
        for folder in &self.folders {
            run(self.lab.lab.command(self.place, "umount")?.arg(folder), LIMIT)?;
        }
        self.lab.lab.start(self.place)?;
        Ok(())
    }
}

/// A stopped process.
pub struct Held(i32);

impl Held {
    /// Stops the daemon at `place`, until this is dropped.
    ///
    /// # Errors
    /// If it does not run.
    pub fn new(lab: &TestLab, place: Place) -> Result<Self> {
        let daemon = daemons::running(&Layout::of(lab.name()), place);
        Ok(Self::process(daemon.with_context(|| format!("no daemon runs at {place}"))?))
    }

    /// Stops a process, until this is dropped.
    #[must_use]
    pub fn process(process: Identity) -> Self {
        let held = Self(process.pid);
        held.send(libc::SIGSTOP);
        held
    }

    fn send(&self, signal: libc::c_int) {
        // SAFETY: a plain call; the process ends only when the test says so.
        unsafe { libc::kill(self.0, signal) };
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.send(libc::SIGCONT);
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            eprintln!("a small disk is left over: {error:#}");
        }
    }
}
