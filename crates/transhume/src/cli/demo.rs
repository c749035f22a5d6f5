//! `transhume demo`

use std::env;
use std::io::{self, IsTerminal};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode};

use clap::Args;
use lab::process::Identity;
use lab::{Lab, LabName};

use super::target::Target;
use crate::demo::{self, Options};
use crate::failure::{Failure, Result};
use crate::interrupt;

/// Shows a move: RDMA traffic goes on while one of its ends travels around three hosts
///
/// Makes a lab of three hosts, `demo` or the one that `--lab` names. Debian's own ib_write_bw and verbs-check, which verifies every byte
/// and completion, run between an instance on h1 and one on h2. The first moves to h3, to h2 (where
/// the path becomes shared memory) and back to h1. At the end stands how long each move was felt,
/// by a prober outside and by the workload. Exit status 0 says that nothing was lost, doubled,
/// reordered or wrong.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  transhume demo\n  transhume demo --rounds 3 --json | jq '.moves[].probe_us'"
)]
pub struct Arguments {
    /// How often to go around
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Writes the result as JSON to standard output, and what happens to standard error
    #[arg(long)]
    json: bool,
    /// Runs the demo itself, for the process that clears away after it
    #[arg(long, hide = true)]
    inner: bool,
}

impl Arguments {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        let lab = target.demo_lab()?;
        if self.inner {
            let live = !self.json && io::stdout().is_terminal();
            return demo::run(&Options { lab, rounds: self.rounds, json: self.json, live });
        }
        Lab::clear_dead(&lab)?;
        let ended = self.supervise(&lab);
        Lab::down(&lab)?;
        ended
    }

    /// Runs the demo in a process of its own, so that the lab is removed however that ends.
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
            (None, Some(libc::SIGKILL)) => Err(Failure::new("the demo was interrupted", "")),
            (None, signal) => {
                let signal = signal.unwrap_or_default();
                Err(Failure::new(format!("the demo was ended by signal {signal}"), ""))
            }
        }
    }

    /// In a process group of its own, so that Ctrl-C reaches the supervisor alone.
    fn start(&self, lab: &LabName) -> io::Result<Child> {
        let mut command = Command::new(env::current_exe()?);
        command.args(["demo", "--inner", "--lab", lab.as_str(), "--rounds", &self.rounds.to_string()]);
        if self.json {
            command.arg("--json");
        }
        command.process_group(0).spawn()
    }
}
