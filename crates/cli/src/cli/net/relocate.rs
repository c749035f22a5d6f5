//! `transhume net move`

use std::process::ExitCode;

use api::{Event, NetChange};
use clap::Args;
use serde::Serialize;

use crate::cli::target::Target;
use crate::failure::{Result, unexpected};
use crate::output;

/// Moves a network device to another host, with its MAC and address
///
/// Frames that arrive during the move are buffered and forwarded, none twice. If the move fails, the device
/// stays on its source. The program behind the device has to move separately.
#[derive(Args)]
#[command(after_help = "Example:\n  transhume net move h1 tap1 --to h2")]
pub struct Arguments {
    /// The source
    host: String,
    /// The device's name
    device: String,
    /// The destination
    #[arg(long, value_name = "HOST")]
    to: String,
    /// Prints the changes as JSON; failures go to standard error as JSON
    #[arg(long)]
    json: bool,
}

/// A completed move.
#[derive(Serialize)]
struct Moved<'a> {
    device: &'a str,
    from: &'a str,
    to: &'a str,
    pause_us: u64,
}

impl Arguments {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        let Self { host, device, to, json } = self;
        let change = NetChange::Move { host: host.clone(), device: device.clone(), to: to.clone() };
        let pause_us = match super::change(target, change, json)? {
            Event::NetMoved { pause_us } => pause_us,
            event => return Err(unexpected(&event)),
        };
        if json {
            output::json(&Moved { device: &device, from: &host, to: &to, pause_us })?;
        } else {
            let pause = pause_us as f64 / 1e3;
            output::write(format!("{device} is on {to}; blackout {pause:.1} ms\n"))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
