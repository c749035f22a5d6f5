//! `transhume pki`

use std::collections::HashSet;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use rpc::pki;

use crate::failure::{Failure, Result};

/// Issues certificates for the coordinator and the nodes
///
/// The first use also creates the cluster's certificate authority. A host needs `authority.pem` and its own
/// two files (`NAME.pem`, `NAME.key`) only; keep the authority's key on this machine.
#[derive(Args)]
#[command(after_help = "Example:\n  transhume pki --dir ./pki coordinator node1 node2")]
pub struct Arguments {
    /// The directory of keys and certificates
    #[arg(long, value_name = "DIR", default_value = "/etc/transhume/pki")]
    dir: PathBuf,
    /// `coordinator`, and the names of hosts
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

impl Arguments {
    pub fn run(self) -> Result<ExitCode> {
        let mut names = HashSet::new();
        if let Some(twice) = self.names.iter().find(|name| !names.insert(*name)) {
            return Err(Failure::new(format!("the name `{twice}` was given twice"), "pass each name once"));
        }
        if !self.dir.join("authority.pem").exists() {
            pki::create_authority(&self.dir).map_err(failed)?;
        }
        self.names.iter().try_for_each(|name| pki::issue(&self.dir, name).map_err(failed))?;
        Ok(ExitCode::SUCCESS)
    }
}

fn failed(error: pki::PkiError) -> Failure {
    let help = match error {
        pki::PkiError::File { .. } => "choose another directory with `--dir`",
        _ => "",
    };
    Failure::new(error.to_string(), help)
}
