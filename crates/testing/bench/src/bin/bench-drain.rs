//! `make bench-drain`: blackouts of drains and group moves, compared with moves of single instances.

use std::time::Duration;

use anyhow::{Result, ensure};
use api::{MoveReport, Outcome};
use bench::report::{self, Row, quantile};
use clap::Parser;
use e2e::job::{GROUP, Job, agree_again};
use e2e::program::Program;
use e2e::testlab::TestLab;
use serde_json::Value;

/// Time limit for the ranks to finish.
const LIMIT: Duration = Duration::from_secs(120);

/// Measures the blackouts of drains and groups, and of single moves of the same instances in the same lab.
#[derive(Parser)]
struct Options {
    /// Number of single moves to compare with
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    moves: u16,
    /// Number of containers in a drain
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=128))]
    containers: u16,
    /// Number of ranks of an MPI job, each connected to all others
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(2..=32))]
    ranks: u16,
    /// Number of containers in a group
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=128))]
    group: u16,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let mut rows = containers_drained(options.containers, options.moves)?;
    rows.extend(ranks_drained(options.ranks, options.moves)?);
    rows.extend(containers_grouped(options.group, options.moves)?);
    report::print("drain", &rows)?;
    Ok(())
}

/// Small containers that leave h1 by a drain with one move at a time, and by another with four.
fn containers_drained(count: u16, moves: u16) -> Result<Vec<Row>> {
    let lab = TestLab::up(3)?;
    start(&lab, count)?;
    let single = moves_of(&lab, "c1", moves)?;
    let drained = drain(&lab, "1", count)?;
    lab.transhume(&["undrain", "h1"])?.success()?;
    told(&lab, &["move", "--group", GROUP, "h1"])?;
    let four_at_a_time = drain(&lab, "4", count)?;
    Ok([
        compared(&format!("a drain of {count} containers"), &drained, &single),
        compared(&format!("a drain of {count} containers, four at a time"), &four_at_a_time, &single),
    ]
    .concat())
}

/// Ranks of an MPI job that leave h1 by a drain, and return and leave as a group.
fn ranks_drained(count: u16, moves: u16) -> Result<Vec<Row>> {
    let lab = TestLab::up(3)?;
    let job = Job::start(&lab, &vec!["h1"; count.into()])?;
    let mut ranks = Program::start(&mut job.checks(&lab))?;
    agree_again(&lab, &mut ranks)?;
    let single = moves_of(&lab, "rank1", moves)?;
    agree_again(&lab, &mut ranks)?;
    let drained = drain(&lab, "1", count)?;
    agree_again(&lab, &mut ranks)?;
    lab.transhume(&["undrain", "h1"])?.success()?;
    let grouped = group(&lab, "h1", count)?;
    agree_again(&lab, &mut ranks)?;
    job.enough()?;
    ranks.end(LIMIT)?.success()?;
    Ok([
        compared(&format!("a drain of {count} connected ranks"), &drained, &single),
        compared(&format!("a group of {count} connected ranks"), &grouped, &single),
    ]
    .concat())
}

/// Small containers that move from one host to two.
fn containers_grouped(count: u16, moves: u16) -> Result<Vec<Row>> {
    let lab = TestLab::up(3)?;
    start(&lab, count)?;
    let single = moves_of(&lab, "c1", moves)?;
    let grouped = group(&lab, "h2,h3", count)?;
    Ok(compared(&format!("a group of {count} containers"), &grouped, &single))
}

/// Starts this many containers on h1.
fn start(lab: &TestLab, count: u16) -> Result<()> {
    (1..=count).try_for_each(|number| {
        let name = format!("c{number}");
        let run = ["run", "--name", &name, "--group", GROUP, "--host", "h1", "--rootfs", "/", "--detach"];
        lab.transhume(&[&run[..], &["--", "sleep", "infinity"]].concat())?.success().map(drop)
    })
}

/// The blackouts of an instance that moves between h1 and h2, in milliseconds.
fn moves_of(lab: &TestLab, name: &str, moves: u16) -> Result<Vec<f64>> {
    let there_and_back = ["h2", "h1"].into_iter().cycle().take(2 * usize::from(moves).div_ceil(2));
    there_and_back.map(|host| lab.move_to(name, host).map(|report| blackout(&report))).collect()
}

/// Drains h1; returns the blackouts of its instances, which must be `count`.
fn drain(lab: &TestLab, parallel: &str, count: u16) -> Result<Vec<f64>> {
    let mut report = told(lab, &["drain", "h1", "--parallel", parallel])?;
    blackouts(report["moves"].take(), count)
}

/// Moves the group; returns the blackouts of the members that moved, which must be `count`.
fn group(lab: &TestLab, to: &str, count: u16) -> Result<Vec<f64>> {
    blackouts(told(lab, &["move", "--group", GROUP, to])?, count)
}

fn told(lab: &TestLab, arguments: &[&str]) -> Result<Value> {
    let ended = lab.transhume(&[arguments, &["--json"]].concat())?.success()?;
    Ok(serde_json::from_str(&ended.lines.concat())?)
}

fn blackouts(reports: Value, count: u16) -> Result<Vec<f64>> {
    let reports: Vec<MoveReport> = serde_json::from_value(reports)?;
    let all_moved = reports.iter().all(|report| report.outcome == Outcome::Moved);
    ensure!(
        all_moved && reports.len() == usize::from(count),
        "not all {count} instances have moved: {reports:?}"
    );
    Ok(reports.iter().map(blackout).collect())
}

fn blackout(report: &MoveReport) -> f64 {
    report.blackout_us as f64 / 1000.0
}

/// The median and the longest blackout compared with those of single moves; also printed.
fn compared(what: &str, ours: &[f64], single: &[f64]) -> Vec<Row> {
    let longest = [quantile(ours, 1.0)];
    let row = |of, ours| Row::compared(format!("{of}, {what}"), ours, ("single move", single), "ms");
    let rows = vec![row("blackout", ours), row("longest blackout", &longest[..])];
    rows.iter().for_each(|row| println!("{}", row.in_words()));
    rows
}
