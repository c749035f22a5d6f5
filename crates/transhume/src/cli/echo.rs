//! `transhume echo`

use std::process::ExitCode;

use clap::Args;

use crate::failure::Result;

/// Sends UDP packets back to their sender: the part of the demo's prober that runs in the instance
#[derive(Args)]
#[command(hide = true, after_help = "Example:\n  transhume echo --port 7790")]
pub struct Arguments {
    /// The port to answer on
    #[arg(long)]
    port: u16,
}

impl Arguments {
    pub fn run(self) -> Result<ExitCode> {
        probe::answer(self.port)?;
        Ok(ExitCode::SUCCESS)
    }
}
