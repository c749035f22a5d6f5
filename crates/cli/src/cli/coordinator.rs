//! `transhume coordinator`

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use coordinator::CoordinatorOptions;

use super::target::Target;
use super::words;
use crate::failure::{Failure, Result};
use crate::logging::Logging;
use crate::precedence;

/// Runs the coordinator, which tracks all instances and decides moves
///
/// It runs until SIGTERM or SIGINT. Instances continue to run without it, and the next coordinator resumes
/// from the stored state. Clients connect to the socket that `--socket` names.
#[derive(Args)]
#[command(after_help = "Examples:\n  transhume coordinator --listen 192.0.2.1:7700\n  \
                        transhume coordinator --listen 192.0.2.1:7700 --cool-down 15m")]
pub struct Arguments {
    /// The address for connections of nodes
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
    /// Serves metrics for Prometheus at http://ADDRESS:PORT/metrics, without authentication
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,
    /// The directory with the coordinator's certificate and key, and `authority.pem`
    #[arg(long, value_name = "DIR", default_value = "/etc/transhume/pki")]
    pki: PathBuf,
    /// The directory for the coordinator's durable state
    #[arg(long, value_name = "DIR", default_value = "/var/lib/transhume/coordinator")]
    state: PathBuf,
    /// The default cool-down: how long `transhume move` refuses to move an instance again without `--force`
    /// (a number with `s`, `m`, `h` or `d`)
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = words::seconds)]
    cool_down: u64,
    #[command(flatten)]
    logging: Logging,
}

impl Arguments {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        self.logging.begin();
        precedence::take();
        let options = CoordinatorOptions {
            listen: self.listen,
            socket: target.socket_to_listen_on(),
            metrics: self.metrics,
            pki: self.pki,
            state: self.state,
            enrolment: None,
            cool_down: Duration::from_secs(self.cool_down),
        };
        coordinator::run(options).map_err(|error| Failure::new(error.to_string(), error.remedy()))?;
        Ok(ExitCode::SUCCESS)
    }
}
