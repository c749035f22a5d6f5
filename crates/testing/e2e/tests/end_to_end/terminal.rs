//! Commands in instances at a user's terminal: keys, windows and ends, over a move.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use api::Outcome;
use e2e::common_files;
use e2e::desk::{Desk, resize};
use e2e::testlab::TestLab;
use rustix::process::{Pid, Signal, kill_process};

/// Has the last pseudo-terminal that there is, and none before it.
const LAST_TERMINAL: &str = r#"
import os, time
terminals = []
while True:
    try:
        terminals.append(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        break
last = terminals.pop()
for terminal in terminals:
    os.close(terminal)
print("the last is", len(terminals), flush=True)
time.sleep(1000)
"#;

/// Has its own pseudo-terminal, and reads its output when asked to.
const UNREAD: &str = r#"
import os, time
master, slave = os.openpty()
os.write(slave, b"a line\n")
print("unread", flush=True)
input()
os.read(master, 100)
print("all is read", flush=True)
time.sleep(1000)
"#;

#[test]
fn a_shell_at_a_terminal_goes_on_over_a_move() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(2)?;
    let sleep = ["run", "--name", "job", "--host", "h1", "--detach", "--", "sleep", "1000"];
    lab.transhume(&sleep)?.success()?;
    let mut desk = Desk::exec(&lab, "job", &["bash", "--norc", "--noediting"])?;
    desk.expect("prompt> ")?;
    ensure!(!desk.is_cooked()?, "keys have no meaning here");
    desk.press("stty size; echo $TERM\n")?;
    desk.expect("33 97\r\nvt220\r\n")?;
    desk.press("cat\nbefore\n")?;
    desk.expect("before\r\nbefore\r\n")?;
    ensure!(lab.move_to("job", "h2")?.outcome == Outcome::Moved);
    desk.press("after\n")?;
    desk.expect("after\r\nafter\r\n")?;
    desk.press("\x03")?;
    desk.expect("^C")?;
    desk.expect("prompt> ")?;
    resize(&desk.keys, 40, 100)?;
    desk.press("until [ \"$(stty size)\" = '40 100' ]; do sleep 0.01; done; echo $((6 * 7))\n")?;
    desk.expect("42\r\n")?;
    // It has read all earlier input: the key drops unread input.
    desk.press("sh -c 'echo $((6 * 9)); exec sleep 1000'\n")?;
    desk.expect("54\r\n")?;
    desk.press("\x1a")?;
    desk.expect("Stopped")?;
    // A shell does not leave while it thinks that a job is stopped, and `wait` does not wait for one.
    desk.press("kill %1; while [ \"$(jobs -s)\" ]; do sleep 0.01; done; exit 7\n")?;
    lab.eventually("the shell has left", || Ok(desk.client.try_wait()?.is_some()))?;
    let code = desk.client.wait()?.code().context("it was killed")?;
    ensure!(code == 7 && desk.is_cooked()?, "{code}");

    let mut desk = Desk::exec(&lab, "job", &["sh", "-c", "echo there; exec sleep 4331"])?;
    desk.expect("there")?;
    let runs = || !lab.find(|words| words == ["sleep", "4331"]).is_empty();
    lab.eventually("the command runs", || Ok(runs()))?;
    desk.client.kill()?;
    lab.eventually("the command of a client that was killed has ended", || Ok(!runs()))?;

    // Signals to the client end it, and so the command; before there is one, keys of its terminal do as well.
    let mut desk = Desk::exec(&lab, "job", &["sh", "-c", "trap '' TERM; echo there; exec sleep 4331"])?;
    desk.expect("there")?;
    kill_process(Pid::from_child(&desk.client), Signal::TERM)?;
    ensure!(desk.client.wait()?.code() == Some(143) && desk.is_cooked()?, "the terminal is given back");
    lab.eventually("the command of a client that was ended has ended", || Ok(!runs()))?;
    lab.transhume(&["lab", "kill", "h2"])?.success()?;
    let mut desk = Desk::exec(&lab, "job", &["sh"])?;
    thread::sleep(Duration::from_millis(300));
    ensure!(desk.client.try_wait()?.is_none() && desk.is_cooked()?, "there is no command yet");
    desk.press("\x03")?;
    ensure!(desk.client.wait()?.code() == Some(130) && desk.is_cooked()?);
    lab.transhume(&["lab", "start", "h2"])?.success()?;

    // The job control of this one holds the terminal by the name `/dev/tty`.
    let mut desk = Desk::exec(&lab, "job", &["dash"])?;
    desk.expect("prompt> ")?;
    let planned = || lab.transhume(&["move", "job", "h1", "--dry-run"]);
    let plan = planned()?;
    ensure!(!plan.status.success() && format!("{plan:?}").contains("/dev/tty open"), "{plan:?}");
    desk.press("exit\n")?;
    lab.eventually("nothing is in the way any more", || Ok(planned()?.status.success()))?;

    let mut desk = Desk::exec(&lab, "job", &["python3", "-c", UNREAD])?;
    desk.expect("unread")?;
    let plan = planned()?;
    ensure!(
        !plan.status.success() && format!("{plan:?}").contains("unread data in a pseudo-terminal"),
        "{plan:?}"
    );
    desk.press("\n")?;
    desk.expect("all is read")?;
    ensure!(lab.move_to("job", "h1")?.outcome == Outcome::Moved);

    let refused = lab.transhume(&["exec", "--tty", "job", "--", "bash"])?;
    ensure!(
        refused.status.code() == Some(2) && refused.errors.contains("standard input is not a terminal"),
        "{refused:?}"
    );
    Ok(())
}

#[test]
fn a_command_that_writes_without_end_loses_nothing_over_moves() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(2)?;
    let job = ["python3", "-c", LAST_TERMINAL];
    lab.transhume(
        &[&["run", "--group", "all", "--name", "job", "--host", "h1", "--detach", "--"], &job[..]].concat(),
    )?
    .success()?;
    lab.eventually("it has the last terminal", || Ok(lab.transhume(&["logs", "job"])?.lines.len() == 1))?;
    let mut desk = Desk::exec(&lab, "job", &["seq", "1000000000"])?;
    let moved = |host| -> Result<()> {
        ensure!(lab.move_to("job", host)?.outcome == Outcome::Moved);
        Ok(())
    };
    // All is full on the way to a client that does not read.
    desk.expect("1\r\n")?;
    thread::sleep(Duration::from_secs(1));
    moved("h2")?;
    moved("h1")?;
    // It runs on where it was suspended.
    let images = common_files::folder()?;
    let directory = images.path().join("job").display().to_string();
    lab.transhume(&["checkpoint", "--group", "all", &directory])?.success()?;
    // More than was on its way.
    let next = desk.count(2, |next| next > 300_000)?;
    let enough = AtomicBool::new(false);
    thread::scope(|scope| {
        let reader =
            scope.spawn(|| desk.count(next, |next| next > 600_000 && enough.load(Ordering::Relaxed)));
        let moved = ["h2", "h1", "h2"].into_iter().try_for_each(moved);
        enough.store(true, Ordering::Relaxed);
        reader.join().map_err(|_| anyhow!("the reader has panicked"))??;
        moved
    })
}
