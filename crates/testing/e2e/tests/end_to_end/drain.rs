//! Hosts are drained under load, with faults meanwhile, and take instances again.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use api::{Host, HostRemoved, MoveReport, Outcome, PlannedMove, Stayed};
use e2e::program::{Ended, Program};
use e2e::signal::Signal;
use e2e::testlab::TestLab;
use lab::Place;
use serde::Deserialize;

const LIMIT: Duration = Duration::from_secs(120);

/// The output of `drain --json`.
#[derive(Debug, Deserialize)]
struct Report {
    host: String,
    moved: u32,
    stayed: Vec<Stayed>,
    moves: Vec<MoveReport>,
}

fn report(ended: &Ended) -> Result<Report> {
    serde_json::from_str(&ended.lines.concat()).with_context(|| format!("{ended:?}"))
}

/// How many instances each host has, and whether it is drained.
fn hosts(lab: &TestLab) -> Result<Vec<(u32, bool)>> {
    let listed: Vec<Host> =
        serde_json::from_str(&lab.transhume(&["hosts", "--json"])?.success()?.lines.concat())?;
    Ok(listed.iter().map(|host| (host.instances, host.drained)).collect())
}

/// Starts instances on h1 that do nothing.
fn sleepers(lab: &TestLab, count: usize) -> Result<()> {
    (1..=count).try_for_each(|number| {
        let name = format!("s{number}");
        let run = ["run", "--name", &name, "--host", "h1", "--detach", "--", "sleep", "1000"];
        lab.transhume(&run)?.success().map(drop)
    })
}

#[test]
fn a_host_is_drained_under_load_and_takes_instances_again() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(3)?;
    let mut check = lab.check("h1", "h1", &["--qps", "4"])?;
    sleepers(&lab, 3)?;
    check.progress()?;
    let planned = lab.transhume(&["drain", "h1", "--dry-run", "--json"])?.success()?;
    let planned: Vec<PlannedMove> = serde_json::from_str(&planned.lines.concat())?;
    let plan: Vec<_> = planned.iter().map(|planned| (planned.name.as_str(), planned.to.as_deref())).collect();
    let (mut first, to): (Vec<_>, Vec<_>) = plan.iter().take(3).copied().unzip();
    first.sort_unstable();
    ensure!(plan.len() == 5 && first == ["s1", "s2", "s3"], "small instances go first: {planned:?}");
    ensure!(to == ["h2", "h3", "h2"].map(Some), "{planned:?}");
    ensure!(planned[4].bytes > planned[0].bytes && planned[0].bytes > Some(0), "{planned:?}");
    ensure!(planned.iter().all(|planned| planned.total_us.is_none()), "nothing has ever moved: {planned:?}");
    ensure!(hosts(&lab)? == [(5, false), (0, false), (0, false)], "a dry run changes nothing");

    let drained = report(&lab.transhume(&["drain", "h1", "--json"])?.success()?)?;
    ensure!((drained.host.as_str(), drained.moved, drained.moves.len()) == ("h1", 5, 5), "{drained:?}");
    ensure!(drained.stayed.is_empty(), "{drained:?}");
    ensure!(drained.moves.iter().all(|moved| moved.outcome == Outcome::Moved), "{drained:?}");
    ensure!(hosts(&lab)? == [(0, true), (3, false), (2, false)], "{:?}", hosts(&lab)?);
    check.progress()?;
    for refused in
        [&["run", "--host", "h1", "--", "true"][..], &["move", "s1", "h1"], &["drain", "h2", "--to", "h1"]]
    {
        let refused = lab.transhume(refused)?;
        ensure!(!refused.status.success() && refused.errors.contains("h1 is drained"), "{refused:?}");
    }

    let planned = lab.transhume(&["drain", "h2", "--dry-run", "--json"])?.success()?;
    let planned: Vec<PlannedMove> = serde_json::from_str(&planned.lines.concat())?;
    let is_told =
        |planned: &PlannedMove| planned.total_us > planned.blackout_us && planned.blackout_us > Some(0);
    ensure!(planned.len() == 3 && planned.iter().all(is_told), "some have moved: {planned:?}");
    let text = lab.transhume(&["drain", "h2", "--to", "h3", "--parallel", "3"])?.success()?;
    ensure!(text.lines.last().is_some_and(|line| line == "h2 is drained: 3 instances moved"), "{text:?}");
    ensure!(hosts(&lab)? == [(0, true), (0, true), (5, false)], "{:?}", hosts(&lab)?);
    let nowhere = lab.transhume(&["drain", "h3"])?;
    ensure!(!nowhere.status.success() && nowhere.errors.contains("undrain"), "{nowhere:?}");
    ensure!(hosts(&lab)?[2] == (5, false), "an impossible drain is not begun");
    check.progress()?;

    lab.lab.kill(Place::Coordinator)?;
    lab.lab.start(Place::Coordinator)?;
    let elsewhere = lab.transhume(&["run", "--host", "h1", "--", "true"])?;
    ensure!(elsewhere.errors.contains("h1 is drained"), "it was forgotten: {elsewhere:?}");
    lab.transhume(&["undrain", "h1"])?.success()?;
    let again = lab.transhume(&["undrain", "h1"])?;
    ensure!(!again.status.success() && again.errors.contains("h1 is not drained"), "{again:?}");
    lab.transhume(&["run", "--host", "h1", "--", "true"])?.success()?;
    check.progress()?;
    lab.end_check(check)?;
    Ok(())
}

