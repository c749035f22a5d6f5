//! The kill matrix of virtual machines, for `make soak-vm`: prints a row for each cell.

use std::env;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, bail};
use e2e::kill_matrix::rig::{Rig, Storage};
use e2e::kill_matrix::{Moment, Victim, cell};

fn main() -> ExitCode {
    let _shared = e2e::shared();
    match matrix() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs all cells whose row contains all words of the command line.
fn matrix() -> Result<()> {
    let words: Vec<String> = env::args().skip(1).collect();
    let (mut cells, mut failed, began) = (0, 0, Instant::now());
    println!("{:8} {:11} {:17} {:26} {:>6}", "disk", "phase", "victim", "result", "time");
    for storage in [Storage::Shared, Storage::Local] {
        let mut rig = None;
        for (moment, victim) in Moment::ALL.iter().flat_map(|at| Victim::ALL.map(|victim| (*at, victim))) {
            let row = format!("{storage:8} {moment:11} {victim:17}");
            if !words.iter().all(|word| row.contains(word.as_str())) {
                continue;
            }
            let began = Instant::now();
            let left = rig.take().map_or_else(|| Rig::begin(storage), Ok).and_then(|mut fresh| {
                let left = cell(&mut fresh, victim, moment)?;
                rig = Some(fresh);
                Ok(left)
            });
            let result = left.as_ref().map_or_else(|_| "FAILED".to_owned(), ToString::to_string);
            println!("{row} {result:26} {:4.1} s", began.elapsed().as_secs_f64());
            if let Err(error) = left {
                println!("{error:#}");
                failed += 1;
            }
            cells += 1;
        }
    }
    println!("{cells} cells, {failed} failed, in {:.0} s", began.elapsed().as_secs_f64());
    if failed > 0 { bail!("{failed} of {cells} cells failed") } else { Ok(()) }
}
