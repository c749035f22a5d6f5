//! `transhume kill`

use std::process::ExitCode;

use api::{Event, Request};
use clap::Args;

use super::target::Target;
use super::words;
use crate::failure::{Result, unexpected};

/// Ends an instance with all its processes
///
/// Programs and containers get SIGKILL. A virtual machine is told to power down, and killed if it has not ended within
/// the grace.
///
/// If the instance is moving, the move is cancelled, or awaited if it is past its commit point. Ctrl-C returns
/// at once; the instance still ends. If the coordinator is unreachable, the command waits for it and
/// repeats the request; it waits for an unreachable host up to ten seconds.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  transhume kill job1\n  transhume kill --grace 2m guest\n  transhume kill --grace 0 guest"
)]
pub struct Arguments {
    /// How long a virtual machine may take to power down (a number with `s`, `m`, `h` or `d`); 0 is a power cut
    /// [default: 10s]
    #[arg(long, value_name = "DURATION", value_parser = grace)]
    grace: Option<u64>,
    /// The instance's name
    name: String,
}

impl Arguments {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        let request = Request::Kill { name: self.name.clone(), grace_s: self.grace };
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

/// Parses a duration in seconds; 0 needs no unit.
fn grace(text: &str) -> std::result::Result<u64, String> {
    if text == "0" { Ok(0) } else { words::seconds(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_grace_needs_no_unit() {
        assert_eq!((grace("0"), grace("2m")), (Ok(0), Ok(120)));
        assert!(grace("10").is_err());
    }
}
