//! Demands and labels decide where instances start and go, and what cannot be had is refused in words.

use anyhow::{Result, ensure};
use api::Top;
use e2e::program::Ended;
use e2e::testlab::TestLab;

fn start(lab: &TestLab, name: &str, options: &[&str]) -> Result<Ended> {
    lab.transhume(&[&["run", "--name", name, "--detach"], options, &["--", "sleep", "1000"]].concat())
}

fn starts_on(lab: &TestLab, name: &str, host: &str, options: &[&str]) -> Result<()> {
    start(lab, name, options)?.success()?;
    let instance = lab.instance(name)?;
    ensure!(instance.host == host, "{instance:?}");
    Ok(())
}

/// That these options are refused with this reason.
fn is_refused(lab: &TestLab, options: &[&str], reason: &str) -> Result<()> {
    let ended = start(lab, "refused", options)?;
    ensure!(!ended.status.success() && ended.errors.contains(reason), "{options:?}: {ended:?}");
    Ok(())
}

/// The processors of each host, when all have said how many they have.
fn processors(lab: &TestLab, hosts: usize) -> Result<f64> {
    let top = || -> Result<Top> {
        Ok(serde_json::from_str(&lab.transhume(&["top", "--json"])?.success()?.lines.concat())?)
    };
    lab.eventually("all hosts are measured", || Ok(top()?.hosts.len() == hosts))?;
    Ok(f64::from(top()?.hosts[0].processors))
}

#[test]
fn demands_and_affinity_decide_where_instances_go_and_impossible_ones_are_refused() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(3)?;
    let all = processors(&lab, 3)?;
    let share = |of: f64| format!("{:.2}", all * of);
    let (most, little, some) = (share(0.7), share(0.1), share(0.4));
    starts_on(&lab, "db", "h1", &["--cpus", &most, "--memory", "64M"])?;
    let demand = lab.instance("db")?.demand;
    ensure!(demand.memory_bytes == Some(64 << 20) && demand.cpu_milli.is_some(), "{demand:?}");
    // Both others are emptier, but the traffic is worth it; then the host is full.
    starts_on(&lab, "web", "h1", &["--cpus", &little, "--bandwidth-to", "db=50M"])?;
    starts_on(&lab, "late", "h2", &["--cpus", &some, "--bandwidth-to", "db=50M"])?;
    starts_on(&lab, "near", "h2", &["--latency-to", "late=1ms"])?;

    is_refused(&lab, &["--host", "h1", "--cpus", &some], "host h1 has no room for a demand of ")?;
    is_refused(&lab, &["--cpus", "5000"], "no host has the 5000.0 processors that are demanded: h")?;
    is_refused(&lab, &["--memory", "90000G"], "has the most, ")?;
    is_refused(&lab, &["--bandwidth-to", "nobody=1M"], "`--bandwidth-to` names `nobody`")?;
    is_refused(&lab, &["--host", "h1", "--pin=h2"], "`--host h1` and `--pin=h2` contradict each other")?;

    let mpi = ["--label", "job=mpi", "--affinity", "job"];
    starts_on(&lab, "rank-0", "h3", &mpi)?;
    starts_on(&lab, "rank-1", "h3", &mpi)?;
    let elsewhere = "affinity on job=mpi excludes host h2: `rank-0` is on h3";
    is_refused(&lab, &[&mpi[..], &["--host", "h2"]].concat(), elsewhere)?;
    is_refused(&lab, &[&mpi[..], &["--anti-affinity", "job"]].concat(), "contradict each other")?;
    lab.transhume(&["drain", "h3"])?.success()?;
    let host = |name: &str| -> Result<String> { Ok(lab.settled(name)?.host) };
    ensure!(host("rank-0")? == host("rank-1")? && host("rank-0")? != "h3", "{:?}", lab.instances()?);
    is_refused(&lab, &["--pin=h3"], "host h3 is drained")?;
    lab.lab.kill("h3".parse()?)?;
    lab.eventually("a pin to a lost host is refused", || {
        lab.transhume(&["undrain", "h3"]).map(drop)?;
        Ok(start(&lab, "refused", &["--pin=h3"])?.errors.contains("host h3 is not connected"))
    })
}
