//! What hosts and instances use is seen, and a plan brings those together that talk.

use anyhow::{Context as _, Result, ensure};
use api::{Improvement, Top, TopInstance};
use e2e::overlay::net;
use e2e::signal::Signal;
use e2e::testlab::TestLab;

/// Takes whatever comes.
pub const SERVER: &str = "import socket
server = socket.create_server(('', 7000))
peer, _ = server.accept()
while peer.recv(1 << 20): pass";

/// Sends 4 MiB a second.
pub const CLIENT: &str = "import socket, sys, time
while True:
    try:
        peer = socket.create_connection((sys.argv[1], 7000))
        break
    except OSError: time.sleep(0.1)
while True:
    peer.sendall(bytes(1 << 20))
    time.sleep(0.25)";

/// Holds 100 MiB.
pub const HOLDER: &str = "import time
held = bytearray(b'x') * (100 << 20)
time.sleep(1000)";

pub fn top(lab: &TestLab) -> Result<Top> {
    Ok(serde_json::from_str(&lab.transhume(&["top", "--json"])?.success()?.lines.concat())?)
}

fn plan(lab: &TestLab) -> Result<Improvement> {
    plan_for(lab, "traffic")
}

fn plan_for(lab: &TestLab, goal: &str) -> Result<Improvement> {
    let planned = lab.transhume(&["plan", "--goal", goal, "--json"])?.success()?;
    serde_json::from_str(&planned.lines.concat()).with_context(|| format!("{planned:?}"))
}

pub fn sample_often(lab: &TestLab, host: &str) -> Result<()> {
    lab.lab.kill(host.parse()?)?;
    lab.lab.start_with(host.parse()?, &["--sample-interval", "500ms"])?;
    Ok(())
}

pub fn start(lab: &TestLab, name: &str, host: &str, options: &[&str], command: &[&str]) -> Result<()> {
    let run = [&["run", "--detach", "--name", name, "--host", host], options, &["--"], command].concat();
    lab.transhume(&run)?.success().map(drop)
}

#[test]
fn instances_that_talk_are_seen_and_a_plan_brings_them_together() -> Result<()> {
    const PYTHON: &str = "/usr/bin/python3";
    let _shared = e2e::shared();
    let lab = TestLab::up(2)?;
    ["h1", "h2"].iter().try_for_each(|host| sample_often(&lab, host))?;
    net(&lab, &["layout", "star"])?;
    start(&lab, "server", "h1", &["--cool-down", "1h"], &[PYTHON, "-c", SERVER])?;
    let address = lab.instance("server")?.address;
    start(&lab, "client", "h2", &["--cool-down", "1h"], &[PYTHON, "-c", CLIENT, &address])?;
    start(&lab, "burner", "h1", &["--pin"], &["sh", "-c", "while :; do :; done"])?;
    start(&lab, "holder", "h2", &[], &[PYTHON, "-c", HOLDER])?;

    let of = |top: &Top, name: &str| top.instances.iter().find(|instance| instance.name == name).cloned();
    // Other tests use the processors too, so the burner gets a share of one.
    let burns = |it: &TopInstance| it.cpu_milli.is_some_and(|milli| (100..1300).contains(&milli));
    let holds =
        |it: &TopInstance| it.memory_bytes.is_some_and(|bytes| (100 << 20..125 << 20).contains(&bytes));
    lab.eventually("what instances use is seen", || {
        let top = top(&lab)?;
        let ends = ["client", "server"].map(String::from);
        let talk = top.talks.iter().find(|talk| talk.ends == ends || talk.ends == [&ends[1][..], &ends[0]]);
        Ok(of(&top, "burner").is_some_and(|it| burns(&it))
            && of(&top, "holder").is_some_and(|it| holds(&it))
            && talk.is_some_and(|talk| talk.bytes_per_second > 256 << 10))
    })?;
    let seen = top(&lab)?;
    ensure!(seen.hosts.len() == 2 && seen.hosts.iter().all(|host| host.memory_bytes > 1 << 30), "{seen:?}");

    let planned = plan(&lab)?;
    let steps: Vec<_> = planned.waves.iter().flatten().collect();
    ensure!(steps.len() == 1 && ["client", "server"].contains(&&*steps[0].name), "{planned:?}");
    ensure!(planned.before.traffic > 0 && planned.after.traffic == 0, "{planned:?}");
    ensure!(
        planned.stay.iter().any(|stays| stays.name == "burner" && stays.why.contains("pinned")),
        "{planned:?}"
    );
    lab.transhume(&["plan", "apply", "--goal", "traffic"])?.success()?;
    ensure!(lab.instance("client")?.host == lab.instance("server")?.host, "{:?}", lab.instances()?);
    ensure!(plan(&lab)?.waves.is_empty(), "{:?}", plan(&lab)?);

    let (moved, to) = (steps[0].name.clone(), steps[0].to.clone());
    let emptied = plan_for(&lab, &format!("evacuate={to}"))?;
    let cools = emptied.stay.iter().any(|stays| stays.name == moved && stays.why.contains("cools down"));
    ensure!(cools, "{emptied:?}");
    lab.eventually("the moved instance is seen at its new host", || {
        Ok(of(&top(&lab)?, &moved).is_some_and(|it| it.host == to && it.memory_bytes > Some(1 << 20)))
    })?;
    ensure!(top(&lab)?.hosts.iter().all(|host| host.network_bytes_per_second.is_some()), "{:?}", top(&lab)?);
    lab.lab.kill("h2".parse()?)?;
    lab.eventually("a host that is lost has no present figures, and neither have its instances", || {
        let top = top(&lab)?;
        let is_unknown = |it: TopInstance| it.host == "h2" && it.cpu_milli.is_none();
        Ok(top.hosts.iter().all(|host| host.name == "h1") && of(&top, "holder").is_some_and(is_unknown))
    })
}

