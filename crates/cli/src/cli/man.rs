//! `transhume man`

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory};
use clap_mangen::Man;

use crate::failure::{Failure, Result};
use crate::output;

/// Prints the manual page, or writes one page per command to a directory
#[derive(Args)]
#[command(
    after_help = "Examples:\n  transhume man | man -l -\n  transhume man --dir /usr/local/share/man/man1"
)]
pub struct Arguments {
    /// The directory for the pages of all commands
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl Arguments {
    pub fn run(self) -> Result<ExitCode> {
        let command = super::Cli::command();
        match self.dir {
            None => {
                let mut page = Vec::new();
                Man::new(command).render(&mut page)?;
                output::write(page)?;
            }
            Some(dir) => {
                let written = fs::create_dir_all(&dir).and_then(|()| clap_mangen::generate_to(command, &dir));
                let name = dir.display();
                written
                    .map_err(|error| Failure::new(format!("{name}: {error}"), "choose another directory"))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
