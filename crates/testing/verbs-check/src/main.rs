//! A checking workload: a verbs program that predicts every byte, completion and counter, and checks them.
//!
//! Both sides initiate, on several queue pairs, a random mix of operations derived from a seed
//! ([`plan`]). The initiator keeps account of outstanding requests ([`initiator`]), the target of expected
//! arrivals ([`target`], [`receives`]); each deviation is a [`violation`]. [`run`] is the sequence
//! of phases, [`endpoint`] the queue pairs at work, [`verbs`] the library.

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
