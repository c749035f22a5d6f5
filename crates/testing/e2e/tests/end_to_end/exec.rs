//! Commands that are run in instances: their input, output, signals and exit codes, over moves and faults.

use std::io::{ErrorKind, Read, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use api::{Client, Outcome, Phase, Request, State};
use e2e::program::{Ended, Program};
use e2e::testlab::{Followed, TestLab, follow_to, outcome};
use fabric::attach::{self, Role, ToNode};
use lab::Place;

const LIMIT: Duration = Duration::from_secs(60);

/// Bytes that show a lost, doubled or misplaced byte.
fn byte(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

fn start(lab: &TestLab, name: &str, host: &str) -> Result<()> {
    lab.transhume(&["run", "--name", name, "--host", host, "--detach", "--", "sleep", "1000"])?
        .success()
        .map(drop)
}

fn exec(lab: &TestLab, name: &str, options: &[&str], command: &[&str]) -> Result<Ended> {
    lab.transhume(&[&["exec"][..], options, &[name, "--"], command].concat())
}

/// A command that copies its input to both of its outputs, and its output so far.
struct Echo {
    child: Child,
    giving: Arc<AtomicBool>,
    writer: Option<JoinHandle<u64>>,
    came: [Arc<AtomicU64>; 2],
    readers: Vec<JoinHandle<Result<u64>>>,
}

impl Echo {
    /// Starts it in the instance `name`; it ends with `code`.
    fn start(lab: &TestLab, name: &str, code: i32) -> Result<Self> {
        Self::by(lab, &["exec", "--stdin", name], code)
    }

    /// Starts it by these words of the command line; it ends with `code`.
    fn by(lab: &TestLab, words: &[&str], code: i32) -> Result<Self> {
        let program = format!("tee /dev/fd/2; exit {code}");
        let mut command = lab.command(&[words, &["--", "sh", "-c", &program]].concat());
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let giving = Arc::new(AtomicBool::new(true));
        let stdin = child.stdin.take().context("an input")?;
        let writer = thread::spawn({
            let giving = giving.clone();
            move || give(stdin, &giving)
        });
        let came: [Arc<AtomicU64>; 2] = Default::default();
        let outputs: [Box<dyn Read + Send>; 2] = [
            Box::new(child.stdout.take().context("an output")?),
            Box::new(child.stderr.take().context("an output")?),
        ];
        let readers = outputs.into_iter().zip(came.clone());
        let readers = readers.map(|(output, came)| thread::spawn(move || take(output, &came))).collect();
        Ok(Self { child, giving, writer: Some(writer), came, readers })
    }

    /// Waits until more has come than could be on its way.
    fn progress(&self, lab: &TestLab) -> Result<()> {
        const MORE: u64 = 300_000;
        let before: Vec<_> = self.came.iter().map(|came| came.load(Ordering::Relaxed)).collect();
        lab.eventually("the command's output comes", || {
            Ok(self
                .came
                .iter()
                .zip(&before)
                .all(|(came, before)| came.load(Ordering::Relaxed) > before + MORE))
        })
    }

    /// Ends the input, and checks that all has come back, and that the code is `code`.
    fn end(mut self, code: i32) -> Result<u64> {
        self.giving.store(false, Ordering::Relaxed);
        let given =
            self.writer.take().context("a writer")?.join().map_err(|_| anyhow::anyhow!("it broke"))?;
        for reader in self.readers.drain(..) {
            let came = reader.join().map_err(|_| anyhow::anyhow!("it broke"))??;
            ensure!(came == given, "{came} of {given} bytes came");
        }
        let status = self.child.wait()?;
        ensure!(status.code() == Some(code), "it ended with {status}");
        Ok(given)
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Writes as long as it is to give, and returns how much that was.
fn give(mut stdin: ChildStdin, giving: &AtomicBool) -> u64 {
    let mut given = 0;
    while giving.load(Ordering::Relaxed) {
        let piece: Vec<u8> = (given..given + 1000).map(byte).collect();
        if stdin.write_all(&piece).is_err() {
            break;
        }
        given += piece.len() as u64;
    }
    given
}

/// Reads up to the end, and checks each byte.
fn take(mut output: impl Read, came: &AtomicU64) -> Result<u64> {
    let (mut piece, mut at) = (vec![0; 64 * 1024], 0);
    loop {
        match output.read(&mut piece) {
            Ok(0) => return Ok(at),
            Ok(length) => {
                let wrong = (at..).zip(&piece[..length]).find(|(at, found)| byte(*at) != **found);
                ensure!(wrong.is_none(), "wrong at {wrong:?}: {}", String::from_utf8_lossy(&piece[..length]));
                at += length as u64;
                came.store(at, Ordering::Relaxed);
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[test]
fn not_a_byte_is_lost_over_moves_and_the_death_of_a_node() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(2)?;
    start(&lab, "job", "h1")?;
    let echo = Echo::start(&lab, "job", 7)?;
    for to in ["h2", "h1", "h2"] {
        echo.progress(&lab)?;
        lab.move_to("job", to)?;
    }
    echo.progress(&lab)?;
    let mut moving = lab.begin_move("job", "h1")?;
    follow_to(&mut moving, Phase::Dump)?;
    let meanwhile = exec(&lab, "job", &[], &["echo", "there"])?.success()?;
    ensure!(meanwhile.lines == ["there"] && outcome(&mut moving)? == Outcome::Moved, "{meanwhile:?}");
    roll_back_one_move(&lab)?;
    echo.progress(&lab)?;
    let node: Place = lab.instance("job")?.host.parse()?;
    lab.lab.kill(node)?;
    lab.lab.start(node)?;
    echo.progress(&lab)?;
    let given = echo.end(7)?;
    ensure!(given > 1_000_000, "{given}");
    Ok(())
}

#[test]
fn an_instances_own_command_keeps_its_input_over_moves_until_the_client_leaves() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(2)?;
    let echo = Echo::by(&lab, &["run", "--stdin", "--name", "job", "--host", "h1"], 7)?;
    for to in ["h2", "h1"] {
        echo.progress(&lab)?;
        lab.move_to("job", to)?;
    }
    roll_back_one_move(&lab)?;
    echo.progress(&lab)?;
    let given = echo.end(7)?;
    ensure!(given > 600_000, "{given}");

    let mut run = lab.command(&["run", "--stdin", "--name", "left", "--", "cat"]);
    let mut run = run.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    run.stdin.as_mut().context("an input")?.write_all(b"x")?;
    let mut first = [0];
    run.stdout.as_mut().context("an output")?.read_exact(&mut first)?;
    run.kill()?;
    run.wait()?;
    lab.eventually("it has no input any more, and ends", || {
        Ok(matches!(lab.instance("left")?.state, State::Exited { .. }))
    })
}

/// Cancels moves until one of them has been rolled back that had stopped the instance.
fn roll_back_one_move(lab: &TestLab) -> Result<()> {
    for _ in 0..5 {
        let to = if lab.settled("job")?.host == "h1" { "h2" } else { "h1" };
        let mut moving = lab.begin_move("job", to)?;
        if let Followed::Reached = follow_to(&mut moving, Phase::Dump)? {
            Client::ask(&lab.socket(), &Request::Cancel { name: "job".into() })?;
            if let Outcome::RolledBack(_) = outcome(&mut moving)? {
                return Ok(());
            }
        }
    }
    anyhow::bail!("no move was rolled back")
}

#[test]
fn a_command_ends_as_at_a_shell() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(1)?;
    start(&lab, "job", "h1")?;
    for (options, command, code, said) in [
        (&[][..], &["sh", "-c", "echo $0; exit 3"][..], 3, "sh"),
        (&[], &["sh", "-c", "kill -9 $$"], 137, ""),
        (&[], &["sh", "-c", "sleep 4320 & echo left"], 0, "left"),
        (&["--env", "A=x y", "--directory", "/usr"], &["sh", "-c", "echo $A, $PWD"], 0, "x y, /usr"),
        (&["--user", "7:8"], &["sh", "-c", "echo $(id -u) $(id -g) $(id -G)"], 0, "7 8 8"),
        (&[], &["sh", "-c", "cat; basename $LD_LIBRARY_PATH"], 0, "lib"),
    ] {
        let ended = exec(&lab, "job", options, command)?;
        ensure!(ended.status.code() == Some(code) && ended.lines.concat() == said, "{command:?}: {ended:?}");
    }
    let large = "x".repeat(50_000);
    for (name, command, code, said) in [
        ("job", "no-such-program", 127, "`no-such-program` cannot be started"),
        ("job", "/etc/passwd", 126, "Permission denied"),
        ("nobody", "true", 255, "no instance `nobody`"),
        ("job", &large, 255, "the limit is 49152"),
    ] {
        let refused = exec(&lab, name, &[], &[command])?;
        ensure!(refused.status.code() == Some(code) && refused.errors.contains(said), "{refused:?}");
    }
    let trap = "trap 'echo caught; exit 9' TERM; echo ready; while :; do sleep 0.01; done";
    let mut waiting = Program::start(&mut lab.command(&["exec", "job", "--", "sh", "-c", trap]))?;
    waiting.wait_for(LIMIT, |line| (line == "ready").then_some(()))?;
    waiting.signal(libc::SIGTERM)?;
    let ended = waiting.end(LIMIT)?;
    ensure!(
        ended.status.code() == Some(9) && ended.lines.last().is_some_and(|line| line == "caught"),
        "{ended:?}"
    );
    Ok(())
}

/// Of an instance's processes only the first one may speak for sessions.
#[test]
fn other_processes_cannot_speak_for_sessions() -> Result<()> {
    const PROGRAM: &str = "import socket, sys\n\
        node = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n\
        node.connect(b'\\0' + sys.argv[1].encode())\n\
        node.send(bytes.fromhex(sys.argv[2]))\n\
        print(node.recv(1000)[2:].decode())";
    let _shared = e2e::shared();
    let lab = TestLab::up(1)?;
    start(&lab, "job", "h1")?;
    let hello = ToNode::Hello { version: attach::VERSION, role: Role::Sessions, resume: None };
    let hello: String = attach::encode(&hello).iter().map(|byte| format!("{byte:02x}")).collect();
    let name = std::str::from_utf8(attach::SOCKET_NAME)?;
    let ended = exec(&lab, "job", &[], &["python3", "-c", PROGRAM, name, &hello])?.success()?;
    ensure!(ended.lines == ["the process is not the instance's first process"], "{ended:?}");
    Ok(())
}

#[test]
fn a_command_ends_when_its_client_has_gone() -> Result<()> {
    let _shared = e2e::shared();
    let lab = TestLab::up(1)?;
    start(&lab, "job", "h1")?;
    let runs = |seconds: &str| !lab.find(|words| words == ["sleep", seconds]).is_empty();
    let sleep = |seconds: &str| -> Result<Program> {
        let program = Program::start(&mut lab.command(&["exec", "job", "--", "sleep", seconds]))?;
        lab.eventually("the command runs", || Ok(runs(seconds)))?;
        Ok(program)
    };
    // Dropping it kills it.
    drop(sleep("4321")?);
    lab.eventually("the command of a client that was killed has ended", || Ok(!runs("4321")))?;
    let waiting = sleep("4322")?;
    lab.lab.kill(Place::Coordinator)?;
    let ended = waiting.end(LIMIT)?;
    ensure!(
        ended.status.code() == Some(255) && ended.errors.contains("connection to the coordinator lost"),
        "{ended:?}"
    );
    ensure!(runs("4322"), "it runs until the coordinator is back");
    lab.lab.start(Place::Coordinator)?;
    lab.eventually("the command of a client that was cut off has ended", || Ok(!runs("4322")))?;
    let waiting = sleep("4323")?;
    lab.transhume(&["kill", "job"])?.success()?;
    let ended = waiting.end(LIMIT)?;
    ensure!(ended.status.code() == Some(255) && ended.errors.contains("`job` has ended"), "{ended:?}");
    let late = exec(&lab, "job", &[], &["true"])?;
    ensure!(late.status.code() == Some(255) && late.errors.contains("`job` has ended"), "{late:?}");
    Ok(())
}
