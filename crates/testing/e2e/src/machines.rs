//! Machines with an address only: network namespaces connected to one switch.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use api::Host;

use crate::artifacts;
use crate::namespace::Namespace;
use crate::program::{Ended, Program};
use crate::signal::Signal;

const STREAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/stream.py");
const GUEST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/guest.py");
/// Time limit of every step.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Where the first machine's coordinator and node listen.
pub const FIRST: &str = "192.0.2.1:7700";
/// Its port.
pub const COORDINATOR_PORT: &str = "7700";
/// Where all nodes listen.
pub const NODE_PORT: &str = "7701";

/// A machine, by its name.
pub struct Machine {
    /// Its network.
    pub network: Namespace,
    /// Its name.
    pub name: &'static str,
}

/// Machines `a`, `b`, … with the addresses 192.0.2.1, …, on one network.
pub struct World {
    _switch: Namespace,
    /// All of them.
    pub machines: Vec<Machine>,
    scratch: tempfile::TempDir,
    program: PathBuf,
}

impl World {
    /// So many machines, on which nothing runs.
    ///
    /// # Errors
    /// If that cannot be done.
    pub fn new(machines: usize) -> Result<Self> {
        let switch = Namespace::new()?;
        switch.ip("link add name br0 type bridge forward_delay 0")?;
        switch.ip("link set dev br0 up")?;
        let there = switch.path();
        let plug = |(number, name): (usize, &'static str)| {
            let network = Namespace::new()?;
            network.ip("link set dev lo up")?;
            network.ip(&format!("link add name eth0 type veth peer name {name} netns {there}"))?;
            network.ip(&format!("address add 192.0.2.{number}/24 dev eth0"))?;
            network.ip("link set dev eth0 up")?;
            switch.ip(&format!("link set dev {name} master br0 up"))?;
            Ok(Machine { network, name })
        };
        let machines = (1..).zip(["a", "b", "c"]).take(machines).map(plug).collect::<Result<_>>()?;
        let (scratch, program) = (tempfile::tempdir()?, artifacts::built("transhume")?);
        Ok(Self { _switch: switch, machines, scratch, program })
    }

    /// Where a machine keeps its state.
    #[must_use]
    pub fn state(&self, machine: usize) -> PathBuf {
        self.scratch.path().join(self.machines[machine].name)
    }

    /// A command of the command line on a machine.
    ///
    /// # Errors
    /// If that cannot be done.
    pub fn transhume(&self, machine: usize, arguments: &[&str]) -> Result<Program> {
        let mut command = Command::new(&self.program);
        command.env_remove(api::SOCKET_VARIABLE).env_remove("TRANSHUME_LOG");
        command.arg("--socket").arg(self.scratch.path().join("socket")).args(arguments);
        self.machines[machine].network.start(&mut command)
    }

    /// `transhume net up` with these arguments, and the machine's own name and state.
    ///
    /// # Errors
    /// If that cannot be done.
    pub fn start(&self, machine: usize, arguments: &[&str]) -> Result<Program> {
        let state = self.state(machine);
        let own = ["--name", self.machines[machine].name, "--state", state.to_str().context("a path")?];
        self.transhume(machine, &[&["net", "up"], arguments, &own].concat())
    }

    /// The same, until the machine's network device is there.
    ///
    /// # Errors
    /// If that cannot be done.
    pub fn up(&self, machine: usize, arguments: &[&str]) -> Result<Program> {
        let mut up = self.start(machine, arguments)?;
        up.wait_for(LIMIT, |line| line.starts_with("network device").then_some(()))?;
        Ok(up)
    }

    /// The first machine, and the command that it says others are to run.
    ///
    /// # Errors
    /// If that cannot be done.
    pub fn first(&self) -> Result<(Program, String)> {
        let mut first = self.start(0, &["--listen", FIRST, "--address", "10.88.0.1/24"])?;
        let told = |line: &str| line.strip_prefix("    transhume net up ").map(str::to_owned);
        let join = first.wait_for(LIMIT, told)?;
        Ok((first, join))
    }

    /// The failure of `transhume net up` on a machine.
    ///
    /// # Errors
    /// If that cannot be done.
    pub fn refused(&self, machine: usize, arguments: &[&str]) -> Result<String> {
        let ended = self.start(machine, arguments)?.end(LIMIT)?;
        ensure!(!ended.status.success(), "it has not failed: {ended:?}");
        Ok(ended.errors)
    }

    /// The answer of the first machine's coordinator.
    ///
    /// # Errors
    /// If that cannot be done.
    pub fn ask(&self, arguments: &[&str]) -> Result<Ended> {
        self.transhume(0, arguments)?.end(LIMIT)
    }

    /// The hosts that are connected.
    ///
    /// # Errors
    /// If that cannot be done.
    pub fn hosts(&self) -> Result<Vec<String>> {
        let hosts = self.ask(&["hosts", "--json"])?.success()?.lines.join("\n");
        let hosts: Vec<Host> = serde_json::from_str(&hosts)?;
        Ok(hosts.into_iter().filter(|host| host.up).map(|host| host.name).collect())
    }

    /// Waits until `is_so` holds.
    ///
    /// # Errors
    /// If that cannot be done.
    pub fn eventually(&self, what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
        let end = Instant::now() + LIMIT;
        while !is_so()? {
            ensure!(Instant::now() < end, "timed out waiting for: {what}");
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Sends from one machine to the overlay address of another one, and verifies the received data.
    ///
    /// # Errors
    /// If that cannot be done.
    pub fn stream(&self, from: usize, to: usize) -> Result<()> {
        let address = format!("10.88.0.{}", to + 1);
        let enough = Signal::new("enough");
        let until = enough.path().to_str().context("a path")?;
        let start = |machine: usize, arguments: &[&str]| {
            let mut command = Command::new("/usr/bin/python3");
            self.machines[machine].network.start(command.arg(STREAM).args(arguments))
        };
        let mut server = start(to, &["serve", &address, "7500"])?;
        server.wait_for(LIMIT, |line| (line == "listening").then_some(()))?;
        let client = start(from, &["send", &address, "7500", until])?;
        server.wait_for(LIMIT, |line| line.starts_with("received").then_some(()))?;
        enough.give()?;
        client.end(LIMIT)?.success()?;
        server.end(LIMIT)?.success().map(drop)
    }

    /// A client without a certificate, on a machine.
    ///
    /// # Errors
    /// If that cannot be done.
    pub fn guest(&self, machine: usize, arguments: &[&str]) -> Result<Program> {
        let mut command = Command::new("/usr/bin/python3");
        self.machines[machine].network.start(command.arg(GUEST).args(arguments))
    }
}

/// The words of `line`.
#[must_use]
pub fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

/// The token in the first machine's output.
///
/// # Errors
/// If there is none.
pub fn token_in(join: &str) -> Result<&str> {
    words(join).get(1).copied().context("a token")
}

/// Kills a program.
///
/// # Errors
/// If it has ended before.
pub fn kill(mut program: Program) -> Result<()> {
    program.signal(libc::SIGKILL)?;
    program.end(LIMIT).map(drop)
}
