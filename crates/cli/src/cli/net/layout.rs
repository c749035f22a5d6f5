//! `transhume net layout`

use std::process::ExitCode;

use api::{NetChange, Shape};
use clap::{Args, ValueEnum};
use serde::Serialize;

use super::lay;
use crate::cli::target::Target;
use crate::failure::Result;

/// Lays out the overlay's topology over all connected hosts
///
/// Traffic continues: the new links are used when all hosts have installed them. Hosts that connect later are
/// linked to the center.
#[derive(Args)]
#[command(after_help = "Examples:\n  transhume net layout star --center h1\n  transhume net layout mesh\n  \
                        transhume net layout hypercube --json | jq .links_added")]
pub struct Arguments {
    /// The topology
    shape: Choice,
    /// The center, to which later hosts are linked too [default: the present one, or the first host]
    #[arg(long, value_name = "HOST")]
    center: Option<String>,
    /// Does not encrypt datagrams: only for trusted networks, since anyone with access can read and forge traffic
    #[arg(long)]
    plain: bool,
    /// Prints the changes as JSON; failures go to standard error as JSON
    #[arg(long)]
    json: bool,
}

/// The requested layout.
#[derive(Serialize)]
struct Wanted {
    shape: Shape,
    plain: bool,
}

/// A [`Shape`] on the command line.
#[derive(Clone, Copy, ValueEnum)]
enum Choice {
    /// All hosts linked to one
    Star,
    /// All hosts linked to all others
    Mesh,
    /// Hosts linked as the corners of a hypercube
    Hypercube,
}

impl From<Choice> for Shape {
    fn from(choice: Choice) -> Self {
        match choice {
            Choice::Star => Self::Star,
            Choice::Mesh => Self::Mesh,
            Choice::Hypercube => Self::Hypercube,
        }
    }
}

impl Arguments {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        let Self { shape, center, plain, json } = self;
        let shape = shape.into();
        lay(target, NetChange::Lay { shape, center, plain }, Wanted { shape, plain }, json)
    }
}
