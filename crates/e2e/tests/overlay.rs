//! The overlay between the hosts of a lab: what goes through it does not notice what becomes of links and daemons.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use api::{NetLink, Network};
use e2e::program::Program;
use e2e::signal::Signal;
use e2e::testlab::TestLab;
use lab::Place;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/stream.py");
const PORT: &str = "7500";

/// How long the stream may stand still: TCP waits longer after each attempt of which nothing came.
const LIMIT: Duration = Duration::from_secs(60);

/// The hosts of a lab, each with a device `tap1` in the overlay.
fn joined(hosts: u16) -> Result<TestLab> {
    let lab = TestLab::up(hosts)?;
    net(&lab, &["layout", "star"])?;
    for number in 1..=hosts {
        let (host, address) = (format!("h{number}"), format!("10.88.0.{number}/24"));
        net(&lab, &["attach", &host, "tap1", "--address", &address])?;
    }
    Ok(lab)
}

fn net(lab: &TestLab, arguments: &[&str]) -> Result<Vec<String>> {
    let arguments = [&["net"], arguments].concat();
    Ok(lab.transhume(&arguments)?.success().with_context(|| lab.logs())?.lines)
}

fn status(lab: &TestLab) -> Result<Network> {
    Ok(serde_json::from_str(&net(lab, &["status", "--json"])?.join("\n"))?)
}

fn links(lab: &TestLab) -> Result<Vec<NetLink>> {
    Ok(serde_json::from_str(&net(lab, &["links", "--json"])?.join("\n"))?)
}

/// Waits until the receiver has had some MiB more than before.
fn goes_on(server: &mut Program) -> Result<()> {
    const MIB: usize = 4;
    server.take_lines();
    let mut more = 0;
    server.wait_for(LIMIT, |line| {
        more += usize::from(line.starts_with("received"));
        (more > MIB).then_some(())
    })
}

#[test]
fn a_stream_goes_on_while_links_and_daemons_come_and_go() -> Result<()> {
    let _alone = e2e::alone();
    let lab = joined(3)?;
    let enough = Signal::new("enough");
    let python = |host, rest: &[&str]| {
        Program::start(
            &mut lab.command(&[&["lab", "exec", host, "--", "/usr/bin/python3", SCRIPT], rest].concat()),
        )
    };
    let mut server = python("h3", &["serve", "10.88.0.3", PORT])?;
    let until = enough.path().to_str().context("a path")?;
    let mut client = python("h2", &["send", "10.88.0.3", PORT, until])?;
    goes_on(&mut server).context("at first")?;
    let changes: [&[&str]; 6] = [
        &["link", "add", "h2", "h3"],
        &["link", "rm", "h1", "h3"],
        &["link", "add", "h1", "h3", "--cost", "7"],
        &["layout", "mesh"],
        &["layout", "hypercube"],
        &["layout", "star", "--center", "h1"],
    ];
    for change in changes {
        net(&lab, change)?;
        goes_on(&mut server).with_context(|| format!("after {change:?}"))?;
    }
    for place in ["h1", "h2", "h3", "coordinator"] {
        let place: Place = place.parse()?;
        lab.lab.kill(place)?;
        lab.lab.start(place)?;
        goes_on(&mut server).with_context(|| format!("after {place} was killed\n{}", lab.logs()))?;
    }
    ensure!(client.is_running()?, "it is one connection");
    enough.give()?;
    client.end(LIMIT)?.success()?;
    server.end(LIMIT)?.success()?;
    Ok(())
}

#[test]
fn a_host_that_comes_later_is_linked_to_the_center() -> Result<()> {
    let _alone = e2e::alone();
    let lab = TestLab::up(3)?;
    let late: Place = "h3".parse()?;
    lab.lab.kill(late)?;
    net(&lab, &["layout", "star", "--center", "h2"])?;
    ensure!(status(&lab)?.hosts.len() == 2);
    lab.lab.start(late)?;
    let ends = |link: &NetLink| link.ends.join("-");
    lab.eventually("h3 is joined", || {
        let links = links(&lab)?;
        Ok(links.iter().map(ends).eq(["h1-h2", "h2-h3"]) && links.iter().all(|link| link.up))
    })?;
    lab.eventually("all use the same topology", || {
        let network = status(&lab)?;
        let used = |host: &api::NetHost| host.state.as_ref().and_then(|state| state.version);
        Ok(network.awaited.is_empty() && network.hosts.iter().all(|host| used(host) == Some(network.version)))
    })?;
    Ok(())
}
