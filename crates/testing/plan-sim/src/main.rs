//! `make sim-plan`: days of a large cluster under the controller, with a line of JSON for each load.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use controller::Settings;
use plan_sim::cluster::Cluster;
use plan_sim::pattern::Pattern;
use plan_sim::report::Tally;
use plan_sim::trace::Trace;
use plan_sim::world::World;
use serde::Serialize;

/// Simulates a large cluster in virtual time, and checks each move.
///
/// The planner, the controller and the coordinator's state machine of moves are the real ones. Prints a line of JSON for each load, and
/// fails if a move has broken a rule.
#[derive(Parser)]
struct Options {
    /// Number of hosts
    #[arg(long, default_value_t = 1000)]
    hosts: usize,
    /// Number of instances
    #[arg(long, default_value_t = 10_000)]
    instances: usize,
    /// Simulated hours
    #[arg(long, default_value_t = 30)]
    hours: u64,
    /// The loads: steady, oscillating, bursty, recorded, and a drain of a tenth of the hosts
    #[arg(long, value_delimiter = ',', default_value = "steady,oscillating,bursty,recorded,drain")]
    loads: Vec<String>,
    /// A recorded load as CSV: `seconds,kind,of,value`, where the kind is `cpu` (thousandths of a processor) or `traffic` (bytes a
    /// second), and the number counts instances or flows [default: a generated one]
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Writes the generated trace to this file
    #[arg(long, value_name = "FILE")]
    write_trace: Option<PathBuf>,
    /// Planned moves in an hour
    #[arg(long, default_value_t = 2000)]
    budget: u32,
    /// Moves and drains at the same time
    #[arg(long, default_value_t = 32)]
    at_once: u16,
    /// The planner's steps in each search
    #[arg(long, default_value_t = 2_000_000)]
    steps: u64,
    /// Seed of the cluster
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Serialize)]
struct Row<'a> {
    load: &'a str,
    hosts: usize,
    instances: usize,
    hours: u64,
    seconds: f64,
    converged_after_h: f64,
    /// Planned moves of each instance in a day.
    churn_a_day: f64,
    broken_rules: usize,
    #[serde(flatten)]
    tally: &'a Tally,
}

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    let mut is_good = true;
    for load in &options.loads {
        is_good &= options.simulate(load)?;
    }
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Options {
    fn simulate(&self, load: &str) -> Result<bool> {
        let cluster = Cluster::generate(self.hosts, self.instances, self.seed)?;
        let pattern = self.pattern(load, &cluster)?;
        let settings = Settings {
            budget: self.budget,
            at_once: self.at_once,
            // Shorter than the hour in which no instance moves back, so that each rule counts for itself.
            cool_down: Duration::from_secs(1800),
            ..Settings::default()
        };
        let (mut world, began) = (World::new(cluster, pattern, settings, self.steps), Instant::now());
        if load == "drain" {
            world.ask_to_leave(self.hosts / 10);
        }
        world.run(Duration::from_secs(3600 * self.hours))?;
        let tally = &world.tally;
        let row = Row {
            load,
            hosts: self.hosts,
            instances: self.instances,
            hours: self.hours,
            seconds: began.elapsed().as_secs_f64(),
            converged_after_h: tally.converged_after_h(),
            churn_a_day: tally.moves as f64 / self.instances as f64 * 24.0 / self.hours as f64,
            broken_rules: world.broken().len(),
            tally,
        };
        println!("{}", serde_json::to_string(&row)?);
        world.broken().iter().take(10).for_each(|broken| eprintln!("{load}: {broken}"));
        let is_emptied = load != "drain" || world.leaving() == 0;
        if !is_emptied {
            eprintln!("{load}: {} hosts are not empty", world.leaving());
        }
        Ok(world.broken().is_empty() && is_emptied)
    }

    fn pattern(&self, load: &str, cluster: &Cluster) -> Result<Pattern> {
        Ok(match load {
            "steady" | "drain" => Pattern::Steady,
            "oscillating" => Pattern::Oscillating,
            "bursty" => Pattern::Bursty,
            "recorded" => Pattern::Recorded(Box::new(self.trace(cluster)?)),
            _ => bail!("the load {load:?} is unknown: use steady, oscillating, bursty, recorded or drain"),
        })
    }

    fn trace(&self, cluster: &Cluster) -> Result<Trace> {
        let text = match &self.trace {
            Some(file) => {
                fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?
            }
            None => Trace::example(cluster, self.hours, self.seed),
        };
        if let Some(file) = &self.write_trace {
            fs::write(file, &text).with_context(|| format!("cannot write {}", file.display()))?;
        }
        Trace::parse(&text, cluster)
    }
}
