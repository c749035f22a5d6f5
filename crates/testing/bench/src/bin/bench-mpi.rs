//! `make bench-mpi`: HPC Challenge on four containers over RDMA, with and without moves. Its own checks must pass.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use api::{MoveReport, Outcome};
use bench::report::{self, Row};
use clap::Parser;
use e2e::hpcc;
use e2e::job::{GROUP, Job};
use e2e::program::Program;
use e2e::testlab::TestLab;
use serde_json::Value;

/// Time limit of a run.
const LIMIT: Duration = Duration::from_secs(600);

/// Measures how much longer HPC Challenge takes per move of its containers, and the blackouts.
#[derive(Parser)]
struct Options {
    /// Number of moves of one container in a run
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    moves: u16,
    /// The size of the largest matrix
    #[arg(long, default_value_t = 800, value_parser = clap::value_parser!(u32).range(100..=20_000))]
    size: u32,
}

/// The disturbance of a run.
#[derive(Clone, Copy)]
enum Disturbance {
    Nothing,
    /// One container moves this many times.
    Moves(u16),
    /// Two containers move together, and back.
    Group,
    /// A host is drained and undrained.
    Drain,
}

/// The result of a run.
struct Run {
    seconds: f64,
    /// Blackouts of the instances that moved, in milliseconds.
    blackouts: Vec<f64>,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let undisturbed = run(Disturbance::Nothing, options.size)?;
    let mut rows = vec![Row::alone("HPCC, undisturbed".into(), &[undisturbed.seconds], "s")];
    let disturbances = [
        ("one container moved", Disturbance::Moves(options.moves)),
        ("two moved together, and back", Disturbance::Group),
        ("a host drained", Disturbance::Drain),
    ];
    for (name, disturbance) in disturbances {
        let run = run(disturbance, options.size).with_context(|| name.to_owned())?;
        let moves = run.blackouts.len();
        let extra_ms = (run.seconds - undisturbed.seconds) * 1000.0 / moves as f64;
        rows.push(Row::alone(format!("HPCC, {name}"), &[run.seconds], "s"));
        rows.push(Row::alone(format!("extra per move, {moves} moves, {name}"), &[extra_ms], "ms"));
        rows.push(Row::alone(format!("blackout, {name}"), &run.blackouts, "ms"));
    }
    rows.iter().for_each(|row| println!("{}", row.in_words()));
    report::print("mpi", &rows)?;
    Ok(())
}

/// One run in its own lab. Its results must pass the checks of HPC Challenge.
fn run(disturbance: Disturbance, size: u32) -> Result<Run> {
    let lab = TestLab::up(3)?;
    let job = Job::start(&lab, &["h1", "h1", "h2", "h2"])?;
    fs::write(job.folder().join(hpcc::INPUT), hpcc::input(size))?;
    let begin = Instant::now();
    let mut running = Program::start(&mut job.mpirun(&lab, &["hpcc"]))?;
    lab.eventually("HPC Challenge runs", || {
        Ok(lab.transhume(&["exec", "rank4", "--", "pgrep", "-x", "hpcc"])?.status.success())
    })?;
    let blackouts = disturb(&lab, disturbance)?;
    ensure!(running.is_running()?, "HPC Challenge ended before all moves were made: use a larger `--size`");
    running.end(LIMIT)?.success()?;
    let seconds = begin.elapsed().as_secs_f64();
    hpcc::check(&fs::read_to_string(job.folder().join(hpcc::OUTPUT))?)?;
    Ok(Run { seconds, blackouts })
}

fn disturb(lab: &TestLab, disturbance: Disturbance) -> Result<Vec<f64>> {
    let told = |arguments: &[&str]| -> Result<Value> {
        let ended = lab.transhume(&[arguments, &["--json"]].concat())?.success()?;
        Ok(serde_json::from_str(&ended.lines.concat())?)
    };
    let moved = |reports: Value| serde_json::from_value::<Vec<MoveReport>>(reports);
    let reports = match disturbance {
        Disturbance::Nothing => Vec::new(),
        Disturbance::Moves(count) => {
            let hosts = ["h3", "h1"].into_iter().cycle().take(count.into());
            hosts.map(|host| lab.move_to("rank1", host)).collect::<Result<_>>()?
        }
        Disturbance::Group => {
            let mut reports = moved(told(&["move", "--group", GROUP, "h1,h3"])?)?;
            reports.extend(moved(told(&["move", "--group", GROUP, "h1,h2"])?)?);
            reports
        }
        Disturbance::Drain => {
            let drained = told(&["drain", "h1"])?;
            lab.transhume(&["undrain", "h1"])?.success()?;
            moved(drained["moves"].clone())?
        }
    };
    ensure!(reports.iter().all(|report| report.outcome == Outcome::Moved), "{reports:?}");
    Ok(reports.iter().map(|report| report.blackout_us as f64 / 1000.0).collect())
}
