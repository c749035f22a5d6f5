//! Hosts with files of their own, as instances see them. crates/testing/lab tests the files themselves.

use anyhow::{Result, ensure};
use api::Outcome;
use e2e::program::Ended;
use e2e::testlab::TestLab;

fn start(lab: &TestLab, script: &str) -> Result<()> {
    let run = ["run", "--name", "job", "--host", "h1", "--detach", "--", "sh", "-c", script];
    lab.transhume(&run)?.success().map(drop)
}

fn on(lab: &TestLab, host: &str, script: &str) -> Result<Ended> {
    lab.transhume(&["lab", "exec", host, "--", "sh", "-c", script])
}

#[test]
fn an_instance_sees_the_temporary_files_of_its_current_host() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(2)?;
    start(&lab, "for folder in /tmp /run /dev/shm; do echo h1 >$folder/place; done; exec sleep infinity")?;
    on(&lab, "h2", "for folder in /tmp /run /dev/shm; do echo h2 >$folder/place; done")?.success()?;
    let seen = || -> Result<Vec<String>> {
        let read = ["exec", "job", "--", "cat", "/tmp/place", "/run/place", "/dev/shm/place"];
        Ok(lab.transhume(&read)?.success()?.lines)
    };
    lab.eventually("the instance has written its files", || {
        Ok(on(&lab, "h1", "cat /dev/shm/place")?.lines == ["h1"])
    })?;
    ensure!(seen()? == ["h1"; 3]);
    ensure!(lab.move_to("job", "h2")?.outcome == Outcome::Moved);
    ensure!(seen()? == ["h2"; 3]);
    Ok(())
}

#[test]
fn a_move_is_refused_if_the_destination_lacks_an_open_file() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(2)?;
    start(&lab, "exec 9>/tmp/only-here; echo ready >/tmp/ready; exec sleep infinity")?;
    lab.eventually("the instance has opened its file", || {
        Ok(on(&lab, "h1", "cat /tmp/ready")?.lines == ["ready"])
    })?;
    let refused = lab.transhume(&["move", "job", "h2"])?;
    ensure!(!refused.status.success() && refused.errors.contains("/tmp/only-here"), "{refused:?}");
    lab.settled("job")?;
    on(&lab, "h2", "touch /tmp/only-here")?.success()?;
    Ok(())
}
