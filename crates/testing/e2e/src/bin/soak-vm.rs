//! `make soak-vm`: the kill matrix of virtual machines with a row for each cell, and services through many moves.
//!
//! `soak-vm [matrix|services|all] [WORD…]` runs the cells whose row has all words, such as `local 'commit|resume'`.

use std::env;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, bail, ensure};
use e2e::kill_matrix::rig::{Rig, Storage};
use e2e::kill_matrix::{Moment, Victim, cell};
use e2e::vm_services::Debian;

/// The moves that services outlast.
const MOVES: usize = 20;

/// How long services work, in seconds. The moves take less.
const SECONDS: u64 = 240;

fn main() -> ExitCode {
    let _shared = e2e::shared();
    let words: Vec<String> = env::args().skip(1).collect();
    let (part, words) = words.split_first().map_or(("all", &[][..]), |(part, words)| (part.as_str(), words));
    let done = match part {
        "matrix" => matrix(words),
        "services" => services(),
        "all" => matrix(words).and_then(|()| services()),
        other => Err(anyhow::anyhow!("`{other}` is no part: give `matrix`, `services` or `all`")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn matrix(words: &[String]) -> Result<()> {
    let (mut cells, mut failed, began) = (0, 0, Instant::now());
    println!("{:8} {:11} {:17} {:26} {:>6}", "disk", "phase", "victim", "result", "time");
    for storage in [Storage::Shared, Storage::Local] {
        let mut rig = None;
        for (moment, victim) in Moment::ALL.iter().flat_map(|at| Victim::ALL.map(|victim| (*at, victim))) {
            let row = format!("{storage:8} {moment:11} {victim:17}");
            if !words.iter().all(|word| word.split('|').any(|either| row.contains(either))) {
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
    ensure!(cells > 0, "no row has all of: {words:?}");
    if failed > 0 { bail!("{failed} of {cells} cells failed") } else { Ok(()) }
}

fn services() -> Result<()> {
    let began = Instant::now();
    let debian = Debian::boot()?;
    println!("a shell answers after {:.0} s", began.elapsed().as_secs_f64());
    let (mut works, mut check) = debian.work(SECONDS)?;
    println!("all work after {:.0} s", began.elapsed().as_secs_f64());
    let began = Instant::now();
    let blackouts = debian.travel(MOVES, &mut works, &mut check)?;
    println!("{MOVES} moves in {:.0} s; blackouts in ms: {blackouts:?}", began.elapsed().as_secs_f64());
    debian.end_check(check)?;
    println!("{:24} ok", "verbs-check, 16 QPs");
    // The others serve until then.
    let (ending, _serving): (Vec<_>, Vec<_>) = works.into_iter().partition(|work| work.ends);
    for work in ending {
        let name = work.name;
        let ended = Debian::end(work)?;
        println!("{name:24} ok  {}", ended.lines.last().map_or("", String::as_str));
    }
    Ok(())
}
