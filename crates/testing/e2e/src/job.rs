//! An MPI job in containers, as in `examples/mpi`: ranks communicate by RDMA, and mpirun starts them with `transhume exec`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::common_files;
use crate::program::Program;
use crate::testlab::TestLab;

/// Time limit for ranks to make progress, including a move.
const LIMIT: Duration = Duration::from_secs(120);

/// The group of all containers.
pub const GROUP: &str = "job";

/// See [`Job::checks`].
const CHECKS: &str = "checks.py";

/// Where the containers see [`Job::folder`].
const SHARED: &str = "/job";

/// Debian's own Python: its modules are there.
const PYTHON: [&str; 5] = ["/usr/bin/python3", "-m", "mpi4py", "-rc", "threads=False"];

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../examples/mpi");

/// Containers `rank1`, `rank2` and so on, which wait for ranks. Dropping this removes the directory.
pub struct Job {
    folder: PathBuf,
    ranks: usize,
}

impl Job {
    /// Starts a container on each of `hosts`.
    ///
    /// # Errors
    /// If one does not start.
    pub fn start(lab: &TestLab, hosts: &[&str]) -> Result<Self> {
        let folder = common_files::path(&format!("transhume-job-{}-{}", process::id(), lab.name()));
        fs::create_dir(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let job = Self { folder, ranks: hosts.len() };
        for program in ["ring.py", CHECKS] {
            fs::copy(Path::new(EXAMPLE).join(program), job.folder.join(program))?;
        }
        let volume = format!("{}:{SHARED}", job.folder.display());
        for (number, host) in (1..).zip(hosts) {
            let name = format!("rank{number}");
            let place = ["run", "--name", &name, "--group", GROUP, "--host", host, "--detach"];
            let container = ["--rootfs", "/", "--volume", &volume, "--directory", SHARED];
            let command = ["--", "sleep", "infinity"];
            lab.transhume(&[&place[..], &container, &command].concat())?.success()?;
        }
        Ok(job)
    }

    /// The shared directory of all containers, as this machine sees it. It contains the example's programs.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The command that runs an MPI program with a rank in each container.
    #[must_use]
    pub fn mpirun(&self, lab: &TestLab, program: &[&str]) -> Command {
        let hosts: Vec<String> = (1..=self.ranks).map(|rank| format!("rank{rank}")).collect();
        let mut command = lab.command(&["lab", "exec", "h1", "--", "mpirun"]);
        command.args(["--mca", "plm_rsh_agent"]).arg(Path::new(EXAMPLE).join("agent"));
        command.args(["--host", &hosts.join(","), "--wdir", SHARED]);
        // There are more ranks than processors.
        command.args(["--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]);
        // Debian's settings would have none of UCX.
        command.args(["--mca", "pml", "ucx", "--mca", "osc", "ucx", "-x", "UCX_TLS"]).args(program);
        command.env("UCX_TLS", "rc_verbs,ud_verbs:aux,self");
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        command.env("TRANSHUME", format!("{} --lab {}", lab.program().display(), lab.name()));
        command
    }

    /// The same for a program in Python that lies in the folder.
    fn python(&self, lab: &TestLab, program: &[&str]) -> Command {
        self.mpirun(lab, &[&PYTHON, program].concat())
    }

    /// The same for the ring of ranks, in which each rank checks its input, until [`Job::enough`]. Nothing in their
    /// environment leads to the RDMA device, like programs that were started over ssh.
    #[must_use]
    pub fn ring(&self, lab: &TestLab) -> Command {
        let without = ["LD_PRELOAD", "LD_LIBRARY_PATH", "TRANSHUME_INSTANCE"].map(|name| ["-u", name]);
        self.mpirun(lab, &[&["env"], without.as_flattened(), &PYTHON, &["ring.py"]].concat())
    }

    /// The same for collectives, one-sided access and a shared file. Each rank checks every result. The command writes
    /// a line that begins with `turn` for each time that all ranks have agreed, until [`Job::enough`].
    #[must_use]
    pub fn checks(&self, lab: &TestLab) -> Command {
        self.python(lab, &[CHECKS])
    }

    /// Ends the work that [`Job::ring`] or [`Job::checks`] has begun.
    ///
    /// # Errors
    /// If the folder cannot be written to.
    pub fn enough(&self) -> io::Result<()> {
        fs::write(self.folder.join("enough"), "")
    }
}

/// Waits until the ranks of [`Job::checks`] have agreed some times more.
///
/// # Errors
/// If they have not within two minutes, or the command has ended.
pub fn agree_again(lab: &TestLab, ranks: &mut Program) -> Result<()> {
    const TURNS: u32 = 4;
    ranks.take_lines();
    let mut turns = 0;
    let turn = |line: &str| {
        turns += u32::from(line.starts_with("turn"));
        (turns > TURNS).then_some(())
    };
    ranks.wait_for(LIMIT, turn).with_context(|| lab.logs())
}

impl Drop for Job {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.folder) {
            eprintln!("{} is left over: {error}", self.folder.display());
        }
    }
}
