//! Runs the simulator for a given time: `soak SECONDS [FIRST_SEED]`; or checks every
//! order of messages in cases that are too slow for the tests: `soak exhaustive` (minutes).

use std::env;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use moves::sim::exhaustive::{Faults, explore};
use moves::sim::{Sabotage, Tally, run_group, run_seed};

const USAGE: &str = "usage: soak SECONDS [FIRST_SEED], both whole numbers, or: soak exhaustive";

fn main() -> ExitCode {
    if env::args().skip(1).eq(["exhaustive"]) {
        return exhaustive();
    }
    let numbers: Option<Vec<u64>> = env::args().skip(1).map(|text| text.parse().ok()).collect();
    match numbers.as_deref() {
        Some([seconds]) => soak(Duration::from_secs(*seconds), fresh_seed()),
        Some([seconds, first]) => soak(Duration::from_secs(*seconds), *first),
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn exhaustive() -> ExitCode {
    let cases = [
        Faults { crashes: 2, losses: 1, repeats: 1, ..Faults::default() },
        Faults { crashes: 2, moves: 1, ..Faults::default() },
        Faults { crashes: 1, losses: 1, moves: 1, ..Faults::default() },
    ];
    for faults in cases {
        match explore(faults, Sabotage::None) {
            Ok(explored) => println!("{faults:?}: {explored:?}"),
            Err(violation) => {
                eprintln!("{faults:?}: {violation}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

fn soak(time: Duration, first: u64) -> ExitCode {
    let began = Instant::now();
    let mut total = Tally::default();
    let mut seed = first;
    while began.elapsed() < time {
        // A large group takes as long as some hundred other runs.
        let run = if seed.is_multiple_of(256) { run_group } else { run_seed };
        match run(seed, Sabotage::None, false).or_else(|_| run(seed, Sabotage::None, true)) {
            Ok(tally) => total += tally,
            Err(failure) => {
                eprintln!("{failure}");
                return ExitCode::FAILURE;
            }
        }
        seed = seed.wrapping_add(1);
    }
    println!("{} seeds from {first} on, nothing violated: {total:?}", seed.wrapping_sub(first));
    ExitCode::SUCCESS
}

/// Seeds that no earlier run has used.
fn fresh_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.as_secs() << 20
}
