//! A checking workload: an ordinary verbs program whose every byte, completion and counter is known
//! beforehand, and checked.
//!
//! Both sides initiate, on several queue pairs, a random mix of operations that follows from a seed
//! ([`plan`]). The initiator keeps books of what is outstanding ([`initiator`]), the target of what
//! must arrive ([`target`], [`receives`]); what deviates is a [`violation`]. [`run`] is the course
//! of events, [`endpoint`] the queue pairs at work, [`verbs`] the library.

mod completion;
mod control;
mod endpoint;
mod initiator;
mod layout;
mod meter;
mod options;
mod pattern;
mod plan;
mod receives;
mod report;
mod run;
mod target;
mod verbs;
mod violation;
mod workload;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser as _;

use control::Control;
use endpoint::Failure;
use options::{Options, Role};
use report::Report;
use verbs::Device;

fn main() -> ExitCode {
    match check(&Options::parse()) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(Failure::Violation(violation))) => {
            eprintln!("verbs-check: {violation}");
            ExitCode::from(1)
        }
        Ok(Err(Failure::Error(error))) | Err(error) => {
            eprintln!("verbs-check: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn check(options: &Options) -> Result<Result<(), Failure>> {
    let (local, report);
    let mut run = match &options.role {
        Role::Server { listen, local: options } => {
            (local, report) = (options, Report::new(options.json));
            let device = Device::open(local.device.as_deref())?;
            let control = Control::accept(listen, |address| report.listening(address))?;
            run::server(&device, control, local, &report)?
        }
        Role::Client { server, traffic, local: options } => {
            (local, report) = (options, Report::new(options.json));
            let device = Device::open(local.device.as_deref())?;
            let control = Control::connect(server)?;
            run::client(&device, control, &traffic.workload()?, traffic.seconds, local, &report)?
        }
    };
    let outcome = run.work();
    report.result(&outcome, run.meter());
    Ok(outcome)
}
