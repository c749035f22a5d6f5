//! `transhume echo`

use std::process::ExitCode;

use clap::Args;

use crate::failure::Result;

/// Returns UDP packets to their sender; the demo's prober uses it in the instance
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
