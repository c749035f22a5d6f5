//! `make bench-move`: the blackout of a move, by number of queue pairs against plain CRIU, and by memory of a container against
//! runc.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bench::contained::{checkpoint_and_restore, command};
use bench::plain::{Steps, dump_and_restore};
use bench::report::{self, Row};
use clap::Parser;
use e2e::check::{Check, wait_for_progress};
use e2e::program::Program;
use e2e::testlab::{CLIENT, TestLab};

/// Measures moves of a program with few and many queue pairs, and of containers with little and much memory, and plain CRIU
/// and runc for the same.
#[derive(Parser)]
struct Options {
    /// Number of runs of each side, which alternate
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,
    /// Numbers of queue pairs
    #[arg(long, value_delimiter = ',', default_values_t = [1, 64, 512, 4096])]
    qps: Vec<u16>,
    /// Memory of containers, in MiB
    #[arg(long, value_delimiter = ',', default_values_t = [64, 256, 1024])]
    memory: Vec<u32>,
}

/// Measurements with one number of queue pairs, in milliseconds.
#[derive(Default)]
struct Series {
    network: Vec<f64>,
    engine: Vec<f64>,
    blackout: Vec<f64>,
    seen: Vec<f64>,
    plain: Vec<f64>,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let criu = criu()?;
    let mut rows = Vec::new();
    for qps in &options.qps {
        let series = measure(&criu, *qps, options.runs).with_context(|| format!("with {qps} queue pairs"))?;
        for row in series.rows(*qps) {
            println!("{}", row.in_words());
            rows.push(row);
        }
    }
    for mebibytes in &options.memory {
        let row = contained(&criu, *mebibytes, options.runs);
        let row = row.with_context(|| format!("a container with {mebibytes} MiB"))?;
        println!("{}", row.in_words());
        rows.push(row);
    }
    report::print("move", &rows)?;
    Ok(())
}

/// Runs of both sides alternate.
fn contained(criu: &Path, mebibytes: u32, runs: u16) -> Result<Row> {
    const READY: Duration = Duration::from_secs(60);
    let lab = TestLab::up(2)?;
    let name = "held";
    let mut run = lab.command(&["run", "--host", "h1", "--name", name, "--rootfs", "/", "--"]);
    let mut program = Program::start(run.args(command(mebibytes)))?;
    program.wait_for(READY, |line| (line == "ready").then_some(()))?;
    let (mut ours, mut peers) = (Vec::new(), Vec::new());
    for run in 0..runs {
        let report = lab.move_to(name, if run % 2 == 0 { "h2" } else { "h1" })?;
        ours.push(millis(Duration::from_micros(report.blackout_us)));
        peers.push(millis(checkpoint_and_restore(criu, mebibytes)?));
    }
    lab.transhume(&["kill", name])?.success()?;
    let peer = ("runc checkpoint, copy, restore", &peers[..]);
    Ok(Row::compared(format!("blackout of a container, {mebibytes} MiB"), &ours, peer, "ms"))
}

/// The CRIU that moves use, too.
fn criu() -> Result<PathBuf> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../scripts/criu.sh");
    let output = Command::new(script).output().with_context(|| format!("cannot run {script}"))?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?.trim().into())
}

fn measure(criu: &Path, qps: u16, runs: u16) -> Result<Series> {
    let qps = qps.to_string();
    let options = ["--qps", &qps, "--depth", "1", "--max-size", "64"];
    let lab = TestLab::up(3)?;
    let mut check = lab.check("h1", "h2", &options)?;
    let mut series = Series::default();
    for run in 0..runs {
        series.take_move(&lab, &mut check, if run % 2 == 0 { "h3" } else { "h2" })?;
        series.take_plain(dump_and_restore(criu, &options)?);
    }
    lab.end_check(check)?;
    Ok(series)
}

impl Series {
    fn take_move(&mut self, lab: &TestLab, check: &mut Check, host: &str) -> Result<()> {
        check.progress()?;
        let report = lab.move_to(CLIENT, host)?;
        let engine = report.engine;
        let engine_us = engine.dump_us + engine.transfer_us + engine.restore_us + engine.release_us;
        self.network.push(millis(Duration::from_micros(report.network.total_us())));
        self.engine.push(millis(Duration::from_micros(engine_us)));
        self.blackout.push(millis(Duration::from_micros(report.blackout_us)));
        self.seen.push(millis(wait_for_progress(&mut check.server)?));
        Ok(())
    }

    fn take_plain(&mut self, steps: Steps) {
        self.plain.push(millis(steps.total()));
    }

    fn rows(&self, qps: u16) -> Vec<Row> {
        let plain = ("CRIU dump, copy, restore", &self.plain[..]);
        let compared = |what: &str, ours| Row::compared(format!("{what}, {qps} QPs"), ours, plain, "ms");
        let alone = |what: &str, ours| Row::alone(format!("{what}, {qps} QPs"), ours, "ms");
        vec![
            alone("network part", &self.network),
            compared("engine part", &self.engine),
            compared("blackout", &self.blackout),
            compared("blackout seen by the peer", &self.seen),
        ]
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
