//! `make bench-telemetry`: the cost of telemetry for programs, for the overlay, and for a node.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use bench::report::{self, Row};
use bench::telemetry::{Ground, NEVER};
use clap::Parser;

/// Measures the cost of telemetry: programs and the overlay beside nodes that sample each second, and beside nodes that do not.
#[derive(Parser)]
struct Options {
    /// Number of runs of each side, which alternate
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,
    /// Duration of each run in seconds
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=30))]
    seconds: u16,
    /// Number of instances beside which the node is watched
    #[arg(long, default_value_t = 20)]
    instances: u16,
    /// Also compares with this build of libibverbs, such as one that does not count
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
    /// Measures only rows whose names contain this
    #[arg(long, value_name = "PATTERN", default_value = "")]
    only: String,
}

/// The time between samples that programs and the overlay are measured with, and the default one.
const OFTEN: &str = "1s";
const USUAL: &str = "10s";

/// For how long a node is watched.
const WATCHED: Duration = Duration::from_secs(60);

fn main() -> Result<()> {
    let options = Options::parse();
    let mut ground = Ground::new()?;
    let mut rows = Vec::new();
    let mut add = |row: Row| {
        println!("{}", row.in_words());
        rows.push(row);
    };
    let wants = |name: &str| name.contains(&options.only);
    let name = "ib_send_bw -s 8, one host";
    if wants(name) {
        let rate = |ground: &mut Ground| ground.message_rate(None, options.seconds);
        add(sampled(&mut ground, &options, name, "M/s", rate)?);
    }
    let name = "one TCP stream on the overlay";
    if wants(name) {
        let stream = |ground: &mut Ground| ground.stream(options.seconds);
        add(sampled(&mut ground, &options, name, "Gbit/s", stream)?);
    }
    let name = "ib_send_bw -s 8, counted";
    if options.library.is_some() && wants(name) {
        add(counted(&mut ground, &options, name)?);
    }
    let name = format!("a node that samples {} instances", options.instances);
    if wants(&name) {
        add(watched(&mut ground, &options, name)?);
    }
    report::print("telemetry", &rows)?;
    Ok(())
}

/// Measures beside nodes that sample often, and beside nodes that do not; the runs alternate.
fn sampled(
    ground: &mut Ground,
    options: &Options,
    name: &str,
    unit: &'static str,
    measure: impl Fn(&mut Ground) -> Result<f64>,
) -> Result<Row> {
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for run in 0..options.runs {
        // Which side is first alternates as well: a run may disturb the next one.
        let mut sides = [(OFTEN, &mut with), (NEVER, &mut without)];
        sides.rotate_left(usize::from(run % 2));
        for (interval, figures) in sides {
            ground.sample_every(interval)?;
            figures.push(measure(ground)?);
        }
    }
    Ok(Row::compared(name.to_owned(), &with, ("without samples", &without), unit))
}

/// Measures with the library of this build, and with the other; the runs alternate.
fn counted(ground: &mut Ground, options: &Options, name: &str) -> Result<Row> {
    let other = options.library.as_deref();
    ensure!(other.is_none_or(|file| file.is_file()), "{other:?} is not a file");
    let (mut ours, mut others) = (Vec::new(), Vec::new());
    ground.sample_every(OFTEN)?;
    for run in 0..options.runs {
        let mut sides = [(None, &mut ours), (other, &mut others)];
        sides.rotate_left(usize::from(run % 2));
        for (library, figures) in sides {
            figures.push(ground.message_rate(library, options.seconds)?);
        }
    }
    Ok(Row::compared(name.to_owned(), &ours, ("the other library", &others), "M/s"))
}

/// Watches a node that samples as usual, and one that does not.
fn watched(ground: &mut Ground, options: &Options, name: String) -> Result<Row> {
    ground.start_idle(options.instances)?;
    ground.sample_every(NEVER)?;
    let without = ground.node_share(WATCHED)?;
    ground.sample_every(USUAL)?;
    let with = ground.node_share(WATCHED)?;
    Ok(Row::compared(name, &[with], ("without samples", &[without]), "% CPU"))
}
