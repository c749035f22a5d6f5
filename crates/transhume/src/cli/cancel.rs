//! `transhume cancel`

use std::process::ExitCode;

use api::{Event, Request};
use clap::Args;

use super::target::{Target, unexpected};
use crate::failure::Result;

/// Cancels the move of an instance, wherever it was started
///
/// The move is rolled back, and this ends when the instance runs on where it was. For which host that waits is said when it
/// takes long. Ctrl-C leaves at once, and the move is rolled back all the same. Past its commit point a move goes
/// forward, and cannot be cancelled any more. If the coordinator goes away, this waits for it, and asks it again.
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
