//! `transhume ps`

use std::process::ExitCode;

use api::{Event, Instance, Request, State};
use clap::Args;

use super::target::Target;
use crate::failure::{Result, unexpected};
use crate::{output, table};

/// The widest state in the table; `--json` prints it in full.
const STATE_WIDTH: usize = 40;

/// Lists the instances
///
/// The list includes the last 64 instances that have ended.
#[derive(Args)]
#[command(after_help = "Examples:\n  transhume ps\n  transhume ps --json | jq -r '.[].name'")]
pub struct Arguments {
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

impl Arguments {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        let instances = match target.ask(&Request::List)? {
            Event::Instances(instances) => instances,
            event => return Err(unexpected(&event)),
        };
        if self.json {
            output::json(&instances)?;
        } else {
            let rows: Vec<_> = instances.iter().map(row).collect();
            let titles = ["NAME", "GROUP", "HOST", "STATE", "VID", "ADDRESS", "EPOCH", "COMMAND"];
            output::write(table::render(titles, &rows))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn row(instance: &Instance) -> [String; 8] {
    [
        instance.name.clone(),
        instance.group.clone().unwrap_or_else(|| "-".into()),
        instance.host.clone(),
        table::shorten(&describe(&instance.state), STATE_WIDTH),
        instance.vid.to_string(),
        instance.address.clone(),
        instance.epoch.0.to_string(),
        instance.command.join(" "),
    ]
}

/// A state as text.
pub fn describe(state: &State) -> String {
    match state {
        State::Starting => "starting".into(),
        State::Running => "running".into(),
        State::Moving { to } => format!("moving to {to}"),
        State::Saving => "being saved".into(),
        State::Restoring => "being restored".into(),
        State::RollingBack => "rolling back".into(),
        State::Exited { code } => format!("exited ({code})"),
        State::Lost { reason } => format!("lost ({reason})"),
    }
}
