//! The operators' sources: the event log and the coordinator's metrics.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use api::{LoggedEvent, Occurrence};
use e2e::program::{Ended, Program};
use e2e::testlab::TestLab;
use lab::Place;
use lab::layout::metrics_address;

const LIMIT: Duration = Duration::from_secs(60);

fn events(ended: &Ended) -> Result<Vec<LoggedEvent>> {
    ended.lines.iter().map(|line| serde_json::from_str(line).context(line.clone())).collect()
}

/// Reads the coordinator's metrics from a host, after three moves of one instance to h2.
fn metrics(lab: &TestLab) -> Result<()> {
    const READ: &str =
        "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read().decode())";
    let url = format!("http://{}/metrics", metrics_address(Place::Coordinator));
    let read =
        lab.transhume(&["lab", "exec", "h1", "--", "/usr/bin/python3", "-c", READ, &url])?.success()?;
    for wanted in [
        "moves_total{outcome=\"moved\"} 3",
        "move_blackout_seconds_count 3",
        "host_instances{host=\"h2\"} 1.0",
        "host_up{host=\"h1\"} 1.0",
        "host_draining{host=\"h2\"} 0.0",
    ] {
        let wanted = format!("transhume_{wanted}");
        ensure!(read.lines.contains(&wanted), "{wanted} is not in {:#?}", read.lines);
    }
    Ok(())
}

#[test]
fn events_are_listed_in_order_and_survive_a_restart_of_the_coordinator() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(2)?;
    let mut follows = Program::start(&mut lab.command(&["events", "--follow", "--json"]))?;
    let run = ["run", "--name", "a", "--group", "g", "--host", "h1", "--detach", "--", "sleep", "1000"];
    lab.transhume(&run)?.success()?;
    lab.transhume(&["move", "a", "h2", "--dry-run"])?.success()?;
    lab.transhume(&["move", "a", "h2"])?.success()?;
    lab.transhume(&["drain", "h2"])?.success()?;
    lab.transhume(&["undrain", "h2"])?.success()?;
    lab.transhume(&["move", "--group", "g", "h2"])?.success()?;
    metrics(&lab)?;
    let before = events(&lab.transhume(&["events", "--json"])?.success()?)?;
    let last = before.last().context("no events")?.number;

    lab.lab.kill(Place::Coordinator)?;
    lab.lab.start(Place::Coordinator)?;
    lab.transhume(&["kill", "a"])?.success()?;
    let is_end = |line: &str| line.contains(r#""event":"exited""#).then_some(());
    let mut followed = Vec::new();
    follows.wait_for(LIMIT, |line| {
        followed.extend(serde_json::from_str::<LoggedEvent>(line).ok());
        is_end(line)
    })?;
    follows.signal(libc::SIGINT)?;
    let waited = follows.end(LIMIT)?;
    ensure!(waited.errors.contains(r#"{"waiting":{"host":"coordinator""#), "{waited:?}");
    // Hosts may have come back since the end.
    let after = events(&lab.transhume(&["events", "--json", "--after", &last.to_string()])?.success()?)?;
    ensure!(after.first().is_some_and(|event| event.number == last + 1), "{after:?}");
    ensure!(after.iter().any(|event| event.what == Occurrence::CoordinatorStarted), "{after:?}");
    let all = [before, after].concat();
    ensure!(all.starts_with(&followed) && followed.last().is_some_and(|it| it.number > last), "{followed:?}");
    let of_instances = |event: &LoggedEvent| match &event.what {
        Occurrence::Started { instance, host, .. } => Some(format!("{instance} on {host}")),
        Occurrence::MoveBegan { from, to, group, .. } => Some(format!("{from} {to} {group:?}")),
        Occurrence::Moved { to, figures, .. } => {
            Some(format!("{to} {}", figures.is_some_and(|figures| figures.blackout_us > 0)))
        }
        Occurrence::DrainBegan { host, instances } => Some(format!("drain {host} {instances}")),
        Occurrence::Drained { host, moved, stayed } => Some(format!("{host} {moved} {stayed}")),
        Occurrence::Undrained { host } => Some(format!("undrain {host}")),
        Occurrence::Exited { instance, host, code } => Some(format!("{instance} on {host}: {code}")),
        _ => None,
    };
    let story: Vec<_> = followed.iter().filter_map(of_instances).collect();
    let expected = [
        "a on h1",
        "h1 h2 None",
        "h2 true",
        "drain h2 1",
        "h2 h1 None",
        "h1 true",
        "h2 1 0",
        "undrain h2",
        "h1 h2 Some(\"g\")",
        "h2 true",
        "a on h2: 137",
    ];
    ensure!(story == expected, "{story:#?}");

    let table = lab.transhume(&["events", "--since", "1h"])?.success()?.lines;
    ensure!(table.len() > all.len(), "{table:#?}");
    let columns: Vec<_> = table.iter().map(|line| line.get(8..).map(|line| line.find("  "))).collect();
    ensure!(columns[1..].iter().all(|column| *column == columns[1]), "{table:#?}");
    ensure!(lab.transhume(&["events", "--since", "0s"])?.success()?.lines.len() == 1);
    Ok(())
}
