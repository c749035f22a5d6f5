//! Wrong input to the command line: one clear line, the way out on the next, exit code not 0.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::artifacts;
use e2e::program::{Ended, Program};
use e2e::testlab::TestLab;

const LIMIT: Duration = Duration::from_secs(20);

/// A user without rights.
const NOBODY: u32 = 65534;

/// Checks that `ended` failed with a line that contains all of `expected`, and a way out.
fn refused(ended: &Ended, expected: &[&str]) -> Result<()> {
    ensure!(!ended.status.success(), "succeeded: {ended:?}");
    let lines: Vec<_> = ended.errors.lines().filter(|line| !line.trim().is_empty()).collect();
    ensure!((1..=2).contains(&lines.len()), "not one line with a way out: {ended:?}");
    for word in expected {
        ensure!(ended.errors.contains(word), "no `{word}` in {ended:?}");
    }
    Ok(())
}

#[test]
fn impossible_moves_are_refused_with_the_reason() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(2)?;
    lab.transhume(&["run", "--name", "job", "--host", "h1", "--detach", "--", "sleep", "1000"])?.success()?;
    refused(&lab.transhume(&["move", "nobody", "h2"])?, &["nobody", "transhume ps"])?;
    refused(&lab.transhume(&["move", "job", "h9"])?, &["h9", "transhume hosts"])?;
    refused(&lab.transhume(&["move", "job", "h1"])?, &["job", "h1"])?;
    refused(&lab.transhume(&["run", "--name", "job", "--detach", "--", "true"])?, &["job"])?;
    refused(&lab.transhume(&["run", "--host", "h9", "--detach", "--", "true"])?, &["h9"])?;
    lab.lab.kill("h2".parse()?)?;
    refused(&lab.transhume(&["move", "job", "h2"])?, &["h2", "not connected"])?;
    lab.transhume(&["kill", "job"])?.success()?;
    Ok(())
}

#[test]
fn impossible_changes_of_the_overlay_are_refused_with_the_reason() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(2)?;
    let refused = |arguments: &[&str], expected: &[&str]| {
        refused(&lab.transhume(&[&["net"], arguments].concat())?, expected)
    };
    let net = |arguments: &[&str]| lab.transhume(&[&["net"], arguments].concat())?.success();
    refused(&["attach", "h1", "tap1"], &["h1 is not part of the overlay", "net layout"])?;
    refused(&["layout", "star", "--center", "h9"], &["h9", "transhume hosts"])?;
    net(&["layout", "star"])?;
    refused(&["link", "add", "h1", "h9"], &["h9", "transhume hosts"])?;
    refused(&["link", "add", "h1", "h1"], &["h1", "two different hosts"])?;
    refused(&["link", "rm", "h2", "h1"], &["h1", "cannot reach", "link add"])?;
    refused(&["attach", "h1", "name-of-a-device"], &["name-of-a-device", "1 to 15"])?;
    refused(&["attach", "h1", "lo"], &["lo", "ip link"])?;
    net(&["attach", "h1", "tap1", "--address", "10.88.0.1/24"])?;
    refused(&["attach", "h1", "tap1"], &["tap1", "already", "detach"])?;
    refused(&["proxy", "h1", "--bridge", "lo"], &["lo", "is not a bridge", "ip link add"])?;
    refused(&["proxy", "h1", "--bridge", "nothing"], &["nothing", "is not a bridge"])?;
    refused(&["detach", "h1", "tap2"], &["tap2", "net devices"])?;
    lab.lab.kill("h2".parse()?)?;
    refused(&["attach", "h2", "tap1"], &["h2", "not connected"])?;
    refused(&["layout", "star", "--center", "h2"], &["h2", "not connected"])?;
    net(&["detach", "h1", "tap1"]).map(drop)
}

#[test]
fn a_program_outside_an_instance_is_told_how_to_start() -> Result<()> {
    let _shared = e2e::shared();
    for role in [["server", "--listen=127.0.0.1:0"], ["client", "127.0.0.1:1"]] {
        let mut command = Command::new(artifacts::built("verbs-check")?);
        let ended = Program::start(command.envs(artifacts::environment()?).args(role))?.end(LIMIT)?;
        ensure!(ended.status.code() == Some(2) && ended.errors.contains("transhume run"), "{ended:?}");
        ensure!(ended.lines.is_empty(), "listened without a device: {ended:?}");
    }
    Ok(())
}

#[test]
fn a_missing_library_and_a_missing_coordinator_are_named() -> Result<()> {
    let _shared = e2e::shared();
    let folder = copy_of_the_program()?;
    let program = folder.join("transhume");
    let alone = Program::start(Command::new(&program).args(["run", "--", "true"]))?.end(LIMIT);
    let missing =
        Program::start(Command::new(&program).args(["ps", "--socket", "/nonexistent/socket"]))?.end(LIMIT);
    fs::remove_dir_all(&folder)?;
    refused(&alone?, &["libibverbs.so.1", "make build"])?;
    refused(&missing?, &["/nonexistent/socket", "transhume coordinator"])
}

#[test]
fn a_lab_needs_root() -> Result<()> {
    let _shared = e2e::shared();
    let folder = copy_of_the_program()?;
    let mut command = Command::new(folder.join("transhume"));
    let ended = Program::start(command.args(["lab", "up", "--hosts", "2"]).uid(NOBODY))?.end(LIMIT);
    fs::remove_dir_all(&folder)?;
    refused(&ended?, &["root"])
}

/// A folder with the program alone, where every user gets to.
fn copy_of_the_program() -> Result<PathBuf> {
    let folder = std::env::temp_dir().join(format!("th-e2e-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    fs::copy(artifacts::built("transhume")?, folder.join("transhume"))?;
    Ok(folder)
}
