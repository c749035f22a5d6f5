//! Instances under anti-affinity never share a host, and a moved instance is left alone while it cools down.

use anyhow::{Result, ensure};
use api::PlannedMove;
use e2e::program::Ended;
use e2e::testlab::TestLab;
use lab::Place;

/// Starts an instance that is kept apart from its like.
fn start(lab: &TestLab, name: &str, options: &[&str]) -> Result<Ended> {
    let apart = ["run", "--name", name, "--detach", "--label", "app=db", "--anti-affinity", "app"];
    lab.transhume(&[&apart, options, &["--", "sleep", "1000"]].concat())
}

fn is_refused(ended: &Ended, by: &str) -> Result<()> {
    let why = format!("`{by}` is there");
    ensure!(!ended.status.success() && ended.errors.contains(&why), "{ended:?}");
    ensure!(ended.errors.contains("anti-affinity on app=db"), "{ended:?}");
    Ok(())
}

/// That `c` cools down, and is left where it is.
fn is_left_alone(lab: &TestLab) -> Result<()> {
    let ended = lab.transhume(&["move", "c", "h1"])?;
    let says = |words: &str| ended.errors.contains(words);
    ensure!(
        !ended.status.success() && says("`c` has moved recently and cools down for another"),
        "{ended:?}"
    );
    ensure!(says("min") && says("--force"), "{ended:?}");
    let present = lab.settled("c")?;
    ensure!(present.host == "h3" && present.cools_down_for_s.is_some(), "{present:?}");
    Ok(())
}

#[test]
fn instances_with_the_same_label_are_kept_apart_wherever_they_go() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(3)?;
    start(&lab, "a", &["--host", "h1"])?.success()?;
    is_refused(&start(&lab, "b", &["--host", "h1"])?, "a")?;
    // Both others are emptier than h1, and h2 is the first of them.
    start(&lab, "b", &["--group", "g"])?.success()?;
    ensure!(lab.settled("b")?.host == "h2", "{:?}", lab.instances()?);
    let other = ["run", "--name", "c", "--host", "h1", "--label", "app=web", "--cool-down", "1h", "--detach"];
    lab.transhume(&[&other[..], &["--", "sleep", "1000"]].concat())?.success()?;
    lab.move_to("c", "h3")?;
    is_left_alone(&lab)?;

    lab.lab.kill(Place::Coordinator)?;
    lab.lab.start(Place::Coordinator)?;
    let present = lab.instance("a")?;
    ensure!(present.labels.get("app").is_some_and(|value| value == "db"), "{present:?}");
    ensure!(present.anti_affinity.contains("app"), "{present:?}");
    let all_up =
        || Ok(lab.transhume(&["hosts"])?.lines.iter().filter(|line| line.contains("up")).count() == 3);
    lab.eventually("all hosts are back", all_up)?;

    is_left_alone(&lab)?;
    let ended = lab.transhume(&["move", "c", "h1", "--dry-run"])?;
    ensure!(!ended.status.success() && ended.errors.contains("cools down"), "{ended:?}");
    lab.transhume(&["move", "c", "h1", "--force"])?.success()?;

    is_refused(&lab.transhume(&["move", "b", "h1"])?, "a")?;
    is_refused(&lab.transhume(&["move", "b", "h1", "--dry-run"])?, "a")?;
    is_refused(&lab.transhume(&["move", "--group", "g", "h1"])?, "a")?;
    let plan = lab.transhume(&["drain", "h1", "--dry-run", "--json"])?.success()?;
    let plan: Vec<PlannedMove> = serde_json::from_str(&plan.lines.concat())?;
    ensure!(
        plan.iter().all(|planned| planned.to.as_deref() != Some("h2") || planned.name == "c"),
        "{plan:?}"
    );
    let cooling = plan.iter().filter(|planned| planned.cools_down_for_s.is_some());
    ensure!(cooling.map(|planned| &planned.name).eq(["c"]), "{plan:?}");
    // Also of that.
    lab.transhume(&["drain", "h1"])?.success()?;
    ensure!(lab.settled("a")?.host == "h3", "h2 has b");
    let ended = lab.transhume(&["drain", "h2"])?;
    is_refused(&ended, "a")?;
    ensure!(lab.settled("b")?.host == "h2", "it runs on");
    lab.transhume(&["kill", "a"])?.success()?;
    lab.transhume(&["drain", "h2"])?.success()?;
    ensure!(lab.settled("b")?.host == "h3", "nothing is in its way any more");
    Ok(())
}
