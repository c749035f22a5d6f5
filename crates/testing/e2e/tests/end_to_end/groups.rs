//! Groups move together, under load and with faults: all arrive, or all run on where they were.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use api::{Instance, MoveReport, Outcome, PlannedMove, State};
use e2e::program::{Ended, Program};
use e2e::signal::Signal;
use e2e::testlab::TestLab;
use lab::Place;

const LIMIT: Duration = Duration::from_secs(120);

fn reports(ended: &Ended) -> Result<Vec<MoveReport>> {
    serde_json::from_str(&ended.lines.concat()).with_context(|| format!("{ended:?}"))
}

/// Where each instance of `group` is, once none is on its way.
fn places(lab: &TestLab, group: &str) -> Result<BTreeMap<String, String>> {
    let is_there = |instance: &Instance| {
        instance.group.as_deref() == Some(group) && !matches!(instance.state, State::Exited { .. })
    };
    let of_group = lab.instances()?.into_iter().filter(is_there);
    of_group.map(|instance| Ok((instance.name.clone(), lab.settled(&instance.name)?.host))).collect()
}

fn on(places: &[(&str, &str)]) -> BTreeMap<String, String> {
    places.iter().map(|(name, host)| ((*name).to_owned(), (*host).to_owned())).collect()
}

fn start(lab: &TestLab, name: &str, host: &str, command: &[&str]) -> Result<()> {
    let run = ["run", "--group", "job", "--name", name, "--host", host, "--detach", "--"];
    lab.transhume(&[&run[..], command].concat())?.success().map(drop)
}

/// Both ends of the workload, as a group that moves to and fro.
#[test]
fn both_ends_of_connections_move_together() -> Result<()> {
    const ROUNDS: usize = 5;
    let _shared = e2e::shared();
    let lab = TestLab::up(4)?;
    let mut check = lab.check_in(Some("job"), "h1", "h2", &["--qps", "8"])?;
    for round in 0..ROUNDS {
        check.progress()?;
        let (to, expected) = match round % 2 {
            0 => ("h3,h4", [("client", "h3"), ("server", "h4")]),
            _ => ("h1", [("client", "h1"), ("server", "h1")]),
        };
        let moved = reports(&lab.transhume(&["move", "--group", "job", to, "--json"])?.success()?)?;
        ensure!(moved.len() == 2 && moved.iter().all(|it| it.outcome == Outcome::Moved), "{moved:?}");
        ensure!(places(&lab, "job")? == on(&expected), "{:?}", places(&lab, "job"));
    }
    check.progress()?;
    for option in [&[][..], &["--dry-run"]] {
        let nothing = lab.transhume(&[&["move", "--group", "job", "h3,h4"], option].concat())?.success()?;
        ensure!(nothing.lines == ["all instances of group job are already there"], "{nothing:?}");
    }
    lab.end_check(check)?;
    Ok(())
}

