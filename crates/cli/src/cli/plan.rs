//! `transhume plan`

mod apply;
mod auto;
mod render;

use std::process::ExitCode;

use api::{Aim, Event, ImproveRequest, Improvement, MAX_PARALLEL, Request};
use clap::{Args, Subcommand, value_parser};

use super::target::Target;
use super::words;
use crate::failure::{Result, unexpected};
use crate::output;

const EXAMPLES: &str = "Examples:
  transhume plan
  transhume plan --goal traffic --explain
  transhume plan --goal evacuate=h3
  transhume plan --goal consolidate --max-moves 5 --json | jq '.waves[][].name'
  transhume plan apply --goal balance
  transhume plan --auto on --budget 10 --hold 10m
  transhume plan --auto status";

const JSON: &str = "JSON output:
  Standard output gets one object: `before` and `after` with the figures of the placement (`traffic` in bytes a
  second between hosts, `overload_milli` and `spread_permille` of processors, `hosts` in use), `waves` (lists of
  moves with `name`, `from`, `to`, `copied_bytes`, the figures `after` and `is_detour`), `stay` (`name` and
  `why`), and `unjudged` (the same, for demands of latency between hosts whose latency is not known). With `apply` it gets one such object for each plan that it carries out, and at the end one with `moved`,
  `failed` (`name` and `why`) and `given_up`. With `--auto` it gets the state of the loop: `state` (`off`, `on` or
  `stopped`), `why`, `causes`, `settings`, `moves_in_hour`, `misses` and `effect` (`predicted`, `measured`).";

/// Says which moves would place the running instances better
///
/// A move is planned only if it pays for itself within --horizon: the traffic between hosts that it saves, or the overload that it ends,
/// must outweigh the bytes that it copies. The moves are in waves. Each instant of a wave has room for all instances, and keeps apart what
/// must be apart. Without `apply` or `--auto on`, nothing moves.
///
/// `--auto on` lets the coordinator plan by itself: it acts on loads that last for --hold, moves no instance again within --cool-down
/// and none back within an hour, and makes at most --budget moves in an hour. It measures what its moves have gained. If three plans
/// in a row gain less than half of what was predicted, it stops itself.
#[derive(Args)]
#[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{JSON}"), args_conflicts_with_subcommands = true)]
pub struct Arguments {
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    auto: auto::Auto,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Carries out the plan
    ///
    /// The coordinator carries it out. If a move fails, its instance stays, and the moves that are left are planned anew. If the coordinator
    /// restarts, it goes on, and the command waits for it. After Ctrl-C the moves go on; `transhume plan cancel` ends them.
    #[command(after_help = "Example:\n  transhume plan apply --goal traffic --max-moves 4")]
    Apply(Options),
    /// Begins no more moves of the plan that is being carried out
    ///
    /// Moves that are under way are completed.
    #[command(after_help = "Example:\n  transhume plan cancel")]
    Cancel,
}

#[derive(Args, Clone)]
struct Options {
    /// What is better: `balance`, `traffic`, `consolidate` or `evacuate=HOST`
    #[arg(long, value_name = "GOAL", default_value = "traffic", value_parser = aim)]
    goal: Aim,
    /// The number of moves [default: as many as pay]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    max_moves: Option<u32>,
    /// Number of moves at a time: 1 to 32
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = value_parser!(u16).range(1..=i64::from(MAX_PARALLEL)))]
    parallel: u16,
    /// The time within which a move must pay for itself
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = words::seconds)]
    horizon: u64,
    /// Instances that stay where they are, separated by commas
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    keep: Vec<String>,
    /// Also shows why instances stay
    #[arg(long)]
    explain: bool,
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

impl Arguments {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        match self.command {
            Some(Command::Apply(options)) => apply::run(&options, target),
            Some(Command::Cancel) => apply::cancel(target),
            None if self.auto.is_given() => self.auto.run(&self.options, target),
            None => {
                self.options.show(&self.options.find(target)?)?;
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

impl Options {
    fn request(&self) -> ImproveRequest {
        ImproveRequest {
            aim: self.goal.clone(),
            max_moves: self.max_moves,
            parallel: self.parallel,
            horizon_s: self.horizon,
            stay: self.keep.clone(),
        }
    }

    fn find(&self, target: &Target) -> Result<Improvement> {
        match target.ask_lasting(&Request::Improve(self.request()), "to plan again")? {
            Event::Improvement(improvement) => Ok(improvement),
            event => Err(unexpected(&event)),
        }
    }

    fn show(&self, improvement: &Improvement) -> Result<()> {
        if self.json {
            output::json(improvement)
        } else {
            output::write(render::text(improvement, self.horizon, self.explain))
        }
    }
}

fn aim(text: &str) -> std::result::Result<Aim, String> {
    match text.split_once('=') {
        Some(("evacuate", host)) => words::host(host).map(Aim::Evacuate),
        None if text == "balance" => Ok(Aim::Balance),
        None if text == "traffic" => Ok(Aim::Traffic),
        None if text == "consolidate" => Ok(Aim::Consolidate),
        _ => Err("use balance, traffic, consolidate or evacuate=HOST".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_are_words_and_one_names_a_host() {
        assert_eq!(aim("balance"), Ok(Aim::Balance));
        assert_eq!(aim("evacuate=h3"), Ok(Aim::Evacuate("h3".into())));
        for wrong in ["evacuate", "evacuate=", "balance=h1", "speed"] {
            assert!(aim(wrong).is_err(), "{wrong}");
        }
    }
}
