//! `transhume net link`

use std::process::ExitCode;

use api::NetChange;
use clap::{Args, Subcommand};
use serde::Serialize;

use super::lay;
use crate::cli::target::Target;
use crate::failure::Result;

/// Adds and removes links between hosts, while traffic continues
#[derive(Args)]
#[command(after_help = "Examples:\n  transhume net link add h2 h3\n  transhume net link rm h2 h3")]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Add(Add),
    Rm(Rm),
}

/// Links two hosts, so that they send to each other directly
#[derive(Args)]
#[command(
    after_help = "Examples:\n  transhume net link add h2 h3\n  transhume net link add h2 h3 --cost 5\n  \
                        transhume net link add h2 h3 --json | jq .version"
)]
struct Add {
    /// One host
    a: String,
    /// The other
    b: String,
    /// The link's cost; frames take the path of the lowest total cost
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    cost: u32,
    /// Does not encrypt datagrams: only for trusted networks, since anyone with access can read and forge traffic
    #[arg(long)]
    plain: bool,
    /// Prints the changes as JSON; failures go to standard error as JSON
    #[arg(long)]
    json: bool,
}

/// Removes the link between two hosts, unless it is the only path to a host
#[derive(Args)]
#[command(after_help = "Example:\n  transhume net link rm h2 h3")]
struct Rm {
    /// One host
    a: String,
    /// The other
    b: String,
    /// Prints the changes as JSON; failures go to standard error as JSON
    #[arg(long)]
    json: bool,
}

/// The requested change of a link.
#[derive(Serialize)]
struct Wanted {
    ends: [String; 2],
    #[serde(flatten)]
    terms: Option<Terms>,
}

/// The properties of a link.
#[derive(Serialize)]
struct Terms {
    cost: u32,
    plain: bool,
}

impl Arguments {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        match self.command {
            Command::Add(Add { a, b, cost, plain, json }) => {
                let ends = [a, b];
                let wanted = Wanted { ends: ends.clone(), terms: Some(Terms { cost, plain }) };
                lay(target, NetChange::AddLink { ends, cost, plain }, wanted, json)
            }
            Command::Rm(Rm { a, b, json }) => {
                let ends = [a, b];
                let wanted = Wanted { ends: ends.clone(), terms: None };
                lay(target, NetChange::RemoveLink { ends }, wanted, json)
            }
        }
    }
}
