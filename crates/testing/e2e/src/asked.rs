//! A station that is probed continuously while it moves between two hosts.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use crate::overlay::net;
use crate::program::Program;
use crate::signal::Signal;
use crate::testlab::TestLab;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/echo.py");
const ADDRESS: &str = "10.88.0.100";
const PORT: &str = "7600";
const LIMIT: Duration = Duration::from_secs(60);

/// The station's device.
pub const STATION: &str = "st0";

/// The prober's report at its end.
#[derive(Debug, Deserialize)]
pub struct Summary {
    /// Questions.
    pub sent: u64,
    /// The answered probes.
    pub answered: u64,
    /// Answers that came twice.
    pub twice: u64,
    /// The longest time without an answer, in milliseconds.
    pub silence: f64,
    /// The longest times without an answer, in milliseconds: one for each time that another host took over, since the one before.
    pub hand_overs: Vec<f64>,
    /// The same for each twentieth of a second before the move: a baseline without moves.
    pub still: Vec<f64>,
}

impl Summary {
    /// Checks that the station was in one place at a time in so many moves: no answer came twice, and once the next host has
    /// answered the former one answered nothing that was asked since.
    ///
    /// # Errors
    /// If it was not.
    pub fn require_one_place(&self, moves: usize) -> Result<()> {
        let (twice, seen) = (self.twice, self.hand_overs.len());
        ensure!(twice == 0, "{twice} answers came twice");
        ensure!(seen == moves, "in {moves} moves another host took over {seen} times");
        Ok(())
    }
}

/// The address of `host` beside the station's network.
#[must_use]
pub fn beside(host: &str) -> String {
    format!("10.89.0.{}", &host[1..])
}

/// The output of `net move`.
#[derive(Deserialize)]
struct Moved {
    pause_us: u64,
}

/// A station, on h1 at first, that h1 and h2 can answer for, and h3, which probes it every 500 µs.
pub struct Asked {
    /// The lab of the three hosts.
    pub lab: TestLab,
    prober: Program,
    enough: Signal,
    _servers: [Program; 2],
}

impl Asked {
    /// Lays links as `layout` says, and begins to ask. Each host has a device `tap1` in the overlay, too, with the address
    /// [`beside`] it all: in the station's network a host would have a second way to answer.
    ///
    /// # Errors
    /// If that cannot be made.
    pub fn begin(layout: &[&str]) -> Result<Self> {
        let lab = TestLab::up(3)?;
        net(&lab, &[&["layout"], layout].concat())?;
        for host in ["h1", "h2", "h3"] {
            net(&lab, &["attach", host, "tap1", "--address", &format!("{}/24", beside(host))])?;
        }
        net(&lab, &["attach", "h3", "asker", "--address", "10.88.0.3/24"])?;
        net(&lab, &["attach", "h1", STATION, "--address", &format!("{ADDRESS}/24")])?;
        let enough = Signal::new("asked");
        let until = enough.path().to_str().context("a path")?;
        let start = |host: &str, rest: &[&str]| {
            let line = [&["lab", "exec", host, "--", "/usr/bin/python3", SCRIPT], rest].concat();
            Program::start(&mut lab.command(&line))
        };
        let serve = |host: &str| -> Result<Program> {
            let mut server = start(host, &["serve", host, PORT])?;
            server.wait_for(LIMIT, |line| (line == "listening").then_some(()))?;
            Ok(server)
        };
        let servers = [serve("h1")?, serve("h2")?];
        let prober = start("h3", &["probe", ADDRESS, PORT, until])?;
        Ok(Self { lab, prober, enough, _servers: servers })
    }

    /// Waits until `host` answers.
    ///
    /// # Errors
    /// If it does not.
    pub fn answered_by(&mut self, host: &str) -> Result<()> {
        self.prober.take_lines();
        self.await_line(host)
    }

    /// Waits until the prober says that `host` has answered.
    fn await_line(&mut self, host: &str) -> Result<()> {
        let wanted = format!("answered by {host}");
        self.prober
            .wait_for(LIMIT, |line| (line == wanted).then_some(()))
            .with_context(|| format!("{host} does not answer\n{}", self.lab.logs()))
    }

    /// Moves the station, and waits until it answers at its new place. Returns for how long it was paused, as the coordinator
    /// says.
    ///
    /// # Errors
    /// If it is not moved, or does not answer.
    pub fn move_station(&mut self, from: &str, to: &str) -> Result<Duration> {
        self.prober.take_lines();
        let said = net(&self.lab, &["move", from, STATION, "--to", to, "--json"])?.join("\n");
        self.await_line(to)?;
        Ok(Duration::from_micros(serde_json::from_str::<Moved>(&said)?.pause_us))
    }

    /// Moves the station from h1 to h2, back, and so on, this many times. Returns the pause of each move.
    ///
    /// # Errors
    /// If one of the moves fails.
    pub fn move_to_and_fro(&mut self, moves: usize) -> Result<Vec<Duration>> {
        let places = [("h1", "h2"), ("h2", "h1")].into_iter().cycle();
        let moved = |(number, (from, to))| {
            self.move_station(from, to).with_context(|| format!("move {number} to {to}"))
        };
        (1..=moves).zip(places).map(moved).collect()
    }

    /// Stops probing.
    ///
    /// # Errors
    /// If the prober has failed.
    pub fn end(self) -> Result<(Summary, TestLab)> {
        self.enough.give()?;
        let ended = self.prober.end(LIMIT)?.success()?;
        Ok((serde_json::from_str(ended.lines.last().context("a summary")?)?, self.lab))
    }
}
