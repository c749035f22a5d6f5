//! Runs a program in bounded time, and kills it when its test ends.

use std::io::{BufRead as _, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};

/// Polling interval while a program is awaited.
const LOOK: Duration = Duration::from_millis(5);

/// Lines of output that a message about a program shows.
const LAST_LINES: usize = 20;

/// A running program. Dropping it kills it.
pub struct Program {
    name: String,
    child: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
    errors: Option<JoinHandle<String>>,
}

/// The result of a program.
#[derive(Debug)]
pub struct Ended {
    /// The program, as it was started.
    pub name: String,
    /// How it ended.
    pub status: ExitStatus,
    /// The lines of its standard output.
    pub lines: Vec<String>,
    /// Its standard error.
    pub errors: String,
}

impl Program {
    /// Starts `command`, and keeps its output.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(command: &mut Command) -> Result<Self> {
        let name = in_words(command);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("cannot start `{name}`"))?;
        let (sender, lines) = channel();
        let output = child.stdout.take().context("no standard output")?;
        thread::spawn(move || {
            for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                    break;
                }
            }
        });
        let errors = child.stderr.take().context("no standard error")?;
        let errors = Some(thread::spawn(move || read_all(errors)));
        Ok(Self { name, child, lines, seen: Vec::new(), errors })
    }

    /// Its PID.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for a line of output for which `found` returns a value.
    ///
    /// # Errors
    /// If there is none within `limit`, or the program ends first.
    pub fn wait_for<T>(&mut self, limit: Duration, mut found: impl FnMut(&str) -> Option<T>) -> Result<T> {
        let end = Instant::now() + limit;
        loop {
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    let result = found(&line);
                    self.seen.push(line);
                    if let Some(result) = result {
                        return Ok(result);
                    }
                }
                Err(RecvTimeoutError::Timeout) => return Err(self.waited_in_vain("is silent")),
                Err(RecvTimeoutError::Disconnected) => return Err(self.waited_in_vain("ended early")),
            }
        }
    }

    fn waited_in_vain(&mut self, how: &str) -> anyhow::Error {
        let (lines, errors) = if self.is_running().unwrap_or(false) {
            (std::mem::take(&mut self.seen), String::new())
        } else {
            self.take_output()
        };
        let last = lines.len().saturating_sub(LAST_LINES);
        anyhow!("`{}` {how}; it wrote:\n{}\n{errors}", self.name, lines[last..].join("\n"))
    }

    /// Waits until a process listens on TCP port `port` in its network namespace. Programs that write
    /// to a pipe say so too late, since their output is buffered.
    ///
    /// # Errors
    /// If no process listens within `limit`, or the program ends first.
    pub fn wait_for_listener(&mut self, port: u16, limit: Duration) -> Result<()> {
        let end = Instant::now() + limit;
        while !is_listening(self.pid(), port) {
            if Instant::now() > end || !self.is_running()? {
                return Err(self.waited_in_vain("does not listen"));
            }
            thread::sleep(LOOK);
        }
        Ok(())
    }

    /// The lines that have been written since the last call.
    pub fn take_lines(&mut self) -> Vec<String> {
        let lines: Vec<_> = std::mem::take(&mut self.seen).into_iter().chain(self.lines.try_iter()).collect();
        self.seen.extend(lines.last().cloned());
        lines
    }

    /// Whether it is still running.
    ///
    /// # Errors
    /// If it cannot be asked.
    pub fn is_running(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// Fails if it has ended.
    ///
    /// # Errors
    /// If the program fails, with its output.
    pub fn require_running(&mut self) -> Result<()> {
        if self.is_running()? { Ok(()) } else { Err(self.waited_in_vain("ended early")) }
    }

    /// Sends it `signal`.
    ///
    /// # Errors
    /// If it has ended.
    pub fn signal(&mut self, signal: i32) -> Result<()> {
        ensure!(self.is_running()?, "`{}` has ended", self.name);
        let pid = i32::try_from(self.child.id())?;
        // SAFETY: no memory is passed; the child has not been waited for, so that the PID is its.
        ensure!(unsafe { libc::kill(pid, signal) } == 0, std::io::Error::last_os_error());
        Ok(())
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// If it has not within `limit`; it is killed then.
    pub fn end(mut self, limit: Duration) -> Result<Ended> {
        let end = Instant::now() + limit;
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            if Instant::now() >= end {
                self.child.kill()?;
                self.child.wait()?;
                let (lines, errors) = self.take_output();
                bail!("`{}` ran longer than {limit:?}; output:\n{}\n{errors}", self.name, lines.join("\n"));
            }
            thread::sleep(LOOK);
        };
        let (lines, errors) = self.take_output();
        Ok(Ended { name: std::mem::take(&mut self.name), status, lines, errors })
    }

    fn take_output(&mut self) -> (Vec<String>, String) {
        let mut lines = std::mem::take(&mut self.seen);
        lines.extend(self.lines.iter());
        let errors = self.errors.take().and_then(|reader| reader.join().ok());
        (lines, errors.unwrap_or_default())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ended {
    /// The result, if the program succeeded.
    ///
    /// # Errors
    /// Otherwise, with all its output.
    pub fn success(self) -> Result<Self> {
        let output = self.lines.join("\n");
        ensure!(self.status.success(), "`{}`: {}\n{output}\n{}", self.name, self.status, self.errors);
        Ok(self)
    }
}

/// Runs `command`, which must succeed.
///
/// # Errors
/// If it fails, or takes longer than `limit`.
pub fn run(command: &mut Command, limit: Duration) -> Result<Ended> {
    Program::start(command)?.end(limit)?.success()
}

/// Whether a process listens on TCP port `port` in the network namespace of process `pid`.
#[must_use]
pub fn is_listening(pid: u32, port: u16) -> bool {
    const LISTEN: &str = "0A";
    let local = format!(":{port:04X}");
    ["tcp", "tcp6"].iter().any(|table| {
        let table = std::fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        table.lines().any(|line| {
            let mut words = line.split_whitespace().skip(1);
            words.next().is_some_and(|word| word.ends_with(&local)) && words.nth(1) == Some(LISTEN)
        })
    })
}

fn read_all(mut from: impl Read) -> String {
    let mut bytes = Vec::new();
    // An incomplete read still shows its part.
    let _ = from.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

fn in_words(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}
