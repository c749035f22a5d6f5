//! `transhume net token`

use std::process::ExitCode;

use api::{Event, Request, Token, TokenState};
use clap::{Args, Subcommand};

use crate::cli::events::time;
use crate::cli::target::Target;
use crate::cli::words;
use crate::failure::{Result, unexpected};
use crate::{output, table};

/// The default lifetime of a token, in seconds.
pub const LIFETIME_S: u64 = 24 * 60 * 60;

/// Prints a join token for an overlay that `transhume net up` has created
///
/// Machines can join with the token until it expires or is revoked. Run this on the first machine of the network.
#[derive(Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  transhume net token\n  transhume net token --lifetime 15m\n  transhume net token list\n  \
                  transhume net token revoke 3"
)]
pub struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// The token's lifetime: a number with `s`, `m`, `h` or `d`
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = lifetime)]
    lifetime: u64,
    /// Prints JSON; failures go to standard error as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Subcommand)]
enum Command {
    List(List),
    Revoke(Revoke),
}

/// Lists the tokens, and the machines that have joined with each
///
/// The last 64 tokens are listed. The secrets themselves are not stored.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  transhume net token list\n  transhume net token list --json | jq -r '.[] | select(.state == \"good\") | .id'"
)]
struct List {
    /// Prints JSON; failures go to standard error as JSON
    #[arg(long)]
    json: bool,
}

/// Revokes a token
///
/// Machines that have joined with the token stay; remove them with `transhume host remove`.
#[derive(Args)]
#[command(after_help = "Examples:\n  transhume net token revoke 3\n  transhume net token revoke AQTAAAI…")]
struct Revoke {
    /// The token's number from `transhume net token list`, or the token itself
    #[arg(value_name = "ID")]
    token: String,
    /// Prints the token's new state as JSON; failures go to standard error as JSON
    #[arg(long)]
    json: bool,
}

impl Arguments {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        let (json, done) = match self.command {
            None => (self.json, print(target, self.lifetime, self.json)),
            Some(Command::List(List { json })) => (json, list(target, json)),
            Some(Command::Revoke(Revoke { token, json })) => (json, revoke(target, token, json)),
        };
        let done = done.map(|()| ExitCode::SUCCESS);
        done.map_err(|failure| if json { failure.in_json() } else { failure })
    }
}

fn lifetime(text: &str) -> std::result::Result<u64, String> {
    match words::seconds(text)? {
        0 => Err("the lifetime is zero: use a longer one, such as 15m".into()),
        seconds => Ok(seconds),
    }
}

fn print(target: &Target, lifetime_s: u64, json: bool) -> Result<()> {
    let event = target.ask(&Request::NewToken { lifetime_s })?;
    match &event {
        Event::Token { .. } if json => output::json(&event),
        Event::Token { token, .. } => output::line(token),
        _ => Err(unexpected(&event)),
    }
}

fn list(target: &Target, json: bool) -> Result<()> {
    let tokens = all(target)?;
    if json {
        return output::json(&tokens);
    }
    let rows: Vec<_> = tokens.iter().map(row).collect();
    output::write(table::render(["ID", "MADE", "EXPIRES", "STATE", "HOSTS"], &rows))
}

fn row(token: &Token) -> [String; 5] {
    let state = match token.state {
        TokenState::Good => "good",
        TokenState::Expired => "expired",
        TokenState::Revoked => "revoked",
    };
    let or_nothing = |text: String| if text.is_empty() { "-".into() } else { text };
    let made = token.made_ms.map(time).unwrap_or_default();
    let hosts = or_nothing(token.hosts.join(", "));
    [token.id.to_string(), or_nothing(made), time(token.expires_ms), state.into(), hosts]
}

fn revoke(target: &Target, token: String, json: bool) -> Result<()> {
    match target.ask(&Request::RevokeToken { token })? {
        Event::TokenRevoked(token) if json => output::json(&token),
        Event::TokenRevoked(_) => Ok(()),
        event => Err(unexpected(&event)),
    }
}

fn all(target: &Target) -> Result<Vec<Token>> {
    match target.ask(&Request::Tokens)? {
        Event::Tokens(tokens) => Ok(tokens),
        event => Err(unexpected(&event)),
    }
}

/// A token from the coordinator of `target`, if it has never created one.
pub fn first(target: &Target) -> Result<Option<String>> {
    if !all(target)?.is_empty() {
        return Ok(None);
    }
    match target.ask(&Request::NewToken { lifetime_s: LIFETIME_S })? {
        Event::Token { token, .. } => Ok(Some(token)),
        event => Err(unexpected(&event)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_listed_with_what_is_known_of_it() {
        let (state, hosts) = (TokenState::Revoked, vec!["b".into(), "c".into()]);
        let token = Token { id: 3, made_ms: None, expires_ms: 0, state, hosts };
        assert_eq!(row(&token), ["3", "-", "1970-01-01 00:00:00.000", "revoked", "b, c"]);
        let token = Token { made_ms: Some(1000), hosts: vec![], ..token };
        assert_eq!(row(&token), ["3", "1970-01-01 00:00:01.000", "1970-01-01 00:00:00.000", "revoked", "-"]);
    }
}
