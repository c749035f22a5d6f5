//! The instance's first process: runs the command, sends its output and exit status to the node, and runs further commands (sessions)
//! beside it.
//!
//! ```text
//!  command ──stdout, stderr──▶ init ──Started, Output, Exited──▶ node      over the attach socket
//!  others ◀─stdin, stdout, stderr─▶ sessions ◀──Session──▶ node            over another one (ADR 0025)
//! ```
//!
//! It travels with the instance. On `Suspend` it stops the terminals of sessions (ADR 0031), closes its sockets, and then tries to
//! connect to the node until one answers: the source's after a rollback, the destination's after a move. Meanwhile it reads at most one
//! more packet of output, so that back-pressure of the pipe stops a command that writes a lot. Each byte of the command's output is sent
//! once, in order; bytes that a node received but did not record before a crash are lost. No byte of a session is lost.
//!
//! It has a single thread, and receives signals through a descriptor, so no handler interrupts it.

mod child;
mod environment;
mod signals;
pub(crate) mod unpack;

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::{Duration, Instant};

use fabric::attach::{Role, ToNode};

use instance::{Kind, Program};
use sessions::attach::{Attachment, Way};
use sessions::capabilities;
pub(crate) use sessions::capabilities::{NEEDED, lent};
use sessions::launch::{self, Launch};
use sessions::poll::poll;
use sessions::{Sessions, children};

use self::child::Child;
pub(crate) use self::environment::shield;
use self::environment::unshielded;
use self::signals::Signals;
use crate::criu::{guard, pager};
use crate::linux::orphans;

/// How long to delay the report of the command's end while its connections have unsent data. TCP retransmits a lost packet after a
/// fifth of a second.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// The interval between checks for unsent data.
const LOOK: Duration = Duration::from_millis(5);

/// Init's working directory: it exists on every host and is writable, since CRIU mounts the instance's `/proc` there for a moment.
pub(crate) const DIRECTORY: &str = "/tmp";

/// The arguments for [`run`]: whether there is a standard input, whether the command is an emulator, whether init is in a container,
/// user, group, groups, directory, command.
pub(crate) fn arguments(program: &Program, kind: Kind) -> Vec<String> {
    let groups: Vec<String> = program.groups.iter().map(u32::to_string).collect();
    let directory = program.directory.display().to_string();
    let words = [
        (program.stdin, launch::WITH_STDIN),
        (kind == Kind::Vm, launch::EMULATOR),
        (kind == Kind::Container, launch::IN_CONTAINER),
    ];
    let words = words.into_iter().filter(|(holds, _)| *holds).map(|(_, word)| word.to_owned());
    let mut arguments: Vec<String> = words.collect();
    arguments.extend([program.user.to_string(), program.group.to_string(), groups.join(","), directory]);
    arguments.extend(program.command.iter().cloned());
    arguments
}

/// Runs a command as the first process of an instance, and returns its exit code after the node has recorded it. The engine adds
/// `arguments` to [`Config::init`](crate::Config::init). They may also tell this program to guard a CRIU, to unpack an image, or to
/// page an instance.
///
/// # Errors
/// If signals cannot be set up, or the arguments are not the engine's. A command that does not start is no error: init reports it
/// to the node, with the exit code that a shell would give.
pub fn run(arguments: &[OsString]) -> io::Result<i32> {
    if let Some((_, rest)) = arguments.split_first().filter(|(first, _)| *first == guard::WORD) {
        return guard::run(rest).map(|()| 0);
    }
    if let Some((_, rest)) = arguments.split_first().filter(|(first, _)| *first == unpack::WORD) {
        return unpack::run(rest);
    }
    if let Some((_, rest)) = arguments.split_first().filter(|(first, _)| *first == pager::WORD) {
        return pager::run(rest).map(|()| 0);
    }
    let signals = Signals::block()?;
    let launch = Launch::parse(capabilities::give_back(arguments)?)?;
    let stays = launch.is_emulator();
    let mut child = Child::start(&launch, unshielded());
    let node = Attachment::new(Role::Init, Way::direct());
    // The agent in the guest serves the commands of a virtual machine.
    let role = if stays { Role::Console } else { Role::Sessions };
    let sessions = Attachment::new(role, Way::direct());
    let sessions = Sessions::new(sessions, launch, || unshielded().collect(), child.take_stdin());
    let mut init = Init { signals, child, node, sessions, last_words_until: None, told_end: false, stays };
    while !init.node.dismissed() {
        init.step()?;
    }
    Ok(init.child.code())
}

struct Init {
    signals: Signals,
    child: Child,
    node: Attachment,
    sessions: Sessions,
    /// The end of the delay for data that the command has left to the kernel, once the command has ended.
    last_words_until: Option<Instant>,
    /// Whether the command's end has been sent over the present connection.
    told_end: bool,
    /// Whether init does not travel with the instance, because it runs the emulator of a virtual machine. The engine then carries the
    /// output that is still in the pipe, so init reads none while it has no node.
    stays: bool,
}

impl Init {
    fn step(&mut self) -> io::Result<()> {
        let ready = self.wait()?;
        for signal in self.signals.take()? {
            if signal == libc::SIGCHLD { self.reap() } else { self.child.signalled(signal) }
        }
        if self.node.step(|| None) {
            self.told_end = false;
        }
        self.carry_output();
        self.sessions.step(|fd| ready.contains(&fd));
        Ok(())
    }

    fn reap(&mut self) {
        for (pid, status) in children::reap() {
            self.child.reaped(pid, status);
            self.sessions.reaped(pid, status);
        }
    }

    /// Reads a packet of output from the pipes, if the node accepts it. One at a time: the node's `Suspend` must not wait behind a
    /// command that writes without end.
    fn carry_output(&mut self) {
        if !self.accepts_output() {
            return;
        }
        if let Some(output) = self.child.read_output() {
            self.node.send(&output);
        } else if untold(&self.child, self.told_end).is_some()
            && !self.has_last_words()
            && let Some(end) = self.child.end()
        {
            self.told_end = true;
            self.node.send(end);
        }
    }

    fn accepts_output(&self) -> bool {
        self.node.has_room() && (!self.stays || self.node.is_attached())
    }

    /// Whether to report the end later. With the instance's network, its connections disappear, and lost packets would not be
    /// retransmitted.
    fn has_last_words(&mut self) -> bool {
        let until = *self.last_words_until.get_or_insert_with(|| Instant::now() + LAST_WORDS);
        Instant::now() < until && !orphans::have_sent()
    }

    /// Sleeps until a descriptor is ready or a timeout ends. Returns the descriptors that are ready.
    fn wait(&self) -> io::Result<Vec<RawFd>> {
        let signals = [(self.signals.as_fd().as_raw_fd(), libc::POLLIN)].into_iter();
        let pipes = self.child.pipes().filter(|_| self.accepts_output());
        let pipes = pipes.map(|pipe| (pipe.as_raw_fd(), libc::POLLIN));
        poll(
            signals.chain(self.node.interest()).chain(pipes).chain(self.sessions.interest()),
            self.patience(),
        )
    }

    /// How long it can sleep; for ever if it is `None`.
    fn patience(&self) -> Option<Duration> {
        // No other event reports an end that came together with output.
        if self.accepts_output() && untold(&self.child, self.told_end).is_some() {
            return Some(if self.last_words_until.is_some() { LOOK } else { Duration::ZERO });
        }
        self.node.retry_after().into_iter().chain(self.sessions.retry_after()).min()
    }
}

/// The command's end, unless it was sent.
fn untold(child: &Child, told: bool) -> Option<&ToNode> {
    child.end().filter(|_| !told)
}
