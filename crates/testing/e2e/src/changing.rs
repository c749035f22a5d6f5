//! A program that changes most of its memory continuously, and detects lost or repeated changes after a move.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::program::Program;
use crate::signal::Signal;
use crate::testlab::TestLab;

/// The program: `SCRIPT ALL SOME STOP`, both in MiB, until the file STOP is there.
pub const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/changing.py");

const LIMIT: Duration = Duration::from_secs(60);

/// Starts it on h1 as instance `name`, the only one of a group of that name, with `all` MiB of memory. It changes
/// `some` MiB of them until `stop` is given.
///
/// # Errors
/// If it does not run.
pub fn start(lab: &TestLab, name: &str, (all, some): (u32, u32), stop: &Signal) -> Result<Program> {
    let mut run = lab.command(&["run", "--name", name, "--group", name, "--host", "h1"]);
    run.args(["--", "/usr/bin/python3", SCRIPT]).args([all.to_string(), some.to_string()]).arg(stop.path());
    let mut program = Program::start(&mut run)?;
    goes_on(&mut program)?;
    Ok(program)
}

/// Waits until the program has changed and verified all of its part.
///
/// # Errors
/// If it has not in time.
pub fn goes_on(program: &mut Program) -> Result<()> {
    program.take_lines();
    for _ in 0..2 {
        program.wait_for(LIMIT, |line| line.starts_with("round").then_some(()))?;
    }
    Ok(())
}

/// Waits for progress, stops the program, and checks that it found no error.
///
/// # Errors
/// If not.
pub fn end(mut program: Program, stop: &Signal) -> Result<()> {
    goes_on(&mut program)?;
    stop.give()?;
    let ended = program.end(LIMIT)?.success()?;
    ensure!(ended.lines.last().is_some_and(|line| line == "right"), "{ended:?}");
    Ok(())
}
