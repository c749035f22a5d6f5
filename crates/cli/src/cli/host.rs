//! `transhume host`

use std::process::ExitCode;

use api::{Event, HostRemoved, Request};
use clap::{Args, Subcommand};

use super::target::Target;
use crate::failure::{Result, unexpected};
use crate::output;

/// Removes hosts; `transhume hosts` lists them
#[derive(Args)]
#[command(after_help = "Example:\n  transhume host remove h3")]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Remove(Remove),
}

/// Removes a host for good, by revoking its certificate
///
/// The coordinator and all nodes reject the host's certificate from now on, close connections with it and
/// drop its tunnel keys. Its overlay devices are removed, and its node ends if it can be told. All valid join tokens
/// are revoked, because the host may know them. A machine that joined with a token can join
/// again with a new token, and gets a new key.
///
/// The command fails while instances are on the host or moving to it: `transhume drain` it first. Instances on an
/// unreachable host may still run. Use `--lost` only if the machine is gone for good: its
/// instances then count as lost, and their names are free. If the machine is in fact alive, the old
/// instances continue to run there, isolated, beside their replacements.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  transhume host remove h3\n  transhume drain h3 && transhume host remove h3\n  \
                  transhume host remove h3 --lost\n  \
                  transhume host remove h3 --json | jq -r '.untold[]'"
)]
struct Remove {
    /// The host
    host: String,
    /// Gives up the host's instances, because the machine is gone for good or will be reinstalled
    #[arg(long)]
    lost: bool,
    /// Prints the result as JSON; failures go to standard error as JSON
    #[arg(long)]
    json: bool,
}

impl Arguments {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        let Command::Remove(Remove { host, lost, json }) = self.command;
        let removed = remove(target, host, lost, json).map(|()| ExitCode::SUCCESS);
        removed.map_err(|failure| if json { failure.in_json() } else { failure })
    }
}

fn remove(target: &Target, host: String, lost: bool, json: bool) -> Result<()> {
    let request = Request::RemoveHost { host: host.clone(), lost };
    match target.ask(&request).map_err(|failure| target.suggest_host(failure, &host))? {
        Event::HostRemoved(removed) if json => output::json(&removed),
        Event::HostRemoved(removed) => output::line(&in_words(&removed)),
        event => Err(unexpected(&event)),
    }
}

fn in_words(removed: &HostRemoved) -> String {
    let mut text = format!("{} was removed", removed.host);
    if !removed.lost_instances.is_empty() {
        text += &format!("\n  lost instances: {}", removed.lost_instances.join(", "));
    }
    if !removed.revoked_tokens.is_empty() {
        let tokens: Vec<_> = removed.revoked_tokens.iter().map(u64::to_string).collect();
        text += &format!(
            "\n  revoked tokens: {}; create a new one with `transhume net token`",
            tokens.join(", ")
        );
    }
    if !removed.untold.is_empty() {
        text += &format!(
            "\n  unreachable hosts: {}; until they reconnect, they still accept {}",
            removed.untold.join(", "),
            removed.host
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removal_reports_lost_instances_tokens_and_hosts() {
        let mut removed = HostRemoved { host: "b".into(), ..HostRemoved::default() };
        assert_eq!(in_words(&removed), "b was removed");
        removed.revoked_tokens = vec![1, 3];
        removed.untold = vec!["c".into()];
        removed.lost_instances = vec!["job1".into(), "job2".into()];
        let text = in_words(&removed);
        assert!(text.contains("lost instances: job1, job2\n"), "{text}");
        assert!(text.contains("tokens: 1, 3; create") && text.contains("hosts: c;"), "{text}");
    }
}
