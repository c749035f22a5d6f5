//! Open MPI jobs with one rank in an instance on each host. These instances move like any others.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{self, Command};
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::common_files;
use crate::program::run;
use crate::testlab::TestLab;

/// Rank 0's last words in a successful job.
pub const REPORT: &str = "each as it was sent";

/// The command with which mpirun runs a command on another host: as an instance, named after the host and the job. The
/// hosts of a lab have one name, that of the machine, by which Open MPI would take them for one host. Its daemon gives
/// each rank a pseudo-terminal of the instance's for its output, which moves.
const AGENT: &str = r#"#!/bin/sh
host=$1
shift
export TMPDIR="$JOB_FOLDER/$JOB-$host"
mkdir "$TMPDIR"
exec "$TRANSHUME" --lab "$LAB" run --host "$host" --name "$host-$JOB" --detach -- sh -c "hostname $host && $*"
"#;

/// The transport of a job's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// Open MPI's own code for verbs, which it had until version 5.
    Openib,
    /// UCX with these transports.
    Ucx(&'static str),
}

impl Layer {
    /// True if this is a part of Open MPI that is not installed.
    ///
    /// # Errors
    /// If Open MPI does not list its parts.
    pub fn has_gone(self) -> Result<bool> {
        let parts = run(Command::new("ompi_info").arg("--parsable"), Duration::from_secs(10))?.lines;
        let openib = parts.iter().any(|line| line.starts_with("mca:btl:openib:"));
        Ok(self == Self::Openib && !openib)
    }

    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Openib => &["ob1", "--mca", "btl", "openib,self", "--mca", "btl_openib_allow_ib", "1"],
            Self::Ucx(_) => &["ucx"],
        }
    }
}

/// The files that jobs need on the hosts' file system, until it is dropped.
pub struct Mpi {
    folder: PathBuf,
}

impl Mpi {
    /// Makes it.
    ///
    /// # Errors
    /// If a file cannot be made.
    pub fn new() -> Result<Self> {
        let mpi = Self { folder: common_files::path(&format!("transhume-mpi-{}", process::id())) };
        fs::create_dir(&mpi.folder).with_context(|| format!("cannot make {}", mpi.folder.display()))?;
        fs::write(mpi.agent(), AGENT)?;
        fs::set_permissions(mpi.agent(), fs::Permissions::from_mode(0o755))?;
        Ok(mpi)
    }

    fn agent(&self) -> PathBuf {
        self.folder.join("agent")
    }

    /// The command that runs job `job`: a ring of ranks on `hosts`, each with its number of ranks, which check `turns` blocks
    /// of bytes each, or as many as come until [`Mpi::enough`]. The ranks on host H are instance `H-JOB`.
    #[must_use]
    pub fn command(
        &self,
        lab: &TestLab,
        job: &str,
        layer: Layer,
        hosts: &[(&str, u32)],
        turns: Option<u32>,
    ) -> Command {
        const RING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../examples/mpi/ring.py");
        let slots: Vec<_> = hosts.iter().map(|(host, ranks)| format!("{host}:{ranks}")).collect();
        let mut command = lab.command(&["run", "--host", "h1", "--name", job, "--", "mpirun"]);
        // There are more ranks than processors.
        command.args(["--bind-to", "none", "--leave-session-attached", "--host"]).arg(slots.join(","));
        for (name, value) in [("btl_openib_warn_no_device_params_found", "0"), ("mpi_yield_when_idle", "1")] {
            command.args(["--mca", name, value]);
        }
        command.arg("--wdir").arg(&self.folder).args(["--mca", "plm_rsh_agent"]).arg(self.agent());
        command.args(["--mca", "pml"]).args(layer.arguments());
        // Debian's own Python: its modules are there. Openib is for programs with one thread.
        command.args(["/usr/bin/python3", "-m", "mpi4py", "-rc", "threads=False", RING]);
        command.args(turns.map(|turns| turns.to_string()));
        if let Layer::Ucx(transports) = layer {
            command.env("UCX_TLS", transports);
        }
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        command.env("JOB", job).env("JOB_FOLDER", &self.folder).env("TMPDIR", &self.folder);
        command.env("LAB", lab.name().as_str()).env("TRANSHUME", lab.program());
        command
    }

    /// Ends the rings that have no number of turns.
    ///
    /// # Errors
    /// If the folder cannot be written to.
    pub fn enough(&self) -> io::Result<()> {
        fs::write(self.folder.join("enough"), "")
    }
}

impl Drop for Mpi {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.folder) {
            eprintln!("{} is left over: {error}", self.folder.display());
        }
    }
}
