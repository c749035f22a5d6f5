//! `transhume lab down`

use std::process::ExitCode;

use clap::Args;
use lab::Lab;

use crate::cli::target::Target;
use crate::failure::{Failure, Result};

/// Removes a lab with all its instances and remains of crashes
///
/// The default lab is `lab`; pass another name with `--lab`.
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
                return Err(Failure::new("`--lab` and `--all` exclude each other", "use one of them"));
            }
            (true, false) => Lab::names(),
            (false, _) => vec![target.lab_to_remove()?],
        };
        if let [name] = &names[..]
            && target.names_a_lab()
            && !Lab::names().contains(name)
        {
            eprintln!("transhume: there is no lab `{name}`; removed remains of a crash, if any");
        }
        for name in &names {
            Lab::down(name)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
