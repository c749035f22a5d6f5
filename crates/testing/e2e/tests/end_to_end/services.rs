//! Debian's services and their clients, unmodified, in containers on the overlay, keep their connections over many moves.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e::common_files;
use e2e::overlay::net;
use e2e::program::{Program, run};
use e2e::testlab::TestLab;
use e2e::travel;
use serde::Deserialize;

const LIMIT: Duration = Duration::from_secs(60);

/// The number of moves. The clients make every fifth.
const MOVES: usize = 50;

/// For how long the clients work, in seconds of their own, which outlasts the moves where these take their usual time.
const SECONDS: u32 = 35;

/// The work of the clients so far.
#[derive(Debug, Deserialize)]
struct Done {
    lines: u64,
    counted: u64,
    streamed: u64,
}

/// A folder with the programs, and the keys of sshd and its client.
fn folder() -> Result<tempfile::TempDir> {
    let folder = common_files::folder()?;
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    for name in ["services.sh", "clients.py"] {
        fs::copy(tests.join(name), folder.path().join(name))?;
    }
    for name in ["host_key", "client_key"] {
        let mut keygen = Command::new("ssh-keygen");
        keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(folder.path().join(name));
        run(&mut keygen, LIMIT)?;
    }
    Ok(folder)
}

/// Starts a container that sees `folder` under the same name.
fn container(lab: &TestLab, name: &str, host: &str, folder: &str, command: &[&str]) -> Result<Program> {
    let volume = format!("{folder}:{folder}");
    let place = ["run", "--network", "overlay", "--name", name, "--host", host];
    let files = ["--rootfs", "/", "--volume", &volume, "--"];
    Program::start(&mut lab.command(&[&place[..], &files, command].concat()))
}

/// Moves both, the clients more seldom. `false` if their work ends before that.
fn move_both(lab: &TestLab, [services, clients]: [&str; 2], working: &mut Program) -> Result<bool> {
    let (mut serve, mut ask) = (["h2", "h3", "h1"].iter().cycle(), ["h1", "h2", "h3"].iter().cycle());
    for number in 1..=MOVES {
        let (name, to) = if number % 5 == 0 { (clients, ask.next()) } else { (services, serve.next()) };
        match lab.move_to(name, to.context("a host")?) {
            Ok(_) => {}
            Err(_) if !working.is_running()? => return Ok(false),
            Err(error) => return Err(error.context(format!("move {number}"))),
        }
    }
    working.is_running()
}

#[test]
fn each_connection_of_services_lasts_over_fifty_moves() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(3)?;
    net(&lab, &["layout", "star"])?;
    let folder = folder()?;
    let path = folder.path().to_str().context("a path")?;
    let program = |name: &str| format!("{path}/{name}");
    travel::with_enough(SECONDS, |attempt, seconds| {
        let (serving, asking) = (format!("services-{attempt}"), format!("clients-{attempt}"));
        let mut services = container(&lab, &serving, "h1", path, &[&program("services.sh"), path])?;
        services.wait_for(LIMIT, |line| (line == "listening").then_some(()))?;
        let address = lab.instance(&serving)?.address;
        let line = ["/usr/bin/python3", &program("clients.py"), "work", &address, path, &seconds.to_string()];
        let mut clients = container(&lab, &asking, "h3", path, &line)?;
        clients.wait_for(LIMIT, |line| (line == "working").then_some(()))?;
        let lasted = move_both(&lab, [&serving, &asking], &mut clients)?;
        let ended = clients.end(LIMIT)?.success().with_context(|| lab.logs())?;
        let done: Done = serde_json::from_str(ended.lines.last().context("no summary")?)?;
        ensure!(done.lines > 1000 && done.counted > 1000 && done.streamed > 10_000_000, "{done:?}");
        lab.transhume(&["kill", &serving])?.success()?;
        let said = services.end(LIMIT)?.errors;
        ensure!(said.matches("Accepted publickey").count() == 1, "{said}");
        Ok(lasted)
    })
}
