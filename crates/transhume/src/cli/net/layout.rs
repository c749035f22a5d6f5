//! `transhume net layout`

use std::process::ExitCode;

use api::{NetChange, Shape};
use clap::{Args, ValueEnum};

use super::change;
use crate::cli::target::Target;
use crate::failure::Result;

/// Joins all hosts that are up, by links laid anew
///
/// Traffic goes on meanwhile: the new links are used when all hosts have them. Hosts that come later are
/// linked to the center.
#[derive(Args)]
#[command(after_help = "Examples:\n  transhume net layout star --center h1\n  transhume net layout mesh")]
pub struct Arguments {
    /// How
    shape: Choice,
    /// The host in the middle of a star, to which hosts are linked that come later [default: the one that is it now, or the first]
    #[arg(long, value_name = "HOST")]
    center: Option<String>,
    /// Does not seal datagrams: for ways between hosts that nobody else has access to. Who has can read and write all
    #[arg(long)]
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
        let Self { shape, center, plain } = self;
        change(target, NetChange::Lay { shape: shape.into(), center, plain })
    }
}