/// Writes 64 KiB so many times, and then sends 8 bytes so many times. `ib_write_bw` has 16 requests in flight: what a move interrupts is sent,
/// and counted, again.
const WRITES: u64 = 50_000;
const SENDS: u64 = 100_000;

/// One side of both programs. The client begins again until the server listens.
fn perftest(address: &str) -> String {
    format!(
        "until ib_write_bw -F -s 65536 -t 16 -n {WRITES} {address}; do sleep 0.1; done
         until ib_send_bw -F -s 8 -n {SENDS} {address}; do sleep 0.1; done
         sleep 1000"
    )
}

#[test]
fn rdma_traffic_is_counted_between_hosts_on_one_host_and_across_a_move() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(2)?;
    ["h1", "h2"].iter().try_for_each(|host| sample_often(&lab, host))?;
    start(&lab, "server", "h1", &[], &["sh", "-c", &perftest("")])?;
    let address = lab.instance("server")?.address;
    start(&lab, "client", "h2", &[], &["sh", "-c", &perftest(&address)])?;
    let counted = || -> Result<(u64, u64)> {
        let talks = top(&lab)?.talks;
        let talk =
            talks.into_iter().find(|talk| talk.ends.iter().all(|end| end == "client" || end == "server"));
        Ok(talk.map_or((0, 0), |talk| (talk.rdma_bytes, talk.rdma_messages)))
    };
    let (bytes, messages) = (WRITES * 65536 + SENDS * 8, WRITES + SENDS);
    lab.eventually("traffic between two hosts is counted", || Ok(counted()?.0 > bytes / 20))?;
    let before = counted()?;
    ensure!(before.0 < bytes * 3 / 4, "the program was quicker than this test: {before:?}");
    lab.move_to("client", "h1")?;
    let after = counted()?;
    ensure!(after.0 >= before.0 && after.0 < bytes * 11 / 10, "{before:?} {after:?}");
    lab.eventually("all traffic is counted", || {
        let counted = counted()?;
        Ok(counted.0 >= bytes && counted.1 >= messages)
    })?;
    let (all_bytes, all_messages) = counted()?;
    ensure!(all_bytes < bytes * 11 / 10 && all_messages < messages * 11 / 10, "{all_bytes} {all_messages}");

    let talks = top(&lab)?.talks;
    ensure!(talks[0].rdma.bytes_per_second == talks[0].bytes_per_second, "none on the overlay: {talks:?}");
    ensure!(plan(&lab)?.before.traffic == 0, "they are on one host");
    Ok(())
}

#[test]
fn a_plan_that_cannot_be_is_refused_by_name() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(1)?;
    start(&lab, "job", "h1", &[], &["sleep", "1000"])?;
    let unknown = lab.transhume(&["plan", "--goal", "evacuate=h1"])?.success()?;
    ensure!(unknown.lines.iter().any(|line| line.contains("it has not been measured yet")), "{unknown:?}");
    sample_often(&lab, "h1")?;
    lab.eventually("it is measured", || {
        Ok(top(&lab)?.instances.iter().any(|instance| instance.cpu_milli.is_some()))
    })?;
    for (goal, reason) in [("evacuate=h9", "`h9`"), ("evacuate=h1", "the instances of h1")] {
        let refused = lab.transhume(&["plan", "--goal", goal])?;
        ensure!(!refused.status.success() && refused.errors.contains(reason), "{refused:?}");
    }
    let wrong = lab.transhume(&["plan", "--goal", "speed"])?;
    ensure!(wrong.errors.contains("evacuate=HOST"), "{wrong:?}");
    Ok(())
}

#[test]
fn an_instance_that_its_engine_refuses_to_move_stays_and_the_plan_says_why() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(2)?;
    ["h1", "h2"].iter().try_for_each(|host| sample_often(&lab, host))?;
    let lock = Signal::new("lock");
    let path = lock.path().to_str().context("a path")?;
    start(&lab, "locked", "h1", &[], &["flock", path, "sleep", "1000"])?;
    start(&lab, "free", "h1", &[], &["sleep", "1000"])?;
    lab.eventually("both are measured", || {
        Ok(top(&lab)?.instances.iter().filter(|instance| instance.cpu_milli.is_some()).count() == 2)
    })?;
    let planned = plan_for(&lab, "evacuate=h1")?;
    let moved: Vec<_> = planned.waves.iter().flatten().map(|step| &*step.name).collect();
    ensure!(moved == ["free"], "{planned:?}");
    let reason = planned.stay.iter().find(|stays| stays.name == "locked").map(|stays| &*stays.why);
    ensure!(reason.is_some_and(|why| why.starts_with("it cannot move to h2: ")), "{planned:?}");
    Ok(())
}
