//! `transhume lab status`

use std::process::ExitCode;

use clap::Args;
use lab::Lab;
use lab::status::{DaemonStatus, HostStatus, Status};

use crate::cli::target::Target;
use crate::failure::Result;
use crate::{output, table};

/// Shows a lab's hosts, their nodes and the partitions between them
#[derive(Args)]
#[command(after_help = "Examples:\n  transhume lab status\n  transhume lab status --json | jq .cuts")]
pub struct Arguments {
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

impl Arguments {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        let status = Lab::open(&target.lab()?)?.status()?;
        if self.json {
            output::json(&status)?;
        } else {
            output::write(render(&status))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// A lab's status as text.
pub fn render(status: &Status) -> String {
    let coordinator =
        row("coordinator".into(), &status.coordinator, daemon(&status.coordinator), String::new());
    let hosts = status.hosts.iter().map(host_row);
    let rows: Vec<_> = std::iter::once(coordinator).chain(hosts).collect();
    let table = table::render(["PLACE", "ADDRESS", "STATE", "PID", "INSTANCES", "NAMESPACE"], &rows);
    let cuts = status.cuts.iter().map(|(one, other)| format!("cut: {one} – {other}\n"));
    format!("lab {}, socket {}\n{table}{}", status.name, status.socket, cuts.collect::<String>())
}

fn host_row(host: &HostStatus) -> [String; 6] {
    let state = match (host.node.pid, host.registered) {
        (Some(_), Some(true)) => "up",
        (Some(_), Some(false)) => "not registered",
        _ => daemon(&host.node),
    };
    let instances = host.instances.map_or_else(|| "?".into(), |count| count.to_string());
    row(host.name.to_string(), &host.node, state, instances)
}

fn row(place: String, daemon: &DaemonStatus, state: &str, instances: String) -> [String; 6] {
    let pid = daemon.pid.map(|pid| pid.to_string()).unwrap_or_default();
    [place, daemon.address.to_string(), state.to_owned(), pid, instances, daemon.namespace.clone()]
}

fn daemon(daemon: &DaemonStatus) -> &'static str {
    if daemon.pid.is_some() { "up" } else { "down" }
}
