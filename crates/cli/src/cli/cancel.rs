//! `transhume cancel`

use std::process::ExitCode;

use api::{Event, Request};
use clap::Args;

use super::target::Target;
use crate::failure::{Result, unexpected};

/// Cancels a move, whichever client started it
///
/// The move is rolled back, and the command returns when the instance runs again on its source. A move
/// past its commit point cannot be cancelled. Ctrl-C returns at once; the rollback goes on. If the
/// coordinator is unreachable, the command waits for it and repeats the request.
#[derive(Args)]
#[command(after_help = "Example:\n  transhume cancel job1")]
pub struct Arguments {
    /// The instance's name
    name: String,
}

impl Arguments {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        let request = Request::Cancel { name: self.name.clone() };
        let errand = format!("to cancel the move of `{}`", self.name);
        match target
            .ask_lasting(&request, &errand)
            .map_err(|failure| target.suggest_instance(failure, &self.name))?
        {
            Event::Done => Ok(ExitCode::SUCCESS),
            event => Err(unexpected(&event)),
        }
    }
}
