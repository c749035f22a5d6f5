//! `transhume completions`

use std::process::ExitCode;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::failure::Result;
use crate::output;

/// Prints shell completions
#[derive(Args)]
#[command(after_help = "Example:\n  transhume completions bash > /etc/bash_completion.d/transhume")]
pub struct Arguments {
    /// The shell
    shell: Shell,
}

impl Arguments {
    pub fn run(self) -> Result<ExitCode> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut super::Cli::command(), "transhume", &mut script);
        output::write(script)?;
        Ok(ExitCode::SUCCESS)
    }
}
