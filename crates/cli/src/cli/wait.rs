//! `transhume wait`

use std::process::ExitCode;

use api::{Event, Request};
use clap::Args;

use super::target::Target;
use crate::failure::{Result, unexpected};

/// Waits until an instance's command ends, and returns its exit code
///
/// The command survives a restart of the coordinator. The coordinator remembers the last 64 instances that
/// have ended.
#[derive(Args)]
#[command(after_help = "Example:\n  transhume wait job1 && echo job1 went well")]
pub struct Arguments {
    /// The instance's name
    name: String,
}

impl Arguments {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        let request = Request::Wait { name: self.name.clone() };
        let errand = format!("while `{}` continues to run", self.name);
        match target
            .ask_lasting(&request, &errand)
            .map_err(|failure| target.suggest_instance(failure, &self.name))?
        {
            Event::Exited { code } => Ok(exit_code(code)),
            event => Err(unexpected(&event)),
        }
    }
}

/// Converts to an exit code of a process.
pub fn exit_code(code: i32) -> ExitCode {
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}
