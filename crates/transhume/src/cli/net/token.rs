//! `transhume net token`

use std::process::ExitCode;

use api::{Event, Request};
use clap::Args;

use crate::cli::target::{Target, unexpected};
use crate::failure::Result;
use crate::output;

/// For how many seconds a token is good, if nothing else is said.
pub const LIFETIME_S: u64 = 24 * 60 * 60;

/// Prints a token with which machines can join an overlay that `transhume net up` has made
///
/// Whoever has the token can join until it expires. It is for the machine on which `transhume net up` was run first.
#[derive(Args)]
#[command(after_help = "Examples:\n  transhume net token\n  transhume net token --lifetime 15m")]
pub struct Arguments {
    /// How long machines can join with it: a number with `s`, `m`, `h` or `d`
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = seconds)]
    lifetime: u64,
    /// Writes JSON
    #[arg(long)]
    json: bool,
}

impl Arguments {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        let event = target.ask(&Request::NewToken { lifetime_s: self.lifetime })?;
        match &event {
            Event::Token { .. } if self.json => output::json(&event)?,
            Event::Token { token, .. } => output::line(token)?,
            _ => return Err(unexpected(&event)),
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// A new token, from the coordinator of `target`.
pub fn ask(target: &Target) -> Result<String> {
    match target.ask(&Request::NewToken { lifetime_s: LIFETIME_S })? {
        Event::Token { token, .. } => Ok(token),
        event => Err(unexpected(&event)),
    }
}

fn seconds(text: &str) -> std::result::Result<u64, String> {
    let unit = |letter| match letter {
        's' => Some(1),
        'm' => Some(60),
        'h' => Some(60 * 60),
        'd' => Some(24 * 60 * 60),
        _ => None,
    };
    let mut rest = text.chars();
    let found = rest.next_back().and_then(unit).zip(rest.as_str().parse::<u64>().ok());
    let found = found.and_then(|(unit, number)| number.checked_mul(unit));
    found.ok_or_else(|| "a time is needed, as 90s, 15m, 24h or 7d".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_a_unit() {
        let times = [("0s", 0), ("90s", 90), ("15m", 900), ("24h", LIFETIME_S), ("7d", 604_800)];
        for (text, expected) in times {
            assert_eq!(seconds(text), Ok(expected));
        }
        for wrong in ["", "s", "24", "-1h", "1.5h", "h24", "18446744073709551615d", "1ä"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
