//! `make bench-net`: the overlay between two hosts compared with other overlays on the same path, and moves of stations.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bench::net::Missing;
use bench::net::comparison::Comparison;
use bench::net::ground::Ground;
use bench::net::measure::{self, QUANTITIES};
use bench::net::moved;
use bench::net::peer::{Peer, Running};
use bench::net::table::Table;
use bench::net::upkeep;
use bench::report::{self, Row};
use clap::{Parser, ValueEnum};

/// Compares the overlay with other overlays between the same two hosts.
#[derive(Parser)]
struct Options {
    /// Number of runs of each overlay, which alternate
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    runs: u16,
    /// Duration of each run in seconds
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=60))]
    seconds: u16,
    /// The overlays to compare with
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Peer::value_variants().to_vec())]
    peers: Vec<Peer>,
    /// Number of moves of a station on each kind of link
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u16).range(1..))]
    moves: u16,
    /// Only measurements with this in their names, such as `latency`
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
}

/// Time limit for the overlay to carry the first frame.
const READY_LIMIT: Duration = Duration::from_secs(30);

impl Options {
    fn wants(&self, name: &str) -> bool {
        name.contains(&self.only)
    }
}

fn main() -> Result<()> {
    let options = Options::parse();
    let (mut rows, mut missing) = (Vec::new(), Vec::new());
    let is_complete = compare(&options, &mut rows, &mut missing)?;
    if options.wants(moved::NAME) {
        add(&mut rows, moved::rows(options.moves)?);
    }
    missing.iter().for_each(|missing| println!("{}", missing.in_words()));
    report::print_with_missing("net", &rows, &missing)?;
    ensure!(is_complete, "some measurements of the overlay failed");
    Ok(())
}

/// Prints rows, and stores them.
fn add(rows: &mut Vec<Row>, more: impl IntoIterator<Item = Row>) {
    for row in more {
        println!("{}", row.in_words());
        rows.push(row);
    }
}

/// Measures between two hosts. Returns whether all measurements of the overlay succeeded.
fn compare(options: &Options, rows: &mut Vec<Row>, missing: &mut Vec<Missing>) -> Result<bool> {
    let quantities: Vec<_> =
        QUANTITIES.into_iter().filter(|quantity| options.wants(&quantity.name())).collect();
    let wants_upkeep = upkeep::NAMES.into_iter().any(|name| options.wants(name));
    if quantities.is_empty() && !wants_upkeep {
        return Ok(true);
    }
    let ground = Ground::new()?;
    let peers = start(&ground, &options.peers, missing);
    let (bare, [ours, plain]) = (ground.bare()?, ground.overlay()?);
    measure::wait(&ground, &ours, READY_LIMIT).context("the overlay carries no traffic")?;
    let names = options.peers.iter().map(|peer| peer.name());
    let table = Table::new([bare.name, ours.name, plain.name].into_iter().chain(names).collect());
    let paths = [bare, ours, plain].into_iter().chain(peers.iter().map(|peer| peer.path.clone())).collect();
    let comparison = Comparison { ground: &ground, paths, runs: options.runs, seconds: options.seconds };
    println!("{}", table.heading());
    let mut is_complete = true;
    for quantity in quantities {
        let figures = comparison.measure(quantity, missing)?;
        println!("{}", table.line(&figures));
        is_complete &= figures.ours().is_some();
        rows.extend(figures.rows());
    }
    if wants_upkeep {
        ground.prepare(&comparison.paths[1])?;
        add(rows, upkeep::rows(&ground)?);
    }
    Ok(is_complete)
}

/// Starts the peers that are available.
fn start(ground: &Ground, peers: &[Peer], missing: &mut Vec<Missing>) -> Vec<Running> {
    let mut running = Vec::new();
    for peer in peers {
        match peer.start(ground) {
            Ok(started) => running.push(started),
            Err(error) => {
                let reason = format!("{error:#}");
                missing.push(Missing { name: peer.name(), quantity: None, reason });
            }
        }
    }
    running
}
