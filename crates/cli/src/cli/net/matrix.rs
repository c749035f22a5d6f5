//! `transhume net matrix`

use std::cmp::Reverse;
use std::process::ExitCode;

use api::{Event, NetFlow, Request};
use clap::Args;
use serde::Serialize;

use super::show::tell_unanswered;
use crate::cli::target::Target;
use crate::failure::{Result, unexpected};
use crate::{output, table};

/// Shows the traffic matrix: bytes and frames between pairs of MACs
///
/// Each frame is counted once, on its ingress host, in slots of five seconds; the current slot is not
/// included. With --json, the flows are in `flows`, and hosts that do not answer in `unanswered`.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  transhume net matrix\n  transhume net matrix --window 5 --json | jq '.flows[0]'"
)]
pub struct Arguments {
    /// The time window, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(5..=60))]
    window: u64,
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// All flows, and the hosts that have not answered.
#[derive(Default, Serialize)]
struct Matrix {
    flows: Vec<Counted>,
    unanswered: Vec<String>,
}

/// A flow with its ingress host.
#[derive(Serialize)]
struct Counted {
    host: String,
    #[serde(flatten)]
    flow: NetFlow,
}

impl Arguments {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        let mut matrix = counted(target, self.window)?;
        matrix.flows.sort_by_key(|counted| Reverse(counted.flow.bytes));
        if self.json {
            output::json(&matrix)?;
        } else {
            let rows: Vec<_> = matrix.flows.iter().map(row).collect();
            output::write(table::render(
                ["FROM", "TO", "HOST", "BYTES", "FRAMES", "MBIT/S", "FRAMES/S"],
                &rows,
            ))?;
            tell_unanswered(matrix.unanswered.iter().map(String::as_str));
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn counted(target: &Target, window_s: u64) -> Result<Matrix> {
    let mut client = target.send(&Request::Matrix { window_s })?;
    let mut matrix = Matrix::default();
    loop {
        match client.next_event()? {
            Event::NetFlows { host, flows } => {
                matrix.flows.extend(flows.into_iter().map(|flow| Counted { host: host.clone(), flow }));
            }
            Event::NetUnanswered { hosts } => matrix.unanswered = hosts,
            Event::Done => return Ok(matrix),
            Event::Failed(failure) => return Err(failure.into()),
            event => return Err(unexpected(&event)),
        }
    }
}

fn row(Counted { host, flow }: &Counted) -> [String; 7] {
    let [from, to] = flow.macs.clone().unwrap_or_else(|| ["others", "others"].map(str::to_owned));
    [
        from,
        to,
        host.clone(),
        flow.bytes.to_string(),
        flow.frames.to_string(),
        format!("{:.1}", flow.bytes_per_second as f64 * 8.0 / 1e6),
        flow.frames_per_second.to_string(),
    ]
}
