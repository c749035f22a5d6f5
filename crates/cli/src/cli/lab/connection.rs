//! `transhume lab cut` and `transhume lab heal`

use std::process::ExitCode;

use clap::Args;
use lab::{Lab, Place};

use crate::cli::target::Target;
use crate::failure::{Failure, Result};

/// Drops all packets between two hosts, or a host and the coordinator
#[derive(Args)]
#[command(after_help = "Examples:\n  transhume lab cut h1 h2\n  transhume lab cut h1 coordinator")]
pub struct Cut {
    /// The first place: h1, h2, … or coordinator
    one: Place,
    /// The other
    other: Place,
}

impl Cut {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        Lab::open(&target.lab()?)?.cut(self.one, self.other)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Heals the partition between two places, or all partitions
#[derive(Args)]
#[command(after_help = "Examples:\n  transhume lab heal h1 h2\n  transhume lab heal")]
pub struct Heal {
    /// Two places (h1, h2, … or coordinator); without them, all partitions are healed
    #[arg(num_args = 0..=2, value_names = ["ONE", "OTHER"])]
    places: Vec<Place>,
}

impl Heal {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        let lab = Lab::open(&target.lab()?)?;
        match self.places[..] {
            [] => lab.heal_all()?,
            [one, other] => lab.heal(one, other)?,
            _ => {
                return Err(Failure::new(
                    "a partition has two ends",
                    "pass two places, or none to heal all partitions",
                ));
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
