//! The checking workload between two instances.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::artifacts;
use crate::program::{Ended, Program};

/// The name of the checking workload's program.
pub const PROGRAM: &str = "verbs-check";

/// Time limit for a server to listen.
const START: Duration = Duration::from_secs(10);

/// Time limit for both sides to make progress.
const PROGRESS: Duration = Duration::from_secs(20);

/// The options of both sides.
pub const COMMON: [&str; 5] = ["--json", "--stall-limit", "30", "--report-interval", "0.02"];

/// Both running sides.
pub struct Check {
    /// The side that starts first.
    pub server: Program,
    /// The side that controls the workload.
    pub client: Program,
}

impl Check {
    /// Starts both sides. `server` and `client` make the commands that run the program in the right
    /// place; `address` tells the server's when it listens, `options` are the client's.
    ///
    /// # Errors
    /// If one cannot be started.
    pub fn start(
        server: impl FnOnce(&str) -> Result<Command>,
        client: impl FnOnce(&str) -> Result<Command>,
        address: impl FnOnce() -> Result<String>,
        options: &[&str],
    ) -> Result<Self> {
        let program = artifacts::built(PROGRAM)?;
        let program = program.to_str().context("the target folder's name is not UTF-8")?;
        let mut server = server(program)?;
        let mut server = Program::start(server.arg("server").args(COMMON))?;
        let listening = server.wait_for(START, listening)?;
        let port = listening.rsplit(':').next().context("the address has no port")?.to_owned();
        let mut client = client(program)?;
        let client = client.args(["client", &format!("{}:{port}", address()?)]).args(COMMON);
        Ok(Self { server, client: Program::start(client.args(options))? })
    }

    /// Waits until further work has completed at both sides.
    ///
    /// # Errors
    /// If one ends or makes no progress.
    pub fn progress(&mut self) -> Result<()> {
        wait_for_progress(&mut self.server)?;
        wait_for_progress(&mut self.client).map(drop)
    }

    /// Tells both sides to stop, and to compare their counts.
    ///
    /// # Errors
    /// If they have ended.
    pub fn stop(&mut self) -> Result<()> {
        self.client.signal(libc::SIGTERM)
    }

    /// Waits for the successful end of both sides; returns the client's report.
    ///
    /// # Errors
    /// If anything was lost, duplicated, reordered or corrupted, or they take longer than `limit`.
    pub fn end(self, limit: Duration) -> Result<Value> {
        let client = self.client.end(limit).and_then(Ended::success);
        let server = self.server.end(limit).and_then(Ended::success);
        let (client, _) = match (client, server) {
            (Ok(client), Ok(server)) => (client, server),
            (Err(client), Err(server)) => return Err(client.context(format!("the server: {server:#}"))),
            (Err(error), Ok(_)) | (Ok(_), Err(error)) => return Err(error),
        };
        result(&client)
    }
}

/// The final report of a side.
fn result(ended: &Ended) -> Result<Value> {
    let report = ended.lines.last().context("verbs-check said nothing")?;
    let report: Value = serde_json::from_str(report).with_context(|| report.clone())?;
    anyhow::ensure!(report["ok"] == true, "verbs-check ended well but reports {report}");
    Ok(report)
}

/// Where a server says in `line` that it listens.
#[must_use]
pub fn listening(line: &str) -> Option<String> {
    let value: Value = serde_json::from_str(line).ok()?;
    Some(value.get("address")?.as_str()?.to_owned())
}

/// Waits until work has completed at `side`, from now on; the longest gap between completions in the
/// lines since the last call.
///
/// # Errors
/// If it ends or makes no progress.
pub fn wait_for_progress(side: &mut Program) -> Result<Duration> {
    let mut gap = side.take_lines().iter().filter_map(|line| interval(line)).map(|one| one.gap).max();
    // The first interval may have begun before now.
    for _ in 0..2 {
        let found = side.wait_for(PROGRESS, |line| interval(line).filter(|one| one.completions > 0))?;
        gap = gap.max(Some(found.gap));
    }
    Ok(gap.unwrap_or_default())
}

struct Interval {
    completions: u64,
    gap: Duration,
}

fn interval(line: &str) -> Option<Interval> {
    let value: Value = serde_json::from_str(line).ok()?;
    let number = |name: &str| value.get(name)?.as_u64();
    Some(Interval { completions: number("completions")?, gap: Duration::from_micros(number("gap_micros")?) })
}
