//! `transhume lab exec`

use std::io;
use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use clap::Args;
use lab::{Lab, Place};

use crate::cli::target::Target;
use crate::failure::{Failure, Result};

/// Runs a command in the network and with the files of a host, connected to the lab's coordinator
#[derive(Args)]
#[command(
    after_help = "Examples:\n  transhume lab exec h1 -- ping -c 1 10.77.0.2\n  transhume lab exec h2 -- bash"
)]
pub struct Arguments {
    /// The host (h1, h2, …), or coordinator
    host: Place,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

impl Arguments {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        let lab = Lab::open(&target.lab()?)?;
        let (program, arguments) = self
            .command
            .split_first()
            .ok_or_else(|| Failure::new("no command was given", "pass it after `--`"))?;
        let mut command = lab.command(self.host, program)?;
        // `exec` returns only if it fails.
        Err(not_started(program, self.host, &command.args(arguments).exec()))
    }
}

/// The failure, with the exit code that a shell would return.
fn not_started(program: &str, host: Place, error: &io::Error) -> Failure {
    let message = format!("cannot start `{program}` on {host}: {error}");
    if error.kind() == io::ErrorKind::NotFound {
        return Failure::new(message, "check that it is installed and in $PATH").with_code(127);
    }
    Failure::new(message, "check that it is an executable file").with_code(126)
}
