//! `make bench-plan`: the planner's search on public problems with known values, and on generated clusters.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use bench::plan::clock::{CpuTime, cpu_seconds};
use bench::plan::{cluster, feasible, qaplib, roadef};
use bench::report::{self, Row};
use clap::Parser;
use fastrand::Rng;
use solver::effort::Steps;
use solver::order::order;
use solver::problem::{Problem, Spec};
use solver::solve;

/// Measures the planner's search against the best known values of public problems, and on generated clusters.
#[derive(Parser)]
struct Options {
    /// Folder with `qaplib/NAME.dat` and the files of `roadef2012/`, plain or compressed with xz [default: generated clusters only]
    #[arg(long, value_name = "DIR")]
    instances: Option<PathBuf>,
    /// Measures only rows whose names contain this
    #[arg(long, value_name = "PATTERN", default_value = "")]
    only: String,
    /// Number of seeds of each QAPLIB problem
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// CPU seconds of each search of public problems [default: 10 for QAPLIB, 60 for ROADEF]
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<f64>,
    /// Gives each search of ROADEF 300 CPU seconds
    #[arg(long, conflicts_with = "seconds")]
    full: bool,
}

impl Options {
    fn selects(&self, name: &str) -> bool {
        name.contains(&self.only)
    }

    fn qap_seconds(&self) -> f64 {
        self.seconds.unwrap_or(10.0)
    }

    fn roadef_seconds(&self) -> f64 {
        self.seconds.unwrap_or(if self.full { 300.0 } else { 60.0 })
    }
}

fn main() -> Result<()> {
    let options = Options::parse();
    let mut rows = Vec::new();
    if let Some(folder) = &options.instances {
        rows.extend(qap_rows(&options, &folder.join("qaplib"))?);
        rows.extend(roadef_rows(&options, &folder.join("roadef2012"))?);
    }
    if options.selects("cluster seconds") {
        rows.extend(replan()?);
    }
    if options.selects("unplanned cluster saving share") {
        rows.extend(saving()?);
    }
    report::print("plan", &rows)?;
    Ok(())
}

/// A row with the value that is known. Gaps are smaller than thousandths.
fn against(name: String, ours: &[f64], known: (&str, i64)) -> Row {
    let row = Row::compared(name, ours, (known.0, &[known.1 as f64]), "cost");
    let ratio = (row.ours / known.1 as f64 * 1e6).round() / 1e6;
    let row = Row { ratio: Some(ratio), ..row };
    println!("{:<14} {:>15} known {:>15}  {:+.3} %", row.name, row.ours, known.1, (ratio - 1.0) * 100.0);
    row
}

/// Shows a row as soon as it is measured.
fn shown(row: Row) -> Row {
    println!("{}", row.in_words());
    row
}

/// The places of a placement that the solver found, which must be complete and feasible.
fn checked(spec: &Spec, places: &[Option<usize>]) -> Result<Vec<usize>> {
    let places: Option<Vec<usize>> = places.iter().copied().collect();
    let places = places.context("an item has no place")?;
    feasible::check(spec, &places)?;
    Ok(places)
}

fn qap_rows(options: &Options, folder: &Path) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (name, best) in qaplib::BEST {
        let row = format!("qap {name}");
        let path = folder.join(format!("{name}.dat"));
        if options.selects(&row) {
            let costs = qap(&path, options).with_context(|| row.clone())?;
            rows.push(against(row, &costs, ("best known", best)));
        }
    }
    Ok(rows)
}

/// The costs found with each seed.
fn qap(path: &Path, options: &Options) -> Result<Vec<f64>> {
    let assignment = qaplib::Assignment::read(path)?;
    let spec = assignment.spec()?;
    let problem = Problem::new(&spec)?;
    let search = |seed| {
        let found = solve(&problem, &mut CpuTime::new(options.qap_seconds()), seed);
        let cost = assignment.cost(&checked(&spec, &found.places)?);
        ensure!(cost == found.cost, "the placement costs {cost}, and the solver says {}", found.cost);
        Ok(cost as f64)
    };
    (1..=options.seeds).map(search).collect()
}

fn roadef_rows(options: &Options, folder: &Path) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (name, winner) in roadef::WINNER {
        let row = format!("roadef {name}");
        if options.selects(&row) {
            let spec = roadef::read(folder, name)?;
            let found = solve(&Problem::new(&spec)?, &mut CpuTime::new(options.roadef_seconds()), 1);
            checked(&spec, &found.places).with_context(|| row.clone())?;
            rows.push(against(row, &[found.cost as f64], ("winner of 2012", winner)));
        }
    }
    let ratios: Vec<f64> = rows.iter().filter_map(|row| row.ratio).collect();
    if !ratios.is_empty() {
        rows.push(shown(Row::alone("roadef median".into(), &ratios, "ratio")));
    }
    Ok(rows)
}

