//! Options of `transhume run` that say which host suits the instance.

use std::collections::BTreeMap;

use api::Demand;
use clap::Args;

use crate::WRONG_USAGE;
use crate::cli::words;
use crate::failure::{Failure, Result};

/// The heading of these options, and of those that are also limits of containers.
pub const PLACEMENT: &str = "Placement options";

/// Where an instance may be, and what it demands there.
#[derive(Args)]
#[command(next_help_heading = PLACEMENT)]
pub struct PlacementOptions {
    /// Never shares a host with instances that have the same value of this label
    #[arg(long, value_name = "NAME")]
    pub anti_affinity: Vec<String>,
    /// Shares its host with all instances that have the same value of this label
    #[arg(long, value_name = "NAME")]
    pub affinity: Vec<String>,
    /// Stays on its host, or on HOST: `transhume plan` moves it nowhere (`transhume move` and `transhume drain` do)
    #[arg(long, value_name = "HOST", num_args = 0..=1, require_equals = true)]
    pin: Option<Option<String>>,
    /// Exchanges at least RATE bytes a second with the instance NAME, such as 50M
    #[arg(long, value_name = "NAME=RATE", value_parser = words::rate_to)]
    bandwidth_to: Vec<(String, u64)>,
    /// Is at most TIME away from the instance NAME, such as 200us; only one host for both is known to satisfy this
    #[arg(long, value_name = "NAME=TIME", value_parser = words::time_to)]
    latency_to: Vec<(String, u64)>,
}

impl PlacementOptions {
    /// Whether the instance is pinned.
    pub fn is_pinned(&self) -> bool {
        self.pin.is_some()
    }

    /// The host of the instance: `named`, or the one to which it is pinned.
    pub fn host(&self, named: Option<String>) -> Result<Option<String>> {
        let pinned = self.pin.clone().flatten();
        match (named, pinned) {
            (Some(named), Some(pinned)) if named != pinned => {
                let what = format!("`--host {named}` and `--pin={pinned}` contradict each other");
                Err(Failure::new(what, "name one host").with_code(WRONG_USAGE))
            }
            (named, pinned) => Ok(named.or(pinned)),
        }
    }

    /// What it demands, with processors and memory.
    pub fn demand(&self, cpus: Option<f64>, memory: Option<u64>) -> Result<Demand> {
        Ok(Demand {
            cpu_milli: cpus.map(|cpus| (cpus * 1000.0).round() as u64),
            memory_bytes: memory,
            bandwidth_to: by_name("--bandwidth-to", &self.bandwidth_to)?,
            latency_to_us: by_name("--latency-to", &self.latency_to)?,
        })
    }
}

fn by_name(option: &str, given: &[(String, u64)]) -> Result<BTreeMap<String, u64>> {
    let mut amounts = BTreeMap::new();
    for (name, amount) in given {
        if amounts.insert(name.clone(), *amount).is_some_and(|before| before != *amount) {
            let what = format!("`{option}` gives `{name}` two values");
            return Err(Failure::new(what, "pass one value for it").with_code(WRONG_USAGE));
        }
    }
    Ok(amounts)
}
