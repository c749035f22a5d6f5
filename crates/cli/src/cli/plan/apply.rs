//! `transhume plan apply`

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::thread;

use api::{Event, ImprovementStep, MoveRequest, Outcome, Request};

use super::Options;
use crate::cli::target::Target;
use crate::failure::{Failure, Result, unexpected};

/// How often the rest is planned anew after a failure.
const PLANS: usize = 5;

/// Carries out plans until none is left, or too many have failed.
pub fn run(options: &Options, target: &Target) -> Result<ExitCode> {
    let mut stay = options.keep.clone();
    for _ in 0..PLANS {
        let plan = options.find(target, &stay)?;
        options.show(&plan)?;
        // One that has made room goes on to its place, whatever its cool-down is.
        let mut on_the_way = BTreeSet::new();
        let mut carry_out = |wave: &Vec<ImprovementStep>| {
            let failed = carry_out(wave, &on_the_way, target);
            on_the_way.extend(wave.iter().filter(|step| step.is_detour).map(|step| step.name.clone()));
            failed
        };
        let Some(failed) = plan.waves.iter().map(&mut carry_out).find(|failed| !failed.is_empty()) else {
            return Ok(if stay == options.keep { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        };
        stay.extend(failed);
    }
    Err(Failure::new(
        "too many moves have failed",
        "see the reasons above, and plan again when they are gone",
    ))
}

/// Makes the moves of a wave at the same time. Returns the instances that did not move.
fn carry_out(wave: &[ImprovementStep], on_the_way: &BTreeSet<String>, target: &Target) -> Vec<String> {
    thread::scope(|scope| {
        let begin = |step| scope.spawn(move || make(step, on_the_way.contains(&step.name), target));
        let moving: Vec<_> = wave.iter().map(|step| (step, begin(step))).collect();
        let failed = moving.into_iter().filter_map(|(step, moved)| {
            let why = match moved.join() {
                Ok(Ok(())) => return None,
                Ok(Err(failure)) => failure.to_string(),
                Err(_) => "its thread has panicked".into(),
            };
            eprintln!("transhume: `{}` stays on {}: {why}", step.name, step.from);
            Some(step.name.clone())
        });
        failed.collect()
    })
}

fn make(step: &ImprovementStep, force: bool, target: &Target) -> Result<()> {
    let request = Request::Move(MoveRequest {
        name: step.name.clone(),
        host: step.to.clone(),
        dry_run: false,
        force,
        post_copy: false,
        within_s: None,
    });
    match target.ask_lasting(&request, "to move the rest")? {
        Event::Moved(report) if report.outcome == Outcome::Moved => {
            eprintln!("transhume: `{}` runs on {}", step.name, step.to);
            Ok(())
        }
        Event::Moved(report) => match report.outcome {
            Outcome::RolledBack(reason) | Outcome::Ended(reason) => Err(reason.into()),
            other => Err(Failure::new(format!("the move ended with {other:?}"), "plan again")),
        },
        event => Err(unexpected(&event)),
    }
}
