//! `transhume kill`

use std::process::ExitCode;

use api::{Event, Request};
use clap::Args;

use super::target::{Target, unexpected};
use crate::failure::Result;

/// Ends an instance with all its processes
///
/// One that is being moved is ended as well: the move is cancelled, or, past its commit point, waited for. For which host
/// that waits is said when it takes long. Ctrl-C leaves at once, and the instance is ended all the same. If the coordinator
/// goes away, this waits for it, and asks it again; for a host that is away, up to ten seconds.
#[derive(Args)]
#[command(after_help = "Example:\n  transhume kill job1")]
pub struct Arguments {
    /// The instance's name
    name: String,
}

impl Arguments {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        let request = Request::Kill { name: self.name.clone() };
        let errand = format!("to end `{}`", self.name);
        match target
            .ask_lasting(&request, &errand)
            .map_err(|failure| target.suggest_instance(failure, &self.name))?
        {
            Event::Done => Ok(ExitCode::SUCCESS),
            event => Err(unexpected(&event)),
        }
    }
}
