//! `transhume plan apply`, `transhume plan cancel`

use std::process::ExitCode;

use api::{Event, MoveReport, Outcome, PlanReport, Request};

use super::Options;
use crate::cli::lasting;
use crate::cli::target::Target;
use crate::failure::{Failure, Result, unexpected};
use crate::output;

/// Lets the coordinator carry out a plan, and follows it.
pub fn run(options: &Options, target: &Target) -> Result<ExitCode> {
    let mut request = Request::Apply(options.request());
    let mut events = target.send(&request)?;
    loop {
        match events.next_event() {
            Ok(Event::Applying { number, plan }) => {
                // From now on it goes on without this command.
                request = Request::FollowPlan { number };
                options.show(&plan)?;
            }
            Ok(Event::MoveOver(report)) => say_move(&report),
            Ok(Event::Applied(report)) => return over(options, &report),
            Ok(Event::Failed(failure)) => return Err(failure.into()),
            Ok(event) if event.is_last() => return Err(unexpected(&event)),
            Ok(event) => lasting::tell(&event),
            Err(error) if error.is_loss() => {
                events = lasting::send_again(&target.socket(), &request, "to carry out the plan")?;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Ends the plan that is being carried out.
pub fn cancel(target: &Target) -> Result<ExitCode> {
    match target.ask(&Request::CancelPlan)? {
        Event::Done => Ok(ExitCode::SUCCESS),
        event => Err(unexpected(&event)),
    }
}

fn say_move(report: &MoveReport) {
    let MoveReport { name, from, to, outcome, .. } = report;
    match outcome {
        Outcome::RolledBack(why) | Outcome::Ended(why) => {
            eprintln!("transhume: `{name}` stays on {from}: {}", why.message);
        }
        Outcome::Moved | Outcome::Saved | Outcome::Restored => eprintln!("transhume: `{name}` runs on {to}"),
    }
}

fn over(options: &Options, report: &PlanReport) -> Result<ExitCode> {
    if options.json {
        output::json(report)?;
    }
    for stays in &report.failed {
        eprintln!("transhume: `{}` did not move: {}", stays.name, stays.why);
    }
    match &report.given_up {
        Some(why) => Err(Failure::new(
            format!("the plan was given up after {} moves: {why}", report.moved),
            "plan again to see what is left to do",
        )),
        None if report.failed.is_empty() => Ok(ExitCode::SUCCESS),
        None => Ok(ExitCode::FAILURE),
    }
}
