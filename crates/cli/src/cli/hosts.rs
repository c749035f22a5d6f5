//! `transhume hosts`

use std::process::ExitCode;

use api::{Accelerator, Event, Host, Request};
use clap::Args;

use super::target::Target;
use crate::failure::{Result, unexpected};
use crate::{output, table};

/// Lists the hosts
///
/// NODE also shows whether a host is drained, and whether it asks to be emptied.
/// MACHINES says how a host runs virtual machines: by KVM, or by TCG, which translates their instructions and is slower.
/// `--json` also gives the reason why KVM is not used.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  transhume hosts\n  transhume hosts --json | jq -r '.[] | select(.up and (.drained | not)) | .name'"
)]
pub struct Arguments {
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

impl Arguments {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        let hosts = match target.ask(&Request::Hosts)? {
            Event::Hosts(hosts) => hosts,
            event => return Err(unexpected(&event)),
        };
        if self.json {
            output::json(&hosts)?;
        } else {
            let rows: Vec<_> = hosts.iter().map(row).collect();
            output::write(table::render(["HOST", "ADDRESS", "NODE", "INSTANCES", "MACHINES"], &rows))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn row(host: &Host) -> [String; 5] {
    let node = if host.up { "up" } else { "down" };
    let node = match (host.draining, host.drained) {
        (true, _) => format!("{node}, draining"),
        (_, true) => format!("{node}, drained"),
        _ => node.into(),
    };
    let leaving =
        host.leaving.as_ref().map(|reason| format!(", asks to be emptied: {}", table::printable(reason)));
    let node = node + &leaving.unwrap_or_default();
    let address = if host.address.is_empty() { "-" } else { &host.address };
    [host.name.clone(), address.into(), node, host.instances.to_string(), machines(host)]
}

/// How the host runs virtual machines.
fn machines(host: &Host) -> String {
    let Some(support) = &host.machines else { return "-".into() };
    let accelerator = match support.accelerator {
        Some(Accelerator::Kvm) => "KVM",
        Some(Accelerator::Tcg) => "TCG",
        None => "no QEMU",
    };
    support.emulator.iter().fold(accelerator.to_owned(), |text, emulator| format!("{text}, {emulator}"))
}
