//! An MPI job in containers, as in `examples/mpi`: ranks send by RDMA, and mpirun starts them by `transhume exec`.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, Command};

use anyhow::{Context as _, Result};

use crate::testlab::TestLab;

/// The group of all containers.
pub const GROUP: &str = "job";

/// Where the containers see [`Job::folder`].
const SHARED: &str = "/job";

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/mpi");

/// Containers `rank1`, `rank2` and so on, which wait for ranks. The folder is gone when it is dropped.
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
        let folder = env::temp_dir().join(format!("transhume-job-{}-{}", process::id(), lab.name()));
        fs::create_dir(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let job = Self { folder, ranks: hosts.len() };
        fs::copy(Path::new(EXAMPLE).join("ring.py"), job.folder.join("ring.py"))?;
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

    /// What all containers share, as this machine sees it. The ring of ranks lies in there.
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
        command.args(["--mca", "pml", "ucx", "-x", "UCX_TLS"]).args(program);
        command.env("UCX_TLS", "rc_verbs,ud_verbs:aux,self");
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        command.env("TRANSHUME", format!("{} --lab {}", lab.program().display(), lab.name()));
        command
    }

    /// The same for the ring of ranks, in which each checks what it gets.
    #[must_use]
    pub fn ring(&self, lab: &TestLab, turns: u32) -> Command {
        // Debian's own Python: its modules are there.
        let python = ["/usr/bin/python3", "-m", "mpi4py", "-rc", "threads=False", "ring.py"];
        self.mpirun(lab, &[&python[..], &[&turns.to_string()]].concat())
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.folder) {
            eprintln!("{} is left over: {error}", self.folder.display());
        }
    }
}
