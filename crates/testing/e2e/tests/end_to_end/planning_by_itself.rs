//! Plans that the coordinator carries out: for a user, and by itself.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use api::{AutoState, AutoStatus};
use e2e::overlay::net;
use e2e::program::Program;
use e2e::testlab::TestLab;
use lab::Place;

use crate::planning::{CLIENT, HOLDER, SERVER, sample_often, start, top};

const PYTHON: &str = "/usr/bin/python3";

fn auto(lab: &TestLab, order: &[&str]) -> Result<AutoStatus> {
    let answer = lab.transhume(&[&["plan", "--json", "--auto"], order].concat())?.success()?;
    serde_json::from_str(&answer.lines.concat()).with_context(|| format!("{answer:?}"))
}

fn restart_coordinator(lab: &TestLab) -> Result<()> {
    lab.lab.kill(Place::Coordinator)?;
    lab.lab.start(Place::Coordinator)?;
    Ok(())
}

#[test]
fn the_loop_brings_those_together_that_talk_and_then_moves_nothing() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(2)?;
    ["h1", "h2"].iter().try_for_each(|host| sample_often(&lab, host))?;
    net(&lab, &["layout", "star"])?;
    start(&lab, "server", "h1", &["--pin"], &[PYTHON, "-c", SERVER])?;
    let address = lab.instance("server")?.address;
    start(&lab, "client", "h2", &[], &[PYTHON, "-c", CLIENT, &address])?;
    ensure!(auto(&lab, &["status"])?.state == AutoState::Off);
    let wrong = lab.transhume(&["plan", "--auto", "on", "--goal", "consolidate"])?;
    ensure!(!wrong.status.success() && wrong.errors.contains("has no such goal"), "{wrong:?}");
    auto(&lab, &["on", "--hold", "2s", "--budget", "5"])?;
    lab.eventually("they are together", || Ok(lab.instance("client")?.host == lab.instance("server")?.host))?;
    lab.eventually("the effect is measured", || Ok(auto(&lab, &["status"])?.effect.is_some()))?;
    let status = auto(&lab, &["status"])?;
    let effect = status.effect.context("there is an effect")?;
    ensure!(effect.measured >= effect.predicted / 2 && status.misses == 0, "{status:?}");
    restart_coordinator(&lab)?;
    std::thread::sleep(Duration::from_secs(5));
    let status = auto(&lab, &["status"])?;
    ensure!(status.state == AutoState::On && status.moves_in_hour == 1, "{status:?}");
    ensure!(auto(&lab, &["off"])?.state == AutoState::Off);
    let events = lab.transhume(&["events"])?.success()?.lines.concat();
    for part in ["auto plan", "plan began", "because", "plan ended", "plan measured"] {
        ensure!(events.contains(part), "{part}: {events}");
    }
    Ok(())
}

#[test]
fn a_coordinator_that_is_killed_carries_its_plan_to_the_end() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(2)?;
    ["h1", "h2"].iter().try_for_each(|host| sample_often(&lab, host))?;
    let names = ["a", "b", "c", "d"];
    names.iter().try_for_each(|name| start(&lab, name, "h1", &[], &[PYTHON, "-c", HOLDER]))?;
    lab.eventually("all are measured", || {
        Ok(top(&lab)?.instances.iter().filter(|of| of.memory_bytes > Some(100 << 20)).count() == names.len())
    })?;
    let mut command = lab.command(&["plan", "apply", "--goal", "evacuate=h1", "--parallel", "1"]);
    let applied = Program::start(&mut command)?;
    let left =
        || -> Result<usize> { Ok(lab.instances()?.iter().filter(|instance| instance.host == "h1").count()) };
    lab.eventually("the first one has moved", || Ok(left()? < names.len()))?;
    let second = lab.transhume(&["plan", "apply", "--goal", "evacuate=h1"])?;
    ensure!(
        !second.status.success() && second.errors.contains("another plan is being carried out"),
        "{second:?}"
    );
    restart_coordinator(&lab)?;
    applied.end(Duration::from_secs(60))?.success()?;
    ensure!(left()? == 0, "{:?}", lab.instances()?);
    let events = lab.transhume(&["events"])?.success()?.lines;
    let after = events.iter().rev().take_while(|event| !event.contains("coordinator started"));
    ensure!(
        after.filter(|event| event.contains(" moved  ")).count() > 0,
        "the plan was over before: {events:?}"
    );
    let none = lab.transhume(&["plan", "cancel"])?;
    ensure!(none.errors.contains("no plan is being carried out"), "{none:?}");
    Ok(())
}

#[test]
fn a_host_that_asks_to_leave_is_emptied() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(2)?;
    ["h1", "h2"].iter().try_for_each(|host| sample_often(&lab, host))?;
    start(&lab, "job", "h1", &[], &["sleep", "1000"])?;
    auto(&lab, &["on", "--hold", "2s"])?;
    std::fs::write(lab.lab.layout().state("h1".parse()?).join("leave"), "a disk fails\n")?;
    lab.eventually("the host is empty", || Ok(lab.instance("job")?.host == "h2"))?;
    lab.eventually("the host is drained, and asks for it", || {
        let hosts = lab.transhume(&["hosts"])?.success()?.lines.concat();
        Ok(hosts.contains("drained, asks to be emptied: a disk fails"))
    })
}
