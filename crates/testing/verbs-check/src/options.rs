//! The command line.

use std::time::Duration;

use anyhow::{Result, ensure};
use clap::{Args, Parser, Subcommand};

use crate::workload::{Mix, Workload};

/// Runs random verbs traffic between two processes and checks every byte, completion and counter.
///
/// Exit status: 0 if every check passed, 1 if data was lost, duplicated, reordered or wrong, 2 if the
/// workload could not run.
#[derive(Debug, Parser)]
#[command(name = "verbs-check", version)]
pub struct Options {
    /// The side to play.
    #[command(subcommand)]
    pub role: Role,
}

/// The side to play.
#[derive(Debug, Subcommand)]
pub enum Role {
    /// Waits for a client, and runs the workload that it chooses.
    Server {
        /// The address of the control connection.
        #[arg(long, default_value = "0.0.0.0:18600", value_name = "ADDRESS:PORT")]
        listen: String,
        #[command(flatten)]
        local: Local,
    },
    /// Connects to a server, and chooses the workload of both sides.
    Client {
        /// The server's address.
        #[arg(value_name = "ADDRESS:PORT")]
        server: String,
        #[command(flatten)]
        traffic: Traffic,
        #[command(flatten)]
        local: Local,
    },
}

/// The options of each side.
#[derive(Args, Clone, Debug)]
pub struct Local {
    /// The RDMA device [default: the first one]
    #[arg(long)]
    pub device: Option<String>,
    /// Waits for completion events instead of polling.
    #[arg(long)]
    pub events: bool,
    /// Prints JSON, one object per line.
    #[arg(long)]
    pub json: bool,
    /// Prints counts every so many seconds.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub report_interval: Option<Duration>,
    /// Fails if no request completes for so many seconds.
    #[arg(long, value_name = "SECONDS", default_value = "120", value_parser = seconds)]
    pub stall_limit: Duration,
}

/// The client's options for both sides.
#[derive(Args, Clone, Debug)]
pub struct Traffic {
    /// Queue pairs, each with traffic in both directions.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=16384))]
    pub qps: u16,
    /// Operations and their weights, as in `send,write=3`; `all` weighs all alike.
    #[arg(long, default_value = "all")]
    pub ops: Mix,
    /// The shortest message, in bytes.
    #[arg(long, default_value_t = 1)]
    pub min_size: u32,
    /// The longest message, in bytes.
    #[arg(long, default_value_t = 16384, value_parser = clap::value_parser!(u32).range(1..=1 << 26))]
    pub max_size: u32,
    /// Work requests outstanding per queue pair and direction.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub depth: u16,
    /// The longest inline message, in bytes.
    #[arg(long, default_value_t = 64)]
    pub inline: u32,
    /// Takes receives from one shared receive queue per side.
    #[arg(long)]
    pub srq: bool,
    /// The seed of all random choices.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Stops after so many operations per queue pair and direction.
    #[arg(long)]
    pub count: Option<u64>,
    /// Stops after so many seconds. Without this and --count, stops at SIGINT or SIGTERM.
    #[arg(long, value_parser = seconds)]
    pub seconds: Option<Duration>,
}

impl Traffic {
    /// The workload that both sides run.
    ///
    /// # Errors
    /// If the options contradict each other.
    pub fn workload(&self) -> Result<Workload> {
        let (min, max) = (self.min_size, self.max_size);
        ensure!(min <= max, "--min-size {min} is above --max-size {max}");
        Ok(Workload {
            seed: self.seed,
            queue_pairs: self.qps,
            mix: self.ops,
            min_size: min,
            max_size: max,
            depth: self.depth,
            inline_size: self.inline,
            shared_receives: self.srq,
            count: self.count,
        })
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("`{text}` is not a number of seconds"))?;
    Duration::try_from_secs_f64(seconds).map_err(|_| format!("`{text}` is not a number of seconds"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory as _;
        Options::command().debug_assert();
    }

    #[test]
    fn contradictions_are_refused() {
        let options = Options::try_parse_from([
            "verbs-check",
            "client",
            "host:1",
            "--min-size",
            "9",
            "--max-size",
            "8",
        ]);
        let Role::Client { traffic, .. } = options.unwrap().role else { panic!() };
        assert!(traffic.workload().unwrap_err().to_string().contains("--min-size"));
        assert!(Options::try_parse_from(["verbs-check", "client", "host:1", "--ops", "nothing"]).is_err());
        assert!(Options::try_parse_from(["verbs-check", "client", "host:1", "--seconds", "-1"]).is_err());
    }
}
