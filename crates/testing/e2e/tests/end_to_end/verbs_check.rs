//! The checking workload on the user-space device: its options, and handles that change under it.

use std::time::Duration;

use anyhow::{Context as _, Result};
use e2e::check::Check;
use e2e::pair::{FIRST, Pair, Place, command};

const LIMIT: Duration = Duration::from_secs(60);

/// Runs the workload with `options` to its good end.
fn check(pair: &Pair, options: &[&str]) -> Result<()> {
    start(pair, options, None)?.end(LIMIT).with_context(|| format!("with {options:?}")).map(drop)
}

fn start(pair: &Pair, options: &[&str], handles: Option<&str>) -> Result<Check> {
    let environment = handles.map(|handles| ("TRANSHUME_TEST_HANDLES", handles));
    Check::start(
        |program| Ok(with(command(&pair.first, program)?, environment)),
        |program| Ok(with(command(&pair.second, program)?, environment)),
        || Ok(FIRST.into()),
        options,
    )
}

fn with(mut command: std::process::Command, environment: Option<(&str, &str)>) -> std::process::Command {
    command.envs(environment);
    command
}

#[test]
fn all_operations_arrive_as_they_were_sent() -> Result<()> {
    let _shared = e2e::shared();
    for place in [Place::TwoHosts, Place::OneHost] {
        let pair = Pair::new(place)?;
        check(&pair, &["--qps", "8", "--count", "3000"])?;
        check(&pair, &["--qps", "8", "--count", "2000", "--srq"])?;
        check(&pair, &["--qps", "4", "--count", "1000", "--events"])?;
        check(&pair, &["--qps", "2", "--count", "300", "--max-size", "1000000", "--depth", "4"])?;
        check(
            &pair,
            &["--qps", "200", "--count", "50", "--depth", "1", "--min-size", "0", "--max-size", "64"],
        )?;
    }
    Ok(())
}

/// Suspends and resumes both ends in turn, at the same host and at the other, while all handles of the device
/// change each time.
fn suspend_and_resume(handles: Option<&str>) -> Result<()> {
    let _shared = e2e::shared();
    let pair = Pair::new(Place::TwoHosts)?;
    let mut check = start(&pair, &["--qps", "16"], handles)?;
    for round in 0..12 {
        let instance = if round % 2 == 0 { &pair.first } else { &pair.second };
        check.progress()?;
        pair.fabric.suspend(instance)?;
        pair.fabric.resume(instance, [1, 1, 0, 0][round % 4]).with_context(|| format!("round {round}"))?;
    }
    check.stop()?;
    check.end(LIMIT).map(drop)
}

#[test]
fn random_handles_are_translated() -> Result<()> {
    suspend_and_resume(Some("random"))
}

#[test]
fn reused_handles_are_translated() -> Result<()> {
    suspend_and_resume(Some("reused"))
}

#[test]
fn colliding_handles_are_translated() -> Result<()> {
    suspend_and_resume(Some("colliding"))
}

#[test]
fn stable_handles_stay() -> Result<()> {
    suspend_and_resume(None)
}
