//! The cost of telemetry: programs and nodes with sampling, and without.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use e2e::overlay;
use e2e::perftest::PORT;
use e2e::program::{Program, run};
use e2e::testlab::TestLab;
use serde::Deserialize;

use crate::figure::{Quantity, of_perftest};

/// So seldom that it does not happen in a run.
pub const NEVER: &str = "1h";

/// Time limit of a run.
const LIMIT: Duration = Duration::from_secs(60);

/// The host of servers and of idle instances, and the host of clients of the stream.
const SERVER: &str = "h1";
const CLIENT: &str = "h2";

/// The overlay's address of the first host.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 1);

/// The port of iperf3.
const STREAM_PORT: u16 = 5201;

/// Two hosts with an overlay between them.
pub struct Ground {
    lab: TestLab,
    instances: u32,
}

/// The part of iperf3's report that counts.
#[derive(Deserialize)]
struct Report {
    end: End,
}

#[derive(Deserialize)]
struct End {
    sum_received: Received,
}

#[derive(Deserialize)]
struct Received {
    bits_per_second: f64,
}

impl Ground {
    /// Makes the lab.
    ///
    /// # Errors
    /// If that fails.
    pub fn new() -> Result<Self> {
        Ok(Self { lab: overlay::joined(2)?, instances: 0 })
    }

    /// Starts the nodes again, with this time between samples.
    ///
    /// # Errors
    /// If one does not start, or the overlay does not carry anything.
    pub fn sample_every(&self, interval: &str) -> Result<()> {
        for host in [SERVER, CLIENT] {
            self.lab.lab.kill(host.parse()?)?;
            self.lab.lab.start_with(host.parse()?, &["--sample-interval", interval])?;
        }
        self.lab.eventually("the overlay carries packets", || {
            let mut ping = self.lab.lab.command(CLIENT.parse()?, "ping")?;
            Ok(ping.args(["-c", "1", "-W", "1", &ADDRESS.to_string()]).output()?.status.success())
        })
    }

    /// Millions of SENDs of 8 bytes a second on one host. Both sides load `library` instead of the installed one.
    ///
    /// # Errors
    /// If a program fails.
    pub fn message_rate(&mut self, library: Option<&Path>, seconds: u16) -> Result<f64> {
        let preload = library.map(|file| format!("LD_PRELOAD={}", file.display()));
        let seconds = seconds.to_string();
        let mut program = preload.as_deref().map_or(vec![], |preload| vec!["env", preload]);
        program.extend(["ib_send_bw", "-F", "-s", "8", "-D", &seconds]);
        let (server, client) = (self.next_name(), self.next_name());
        let (server, address) = self.lab.serve(&server, SERVER, &program, PORT)?;
        let mut command = self.lab.command(&["run", "--name", &client, "--host", SERVER, "--"]);
        let client = run(command.args(&program).arg(address), LIMIT)?;
        server.end(LIMIT)?.success()?;
        of_perftest(&client.lines, Quantity::Rate)
    }

    /// Gbit/s of a TCP stream on the overlay.
    ///
    /// # Errors
    /// If iperf3 fails.
    pub fn stream(&self, seconds: u16) -> Result<f64> {
        let port = STREAM_PORT.to_string();
        let mut server = self.lab.lab.command(SERVER.parse()?, "iperf3")?;
        let mut server = Program::start(server.args(["--server", "--one-off", "--json", "--port", &port]))?;
        server.wait_for_listener(STREAM_PORT, LIMIT)?;
        let mut client = self.lab.lab.command(CLIENT.parse()?, "iperf3")?;
        client.args(["--client", &ADDRESS.to_string(), "--port", &port, "--time", &seconds.to_string()]);
        run(&mut client, LIMIT)?;
        let report: Report = serde_json::from_str(&server.end(LIMIT)?.success()?.lines.join("\n"))?;
        Ok(report.end.sum_received.bits_per_second / 1e9)
    }

    /// Starts idle instances on the first host.
    ///
    /// # Errors
    /// If one does not start.
    pub fn start_idle(&mut self, count: u16) -> Result<()> {
        for _ in 0..count {
            let name = self.next_name();
            let arguments = ["run", "--detach", "--name", &name, "--host", SERVER, "--", "sleep", "100000"];
            self.lab.transhume(&arguments)?.success()?;
        }
        Ok(())
    }

    /// The share of one processor that the first host's node uses for so long, in percent.
    ///
    /// # Errors
    /// If the node cannot be watched.
    pub fn node_share(&self, time: Duration) -> Result<f64> {
        let status = self.lab.lab.status()?;
        let node = status.hosts.iter().find(|host| host.name.to_string() == SERVER);
        let node = node.and_then(|host| host.node.pid).context("the host has no node")?;
        let (before, begun) = (processor_time(node)?, Instant::now());
        sleep(time);
        let used = processor_time(node)?.saturating_sub(before);
        Ok(used.as_secs_f64() / begun.elapsed().as_secs_f64() * 100.0)
    }

    fn next_name(&mut self) -> String {
        self.instances += 1;
        format!("i{}", self.instances)
    }
}

/// The time on processors that all threads of a process have used. The clock of `stat` has ticks of 10 ms, as long as a sample takes.
fn processor_time(process: i32) -> Result<Duration> {
    let mut nanoseconds = 0;
    for task in fs::read_dir(format!("/proc/{process}/task"))? {
        // A thread may have ended meanwhile.
        let Ok(text) = fs::read_to_string(task?.path().join("schedstat")) else { continue };
        nanoseconds += text.split(' ').next().context("no time")?.parse::<u64>()?;
    }
    Ok(Duration::from_nanos(nanoseconds))
}
