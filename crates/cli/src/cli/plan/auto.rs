//! `transhume plan --auto`

use std::process::ExitCode;

use api::{Aim, AutoGoal, AutoRequest, AutoSettings, AutoState, AutoStatus, Event, Request};
use clap::{Args, ValueEnum, value_parser};

use crate::cli::target::Target;
use crate::cli::words;
use crate::failure::{Failure, Result, unexpected};
use crate::figures::rate;
use crate::output;

/// The heading of these options in the help.
const HEADING: &str = "The coordinator plans by itself";

#[derive(Clone, Copy, ValueEnum)]
enum Order {
    /// Starts, with the goal, --parallel and --horizon of this command
    On,
    /// Ends; moves that are under way are completed
    Off,
    /// Shows what it does, and why it does not do more
    Status,
}

#[derive(Args, Clone)]
pub struct Auto {
    /// Lets the coordinator plan by itself, for the goals `traffic` and `balance`
    #[arg(long, value_name = "ORDER", conflicts_with_all = ["max_moves", "keep", "explain"], help_heading = HEADING)]
    auto: Option<Order>,
    /// The number of moves in an hour
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = value_parser!(u32).range(1..), requires = "auto", help_heading = HEADING)]
    budget: u32,
    /// How long a load must last before anything moves
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = words::seconds, requires = "auto", help_heading = HEADING)]
    hold: u64,
    /// How long an instance that has moved stays
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = words::seconds, requires = "auto", help_heading = HEADING)]
    cool_down: u64,
}

impl Auto {
    pub fn is_given(&self) -> bool {
        self.auto.is_some()
    }

    pub fn run(&self, options: &super::Options, target: &Target) -> Result<ExitCode> {
        let request = match self.auto {
            Some(Order::On) => AutoRequest::On(self.settings(options)?),
            Some(Order::Off) => AutoRequest::Off,
            Some(Order::Status) | None => AutoRequest::Status,
        };
        let status = match target.ask(&Request::Auto(request))? {
            Event::Auto(status) => status,
            event => return Err(unexpected(&event)),
        };
        match options.json {
            true => output::json(&status)?,
            false => output::write(text(&status))?,
        }
        Ok(ExitCode::SUCCESS)
    }

    fn settings(&self, options: &super::Options) -> Result<AutoSettings> {
        let goal = match options.goal {
            Aim::Traffic => AutoGoal::Traffic,
            Aim::Balance => AutoGoal::Balance,
            Aim::Consolidate | Aim::Evacuate(_) => {
                let help = "use `--goal traffic` or `--goal balance`, and `transhume drain` to empty a host";
                return Err(Failure::new("`plan --auto` has no such goal", help));
            }
        };
        Ok(AutoSettings {
            goal,
            budget: self.budget,
            parallel: options.parallel,
            hold_s: self.hold,
            cool_down_s: self.cool_down,
            horizon_s: options.horizon,
        })
    }
}

fn text(status: &AutoStatus) -> String {
    let AutoStatus { state, settings, why, causes, moves_in_hour, effect, misses } = status;
    let state = match state {
        AutoState::Off => "off",
        AutoState::On => "on",
        AutoState::Stopped => "stopped; `transhume plan --auto on` starts it again",
    };
    let mut text = format!("State:   {state}\nNow:     {why}\n");
    for cause in causes {
        text += &format!("Load:    {cause}\n");
    }
    if let Some(settings) = settings {
        text += &format!("Bounds:  {}\n", bounds(settings, *moves_in_hour));
    }
    if let Some(effect) = effect {
        let (measured, predicted) = (rate(effect.measured), rate(effect.predicted));
        text += &format!(
            "Effect:  the last plan has gained {measured} of {predicted}, {misses} of 3 misses in a row\n"
        );
    }
    text
}

fn bounds(settings: &AutoSettings, moves: u32) -> String {
    let AutoSettings { goal, budget, parallel, hold_s, cool_down_s, .. } = settings;
    let goal = match goal {
        AutoGoal::Traffic => "traffic",
        AutoGoal::Balance => "balance",
    };
    let (hold, cool_down) = (api::in_words(*hold_s), api::in_words(*cool_down_s));
    format!(
        "goal {goal}, {moves} of {budget} moves in this hour, {parallel} at a time, hold time {hold}, cool-down {cool_down}"
    )
}

#[cfg(test)]
mod tests {
    use api::AutoEffect;

    use super::*;

    #[test]
    fn the_state_names_its_reason_its_bounds_and_the_last_effect() {
        let settings = AutoSettings {
            goal: AutoGoal::Balance,
            budget: 20,
            parallel: 4,
            hold_s: 300,
            cool_down_s: 3600,
            horizon_s: 600,
        };
        let status = AutoStatus {
            state: AutoState::Stopped,
            settings: Some(settings),
            why: "it has stopped itself".into(),
            causes: vec!["h1 uses 95.0 % of its processors".into()],
            moves_in_hour: 3,
            effect: Some(AutoEffect { predicted: 4 << 20, measured: 1 << 20 }),
            misses: 3,
        };
        let shown = text(&status);
        for part in [
            "stopped; `transhume plan --auto on`",
            "h1 uses 95.0 %",
            "goal balance, 3 of 20 moves in this hour, 4 at a time, hold time 5 min",
            "gained 1.0 MiB/s of 4.0 MiB/s, 3 of 3 misses",
        ] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
    }
}
