//! A station's device moves between the hosts of a lab: it answers all the time, from one place.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use api::NetDevice;
use e2e::asked::{Asked, STATION, beside};
use e2e::overlay::{Stream, await_kernel, net, tunnel};
use e2e::program::Program;
use e2e::testlab::TestLab;
use lab::Place;
use serde::Deserialize;

const LIMIT: Duration = Duration::from_secs(60);

/// So many moves take some ten seconds on a machine that is busy.
const MOVES: usize = 100;

/// A device as `net devices --json` lists it.
#[derive(Deserialize)]
struct Listed {
    host: String,
    #[serde(flatten)]
    device: NetDevice,
}

/// Where the station is, once it is in one place and carries frames.
fn place(lab: &TestLab) -> Result<String> {
    let mut place = String::new();
    lab.eventually("the station is in one place", || {
        let devices = net(lab, &["devices", "--json"])?.join("\n");
        let devices: Vec<Listed> = serde_json::from_str(&devices)?;
        let stations: Vec<_> = devices.into_iter().filter(|listed| listed.device.name == STATION).collect();
        let [Listed { host, device }] = &stations[..] else { return Ok(false) };
        host.clone_into(&mut place);
        Ok(device.open && device.failure.is_none())
    })?;
    Ok(place)
}

#[test]
fn a_station_moves_and_is_answered_for_once_by_one_host() -> Result<()> {
    let _shared = e2e::shared();
    let mut asked = Asked::begin(&["star", "--center", "h3"])?;
    // Through the nodes of all three.
    let mut stream = Stream::start(&asked.lab, &["h1", "--"], &["h2", "--"], &beside("h2"))?;
    asked.answered_by("h1")?;
    let lab = moves_to_and_fro(asked)?;
    stream.goes_on()?;
    stream.end()?;
    let refused = lab.transhume(&["net", "move", "h1", STATION, "--to", "h1"])?;
    ensure!(!refused.status.success() && refused.errors.contains("already on h1"), "{}", refused.errors);
    Ok(())
}

#[test]
fn a_station_moves_while_the_kernel_carries_its_frames() -> Result<()> {
    let _shared = e2e::shared();
    let mut asked = Asked::begin(&["star", "--center", "h3", "--plain"])?;
    for host in ["h1", "h2"] {
        await_kernel(&asked.lab, ["h3", host], true)?;
    }
    let [one, other] =
        ["h1", "h2"].map(|host| Stream::start(&asked.lab, &["h3", "--"], &[host, "--"], &beside(host)));
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

/// Moves the station, which is on h1: it is always in one place, and never silent for long.
fn moves_to_and_fro(mut asked: Asked) -> Result<TestLab> {
    asked.move_to_and_fro(MOVES)?;
    let (summary, lab) = asked.end()?;
    summary.require_one_place(MOVES)?;
    ensure!(summary.answered * 10 > summary.sent * 9, "{summary:?}");
    ensure!(summary.silence < 5000.0, "{summary:?}");
    Ok(lab)
}

#[test]
fn a_station_stays_or_has_moved_when_a_daemon_is_killed_during_its_move() -> Result<()> {
    let _shared = e2e::shared();
    let mut asked = Asked::begin(&["star", "--center", "h3"])?;
    asked.answered_by("h1")?;
    for victim in ["coordinator", "h1", "h2"] {
        let victim: Place = victim.parse()?;
        for delay in [0, 10, 20, 40] {
            let from = place(&asked.lab)?;
            let to = if from == "h1" { "h2" } else { "h1" };
            let moving =
                Program::start(&mut asked.lab.command(&["net", "move", &from, STATION, "--to", to]))?;
            sleep(Duration::from_millis(delay));
            asked.lab.lab.kill(victim)?;
            asked.lab.lab.start(victim)?;
            moving.end(LIMIT)?;
            let place = place(&asked.lab)?;
            asked.answered_by(&place).with_context(|| format!("{victim} was killed after {delay} ms"))?;
            // All that it needs is there: it moves.
            let other = if place == "h1" { "h2" } else { "h1" };
            net(&asked.lab, &["move", &place, STATION, "--to", other])?;
            asked.answered_by(other)?;
        }
    }
    let (summary, _lab) = asked.end()?;
    ensure!(summary.twice == 0, "{summary:?}");
    Ok(())
}
