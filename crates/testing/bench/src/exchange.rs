//! One run of perftest, or of a peer's benchmark, in a lab: between two hosts or on one.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use e2e::perftest::PORT;
use e2e::program::{Program, run};
use e2e::testlab::TestLab;
use lab::layout::{self, Layout};

use crate::fabric_perf;
use crate::figure::{Quantity, of_fabric_perf, of_perftest, of_ucx};

/// Time limit of a run.
const LIMIT: Duration = Duration::from_secs(60);

/// The host of all servers.
const SERVER: &str = "h1";

/// The port of a peer's server.
const PEER_PORT: u16 = 13337;

/// Programs with the same measurement.
#[derive(Clone, Copy, Debug)]
pub struct Comparison {
    /// Ours, from perftest.
    pub ours: &'static str,
    /// The test of `ucx_perftest`.
    pub ucx: &'static str,
    /// The measured quantity.
    pub quantity: Quantity,
    /// Queue pairs of our side; a peer has one connection.
    pub queue_pairs: u64,
    /// Requests per post call of our side; peers have no such call.
    pub list: u64,
}

impl Comparison {
    const fn new(ours: &'static str, ucx: &'static str, quantity: Quantity) -> Self {
        Self { ours, ucx, quantity, queue_pairs: 1, list: 1 }
    }

    const fn rate(ours: &'static str, ucx: &'static str, queue_pairs: u64, list: u64) -> Self {
        Self { ours, ucx, quantity: Quantity::Rate, queue_pairs, list }
    }

    /// The peers on `path`. Libfabric's tcp provider is comparable between hosts only, where each side has one connection.
    #[must_use]
    pub fn peers(&self, path: Path) -> &'static [Peer] {
        match (path, self.queue_pairs) {
            (Path::TwoHosts, 1) => &[Peer::Ucx, Peer::Libfabric],
            _ => &[Peer::Ucx],
        }
    }

    /// The mode of `fabric_perf`, which has perftest's names.
    fn mode(&self) -> &'static str {
        self.ours.trim_start_matches("ib_")
    }
}

/// The comparisons.
pub const COMPARISONS: [Comparison; 3] = [
    Comparison::new("ib_send_lat", "tag_lat", Quantity::Latency),
    Comparison::new("ib_write_lat", "ucp_put_lat", Quantity::Latency),
    Comparison::new("ib_write_bw", "ucp_put_bw", Quantity::Bandwidth),
];

/// Message rates with 8 bytes: posted one by one, where perftest's own loop takes much of the time, and in
/// lists, as applications do where rates matter.
pub const RATES: [Comparison; 8] = [
    Comparison::rate("ib_send_bw", "tag_bw", 1, 1),
    Comparison::rate("ib_send_bw", "tag_bw", 16, 1),
    Comparison::rate("ib_send_bw", "tag_bw", 1, LIST),
    Comparison::rate("ib_send_bw", "tag_bw", 16, LIST),
    Comparison::rate("ib_write_bw", "ucp_put_bw", 1, 1),
    Comparison::rate("ib_write_bw", "ucp_put_bw", 16, 1),
    Comparison::rate("ib_write_bw", "ucp_put_bw", 1, LIST),
    Comparison::rate("ib_write_bw", "ucp_put_bw", 16, LIST),
];

/// The largest size at which perftest requests one completion for many requests. Its warm-up would wait for a completion of each.
const ONE_COMPLETION_FOR_MANY: u64 = 8192;

/// Requests in a list.
const LIST: u64 = 16;

/// A peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// `ucx_perftest`.
    Ucx,
    /// `fabric_perf`, over libfabric's tcp provider.
    Libfabric,
}

impl Peer {
    /// Its name in reports.
    #[must_use]
    pub fn name(self, comparison: &Comparison, path: Path) -> String {
        match self {
            Self::Ucx => format!("ucx {} over {}", comparison.ucx, path.transports()),
            Self::Libfabric => format!("libfabric {} over tcp", comparison.mode()),
        }
    }
}

/// The placement of the two ends.
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
    fn transports(self) -> &'static str {
        match self {
            Self::OneHost => "posix,cma,self",
            Self::TwoHosts => "tcp,self",
        }
    }

    fn client(self) -> &'static str {
        match self {
            Self::OneHost => SERVER,
            Self::TwoHosts => "h2",
        }
    }
}

/// Measurements in one lab.
pub struct Bench {
    lab: TestLab,
    fabric_perf: PathBuf,
    runs: u32,
}

impl Bench {
    /// Creates a lab, and builds the peer's program that Debian does not have.
    ///
    /// # Errors
    /// If the lab or the program cannot be created.
    pub fn new() -> Result<Self> {
        let fabric_perf = fabric_perf::build()?;
        Ok(Self { lab: TestLab::up(2)?, fabric_perf, runs: 0 })
    }

