//! One run of perftest or UCX in a lab, between two hosts or on one.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use e2e::perftest::PORT;
use e2e::program::{Program, run};
use e2e::testlab::TestLab;
use lab::Place;
use lab::layout::{self, Layout};

use crate::figure::{Quantity, of_perftest, of_ucx};

/// How long one run may take.
const LIMIT: Duration = Duration::from_secs(60);

/// Where a server of UCX waits for its client.
const UCX_PORT: u16 = 13337;

/// A pair of programs that measure the same.
#[derive(Clone, Copy, Debug)]
pub struct Comparison {
    /// Ours, from perftest.
    pub ours: &'static str,
    /// The test of `ucx_perftest`.
    pub peer: &'static str,
    /// What they measure.
    pub quantity: Quantity,
    /// Queue pairs of ours; the peer has one connection.
    pub queue_pairs: u64,
}

impl Comparison {
    const fn new(ours: &'static str, peer: &'static str, quantity: Quantity) -> Self {
        Self { ours, peer, quantity, queue_pairs: 1 }
    }

    const fn rate(ours: &'static str, peer: &'static str, queue_pairs: u64) -> Self {
        Self { ours, peer, quantity: Quantity::Rate, queue_pairs }
    }
}

/// What is compared.
pub const COMPARISONS: [Comparison; 3] = [
    Comparison::new("ib_send_lat", "tag_lat", Quantity::Latency),
    Comparison::new("ib_write_lat", "ucp_put_lat", Quantity::Latency),
    Comparison::new("ib_write_bw", "ucp_put_bw", Quantity::Bandwidth),
];

/// How many messages of 8 bytes are compared.
pub const RATES: [Comparison; 4] = [
    Comparison::rate("ib_send_bw", "tag_bw", 1),
    Comparison::rate("ib_send_bw", "tag_bw", 16),
    Comparison::rate("ib_write_bw", "ucp_put_bw", 1),
    Comparison::rate("ib_write_bw", "ucp_put_bw", 16),
];

/// Where the two ends are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// Both on the first host.
    OneHost,
    /// On the first and the second.
    TwoHosts,
}

impl Path {
    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::OneHost => "one host",
            Self::TwoHosts => "two hosts",
        }
    }

    /// The transports that UCX may use.
    #[must_use]
    pub fn transports(self) -> &'static str {
        match self {
            Self::OneHost => "posix,cma,self",
            Self::TwoHosts => "tcp,self",
        }
    }

    fn client(self) -> &'static str {
        match self {
            Self::OneHost => "h1",
            Self::TwoHosts => "h2",
        }
    }
}

/// Measurements in one lab.
pub struct Bench {
    lab: TestLab,
    runs: u32,
}

impl Bench {
    /// Makes a lab.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn new() -> Result<Self> {
        Ok(Self { lab: TestLab::up(2)?, runs: 0 })
    }

    /// Runs our side of `comparison`: the figure.
    ///
    /// # Errors
    /// If a program fails.
    pub fn ours(&mut self, comparison: &Comparison, path: Path, size: u64) -> Result<f64> {
        self.runs += 1;
        let iterations = iterations(comparison.quantity, path, size) / comparison.queue_pairs;
        let (size, iterations) = (size.to_string(), iterations.to_string());
        let queue_pairs = comparison.queue_pairs.to_string();
        let mut program = vec![comparison.ours, "-F", "-s", &size, "-n", &iterations];
        if comparison.queue_pairs > 1 {
            program.extend(["-q", &queue_pairs]);
        }
        let (server, client) = (format!("server{}", self.runs), format!("client{}", self.runs));
        let (server, address) = self.lab.serve(&server, "h1", &program, PORT)?;
        let mut command = self.lab.command(&["run", "--name", &client, "--host", path.client(), "--"]);
        let client = run(command.args(&program).arg(address), LIMIT)?;
        server.end(LIMIT)?.success()?;
        of_perftest(&client.lines, comparison.quantity)
    }

    /// Runs the peer's side of `comparison` on the same path: the figure.
    ///
    /// # Errors
    /// If a program fails.
    pub fn peer(&mut self, comparison: &Comparison, path: Path, size: u64) -> Result<f64> {
        let mut server = Program::start(&mut self.ucx("h1", path)?)?;
        server.wait_for_listener(UCX_PORT, LIMIT)?;
        let mut client = self.ucx(path.client(), path)?;
        let first: Place = "h1".parse()?;
        client.arg(layout::address(first).to_string()).args(["-t", comparison.peer, "-f", "-v"]);
        let iterations = iterations(comparison.quantity, path, size);
        client.args(["-s", &size.to_string(), "-n", &iterations.to_string()]);
        client.args(["-w", &(iterations / 10).to_string()]);
        let client = run(&mut client, LIMIT)?;
        server.end(LIMIT)?;
        of_ucx(&client.lines, comparison.quantity)
    }

    /// How much of a core, in percent, a program with an open device takes that waits for a peer.
    ///
    /// # Errors
    /// If it cannot be started or measured.
    pub fn idle(&mut self) -> Result<f64> {
        /// Nanoseconds on a processor, of all threads, over the seconds of the second pause.
        const SCRIPT: &str = "ib_send_bw >/dev/null & p=$!; sleep 1; \
            used() { awk '{ s += $1 } END { printf \"%.0f\", s }' /proc/$p/task/*/schedstat; }; \
            before=$(used); sleep 4; after=$(used); kill $p; echo idle $before $after";
        const SECONDS: f64 = 4.0;
        self.runs += 1;
        let name = format!("idle{}", self.runs);
        let arguments = ["run", "--name", &name, "--host", "h1", "--", "sh", "-c", SCRIPT];
        let ended = run(&mut self.lab.command(&arguments), LIMIT)?;
        let line = ended.lines.iter().find_map(|line| line.strip_prefix("idle "));
        let used: Vec<f64> =
            line.context("no figure")?.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
        let [before, after] = used[..] else { bail!("no figures in {used:?}") };
        Ok((after - before) / (SECONDS * 1e9) * 100.0)
    }

    fn ucx(&self, host: &str, path: Path) -> Result<Command> {
        let host: Place = host.parse()?;
        // UCX looks for devices in /sys, of which `ip netns exec` shows it the host's.
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &Layout::of(self.lab.name()).namespace(host), "ucx_perftest"]);
        command.args(e2e::ucx::without_mpi());
        command.env("UCX_TLS", path.transports()).env("UCX_WARN_UNUSED_ENV_VARS", "n");
        // A host's address is its bridge's.
        command.env("UCX_TCP_BRIDGE_ENABLE", "y");
        Ok(command)
    }
}

/// Enough for about half a second, so that what happens once, such as getting to know a neighbour's memory, does not
/// count.
fn iterations(quantity: Quantity, path: Path, size: u64) -> u64 {
    let (few, bytes_in_all): (u64, u64) = match (quantity, path) {
        (Quantity::Latency, Path::OneHost) => (500_000, 8 << 30),
        (Quantity::Latency, Path::TwoHosts) => (20_000, 256 << 20),
        (Quantity::Bandwidth, Path::OneHost) => (10_000_000, 32 << 30),
        (Quantity::Bandwidth, Path::TwoHosts) => (50_000, 1 << 30),
        (Quantity::Rate, Path::OneHost) => (5_000_000, 32 << 30),
        (Quantity::Rate, Path::TwoHosts) => (1_000_000, 1 << 30),
    };
    few.min(bytes_in_all / size).max(100)
}
