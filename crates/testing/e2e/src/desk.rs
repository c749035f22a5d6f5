//! A user's terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::mem;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::testlab::TestLab;

const LIMIT: Duration = Duration::from_secs(60);

/// A user's terminal, and a command of the command line at it.
pub struct Desk {
    /// The user's end.
    pub keys: File,
    terminal: File,
    /// The command.
    pub client: Child,
    pieces: Receiver<Vec<u8>>,
    /// Output that was read and not expected yet.
    text: String,
}

impl Desk {
    /// `transhume exec --tty` with a command in an instance.
    ///
    /// # Errors
    /// If that cannot be done.
    pub fn exec(lab: &TestLab, name: &str, command: &[&str]) -> Result<Self> {
        Self::start(lab, &[&["exec", "--tty", "--env", "PS1=prompt> ", name, "--"], command].concat())
    }

    /// A command of the command line.
    ///
    /// # Errors
    /// If that cannot be done.
    pub fn start(lab: &TestLab, arguments: &[&str]) -> Result<Self> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let keys = openpt(flags)?;
        unlockpt(&keys)?;
        let terminal = File::from(ioctl_tiocgptpeer(&keys, flags)?);
        let keys = File::from(keys);
        resize(&keys, 33, 97)?;
        let wanted = lab.command(arguments);
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

    /// Presses keys.
    ///
    /// # Errors
    /// If that cannot be done.
    pub fn press(&mut self, keys: &str) -> Result<()> {
        Ok(self.keys.write_all(keys.as_bytes())?)
    }

    /// Reads on until `text` has come.
    ///
    /// # Errors
    /// If that cannot be done.
    pub fn expect(&mut self, text: &str) -> Result<()> {
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
    ///
    /// # Errors
    /// If that cannot be done.
    pub fn count(&mut self, mut next: u64, stop: impl Fn(u64) -> bool) -> Result<u64> {
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
    ///
    /// # Errors
    /// If that cannot be done.
    pub fn is_cooked(&self) -> Result<bool> {
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

/// Sets the size of a terminal's window.
///
/// # Errors
/// If that cannot be done.
pub fn resize(terminal: &File, rows: u16, columns: u16) -> Result<()> {
    Ok(tcsetwinsize(terminal, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 })?)
}
