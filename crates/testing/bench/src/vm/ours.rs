//! The measured machine: an instance in a lab.

use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use e2e::guest::{Guest, counted};
use e2e::testlab::TestLab;
use lab::network::namespace_file;
use lab::process::{Identity, file};
use probe::Prober;

use super::Times;
use super::traced::{OPTIONS, Pause, Traced};

/// The instance's name.
pub const NAME: &str = "guest";

/// Probes that are answered before a move and after it.
const PROBES: u64 = 500;

/// A lab with a machine that has booted.
pub struct Ours<'a> {
    /// The lab.
    pub lab: TestLab,
    traced: &'a Traced,
    address: Ipv4Addr,
}

impl<'a> Ours<'a> {
    /// Boots the guest on h1, with these options of `run` and arguments of the kernel.
    ///
    /// # Errors
    /// If it does not boot.
    pub fn boot(traced: &'a Traced, guest: &Guest, options: &[&str], append: &str) -> Result<Self> {
        let lab = TestLab::up(3)?;
        let qemu = traced.program().display().to_string();
        for host in ["h1", "h2"] {
            lab.lab.kill(host.parse()?)?;
            lab.lab.start_with(host.parse()?, &["--qemu", &qemu])?;
        }
        let given = guest.options(append);
        let given: Vec<&str> = given.iter().map(String::as_str).collect();
        let run = ["run", "--name", NAME, "--host", "h1", "--detach"];
        lab.transhume(&[&run[..], &given[..], options].concat())?.success()?;
        lab.eventually("the guest counts", || {
            Ok(counted(&lab.transhume(&["logs", NAME])?.success()?.lines)? > 3)
        })?;
        let address: Ipv4Addr = lab.instance(NAME)?.address.parse()?;
        Ok(Self { lab, traced, address })
    }

    /// The words of the command line of its QEMU, without the traces.
    ///
    /// # Errors
    /// If it has ended.
    pub fn command_line(&self) -> Result<Vec<String>> {
        let line = fs::read(file(self.emulator()?.pid, "cmdline"))?;
        let mut words = String::from_utf8(line)?
            .split_terminator('\0')
            .map(str::to_owned)
            .collect::<Vec<_>>()
            .into_iter();
        words.next();
        let mut kept = Vec::new();
        while let Some(word) = words.next() {
            if OPTIONS.contains(&word.as_str()) { drop(words.next()) } else { kept.push(word) }
        }
        Ok(kept)
    }

    /// Does `work` while the machine's QEMU is stopped by a signal.
    ///
    /// # Errors
    /// Those of `work`.
    pub fn while_stopped<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let pid = self.emulator()?.pid;
        let signal = |signal| {
            // SAFETY: no memory is passed; the process is one of this lab's.
            ensure!(unsafe { libc::kill(pid, signal) } == 0, std::io::Error::last_os_error());
            Ok(())
        };
        signal(libc::SIGSTOP)?;
        let done = work();
        signal(libc::SIGCONT)?;
        done
    }

    /// Moves the machine to `host`.
    ///
    /// # Errors
    /// If it does not arrive.
    pub fn move_to(&self, host: &str) -> Result<Times> {
        let (pause, total) = self.moved(host)?;
        Ok(Times { pause: pause.length, total })
    }

    /// Moves the machine to `host` while h3 probes it. Returns the time around the pause in which no probe was answered, beyond the pause.
    ///
    /// # Errors
    /// If it does not arrive, or does not answer.
    pub fn gap(&self, host: &str) -> Result<Duration> {
        let echo =
            Prober::echo(&namespace_file(&self.lab.lab.layout().namespace("h3".parse()?)), self.address)?;
        let answered = |more: u64| {
            let before = echo.gaps().answered();
            self.lab.eventually("the guest answers", || Ok(echo.gaps().answered() > before + more))
        };
        answered(PROBES)?;
        let (now, clock) = (Instant::now(), SystemTime::now().duration_since(UNIX_EPOCH)?);
        let (pause, _) = self.moved(host)?;
        answered(PROBES)?;
        let from = now + (pause.from - clock);
        let gap =
            echo.gaps().longest_within(from, from + pause.length).context("all probes were answered")?;
        Ok(gap.duration().saturating_sub(pause.length))
    }

    /// Moves the machine to `host`: its pause, and the whole time.
    fn moved(&self, host: &str) -> Result<(Pause, Duration)> {
        let (begin, began) = (SystemTime::now(), Instant::now());
        let report = e2e::testlab::report(&mut self.lab.begin_move(NAME, host)?)?;
        let total = began.elapsed();
        ensure!(report.outcome == api::Outcome::Moved, "{report:?}\n{}", self.lab.logs());
        Ok((self.traced.pause_since(begin)?, total))
    }

    /// The machine's QEMU, when that on the host of before has ended.
    fn emulator(&self) -> Result<Identity> {
        // Those of the peer have no TAP.
        let is_ours = |words: &[&str]| {
            words.first().is_some_and(|word| word.contains("qemu-system"))
                && words.iter().any(|word| word.starts_with("tap,"))
        };
        self.lab.eventually("one emulator is left", || Ok(self.lab.find(is_ours).len() == 1))?;
        self.lab.find(is_ours).pop().context("the emulator has ended")
    }
}

/// The path of the QEMU of this name that `PATH` has.
///
/// # Errors
/// If there is none.
pub fn installed(name: &str) -> Result<PathBuf> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| path.is_file());
    found.with_context(|| format!("{name} is not installed"))
}