#[test]
fn a_group_with_a_blocker_stays_as_a_whole() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(2)?;
    let lock = Signal::new("group-lock");
    let path = lock.path().to_str().context("a path")?;
    for name in ["a", "b"] {
        start(&lab, name, "h1", &["sleep", "1000"])?;
    }
    start(&lab, "pinned", "h1", &["flock", path, "sleep", "1000"])?;
    lab.eventually("the instance is pinned", || {
        Ok(!lab.transhume(&["move", "pinned", "h2", "--dry-run"])?.status.success())
    })?;
    let planned = lab.transhume(&["move", "--group", "job", "h2", "--dry-run", "--json"])?;
    let plan: Vec<PlannedMove> = serde_json::from_str(&planned.lines.concat())?;
    let to: Vec<_> = plan.iter().map(|planned| (planned.name.as_str(), planned.to.as_deref())).collect();
    ensure!(to == [("a", None), ("b", None), ("pinned", None)], "{plan:?}");
    let hindered: Vec<_> = plan.iter().map(|planned| !planned.obstacles.is_empty()).collect();
    ensure!(hindered == [false, false, true], "{plan:?}");
    let ended = lab.transhume(&["move", "--group", "job", "h2", "--json"])?;
    ensure!(ended.status.code() == Some(1), "{ended:?}");
    for report in reports(&ended)? {
        let Outcome::RolledBack(why) = &report.outcome else { anyhow::bail!("{report:?}") };
        let of_other = why.message.matches("pinned, which moves with it").count();
        ensure!(of_other == usize::from(report.name != "pinned"), "{report:?}");
        ensure!(report.blackout_us == 0, "none is suspended before all are prepared: {report:?}");
    }
    ensure!(places(&lab, "job")?.values().all(|host| host == "h1"), "{:?}", places(&lab, "job"));
    lab.transhume(&["kill", "pinned"])?.success()?;
    lab.transhume(&["move", "--group", "job", "h2"])?.success()?;
    ensure!(places(&lab, "job")?.values().all(|host| host == "h2"), "{:?}", places(&lab, "job"));
    for (wrong, said) in [
        (&["move", "--group", "jbo", "h1"][..], "no instance belongs to group `jbo`"),
        (&["move", "--group", "job", "h7"], "no host `h7`"),
        (&["move", "h1"], "neither an instance nor a group to move"),
        (&["run", "--group", "A b", "--", "true"], "`A b` is not a valid group name"),
    ] {
        let refused = lab.transhume(wrong)?;
        ensure!(!refused.status.success() && refused.errors.contains(said), "{refused:?}");
    }
    Ok(())
}

#[test]
fn a_group_moves_as_a_whole_or_not_at_all_when_a_daemon_is_killed() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(4)?;
    let mut check = lab.check_in(Some("job"), "h1", "h2", &["--qps", "2"])?;
    for (round, victim) in
        ["coordinator", "h1", "h3", "coordinator", "h4", "coordinator"].into_iter().enumerate()
    {
        check.progress().with_context(|| lab.logs())?;
        let victim: Place = victim.parse()?;
        let moving = Program::start(&mut lab.command(&["move", "--group", "job", "h3,h4", "--json"]))?;
        sleep(Duration::from_millis(60 + 60 * round as u64));
        lab.lab.kill(victim)?;
        lab.lab.start(victim)?;
        if victim == Place::Coordinator {
            lab.read_again(&mut check)?;
        }
        let ended = moving.end(LIMIT)?;
        let places = places(&lab, "job")?;
        let have_moved = places == on(&[("client", "h3"), ("server", "h4")]);
        let have_stayed = places == on(&[("client", "h2"), ("server", "h1")]);
        ensure!(have_moved || have_stayed, "{places:?} after {victim} was killed: {ended:?}\n{}", lab.logs());
        // Not if the coordinator died before it said anything.
        if let Ok(reports) = reports(&ended) {
            let said = reports.iter().all(|report| report.outcome == Outcome::Moved);
            ensure!(said == have_moved, "{places:?}, but {reports:?}");
        }
        check.progress().with_context(|| lab.logs())?;
        if have_moved {
            lab.move_to("client", "h2")?;
            lab.move_to("server", "h1")?;
        }
    }
    lab.end_check(check)?;
    Ok(())
}

#[test]
fn a_cancelled_group_runs_on_where_it_was() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(2)?;
    for name in ["a", "b", "c"] {
        start(&lab, name, "h1", &["sleep", "1000"])?;
    }
    let moving = Program::start(&mut lab.command(&["move", "--group", "job", "h2", "--json"]))?;
    lab.eventually("the move has begun or is over", || Ok(!moving_or_moved(&lab)?.is_empty()))?;
    let cancelled = lab.transhume(&["cancel", "b"])?;
    let ended = moving.end(LIMIT)?;
    let hosts: Vec<_> = places(&lab, "job")?.into_values().collect();
    let all = |host: &str| hosts.iter().all(|of| of == host);
    ensure!(if ended.status.success() { all("h2") } else { all("h1") }, "{hosts:?} {cancelled:?} {ended:?}");
    ensure!(cancelled.status.success() != ended.status.success(), "{cancelled:?} {ended:?}");
    Ok(())
}

fn moving_or_moved(lab: &TestLab) -> Result<Vec<Instance>> {
    Ok(lab.instances()?.into_iter().filter(|it| it.epoch.0 > 0 || it.state != State::Running).collect())
}
