//! `transhume net`

mod available;
mod device;
mod devices;
mod layout;
mod link;
mod links;
mod matrix;
mod relocate;
mod show;
mod token;
mod up;

use std::process::ExitCode;

use api::{Event, NetChange, NetLaid, Request};
use clap::{Args, Subcommand};
use serde::Serialize;

use super::target::Target;
use crate::failure::{Result, unexpected};
use crate::output;

/// Manages the overlay, an encrypted layer-2 network between hosts
#[derive(Args)]
#[command(
    after_help = "Examples:\n  transhume net layout star\n  transhume net attach h1 tap1 --address 10.88.0.1/24\n  \
                  transhume net link add h2 h3\n  transhume net status\n\nTo join machines without other set-up (see `transhume net up --help`):\n  \
                  transhume net up --listen 192.0.2.1:7700 --address 10.88.0.1/24"
)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Up(up::Arguments),
    Token(token::Arguments),
    Layout(layout::Arguments),
    Link(link::Arguments),
    Attach(device::Attach),
    Proxy(device::Proxy),
    Detach(device::Detach),
    Move(relocate::Arguments),
    Status(show::Status),
    Devices(devices::Arguments),
    Links(links::Arguments),
    Macs(show::Macs),
    Matrix(matrix::Arguments),
}

impl Arguments {
    /// Whether the process is a daemon.
    pub fn is_daemon(&self) -> bool {
        matches!(self.command, Command::Up(_))
    }

    pub fn run(self, target: &Target) -> Result<ExitCode> {
        match self.command {
            Command::Up(arguments) => arguments.run(target),
            Command::Token(arguments) => arguments.run(target),
            Command::Layout(arguments) => arguments.run(target),
            Command::Link(arguments) => arguments.run(target),
            Command::Attach(arguments) => arguments.run(target),
            Command::Proxy(arguments) => arguments.run(target),
            Command::Detach(arguments) => arguments.run(target),
            Command::Move(arguments) => arguments.run(target),
            Command::Status(arguments) => arguments.run(target),
            Command::Devices(arguments) => arguments.run(target),
            Command::Links(arguments) => arguments.run(target),
            Command::Macs(arguments) => arguments.run(target),
            Command::Matrix(arguments) => arguments.run(target),
        }
    }
}

/// Requests a change from the coordinator. With `json`, failures are JSON too.
fn change(target: &Target, request: NetChange, json: bool) -> Result<Event> {
    let changed = target.ask(&Request::ChangeNetwork(request));
    changed.map_err(|failure| if json { failure.in_json() } else { failure })
}

/// A change of the layout, as `--json` prints it.
#[derive(Serialize)]
struct Laid<T> {
    #[serde(flatten)]
    wanted: T,
    #[serde(flatten)]
    laid: NetLaid,
}

/// Requests a change of the layout. With `json`, prints the changes, after the fields of `wanted`.
fn lay(target: &Target, request: NetChange, wanted: impl Serialize, json: bool) -> Result<ExitCode> {
    match change(target, request, json)? {
        Event::NetLaid(laid) if json => output::json(&Laid { wanted, laid })?,
        Event::NetLaid(_) => {}
        event => return Err(unexpected(&event)),
    }
    Ok(ExitCode::SUCCESS)
}
