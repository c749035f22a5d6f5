//! A station's device moves between the hosts of a lab: it answers all the time, from one place.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use api::NetDevice;
use e2e::overlay::{Stream, await_kernel, net, tunnel};
use e2e::program::Program;
use e2e::signal::Signal;
use e2e::testlab::TestLab;
use lab::Place;
use serde::Deserialize;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/echo.py");
const ADDRESS: &str = "10.88.0.100";
const PORT: &str = "7600";
const LIMIT: Duration = Duration::from_secs(60);

/// What the prober says at its end.
#[derive(Debug, Deserialize)]
struct Summary {
    sent: u64,
    answered: u64,
    twice: u64,
    silence: f64,
    by: Vec<String>,
}

/// A station `st0`, on h1 at first, that h1 and h2 can answer for, and h3 that asks it.
struct Asked {
    prober: Program,
    enough: Signal,
    _servers: [Program; 2],
    lab: TestLab,
}

impl Asked {
    /// `how` links are laid beside that they go to h3.
    fn begin(how: &[&str]) -> Result<Self> {
        let lab = TestLab::up(3)?;
        net(&lab, &[&["layout", "star", "--center", "h3"], how].concat())?;
        net(&lab, &["attach", "h3", "tap1", "--address", "10.88.0.3/24"])?;
        net(&lab, &["attach", "h1", "st0", "--address", &format!("{ADDRESS}/24")])?;
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
        Ok(Self { prober, enough, _servers: servers, lab })
    }

    /// Waits until `host` answers.
    fn answered_by(&mut self, host: &str) -> Result<()> {
        self.prober.take_lines();
        let wanted = format!("answered by {host}");
        self.prober
            .wait_for(LIMIT, |line| (line == wanted).then_some(()))
            .with_context(|| format!("{host} does not answer\n{}", self.lab.logs()))
    }

    fn end(self) -> Result<(Summary, TestLab)> {
        self.enough.give()?;
        let ended = self.prober.end(LIMIT)?.success()?;
        Ok((serde_json::from_str(ended.lines.last().context("a summary")?)?, self.lab))
    }

    /// Where the station is, once it is in one place and carries frames.
    fn place(&self) -> Result<String> {
        let mut place = String::new();
        self.lab.eventually("the station is in one place", || {
            let devices = net(&self.lab, &["devices", "--json"])?.join("\n");
            let devices: Vec<Listed> = serde_json::from_str(&devices)?;
            let stations: Vec<_> = devices.into_iter().filter(|listed| listed.device.name == "st0").collect();
            let [Listed { host, device }] = &stations[..] else { return Ok(false) };
            host.clone_into(&mut place);
            Ok(device.open && device.failure.is_none())
        })?;
        Ok(place)
    }
}

/// A device as `net devices --json` lists it.
#[derive(Deserialize)]
struct Listed {
    host: String,
    #[serde(flatten)]
    device: NetDevice,
}

#[test]
fn a_station_moves_and_is_answered_for_once_by_one_host() -> Result<()> {
    let _alone = e2e::alone();
    let mut asked = Asked::begin(&[])?;
    asked.answered_by("h1")?;
    let lab = moves_to_and_fro(asked)?;
    let refused = lab.transhume(&["net", "move", "h1", "st0", "--to", "h1"])?;
    ensure!(!refused.status.success() && refused.errors.contains("on h1 already"), "{}", refused.errors);
    Ok(())
}

#[test]
fn a_station_moves_while_the_kernel_carries_its_frames() -> Result<()> {
    let _alone = e2e::alone();
    let mut asked = Asked::begin(&["--plain"])?;
    for host in ["h1", "h2"] {
        await_kernel(&asked.lab, ["h3", host], true)?;
        net(&asked.lab, &["attach", host, "tap1", "--address", &format!("10.88.0.{}/24", &host[1..])])?;
    }
    let [one, other] = ["h1", "h2"].map(|host| {
        Stream::start(&asked.lab, &["h3", "--"], &[host, "--"], &format!("10.88.0.{}", &host[1..]))
    });
    asked.answered_by("h1")?;
    let before = ["h1", "h2"].map(|host| tunnel(&asked.lab, "h3", host));
    let lab = moves_to_and_fro(asked)?;
    for (host, before) in ["h1", "h2"].into_iter().zip(before) {
        ensure!(tunnel(&lab, "h3", host)?.kernel_frames > before?.kernel_frames + 1000, "to {host}");
    }
    let [mut one, mut other] = [one?, other?];
    one.goes_on()?;
    other.goes_on()?;
    // One signal ends both.
    one.end()?;
    other.end()
}

/// Moves the station twenty times, which is on h1: it never answers twice, and is never silent for long.
fn moves_to_and_fro(mut asked: Asked) -> Result<TestLab> {
    const MOVES: usize = 20;
    for number in 0..MOVES {
        let (from, to) = if number % 2 == 0 { ("h1", "h2") } else { ("h2", "h1") };
        net(&asked.lab, &["move", from, "st0", "--to", to])?;
        asked.answered_by(to)?;
    }
    let (summary, lab) = asked.end()?;
    ensure!(summary.twice == 0 && summary.by.len() == MOVES + 1, "{summary:?}");
    ensure!(summary.answered * 10 > summary.sent * 9, "{summary:?}");
    ensure!(summary.silence < 5000.0, "{summary:?}");
    Ok(lab)
}

#[test]
fn whoever_is_killed_while_a_station_moves_it_stays_or_has_moved() -> Result<()> {
    let _alone = e2e::alone();
    let mut asked = Asked::begin(&[])?;
    asked.answered_by("h1")?;
    for victim in ["coordinator", "h1", "h2"] {
        let victim: Place = victim.parse()?;
        for delay in [0, 10, 20, 40] {
            let from = asked.place()?;
            let to = if from == "h1" { "h2" } else { "h1" };
            let moving = Program::start(&mut asked.lab.command(&["net", "move", &from, "st0", "--to", to]))?;
            sleep(Duration::from_millis(delay));
            asked.lab.lab.kill(victim)?;
            asked.lab.lab.start(victim)?;
            moving.end(LIMIT)?;
            let place = asked.place()?;
            asked.answered_by(&place).with_context(|| format!("{victim} was killed after {delay} ms"))?;
            // All that it needs is there: it moves.
            let other = if place == "h1" { "h2" } else { "h1" };
            net(&asked.lab, &["move", &place, "st0", "--to", other])?;
            asked.answered_by(other)?;
        }
    }
    let (summary, _lab) = asked.end()?;
    ensure!(summary.twice == 0, "{summary:?}");
    Ok(())
}
