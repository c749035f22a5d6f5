//! Commands in instances at a user's terminal: keys, windows and ends, over a move.

use std::fs::File;
use std::io::{Read, Write};
use std::mem;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use api::Outcome;
use e2e::common_files;
use e2e::testlab::TestLab;
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

const LIMIT: Duration = Duration::from_secs(60);

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

/// A user's terminal, and `transhume exec --tty` at it.
struct Desk {
    keys: File,
    terminal: File,
    client: Child,
    pieces: Receiver<Vec<u8>>,
    /// Output that was read and not expected yet.
    text: String,
}

impl Desk {
    fn start(lab: &TestLab, name: &str, command: &[&str]) -> Result<Self> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let keys = openpt(flags)?;
        unlockpt(&keys)?;
        let terminal = File::from(ioctl_tiocgptpeer(&keys, flags)?);
        let keys = File::from(keys);
        resize(&keys, 33, 97)?;
        let arguments = [&["exec", "--tty", "--env", "PS1=prompt> ", name, "--"], command].concat();
        let wanted = lab.command(&arguments);
        // The terminal is to control it, and so to signal changes of its window.
        let mut client = Command::new("setsid");
        client.arg("--ctty").arg(wanted.get_program()).args(wanted.get_args());
        client.envs(wanted.get_envs().filter_map(|(name, value)| Some((name, value?)))).env("TERM", "vt220");
        client.stdin(terminal.try_clone()?).stdout(terminal.try_clone()?).stderr(Stdio::inherit());
        let client = client.spawn()?;
        // Unexpected output is not read, or little of it.
        let (sender, pieces) = sync_channel(1);
        let mut reader = keys.try_clone()?;
        thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(length @ 1..) = reader.read(&mut piece) {
                if sender.send(piece[..length].to_vec()).is_err() {
                    break;
                }
            }
        });
        Ok(Self { keys, terminal, client, pieces, text: String::new() })
    }

    fn press(&mut self, keys: &str) -> Result<()> {
        Ok(self.keys.write_all(keys.as_bytes())?)
    }

    /// Reads on until `text` has come.
    fn expect(&mut self, text: &str) -> Result<()> {
        let end = Instant::now() + LIMIT;
        loop {
            if let Some((_, rest)) = self.text.split_once(text) {
                self.text = rest.to_owned();
                return Ok(());
            }
            match self.pieces.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(piece) => self.text += &String::from_utf8_lossy(&piece),
                Err(_) => bail!("no {text:?} in {:?}", self.text),
            }
        }
    }

    /// Reads the numbers from `next` on, each on a line of its own, until `stop`; returns the next one.
    fn count(&mut self, mut next: u64, stop: impl Fn(u64) -> bool) -> Result<u64> {
        let mut rest = mem::take(&mut self.text);
        while !stop(next) {
            let piece = self.pieces.recv_timeout(LIMIT).with_context(|| format!("no {next}"))?;
            rest += std::str::from_utf8(&piece)?;
            let (lines, unfinished) = rest.rsplit_once('\n').unwrap_or(("", &rest));
            for line in lines.split_terminator('\n') {
                ensure!(line == format!("{next}\r"), "{line:?} instead of {next}");
                next += 1;
            }
            rest = unfinished.to_owned();
        }
        self.text = rest;
        Ok(next)
    }

    /// Whether keys have a meaning here.
    fn is_cooked(&self) -> Result<bool> {
        let cooked = LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG;
        Ok(tcgetattr(&self.terminal)?.local_modes.contains(cooked))
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        let _gone = self.client.kill();
        let _reaped = self.client.wait();
    }
}

fn resize(terminal: &File, rows: u16, columns: u16) -> Result<()> {
    Ok(tcsetwinsize(terminal, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 })?)
}

#[test]
fn a_shell_at_a_terminal_goes_on_over_a_move() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(2)?;
    let sleep = ["run", "--name", "job", "--host", "h1", "--detach", "--", "sleep", "1000"];
    lab.transhume(&sleep)?.success()?;
    let mut desk = Desk::start(&lab, "job", &["bash", "--norc", "--noediting"])?;
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

    let mut desk = Desk::start(&lab, "job", &["sh", "-c", "echo there; exec sleep 4331"])?;
    desk.expect("there")?;
    let runs = || !lab.find(|words| words == ["sleep", "4331"]).is_empty();
    lab.eventually("the command runs", || Ok(runs()))?;
    desk.client.kill()?;
    lab.eventually("the command of a client that was killed has ended", || Ok(!runs()))?;

    // Signals to the client end it, and so the command; before there is one, keys of its terminal do as well.
    let mut desk = Desk::start(&lab, "job", &["sh", "-c", "trap '' TERM; echo there; exec sleep 4331"])?;
    desk.expect("there")?;
    kill_process(Pid::from_child(&desk.client), Signal::TERM)?;
    ensure!(desk.client.wait()?.code() == Some(143) && desk.is_cooked()?, "the terminal is given back");
    lab.eventually("the command of a client that was ended has ended", || Ok(!runs()))?;
    lab.transhume(&["lab", "kill", "h2"])?.success()?;
    let mut desk = Desk::start(&lab, "job", &["sh"])?;
    thread::sleep(Duration::from_millis(300));
    ensure!(desk.client.try_wait()?.is_none() && desk.is_cooked()?, "there is no command yet");
    desk.press("\x03")?;
    ensure!(desk.client.wait()?.code() == Some(130) && desk.is_cooked()?);
    lab.transhume(&["lab", "start", "h2"])?.success()?;

    // The job control of this one holds the terminal by the name `/dev/tty`.
    let mut desk = Desk::start(&lab, "job", &["dash"])?;
    desk.expect("prompt> ")?;
    let planned = || lab.transhume(&["move", "job", "h1", "--dry-run"]);
    let plan = planned()?;
    ensure!(!plan.status.success() && format!("{plan:?}").contains("/dev/tty open"), "{plan:?}");
    desk.press("exit\n")?;
    lab.eventually("nothing is in the way any more", || Ok(planned()?.status.success()))?;

    let mut desk = Desk::start(&lab, "job", &["python3", "-c", UNREAD])?;
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
    let mut desk = Desk::start(&lab, "job", &["seq", "1000000000"])?;
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
