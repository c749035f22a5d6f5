//! The cost of a large device: thousands of queue pairs, a hundred thousand regions.

use std::fs;

use anyhow::{Context as _, Result};
use verbs::Policy;

use crate::inside::Exchange;
use crate::report::Row;

/// Pairs of queue pairs.
const PAIRS: usize = 2048;
const REGIONS: usize = 100_000;

/// The time of a post and its polls in a device with all of them, by one pair and by all in turn, against a device with one pair
/// and one region; and the memory of each.
///
/// # Errors
/// If the device refuses something, or the memory of this process cannot be read.
pub fn rows(runs: u16) -> Result<Vec<Row>> {
    let before = resident()?;
    let mut large = Exchange::new(Policy::Random, false)?;
    large.with_more_regions(REGIONS)?;
    let with_regions = resident()?;
    large.with_more_pairs(PAIRS - 1)?;
    let queue_pair = (resident()? - with_regions) / (2 * PAIRS - 2) as f64;
    let region = (with_regions - before) / REGIONS as f64;
    let mut small = Exchange::new(Policy::Random, false)?;
    let (mut alone, mut among, mut in_turn) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..runs {
        alone.push(small.time()?);
        large.take_turns(1);
        among.push(large.time()?);
        large.take_turns(PAIRS);
        in_turn.push(large.time()?);
    }
    let peer = ("one pair and one region", &alone[..]);
    let name = format!("post + poll, {} QPs and {REGIONS} MRs", 2 * PAIRS);
    Ok(vec![
        Row::compared(name.clone(), &among, peer, "ns"),
        Row::compared(format!("{name}, in turn"), &in_turn, peer, "ns"),
        Row::alone("memory of an idle QP".into(), &[queue_pair], "B"),
        Row::alone("memory of an MR".into(), &[region], "B"),
    ])
}

/// Bytes of memory that this process has.
fn resident() -> Result<f64> {
    let status = fs::read_to_string("/proc/self/status").context("reading /proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kibibytes: f64 = line.trim().trim_end_matches(" kB").parse().context("VmRSS is not a number")?;
    Ok(kibibytes * 1024.0)
}
