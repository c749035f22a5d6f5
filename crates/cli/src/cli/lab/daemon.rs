//! `transhume lab kill`, `start` and `restart`

use std::process::ExitCode;

use clap::Args;
use lab::{Lab, Place};

use crate::cli::target::Target;
use crate::failure::Result;

/// Kills the node of a host, or the coordinator, with SIGKILL; instances continue to run
#[derive(Args)]
#[command(after_help = "Examples:\n  transhume lab kill h2\n  transhume lab kill coordinator")]
pub struct Kill {
    /// The host of the node, or coordinator
    place: Place,
}

/// Starts the node of a host, or the coordinator, and waits until it is ready
#[derive(Args)]
#[command(after_help = "Examples:\n  transhume lab start h2\n  transhume lab start coordinator")]
pub struct Start {
    /// The host of the node, or coordinator
    place: Place,
}

/// Kills and starts the node of a host, or the coordinator
#[derive(Args)]
#[command(after_help = "Example:\n  transhume lab restart coordinator")]
pub struct Restart {
    /// The host of the node, or coordinator
    place: Place,
}

impl Kill {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        Lab::open(&target.lab()?)?.kill(self.place)?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Start {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        Lab::open(&target.lab()?)?.start(self.place)?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Restart {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        let lab = Lab::open(&target.lab()?)?;
        lab.kill(self.place)?;
        lab.start(self.place)?;
        Ok(ExitCode::SUCCESS)
    }
}