/// The steps of the planner's search.
const STEPS: u64 = 2_000_000;

/// The time of a plan for a large cluster after a change, and the moves of the next plan.
fn replan() -> Result<Vec<Row>> {
    const SETTLING: f64 = 60.0;
    let mut rng = Rng::with_seed(1);
    let mut spec = cluster::generate(10_000, 1_000, &mut rng)?;
    let settled = solve(&Problem::new(&spec)?, &mut CpuTime::new(SETTLING), 1);
    let settled = checked(&spec, &settled.places)?;
    cluster::settle(&mut spec, &settled);
    cluster::disturb(&mut spec, 0.01, &mut rng)?;
    let (changed, begin) = (cluster::traffic_cost(&spec, &cluster::starts(&spec)), cpu_seconds());
    let problem = Problem::new(&spec)?;
    let found = solve(&problem, &mut Steps::new(STEPS), 1);
    let order = order(&problem, &found.places, 4);
    let seconds = cpu_seconds() - begin;
    let places = checked(&spec, &found.places)?;
    let (after, moved) = (cluster::traffic_cost(&spec, &places), cluster::moved(&spec, &places));
    let saved = 100.0 * (changed - after) as f64 / changed as f64;
    cluster::settle(&mut spec, &places);
    let second = solve(&Problem::new(&spec)?, &mut Steps::new(STEPS), 1);
    let again = cluster::moved(&spec, &checked(&spec, &second.places)?);
    let row = |name: &str, value: f64, unit| shown(Row::alone(name.into(), &[value], unit));
    Ok(vec![
        row("cluster seconds", seconds, "s"),
        row("cluster moves", moved as f64, "moves"),
        row("cluster moves without an order", order.stuck.len() as f64, "items"),
        row("cluster traffic saved", saved, "%"),
        row("cluster moves of the second run", again as f64, "moves"),
    ])
}

/// The share of the reachable saving of traffic, with at most a tenth of the instances moved: in clusters that were well placed before a
/// twentieth of their instances started anew, and in clusters that were never planned.
fn saving() -> Result<Vec<Row>> {
    const CLUSTERS: u64 = 5;
    let mut rows = Vec::new();
    for (name, settles) in [("cluster", true), ("unplanned cluster", false)] {
        let found = (1..=CLUSTERS).map(|seed| saving_of(seed, settles)).collect::<Result<Vec<_>>>()?;
        let of = |part: fn(&(f64, f64)) -> f64| found.iter().map(part).collect::<Vec<_>>();
        let row = |what: &str, values: &[f64]| shown(Row::alone(format!("{name} {what}"), values, "%"));
        rows.push(row("saving share", &of(|found| found.0)));
        rows.push(row("moved share", &of(|found| found.1)));
    }
    Ok(rows)
}

/// The shares of a cluster of 1,000 instances, in percent. If no cost of moves leaves nine tenths in place, the moved share says so.
fn saving_of(seed: u64, settles: bool) -> Result<(f64, f64)> {
    const LIMIT: f64 = 0.1;
    const DISTURBED: f64 = 0.05;
    let mut rng = Rng::with_seed(seed);
    let mut spec = cluster::generate(1_000, 100, &mut rng)?;
    if settles {
        let places = weighted(&spec, 0, STEPS, seed)?;
        cluster::settle(&mut spec, &places);
        cluster::disturb(&mut spec, DISTURBED, &mut rng)?;
    }
    let before = cluster::traffic_cost(&spec, &cluster::starts(&spec));
    let search = |weight, steps| {
        let places = weighted(&spec, weight, steps, seed)?;
        let saved = (before - cluster::traffic_cost(&spec, &places)) as f64;
        anyhow::Ok((saved, cluster::moved(&spec, &places) as f64 / spec.items.len() as f64))
    };
    // What a search finds that has ten times the effort, if moves are free.
    let (reachable, _) = search(0, 10 * STEPS)?;
    // As the planner does: moves cost more until there are few enough.
    let mut found = (0.0, 1.0);
    for weight in [1, 4, 16, 64, 256] {
        found = search(weight, STEPS)?;
        if found.1 <= LIMIT {
            break;
        }
    }
    Ok((100.0 * found.0 / reachable, 100.0 * found.1))
}

/// The solver's placement if moves cost so many times as much as they do.
fn weighted(spec: &Spec, weight: i64, steps: u64, seed: u64) -> Result<Vec<usize>> {
    let mut spec = spec.clone();
    spec.items.iter_mut().for_each(|item| item.move_cost *= weight);
    let found = solve(&Problem::new(&spec)?, &mut Steps::new(steps), seed);
    checked(&spec, &found.places)
}
