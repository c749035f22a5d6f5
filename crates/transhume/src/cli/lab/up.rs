//! `transhume lab up`

use std::env;
use std::process::ExitCode;

use clap::Args;
use lab::{Lab, LabName, Spec};

use super::status;
use crate::cli::print_json;
use crate::cli::target::Target;
use crate::failure::Result;

/// Makes a lab and starts its coordinator and nodes
#[derive(Args)]
#[command(after_help = "Examples:\n  transhume lab up --hosts 3\n  transhume lab up --hosts 2 --name other")]
pub struct Arguments {
    /// How many hosts
    #[arg(long, value_name = "N", default_value_t = 3)]
    hosts: u16,
    /// The lab's name, 1 to 12 lower-case letters and digits [default: lab]
    #[arg(long)]
    name: Option<LabName>,
    /// Writes the lab's status as JSON
    #[arg(long)]
    json: bool,
}

impl Arguments {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        let program = env::current_exe()?;
        let name = self.name.map_or_else(|| target.new_lab(), Ok)?;
        let lab = Lab::up(&Spec { name, hosts: self.hosts, program })?;
        let status = lab.status()?;
        if self.json {
            print_json(&status)?;
        } else {
            print!("{}", status::render(&status));
        }
        Ok(ExitCode::SUCCESS)
    }
}