#[test]
fn instances_with_blockers_stay_and_the_drain_names_the_blockers() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(3)?;
    sleepers(&lab, 2)?;
    let lock = Signal::new("lock");
    let path = lock.path().to_str().context("a path")?;
    let run = ["run", "--name", "pinned", "--host", "h1", "--detach", "--", "flock", path, "sleep", "1000"];
    lab.transhume(&run)?.success()?;
    lab.eventually("the instance is pinned", || {
        Ok(!lab.transhume(&["move", "pinned", "h2", "--dry-run"])?.status.success())
    })?;
    let planned = lab.transhume(&["drain", "h1", "--dry-run"])?;
    ensure!(
        !planned.status.success() && planned.errors.contains("pinned cannot be moved: h2: "),
        "{planned:?}"
    );
    let ended = lab.transhume(&["drain", "h1", "--json"])?;
    ensure!(ended.status.code() == Some(1), "{ended:?}");
    let drained = report(&ended)?;
    let [Stayed { name, why }] = &drained.stayed[..] else { anyhow::bail!("{drained:?}") };
    ensure!(name == "pinned" && !why.message.is_empty() && drained.moved == 2, "{drained:?}");
    let tried: Vec<_> = drained.moves.iter().filter(|of| of.name == "pinned").map(|of| &of.to).collect();
    ensure!(tried.len() == 2, "both other hosts are tried, once: {tried:?}");
    ensure!(lab.settled("pinned")?.host == "h1", "it runs on");
    ensure!(hosts(&lab)?[0] == (1, true), "{:?}", hosts(&lab)?);
    lab.transhume(&["kill", "pinned"])?.success()?;
    report(&lab.transhume(&["drain", "h1", "--json"])?.success()?)?;
    Ok(())
}

#[test]
fn a_drain_survives_the_death_of_the_coordinator_and_of_nodes() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(3)?;
    let mut check = lab.check("h1", "h1", &["--qps", "2"])?;
    sleepers(&lab, 4)?;
    for (victim, delay) in [("coordinator", 300), ("h3", 300), ("h1", 500), ("coordinator", 1000)] {
        check.progress()?;
        let victim: Place = victim.parse()?;
        let drains = Program::start(&mut lab.command(&["drain", "h1", "--json"]))?;
        sleep(Duration::from_millis(delay));
        lab.lab.kill(victim)?;
        lab.lab.start(victim)?;
        if victim == Place::Coordinator {
            lab.read_again(&mut check)?;
        }
        let drained = report(&drains.end(LIMIT)?.success().with_context(|| lab.logs())?)?;
        ensure!(drained.stayed.is_empty(), "{drained:?}\n{}", lab.logs());
        ensure!(
            drained.moved == 6,
            "every move is reported, also those under the former coordinator: {drained:?}"
        );
        lab.transhume(&["undrain", "h1"])?.success()?;
        for instance in lab.instances()? {
            ensure!(instance.host != "h1", "{instance:?}");
            lab.settled(&instance.name)?;
            lab.move_to(&instance.name, "h1")?;
        }
    }
    check.progress()?;
    lab.end_check(check)?;
    Ok(())
}

#[test]
fn a_drain_that_is_ended_leaves_every_instance_in_one_place() -> Result<()> {
    // They move one after the other: so many that two commands are sooner than all of them, however busy the machine is.
    const ALL: u32 = 12;
    let _shared = e2e::shared();
    let lab = TestLab::up(2)?;
    sleepers(&lab, ALL as usize)?;
    let drains = Program::start(&mut lab.command(&["drain", "h1"]))?;
    lab.eventually("one has moved", || Ok(hosts(&lab)?[1].0 > 0))?;
    lab.transhume(&["undrain", "h1"])?.success()?;
    let ended = drains.end(LIMIT)?;
    ensure!(!ended.status.success() && ended.errors.contains("the drain of h1 was ended"), "{ended:?}");
    for number in 1..=ALL {
        lab.settled(&format!("s{number}"))?;
    }
    let [(here, false), (there, false)] = hosts(&lab)?[..] else { anyhow::bail!("still drained") };
    ensure!(here > 0 && there > 0 && here + there == ALL, "{here} and {there}");
    lab.transhume(&["drain", "h1"])?.success()?;
    ensure!(hosts(&lab)? == [(0, true), (ALL, false)], "{:?}", hosts(&lab)?);
    Ok(())
}

#[test]
fn a_host_that_is_gone_for_good_is_removed_with_its_instances() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(2)?;
    sleepers(&lab, 1)?;
    let refused = lab.transhume(&["host", "remove", "h1", "--lost"])?;
    ensure!(!refused.status.success() && refused.errors.contains("not lost"), "{refused:?}");
    lab.lab.kill("h1".parse()?)?;
    lab.eventually("h1 is away", || {
        let refused = lab.transhume(&["host", "remove", "h1"])?;
        ensure!(!refused.status.success() && refused.errors.contains("`s1`"), "{refused:?}");
        Ok(refused.errors.contains("`transhume host remove h1 --lost`"))
    })?;
    let removed = lab.transhume(&["host", "remove", "h1", "--lost", "--json"])?.success()?.lines.concat();
    let removed: HostRemoved = serde_json::from_str(&removed)?;
    ensure!(removed.lost_instances == ["s1"] && removed.untold.is_empty(), "{removed:?}");
    let events = lab.transhume(&["events"])?.success()?.lines;
    let lost = |line: &String| line.contains("lost") && line.contains("s1 on h1: host h1 is gone for good");
    ensure!(events.iter().any(lost), "{events:?}");
    // Its name is free, and its host belongs to no node.
    lab.transhume(&["run", "--name", "s1", "--detach", "--", "sleep", "1000"])?.success()?;
    ensure!(lab.instance("s1")?.host == "h2" && hosts(&lab)?.len() == 1);
    Ok(())
}
