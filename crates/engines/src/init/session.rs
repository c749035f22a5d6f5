//! A session: a command that runs beside the instance's own, its pipes, and what there is to say of it.
//!
//! ```text
//!  runs ──reaped──▶ ended ──pipes read, all said──▶ told ──Leave──▶ (forgotten)
//!   │                                                                   ▲
//!   └──Leave──▶ left: SIGHUP, then SIGKILL ──────reaped─────────────────┘
//! ```

use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::process::{ChildStderr, ChildStdin, ChildStdout, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use fabric::attach::OutputStream::{self, Stderr, Stdout};
use fabric::session::{End, FromSession, MAX_PIECE, Order, State, ToSession};
use fabric::stream::{Receiving, Sending};

use super::child::code_of;
use super::launch::{Company, Launch};
use super::pipe::{self, set_nonblocking};

/// How long a command may take to end once nobody is interested in it.
const GRACE: Duration = Duration::from_secs(5);

/// The largest number of a signal.
const LAST_SIGNAL: i32 = 64;

/// A command, and all that has not been told of it.
#[derive(Default)]
pub struct Session {
    /// Its process, which leads a process group, until it is reaped.
    pid: Option<i32>,
    stdin: Option<ChildStdin>,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    output: [Sending; 2],
    input: Receiving,
    /// Input that the command has not read.
    unread: VecDeque<u8>,
    /// How long the input is, once that is known.
    input_length: Option<u64>,
    /// How many signals have been sent.
    signals: u32,
    /// How far it is is to be told.
    state_due: bool,
    end: Option<End>,
    end_told: bool,
    /// When it is killed that nobody is interested in.
    left: Option<Instant>,
}

impl Session {
    /// Starts the command that is ordered.
    pub fn start(
        launch: &Launch,
        order: &Order,
        environment: impl Iterator<Item = (OsString, OsString)>,
    ) -> Self {
        let launch = launch.of_session(order);
        let own = order.environment.iter().map(|(name, value)| (name.into(), value.into()));
        let stdin = if order.input { Stdio::piped() } else { Stdio::null() };
        match launch.spawn(environment.chain(own), stdin, Company::Own) {
            Ok(child) => {
                let pid = Some(child.id().cast_signed());
                let (stdin, stdout, stderr) = (child.stdin, child.stdout, child.stderr);
                let input = stdin.as_ref().map(AsFd::as_fd);
                let outputs = [stdout.as_ref().map(AsFd::as_fd), stderr.as_ref().map(AsFd::as_fd)];
                outputs.into_iter().chain([input]).flatten().for_each(set_nonblocking);
                Self { pid, stdin, stdout, stderr, state_due: true, ..Self::default() }
            }
            Err(error) => {
                let end = Some(End::NotStarted(launch.explain(&error)));
                Self { end, state_due: true, ..Self::default() }
            }
        }
    }

    /// Does what it is told; another `Open` is the first one again.
    pub fn hear(&mut self, message: ToSession) {
        match message {
            ToSession::Open(_) => self.state_due = true,
            ToSession::Input { offset, bytes } => self.unread.extend(self.input.accept(offset, &bytes)),
            ToSession::InputEnd { length } => self.input_length = Some(length),
            ToSession::Taken { stream, up_to } => self.output[stream as usize].confirm(up_to),
            ToSession::Signal { number, signal } => self.signal(number, signal),
            ToSession::Leave => self.leave(),
        }
    }

    fn signal(&mut self, number: u32, signal: i32) {
        if self.signals.checked_add(1) == Some(number) {
            self.signals = number;
            self.send_signal(signal);
        }
        self.state_due = true;
    }

    /// Signals the command's process group, which is surely its own as long as it is not reaped.
    fn send_signal(&self, signal: i32) {
        if let Some(pid) = self.pid.filter(|_| (1..=LAST_SIGNAL).contains(&signal)) {
            // SAFETY: no memory is passed.
            unsafe { libc::kill(-pid, signal) };
        }
    }

    fn leave(&mut self) {
        if self.left.is_none() {
            self.left = Some(Instant::now() + GRACE);
            (self.stdin, self.stdout, self.stderr) = (None, None, None);
            self.send_signal(libc::SIGHUP);
        }
    }

    /// A process of the instance has ended, and was reaped.
    pub fn reaped(&mut self, pid: i32, status: ExitStatus) {
        if self.pid == Some(pid) {
            self.pid = None;
            self.end = Some(End::Exited(code_of(status)));
        }
    }

    /// When the command is to be killed at the latest.
    pub fn deadline(&self) -> Option<Instant> {
        self.left.filter(|_| self.pid.is_some())
    }

    /// Kills the command if nobody is interested in it and it does not end.
    pub fn kill_overdue(&mut self, now: Instant) {
        if self.left.is_some_and(|deadline| deadline <= now) {
            self.send_signal(libc::SIGKILL);
            // It is waited for.
            self.left = Some(now + GRACE);
        }
    }

    /// Whether it can be forgotten.
    pub fn is_over(&self) -> bool {
        self.left.is_some() && self.pid.is_none()
    }

    /// What to wait for on the pipes.
    pub fn interest(&self) -> impl Iterator<Item = (RawFd, libc::c_short)> + '_ {
        let [stdout, stderr] = [
            self.stdout.as_ref().filter(|_| self.has_room(Stdout)).map(AsRawFd::as_raw_fd),
            self.stderr.as_ref().filter(|_| self.has_room(Stderr)).map(AsRawFd::as_raw_fd),
        ];
        let stdin = self.stdin.as_ref().filter(|_| !self.unread.is_empty()).map(AsRawFd::as_raw_fd);
        let outputs = [stdout, stderr].into_iter().flatten().map(|fd| (fd, libc::POLLIN));
        outputs.chain(stdin.map(|fd| (fd, libc::POLLOUT)))
    }

    fn has_room(&self, stream: OutputStream) -> bool {
        self.output[stream as usize].room() > 0
    }

    /// Carries input and output between the pipes and what is kept; of `ready` pipes, and all once the command has ended.
    pub fn carry(&mut self, ready: impl Fn(RawFd) -> bool) {
        self.give_input();
        let ended = self.end.is_some();
        let is_due = |fd| ended || ready(fd);
        let [stdout, stderr] = &mut self.output;
        carry_output(&mut self.stdout, stdout, is_due, ended);
        carry_output(&mut self.stderr, stderr, is_due, ended);
    }

    fn give_input(&mut self) {
        if !self.unread.is_empty() {
            let done = pipe::write(&mut self.stdin, &mut self.unread);
            self.input.take(done);
        }
        if self.unread.is_empty() && self.input_length == Some(self.input.arrived()) {
            self.stdin = None;
        }
    }

    /// How far it is.
    pub fn state(&mut self) -> State {
        self.state_due = false;
        State { input: self.input.tell(), signals: self.signals }
    }

    /// What has been said may have been lost.
    pub fn say_again(&mut self) {
        self.output.iter_mut().for_each(Sending::rewind);
        self.end_told = false;
    }

    /// What is to be said next, if anything is.
    pub fn next_word(&mut self) -> Option<FromSession> {
        if self.left.is_some() {
            return None;
        }
        if self.state_due || self.input.word().is_some() {
            return Some(FromSession::State(self.state()));
        }
        for stream in [Stdout, Stderr] {
            if let Some((offset, bytes)) = self.output[stream as usize].next(MAX_PIECE) {
                return Some(FromSession::Output { stream, offset, bytes });
            }
        }
        self.untold_end()
    }

    /// How the command ended, when all of its output has been said.
    fn untold_end(&mut self) -> Option<FromSession> {
        let end =
            self.end.as_ref().filter(|_| !self.end_told && self.stdout.is_none() && self.stderr.is_none())?;
        self.end_told = true;
        let lengths = [self.output[0].length(), self.output[1].length()];
        Some(FromSession::Ended { end: end.clone(), lengths })
    }
}

/// Reads a pipe as far as there is room. What a command has left behind may hold the pipe: when it has `ended`, what is
/// there now is all.
fn carry_output(
    pipe: &mut Option<impl std::io::Read + AsRawFd>,
    output: &mut Sending,
    is_due: impl Fn(RawFd) -> bool,
    ended: bool,
) {
    while output.room() > 0 && pipe.as_ref().is_some_and(|pipe| is_due(pipe.as_raw_fd())) {
        match pipe::read(pipe, output.room().min(MAX_PIECE)) {
            Some(bytes) => output.push(&bytes),
            None if ended => *pipe = None,
            None => return,
        }
        if !ended {
            return;
        }
    }
}