    /// Runs our side of `comparison`; returns the figure.
    ///
    /// # Errors
    /// If a program fails.
    pub fn ours(&mut self, comparison: &Comparison, path: Path, size: u64) -> Result<f64> {
        self.runs += 1;
        let iterations = iterations(comparison.quantity, path, size) / comparison.queue_pairs;
        let iterations = iterations / comparison.list * comparison.list;
        let (length, iterations) = (size.to_string(), iterations.to_string());
        let (queue_pairs, list) = (comparison.queue_pairs.to_string(), comparison.list.to_string());
        let mut program = vec![comparison.ours, "-F", "-s", &length, "-n", &iterations];
        if comparison.queue_pairs > 1 {
            program.extend(["-q", &queue_pairs]);
        }
        if comparison.list > 1 {
            program.extend(["-l", &list]);
        }
        if comparison.ours == "ib_write_bw" && size > ONE_COMPLETION_FOR_MANY {
            // Peers skip the first tenth of their messages; perftest can do that for this program only.
            program.push("--perform_warm_up");
        }
        let (server, client) = (format!("server{}", self.runs), format!("client{}", self.runs));
        let (server, address) = self.lab.serve(&server, SERVER, &program, PORT)?;
        let mut command = self.lab.command(&["run", "--name", &client, "--host", path.client(), "--"]);
        let client = run(command.args(&program).arg(address), LIMIT)?;
        server.end(LIMIT)?.success()?;
        of_perftest(&client.lines, comparison.quantity)
    }

    /// Runs `peer`'s side of `comparison` on the same path; returns the figure.
    ///
    /// # Errors
    /// If a program fails.
    pub fn peer(&self, peer: Peer, comparison: &Comparison, path: Path, size: u64) -> Result<f64> {
        let iterations = iterations(comparison.quantity, path, size);
        let [mut server, mut client] = match peer {
            Peer::Ucx => self.ucx(comparison, path, size, iterations)?,
            Peer::Libfabric => self.libfabric(comparison, path, size, iterations)?,
        };
        let mut server = Program::start(&mut server)?;
        server.wait_for_listener(PEER_PORT, LIMIT)?;
        let client = run(&mut client, LIMIT)?;
        server.end(LIMIT)?;
        match peer {
            Peer::Ucx => of_ucx(&client.lines, comparison.quantity),
            Peer::Libfabric => of_fabric_perf(&client.lines, comparison.quantity),
        }
    }

    /// Processor use, in percent of a core, of a program with an open device that waits for a peer.
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

    /// UCX's server and client.
    fn ucx(&self, comparison: &Comparison, path: Path, size: u64, iterations: u64) -> Result<[Command; 2]> {
        let end = |host| -> Result<Command> {
            let mut command = self.on_host(host)?;
            command.arg("ucx_perftest").args(e2e::ucx::without_mpi()).args(["-p", &PEER_PORT.to_string()]);
            command.env("UCX_TLS", path.transports()).env("UCX_WARN_UNUSED_ENV_VARS", "n");
            // A host's address is its bridge's.
            command.env("UCX_TCP_BRIDGE_ENABLE", "y");
            Ok(command)
        };
        let (server, mut client) = (end(SERVER)?, end(path.client())?);
        client.arg(address(SERVER)?).args(["-t", comparison.ucx, "-f", "-v"]);
        client.args(["-s", &size.to_string(), "-n", &iterations.to_string()]);
        client.args(["-w", &(iterations / 10).to_string()]);
        Ok([server, client])
    }

    /// Libfabric's server and client.
    fn libfabric(
        &self,
        comparison: &Comparison,
        path: Path,
        size: u64,
        iterations: u64,
    ) -> Result<[Command; 2]> {
        let end = |role: &str, host| -> Result<Command> {
            let mut command = self.on_host(host)?;
            command.arg(&self.fabric_perf).args([role, &address(SERVER)?, &PEER_PORT.to_string()]);
            command.args([comparison.mode(), &size.to_string(), &iterations.to_string()]);
            Ok(command)
        };
        Ok([end("server", SERVER)?, end("client", path.client())?])
    }

    /// A command that runs a peer's program on `host`. `ip netns exec` shows UCX the host's devices in /sys.
    fn on_host(&self, host: &str) -> Result<Command> {
        let namespace = Layout::of(self.lab.name()).namespace(host.parse()?);
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &namespace]);
        Ok(command)
    }
}

/// The address of `host`.
fn address(host: &str) -> Result<String> {
    Ok(layout::address(host.parse()?).to_string())
}

/// Enough iterations for about half a second, so that initial costs, such as mapping a neighbour's memory, do not
/// matter.
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
