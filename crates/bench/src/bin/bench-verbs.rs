//! `make bench-verbs`: the user-space device against UCX on the same paths.

use anyhow::Result;
use bench::exchange::{Bench, COMPARISONS, Comparison, Path, RATES};
use bench::figure::Quantity;
use bench::report::{self, Row};
use bench::{handles, scale};
use clap::Parser;

/// Compares the user-space device with UCX, on one host and between two.
#[derive(Parser)]
struct Options {
    /// Runs of each side; ours and the peer's take turns
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,
    /// Message sizes, in bytes
    #[arg(long, value_delimiter = ',', default_values_t = [8, 65_536, 1_048_576])]
    sizes: Vec<u64>,
}

/// Bytes of a message whose rate is measured.
const RATE_SIZE: u64 = 8;

fn main() -> Result<()> {
    let options = Options::parse();
    let mut bench = Bench::new()?;
    let mut rows = Vec::new();
    for path in [Path::OneHost, Path::TwoHosts] {
        for comparison in &COMPARISONS {
            for size in &options.sizes {
                add(&mut rows, compare(&mut bench, comparison, path, *size, options.runs)?);
            }
        }
        for comparison in &RATES {
            add(&mut rows, compare(&mut bench, comparison, path, RATE_SIZE, options.runs)?);
        }
    }
    for row in handles::rows(options.runs)?.into_iter().chain(scale::rows(options.runs)?) {
        add(&mut rows, row);
    }
    let idle = (0..options.runs).map(|_| bench.idle()).collect::<Result<Vec<_>>>()?;
    add(&mut rows, Row::alone("an idle program with a device".into(), &idle, "% CPU"));
    report::print("verbs", &rows)?;
    Ok(())
}

fn add(rows: &mut Vec<Row>, row: Row) {
    println!("{}", row.in_words());
    rows.push(row);
}

fn compare(bench: &mut Bench, comparison: &Comparison, path: Path, size: u64, runs: u16) -> Result<Row> {
    let (mut ours, mut peer) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        ours.push(bench.ours(comparison, path, size)?);
        peer.push(bench.peer(comparison, path, size)?);
    }
    let queue_pairs = match (comparison.quantity, comparison.queue_pairs) {
        (Quantity::Rate, count) => format!(", {count} QP"),
        _ => String::new(),
    };
    let name = format!("{}, {}, {size} B{queue_pairs}", comparison.ours, path.name());
    let peer_name = format!("ucx {} over {}", comparison.peer, path.transports());
    Ok(Row::compared(name, &ours, (&peer_name, &peer), comparison.quantity.unit()))
}
