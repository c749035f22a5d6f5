//! `transhume host`

use std::process::ExitCode;

use api::{Event, HostRemoved, Request};
use clap::{Args, Subcommand};

use super::target::{Target, unexpected};
use crate::failure::Result;
use crate::output;

/// Changes which hosts take part; `transhume hosts` lists them
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

/// Takes the right to take part away from a host, for good
///
/// The coordinator and all nodes accept its certificate no more, and what they have with it ends at once: connections, and the keys of
/// tunnels. Its devices are the overlay's no more. It says so itself, as far as it can be told, and ends. Join tokens that were
/// good until then are revoked, since the host may know them. What had joined with one may take part again with a new
/// token, and gets a new key.
///
/// It is refused while instances are on the host, or come there: `transhume drain` it first. Of a host that does not answer nobody knows
/// whether they run, so they are not given up for this, unless you say with `--lost` that the machine is gone for good. Then they are ended
/// as lost, and their names are free. Be sure of it: what still runs there goes on, cut off from all others, beside what you
/// start in its place.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  transhume host remove h3\n  transhume drain h3 && transhume host remove h3\n  \
                  transhume host remove h3 --lost\n  \
                  transhume host remove h3 --json | jq -r '.untold[]'"
)]
struct Remove {
    /// The host
    host: String,
    /// Its machine is gone for good, or switched off until it is made anew: gives up the instances that it had
    #[arg(long)]
    lost: bool,
    /// Writes what was done as JSON; failures go to standard error, as JSON
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
    let mut text = format!("{} is removed", removed.host);
    if !removed.lost_instances.is_empty() {
        text += &format!("\n  lost with it: {}", removed.lost_instances.join(", "));
    }
    if !removed.revoked_tokens.is_empty() {
        let tokens: Vec<_> = removed.revoked_tokens.iter().map(u64::to_string).collect();
        text += &format!(
            "\n  revoked tokens, which it may know: {}; `transhume net token` prints a new one",
            tokens.join(", ")
        );
    }
    if !removed.untold.is_empty() {
        text += &format!(
            "\n  away, and told as soon as they are back: {}; until then these still believe {}",
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
    fn what_is_left_to_know_is_said() {
        let mut removed = HostRemoved { host: "b".into(), ..HostRemoved::default() };
        assert_eq!(in_words(&removed), "b is removed");
        removed.revoked_tokens = vec![1, 3];
        removed.untold = vec!["c".into()];
        removed.lost_instances = vec!["job1".into(), "job2".into()];
        let text = in_words(&removed);
        assert!(text.contains("lost with it: job1, job2\n"), "{text}");
        assert!(
            text.contains("may know: 1, 3; `transhume net token`") && text.contains("back: c;"),
            "{text}"
        );
    }
}
