//! `transhume lab down`

use std::process::ExitCode;

use clap::Args;
use lab::{Lab, LabName};

use crate::cli::target::Target;
use crate::failure::Result;

/// Removes a lab with all its instances, also what a crash has left of it
#[derive(Args)]
#[command(
    after_help = "Examples:\n  transhume lab down\n  transhume lab down --name other\n  transhume lab down --all"
)]
pub struct Arguments {
    /// The lab's name [default: the only lab's]
    #[arg(long)]
    name: Option<LabName>,
    /// Removes all labs
    #[arg(long, conflicts_with = "name")]
    all: bool,
}

impl Arguments {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        let names = match (self.all, self.name) {
            (true, _) => Lab::names(),
            (false, Some(name)) => vec![name],
            (false, None) => vec![target.lab()?],
        };
        for name in &names {
            Lab::down(name)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
