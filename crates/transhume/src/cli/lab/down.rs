//! `transhume lab down`

use std::process::ExitCode;

use clap::Args;
use lab::Lab;

use crate::cli::target::Target;
use crate::failure::{Failure, Result};

/// Removes a lab with all its instances, also what a crash has left of it
///
/// It is the one called `lab`; any other is named with `--lab`.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  transhume lab down\n  transhume lab down --lab other\n  transhume lab down --all"
)]
pub struct Arguments {
    /// Removes all labs
    #[arg(long)]
    all: bool,
}

impl Arguments {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        let names = match (self.all, target.names_a_lab()) {
            (true, true) => {
                return Err(Failure::new("`--lab` names one lab, `--all` means all", "give one of both"));
            }
            (true, false) => Lab::names(),
            (false, _) => vec![target.lab_to_remove()?],
        };
        if let [name] = &names[..]
            && target.names_a_lab()
            && !Lab::names().contains(name)
        {
            eprintln!("transhume: there is no lab `{name}`; what a crash may have left of it is removed");
        }
        for name in &names {
            Lab::down(name)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
