//! `make bench-verbs`: the user-space device compared with UCX, and between hosts with libfabric, on the same paths.

use anyhow::Result;
use bench::exchange::{Bench, COMPARISONS, Comparison, Path, Peer, RATES};
use bench::figure::Quantity;
use bench::report::{self, Row};
use bench::{handles, scale};
use clap::Parser;

/// Compares the user-space device with UCX, on one host and between two, and with libfabric between two.
#[derive(Parser)]
struct Options {
    /// Number of runs of each side, which alternate
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
        let sized = COMPARISONS.iter().flat_map(|it| options.sizes.iter().map(move |size| (it, *size)));
        for (comparison, size) in sized.chain(RATES.iter().map(|it| (it, RATE_SIZE))) {
            for row in compare(&mut bench, comparison, path, size, options.runs)? {
                add(&mut rows, row);
            }
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

/// Compares our side with each peer; the runs alternate.
fn compare(bench: &mut Bench, comparison: &Comparison, path: Path, size: u64, runs: u16) -> Result<Vec<Row>> {
    let mut ours = Vec::new();
    let mut peers: Vec<_> = comparison.peers(path).iter().map(|peer| (*peer, Vec::new())).collect();
    for _ in 0..runs {
        ours.push(bench.ours(comparison, path, size)?);
        for (peer, theirs) in &mut peers {
            theirs.push(bench.peer(*peer, comparison, path, size)?);
        }
    }
    let how = match (comparison.quantity, comparison.queue_pairs, comparison.list) {
        (Quantity::Rate, count, 1) => format!(", {count} QP"),
        (Quantity::Rate, count, list) => format!(", {count} QP, lists of {list}"),
        _ => String::new(),
    };
    let name = format!("{}, {}, {size} B{how}", comparison.ours, path.name());
    let row = |(peer, theirs): &(Peer, Vec<f64>)| {
        let peer = peer.name(comparison, path);
        Row::compared(name.clone(), &ours, (&peer, theirs), comparison.quantity.unit())
    };
    Ok(peers.iter().map(row).collect())
}
