//! `transhume kill`

use std::process::ExitCode;

use api::{Event, Request};
use clap::Args;

use super::target::{Target, unexpected};
use crate::failure::Result;

/// Ends an instance with all its processes
#[derive(Args)]
#[command(after_help = "Example:\n  transhume kill job1")]
pub struct Arguments {
    /// The instance's name
    name: String,
}

impl Arguments {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        let request = Request::Kill { name: self.name.clone() };
        match target.ask(&request).map_err(|failure| target.suggest(failure, &self.name))? {
            Event::Done => Ok(ExitCode::SUCCESS),
            event => Err(unexpected(&event)),
        }
    }
}
