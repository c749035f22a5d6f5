//! The overlay between the hosts of a lab, and streams through it.

use std::time::Duration;

use anyhow::{Context as _, Result};
use api::{NetLink, NetStatus, NetTunnel};

use crate::program::Program;
use crate::signal::Signal;
use crate::testlab::TestLab;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/stream.py");
const PORT: &str = "7500";

/// Where an instance listens that has no address yet.
const EVERYWHERE: &str = "0.0.0.0";

/// The longest pause of the stream: TCP doubles its timeout after each failed retransmission.
const LIMIT: Duration = Duration::from_secs(60);

/// The hosts of a lab, each with a device `tap1` in the overlay, whose address ends with the host's number.
///
/// # Errors
/// If that cannot be made.
pub fn joined(hosts: u16) -> Result<TestLab> {
    let lab = TestLab::up(hosts)?;
    net(&lab, &["layout", "star"])?;
    for number in 1..=hosts {
        let (host, address) = (format!("h{number}"), format!("10.88.0.{number}/24"));
        net(&lab, &["attach", &host, "tap1", "--address", &address])?;
    }
    Ok(lab)
}

/// The output of `transhume net`.
///
/// # Errors
/// If it fails.
pub fn net(lab: &TestLab, arguments: &[&str]) -> Result<Vec<String>> {
    let arguments = [&["net"], arguments].concat();
    Ok(lab.transhume(&arguments)?.success().with_context(|| lab.logs())?.lines)
}

/// The state of the overlay.
///
/// # Errors
/// If that cannot be found out.
pub fn status(lab: &TestLab) -> Result<NetStatus> {
    Ok(serde_json::from_str(&net(lab, &["status", "--json"])?.join("\n"))?)
}

/// Its links.
///
/// # Errors
/// If that cannot be found out.
pub fn links(lab: &TestLab) -> Result<Vec<NetLink>> {
    Ok(serde_json::from_str(&net(lab, &["links", "--json"])?.join("\n"))?)
}

/// The tunnel of `host` to another.
///
/// # Errors
/// If the host does not answer, or has none.
pub fn tunnel(lab: &TestLab, host: &str, to: &str) -> Result<NetTunnel> {
    let found = status(lab)?.hosts.into_iter().find(|known| known.name == host);
    let state = found.and_then(|known| known.state).with_context(|| format!("{host} does not answer"))?;
    let tunnel = state.tunnels.into_iter().find(|tunnel| tunnel.host == to);
    tunnel.with_context(|| format!("{host} has no tunnel to {to}"))
}

/// Waits until the kernels of two hosts carry frames between stations, or do not.
///
/// # Errors
/// If it never is so.
pub fn await_kernel(lab: &TestLab, hosts: [&str; 2], carries: bool) -> Result<()> {
    let [one, other] = hosts;
    lab.eventually(&format!("the kernel carries frames of {hosts:?}: {carries}"), || {
        // One that is very busy may not answer in time.
        let ends = [tunnel(lab, one, other), tunnel(lab, other, one)];
        Ok(ends.iter().all(|end| end.as_ref().is_ok_and(|tunnel| tunnel.by_kernel == carries)))
    })
}

/// A place in a lab: the arguments of `lab exec` before the program's own command line.
pub type Where<'a> = &'a [&'a str];

/// The words before the command line of a program that becomes the instance `name`, on `host` and on the overlay.
#[must_use]
pub fn instance<'a>(name: &'a str, host: &'a str) -> [&'a str; 8] {
    ["run", "--network", "overlay", "--name", name, "--host", host, "--"]
}

/// A stream from one place to another.
pub struct Stream {
    client: Program,
    server: Program,
    enough: Signal,
}

impl Stream {
    /// Begins a stream to `address`.
    ///
    /// # Errors
    /// If it cannot be begun.
    pub fn start(lab: &TestLab, from: Where<'_>, to: Where<'_>, address: &str) -> Result<Self> {
        let [from, to] = [from, to].map(|place| [&["lab", "exec"], place].concat());
        Self::between(lab, &from, &to, address, || Ok(address.to_owned()))
    }

    /// The same to the instance `name` on `host`, which this starts. `from` are the words before the command line of
    /// the program that sends; `reach` gets the instance's address before the sender starts.
    ///
    /// # Errors
    /// If it cannot be begun.
    pub fn to_instance(
        lab: &TestLab,
        from: &[&str],
        [name, host]: [&str; 2],
        reach: impl FnOnce(&str) -> Result<()>,
    ) -> Result<Self> {
        Self::between(lab, from, &instance(name, host), EVERYWHERE, || {
            let address = lab.instance(name)?.address;
            reach(&address)?;
            Ok(address)
        })
    }

    /// A stream between programs that are started behind these words; the server listens at `address`, and the client
    /// finds it at the address that `found` returns then.
    fn between(
        lab: &TestLab,
        from: &[&str],
        to: &[&str],
        address: &str,
        found: impl FnOnce() -> Result<String>,
    ) -> Result<Self> {
        let enough = Signal::new("enough");
        let until = enough.path().to_str().context("a path")?;
        let start = |place: &[&str], rest: &[&str]| {
            let line = [place, &["/usr/bin/python3", SCRIPT], rest].concat();
            Program::start(&mut lab.command(&line))
        };
        let mut server = start(to, &["serve", address, PORT])?;
        server.wait_for(LIMIT, |line| (line == "listening").then_some(()))?;
        let client = start(from, &["send", &found()?, PORT, until])?;
        Ok(Self { client, server, enough })
    }

    /// Waits until the receiver has got some MiB more.
    ///
    /// # Errors
    /// If it has not within a minute, or the stream has ended.
    pub fn goes_on(&mut self) -> Result<()> {
        const MIB: usize = 4;
        self.server.take_lines();
        let mut more = 0;
        self.server.wait_for(LIMIT, |line| {
            more += usize::from(line.starts_with("received"));
            (more > MIB).then_some(())
        })
    }

    /// Ends the stream, and checks that everything sent has arrived.
    ///
    /// # Errors
    /// If it has not.
    pub fn end(self) -> Result<()> {
        self.enough.give()?;
        self.client.end(LIMIT)?.success()?;
        self.server.end(LIMIT)?.success()?;
        Ok(())
    }
}
