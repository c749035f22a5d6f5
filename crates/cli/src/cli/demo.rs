//! `transhume demo`

use std::env;
use std::io::{self, IsTerminal};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode};

use clap::Args;
use lab::process::Identity;
use lab::{Lab, LabName};

use super::target::Target;
use crate::demo::{self, Options};
use crate::failure::{Failure, Result};
use crate::interrupt;

/// Demonstrates moves: RDMA traffic continues while an instance visits three hosts
///
/// Creates a lab of three hosts, named `demo` or as `--lab` says. Debian's ib_write_bw, and verbs-check, which
/// verifies every byte and completion, run between an instance on h1 and one on h2. The first instance
/// moves to h3, to h2 (where traffic goes through shared memory) and back to h1. The summary shows the
/// blackout of each move as an external prober and the workload measured it. Exit code 0 means that
/// nothing was lost, duplicated, reordered or corrupted.
///
/// With `--vm`, a virtual machine with iperf3, fio and verbs-check travels from h1 to h2, to h3 and back. Its peer is a container
/// on h2. `make demo-vm` builds the guest image.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  transhume demo\n  transhume demo --rounds 3 --json | jq '.moves[].probe_us'"
)]
pub struct Arguments {
    /// Number of rounds
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Moves a virtual machine of this guest image: a folder that `scripts/guest-image.sh` prints
    #[arg(long, value_name = "FOLDER")]
    vm: Option<PathBuf>,
    /// Prints the result as JSON on standard output, and progress on standard error
    #[arg(long)]
    json: bool,
    /// Runs the demo itself; the outer process cleans up
    #[arg(long, hide = true)]
    inner: bool,
}

impl Arguments {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        let lab = target.demo_lab()?;
        if self.inner {
            let live = !self.json && io::stdout().is_terminal();
            let (rounds, machine, json) = (self.rounds, self.vm, self.json);
            return demo::run(&Options { lab, rounds, machine, json, live });
        }
        Lab::clear_dead(&lab)?;
        let ended = self.supervise(&lab);
        Lab::down(&lab)?;
        ended
    }

    /// Runs the demo in a child process, so that the lab is removed even if the demo is killed.
    fn supervise(&self, lab: &LabName) -> Result<ExitCode> {
        let mut child = self.start(lab)?;
        let demo = i32::try_from(child.id()).ok().and_then(Identity::of);
        interrupt::on_first(move || {
            if let Some(demo) = demo.and_then(Identity::open) {
                demo.kill();
            }
        })?;
        let status = child.wait()?;
        match (status.code(), status.signal()) {
            (Some(code), _) => Ok(super::wait::exit_code(code)),
            (None, Some(libc::SIGKILL)) => Err(Failure::new("the demo was interrupted", "run it again")),
            (None, signal) => {
                let signal = signal.unwrap_or_default();
                Err(Failure::new(format!("signal {signal} ended the demo"), "run it again"))
            }
        }
    }

    /// The child has its own process group, so that Ctrl-C reaches the supervisor only.
    fn start(&self, lab: &LabName) -> io::Result<Child> {
        let mut command = Command::new(env::current_exe()?);
        command.args(["demo", "--inner", "--lab", lab.as_str(), "--rounds", &self.rounds.to_string()]);
        if self.json {
            command.arg("--json");
        }
        if let Some(image) = &self.vm {
            command.arg("--vm").arg(image);
        }
        command.process_group(0).spawn()
    }
}
