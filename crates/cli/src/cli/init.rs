//! `transhume init`

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Args;

use super::wait::exit_code;
use crate::failure::Result;

/// Runs a command as the first process of an instance; started by nodes
#[derive(Args)]
#[command(hide = true, after_help = "Example:\n  transhume init -- ib_write_bw")]
pub struct Arguments {
    /// Marks the process, so that its lab can be found in its arguments
    #[arg(long)]
    mark: Option<String>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Arguments {
    pub fn run(self) -> Result<ExitCode> {
        Ok(exit_code(engine_criu::init::run(&self.command)?))
    }
}
