//! `transhume kill`

use std::process::ExitCode;

use api::{Event, Request};
use clap::Args;

use super::target::Target;
use crate::failure::{Result, unexpected};

/// Ends an instance with all its processes
///
/// If the instance is moving, the move is cancelled, or awaited if it is past its commit point. Ctrl-C returns
/// at once; the instance still ends. If the coordinator is unreachable, the command waits for it and
/// repeats the request; it waits for an unreachable host up to ten seconds.
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
