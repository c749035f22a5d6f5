//! `make bench-vm`: moves of a virtual machine against two plain QEMUs and a QMP script.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use bench::report::{self, Row};
use bench::vm::Times;
use bench::vm::ours::{Ours, installed};
use bench::vm::plain::Plain;
use bench::vm::traced::Traced;
use clap::Parser;
use e2e::guest::Guest;

/// Measures moves of a virtual machine, and migrations of the same machine by plain QEMU.
#[derive(Parser)]
struct Options {
    /// Number of runs of each side, which alternate
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,
    /// Memory of the machine
    #[arg(long, default_value = "256M")]
    memory: String,
    /// MiB that the guest of the dirtying runs writes to, over and over
    #[arg(long, default_value_t = 4)]
    dirty: u32,
    /// The QEMU of both sides [default: qemu-system-x86_64 from $PATH]
    #[arg(long)]
    qemu: Option<PathBuf>,
    /// Prints each run
    #[arg(long)]
    verbose: bool,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let qemu = options.qemu.clone().map_or_else(|| installed("qemu-system-x86_64"), Ok)?;
    let traced = Traced::new(&qemu.display().to_string())?;
    let guest = Guest::make()?;
    let dirty = format!("dirty={}", options.dirty);
    let mut rows = Vec::new();
    for (load, append) in [("idle", ""), ("dirtying", &dirty)] {
        let series = measure(&options, &traced, &guest, append).with_context(|| format!("{load} guest"))?;
        for row in series.rows(load) {
            println!("{}", row.in_words());
            rows.push(row);
        }
    }
    report::print("vm", &rows)?;
    Ok(())
}

/// Measurements of one load.
#[derive(Default)]
struct Series {
    ours: Vec<Times>,
    plain: Vec<Times>,
    gaps: Vec<f64>,
}

fn measure(options: &Options, traced: &Traced, guest: &Guest, append: &str) -> Result<Series> {
    let ours = Ours::boot(traced, guest, &["--memory", &options.memory], append)?;
    let line = ours.command_line()?;
    let mut plain = ours.while_stopped(|| {
        let mut plain = Plain::boot(&ours.lab.lab, traced, &line)?;
        plain.stop()?;
        Ok(plain)
    })?;
    let mut series = Series::default();
    for run in 0..options.runs {
        let host = if run % 2 == 0 { "h2" } else { "h1" };
        series.ours.push(ours.move_to(host)?);
        if options.verbose {
            eprintln!("{:?}", series.ours.last());
        }
        series.plain.push(ours.while_stopped(|| {
            let times = plain.migrate(host)?;
            plain.stop()?;
            Ok(times)
        })?);
        if options.verbose {
            eprintln!("{:?}", series.plain.last());
        }
    }
    drop(plain);
    // The probes would load this side only.
    for run in options.runs..2 * options.runs {
        series.gaps.push(millis(ours.gap(if run % 2 == 0 { "h2" } else { "h1" })?));
    }
    Ok(series)
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

impl Series {
    fn rows(&self, load: &str) -> [Row; 3] {
        let compared = |what: &str, of: fn(&Times) -> Duration| {
            let ours: Vec<f64> = self.ours.iter().map(|times| millis(of(times))).collect();
            let plain: Vec<f64> = self.plain.iter().map(|times| millis(of(times))).collect();
            Row::compared(format!("{what} {load}"), &ours, ("plain QEMU", &plain), "ms")
        };
        [
            compared("pause", |times| times.pause),
            compared("total", |times| times.total),
            Row::alone(format!("gap {load}"), &self.gaps, "ms"),
        ]
    }
}
