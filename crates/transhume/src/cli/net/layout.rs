//! `transhume net layout`

use std::process::ExitCode;

use api::{NetChange, Shape};
use clap::{Args, ValueEnum};
use serde::Serialize;

use super::lay;
use crate::cli::target::Target;
use crate::failure::Result;

/// Joins all hosts that are up, by links laid anew
///
/// Traffic goes on meanwhile: the new links are used when all hosts have them. Hosts that come later are
/// linked to the center.
#[derive(Args)]
#[command(after_help = "Examples:\n  transhume net layout star --center h1\n  transhume net layout mesh\n  \
                        transhume net layout hypercube --json | jq .links_added")]
pub struct Arguments {
    /// How
    shape: Choice,
    /// The host in the middle of a star, to which hosts are linked that come later [default: the one that is it now, or the first]
    #[arg(long, value_name = "HOST")]
    center: Option<String>,
    /// Does not seal datagrams: for ways between hosts that nobody else has access to. Who has can read and write all
    #[arg(long)]
    plain: bool,
    /// Writes what was changed as JSON; failures go to standard error, as JSON
    #[arg(long)]
    json: bool,
}

/// What was to be laid.
#[derive(Serialize)]
struct Wanted {
    shape: Shape,
    plain: bool,
}

/// A [`Shape`] as it is typed.
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
