//! A session: a command that runs beside the instance's own, with its pipes or terminal and its unsent messages. Or only the standard
//! input of the instance's own command.
//!
//! ```text
//!  runs ──reaped──▶ ended ──pipes read, all said──▶ told ──Leave──▶ (forgotten)
//!   │                                                                   ▲
//!   └──Leave──▶ left: SIGHUP, then SIGKILL ──────reaped─────────────────┘
//! ```

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use fabric::attach::NotStarted;
use fabric::attach::OutputStream::{self, Stderr, Stdout};
use fabric::session::{End, FromSession, MAX_PIECE, Order, State, ToSession, WindowSize};
use fabric::stream::{Receiving, Sending};

use crate::children::{code_of, reap_one};
use crate::launch::{self, Company, Launch};
use crate::pipe::{self, set_nonblocking};
use crate::terminal;

/// How long a command may take to end after its client has left.
const GRACE: Duration = Duration::from_secs(5);

/// The largest number of a signal.
const LAST_SIGNAL: i32 = 64;

/// A session's command, with its unsent messages.
#[derive(Default)]
pub struct Session {
    /// Its process, the leader of a process group, until it is reaped.
    pid: Option<i32>,
    /// The write end of its standard input, or the master of its terminal.
    stdin: Option<File>,
    /// The read end of its standard output, or the master of its terminal.
    stdout: Option<File>,
    stderr: Option<File>,
    output: [Sending; 2],
    input: Receiving,
    /// Input that the command has not read yet.
    unread: VecDeque<u8>,
    /// The length of the input, once it is known.
    input_length: Option<u64>,
    /// How many signals have been sent.
    signals: u32,
    /// Whether a report of its state is due.
    state_due: bool,
    end: Option<End>,
    end_told: bool,
    /// The time at which it is killed, since its client has left.
    left: Option<Instant>,
    /// Whether its terminal or its console is stopped for a move.
    is_held: bool,
    /// Whether its input is the console of a virtual machine, which outlasts it.
    is_console: bool,
}

impl Session {
    /// Starts the ordered command.
    pub fn start(launch: &Launch, order: &Order, environment: Vec<(OsString, OsString)>) -> Self {
        let launch = launch.of_session(order);
        let own = order.environment.iter().map(|(name, value)| (name.into(), value.into()));
        let environment = environment.into_iter().chain(own);
        let started = match order.terminal {
            Some(size) => Self::at_terminal(&launch, environment, size),
            None => Self::with_pipes(&launch, environment, order.input),
        };
        let session =
            started.unwrap_or_else(|why| Self { end: Some(End::NotStarted(why)), ..Self::default() });
        Self { state_due: true, ..session }
    }

    /// A session that feeds the standard input of the instance's own command, if the command has one and no session has taken it
    /// yet.
    pub fn for_own(stdin: Option<File>) -> Self {
        let end = stdin.is_none().then(|| End::NotStarted(launch::without_stdin()));
        Self { stdin, end, state_due: true, ..Self::default() }
    }

    /// A session that feeds the console of a virtual machine, if no other one does. Its first `from` bytes were received at the machine's
    /// last host.
    pub fn for_console(stdin: Option<File>, from: u64) -> Self {
        let end = stdin.is_none().then(|| End::NotStarted(launch::second_console()));
        let input = Receiving::at(from);
        Self { stdin, end, input, state_due: true, is_console: true, ..Self::default() }
    }

    /// Takes the console's input from the session, which is over.
    pub fn return_console(&mut self) -> Option<File> {
        self.stdin.take().filter(|_| self.is_console)
    }

    fn with_pipes(
        launch: &Launch,
        environment: impl Iterator<Item = (OsString, OsString)>,
        input: bool,
    ) -> Result<Self, NotStarted> {
        let stdin = if input { Stdio::piped() } else { Stdio::null() };
        let child = launch
            .spawn(environment, [stdin, Stdio::piped(), Stdio::piped()], Company::Own)
            .map_err(|error| launch.explain(&error))?;
        let pid = Some(child.id().cast_signed());
        let pipes = [
            child.stdin.map(OwnedFd::from),
            child.stdout.map(OwnedFd::from),
            child.stderr.map(OwnedFd::from),
        ];
        pipes.iter().flatten().for_each(|pipe| set_nonblocking(pipe.as_fd()));
        let [stdin, stdout, stderr] = pipes.map(|pipe| pipe.map(File::from));
        Ok(Self { pid, stdin, stdout, stderr, ..Self::default() })
    }

    fn at_terminal(
        launch: &Launch,
        environment: impl Iterator<Item = (OsString, OsString)>,
        size: WindowSize,
    ) -> Result<Self, NotStarted> {
        let open = || {
            let (master, slave) = terminal::open(size, launch.user())?;
            let inside = [slave.try_clone()?, slave.try_clone()?, slave].map(Stdio::from);
            Ok((master.try_clone()?, master, inside))
        };
        let (stdin, stdout, inside) = open().map_err(|error| launch::without_terminal(&error))?;
        let child =
            launch.spawn(environment, inside, Company::AtTerminal).map_err(|error| launch.explain(&error))?;
        let pid = Some(child.id().cast_signed());
        Ok(Self { pid, stdin: Some(stdin), stdout: Some(stdout), ..Self::default() })
    }

    /// Handles a message; a repeated `Open` has no effect.
    pub fn hear(&mut self, message: ToSession) {
        match message {
            ToSession::Open(_) => self.state_due = true,
            ToSession::Input { offset, bytes } => self.unread.extend(self.input.accept(offset, &bytes)),
            ToSession::InputEnd { length } => self.input_length = Some(length),
            ToSession::Taken { stream, up_to } => self.output[stream as usize].confirm(up_to),
            ToSession::Signal { number, signal } => self.signal(number, signal),
            ToSession::Leave => self.leave(),
            ToSession::Resize(size) => self.resize(size),
        }
    }

    /// Sets the window size of its terminal, if it still has one.
    fn resize(&self, size: WindowSize) {
        let _no_terminal = self.stdout.as_ref().map(|master| terminal::resize(master, size));
    }

    fn signal(&mut self, number: u32, signal: i32) {
        if self.signals.checked_add(1) == Some(number) {
            self.signals = number;
            self.send_signal(signal);
        }
        self.state_due = true;
    }

    /// Signals the command's process group. As long as the command is not reaped, its group cannot belong to another process.
    fn send_signal(&self, signal: i32) {
        if let Some(pid) = self.pid.filter(|_| (1..=LAST_SIGNAL).contains(&signal)) {
            // SAFETY: no memory is passed.
            unsafe { libc::kill(-pid, signal) };
        }
    }

    fn leave(&mut self) {
        if self.left.is_none() {
            self.left = Some(Instant::now() + GRACE);
            (self.stdout, self.stderr) = (None, None);
            self.stdin = self.stdin.take().filter(|_| self.is_console);
            self.send_signal(libc::SIGHUP);
        }
    }

    /// Stops its terminal, if it has one, and reads all output from it. CRIU would write unread output to the terminal again: the
    /// line discipline would change it, and CRIU would block for ever if the terminal had no room.
    ///
    /// A console gets no more input: what is in its pipe then, the engine carries along.
    pub fn hold(&mut self) {
        self.is_held |= self.is_console;
        if let Some(master) = self.stdout.as_ref().filter(|_| self.left.is_none())
            && terminal::stop(master).is_ok()
        {
            self.is_held = true;
            self.drain();
        }
    }

    /// Reads all available output, even beyond the buffer's limit.
    fn drain(&mut self) {
        /// More than a terminal buffers.
        const MOST: usize = 64 * 1024;
        let end = self.output[Stdout as usize].length() + MOST as u64;
        while let Some(bytes) = pipe::read(&mut self.stdout, MAX_PIECE) {
            self.output[Stdout as usize].push(&bytes);
            if self.output[Stdout as usize].length() >= end {
                return;
            }
        }
    }

    /// Starts its terminal again after a rollback. At the destination it was never stopped.
    pub fn go_on(&mut self) {
        if std::mem::take(&mut self.is_held) {
            let _closed = self.stdout.as_ref().map(terminal::go_on);
        }
    }

    /// Records the end of a process of the instance, which was reaped.
    pub fn reaped(&mut self, pid: i32, status: ExitStatus) {
        if self.pid == Some(pid) {
            self.pid = None;
            self.end = Some(End::Exited(code_of(status)));
        }
    }

    /// Reaps its own process, if that has ended.
    pub fn reap(&mut self) {
        if let Some(pid) = self.pid
            && let Some(status) = reap_one(pid)
        {
            self.reaped(pid, status);
        }
    }

    /// The time at which the command is killed.
    pub fn deadline(&self) -> Option<Instant> {
        self.left.filter(|_| self.pid.is_some())
    }

    /// Kills the command if its client has left and it does not end.
    pub fn kill_overdue(&mut self, now: Instant) {
        if self.left.is_some_and(|deadline| deadline <= now) {
            self.send_signal(libc::SIGKILL);
            // Its end is awaited.
            self.left = Some(now + GRACE);
        }
    }

    /// Whether the session can be removed.
    pub fn is_over(&self) -> bool {
        self.left.is_some() && self.pid.is_none()
    }

    /// The pipes and the events to poll them for.
    pub fn interest(&self) -> impl Iterator<Item = (RawFd, libc::c_short)> + '_ {
        let [stdout, stderr] = [
            self.stdout.as_ref().filter(|_| self.has_room(Stdout)).map(AsRawFd::as_raw_fd),
            self.stderr.as_ref().filter(|_| self.has_room(Stderr)).map(AsRawFd::as_raw_fd),
        ];
        let stdin = self.stdin.as_ref().filter(|_| self.gives_input()).map(AsRawFd::as_raw_fd);
        let outputs = [stdout, stderr].into_iter().flatten().map(|fd| (fd, libc::POLLIN));
        outputs.chain(stdin.map(|fd| (fd, libc::POLLOUT)))
    }

    fn gives_input(&self) -> bool {
        !self.unread.is_empty() && !self.is_held
    }

    fn has_room(&self, stream: OutputStream) -> bool {
        self.output[stream as usize].room() > 0
    }

    /// Moves input and output between the buffers and the `ready` pipes, or all pipes once the command has ended.
    pub fn carry(&mut self, ready: impl Fn(RawFd) -> bool) {
        self.give_input();
        let ended = self.end.is_some();
        let is_due = |fd| ended || ready(fd);
        let [stdout, stderr] = &mut self.output;
        carry_output(&mut self.stdout, stdout, is_due, ended);
        carry_output(&mut self.stderr, stderr, is_due, ended);
    }

    fn give_input(&mut self) {
        if self.gives_input() {
            let done = pipe::write(&mut self.stdin, &mut self.unread);
            self.input.take(done);
        }
        if !self.is_console && self.unread.is_empty() && self.input_length == Some(self.input.arrived()) {
            self.stdin = None;
        }
    }

    /// The session's state.
    pub fn state(&mut self) -> State {
        self.state_due = false;
        State { input: self.input.tell(), signals: self.signals }
    }

    /// The last message of a console whose machine is about to move.
    pub fn last_word(&mut self) -> Option<FromSession> {
        (self.is_console && self.left.is_none() && self.end.is_none())
            .then(|| FromSession::Parted(self.state()))
    }

    /// Prepares to repeat messages, since some may have been lost.
    pub fn say_again(&mut self) {
        self.output.iter_mut().for_each(Sending::rewind);
        self.end_told = false;
    }

    /// The next message to send, if there is one.
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

    /// The command's end, when all of its output has been sent.
    fn untold_end(&mut self) -> Option<FromSession> {
        let end =
            self.end.as_ref().filter(|_| !self.end_told && self.stdout.is_none() && self.stderr.is_none())?;
        self.end_told = true;
        let lengths = [self.output[0].length(), self.output[1].length()];
        Some(FromSession::Ended { end: end.clone(), lengths })
    }
}

/// Reads a pipe as far as the buffer has room. Processes that the command has left behind may keep the pipe open: once the command
/// has `ended`, only output that is available now counts.
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

#[cfg(test)]
mod tests {
    use std::env;
    use std::process;
    use std::thread::sleep;

    use super::*;

    const SIZE: WindowSize = WindowSize { rows: 24, columns: 80 };
    const LIMIT: Duration = Duration::from_secs(20);

    /// A command at a terminal.
    fn at_terminal(script: &str) -> Session {
        let launch: Vec<OsString> = ["0", "0", "", "/", "true"].map(OsString::from).into();
        let command = ["sh", "-c", script].map(str::to_owned).into();
        let order = Order { command, input: true, terminal: Some(SIZE), ..Order::default() };
        Session::start(&Launch::parse(&launch).unwrap(), &order, env::vars_os().collect())
    }

    /// The command's output, until it contains `enough` or the command has ended.
    fn read(session: &mut Session, enough: &str) -> String {
        let (mut text, end) = (String::new(), Instant::now() + LIMIT);
        while !text.contains(enough) {
            assert!(Instant::now() < end, "only {text:?}");
            session.reap();
            session.carry(|_| true);
            match session.next_word() {
                Some(FromSession::Output { bytes, .. }) => text += &String::from_utf8(bytes).unwrap(),
                Some(FromSession::Ended { .. }) => break,
                Some(FromSession::State(_) | FromSession::Parted(_)) => {}
                None => sleep(Duration::from_millis(1)),
            }
        }
        text
    }

    fn type_in(session: &mut Session, text: &str) {
        let offset = session.input.arrived();
        session.hear(ToSession::Input { offset, bytes: text.into() });
    }

    #[test]
    fn a_terminal_follows_the_size_of_the_window() {
        let script = "trap 'stty size; exit 3' WINCH; stty size; while :; do read line; done";
        let mut session = at_terminal(script);
        assert_eq!(read(&mut session, "\n"), "24 80\r\n");
        session.hear(ToSession::Resize(WindowSize { rows: 50, columns: 132 }));
        // The shell runs the trap at once, or when it has read the line: before or after the terminal has echoed that.
        type_in(&mut session, "x\n");
        let rest = read(&mut session, "no more than this");
        assert!(["50 132\r\nx\r\n", "x\r\n50 132\r\n"].contains(&rest.as_str()), "{rest:?}");
        assert_eq!(session.end, Some(End::Exited(3)));
    }

    #[test]
    fn keys_of_a_terminal_send_signals_to_its_command() {
        let script =
            "trap 'echo caught' INT; tty; echo >/dev/tty ready; while sleep 0.01; do :; done; sleep 60";
        let mut session = at_terminal(script);
        let text = read(&mut session, "ready");
        assert!(text.starts_with("/dev/pts/"), "{text:?}");
        type_in(&mut session, "\u{3}");
        read(&mut session, "caught");
        type_in(&mut session, "\u{1c}");
        read(&mut session, "no more than this");
        assert!(matches!(session.end, Some(End::Exited(131 | 0 | 1))), "{:?}", session.end);
    }

    #[test]
    fn a_held_terminal_has_no_unread_output() {
        let mut session = at_terminal("exec seq 1000000000");
        let end = Instant::now() + LIMIT;
        while session.output[0].room() > 0 {
            assert!(Instant::now() < end);
            session.carry(|_| true);
            sleep(Duration::from_millis(1));
        }
        session.hold();
        let held = session.output[0].length();
        sleep(Duration::from_millis(50));
        session.drain();
        assert_eq!(session.output[0].length(), held);
        session.go_on();
        let mut text = Vec::new();
        for round in 1..=50 {
            while text.len() < round * 40_000 {
                assert!(Instant::now() < end);
                session.carry(|_| true);
                if let Some((offset, bytes)) = session.output[0].next(MAX_PIECE) {
                    session.output[0].confirm(offset + bytes.len() as u64);
                    text.extend(bytes);
                }
            }
            session.hold();
            session.go_on();
        }
        session.hear(ToSession::Leave);
        let expected: String = (1..=text.len() / 3).map(|number| format!("{number}\r\n")).collect();
        assert!(expected.as_bytes().starts_with(&text));
        while !session.is_over() {
            session.reap();
            sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn the_own_commands_input_ends_with_its_session() {
        let mut cat = process::Command::new("cat");
        let mut cat = cat.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut session = Session::for_own(cat.stdin.take().map(OwnedFd::from).map(File::from));
        assert!(matches!(session.next_word(), Some(FromSession::State(_))));
        type_in(&mut session, "some ");
        session.carry(|_| true);
        type_in(&mut session, "words");
        session.carry(|_| true);
        assert!(!session.is_over());
        session.hear(ToSession::Leave);
        assert!(session.is_over());
        assert_eq!(cat.wait_with_output().unwrap().stdout, b"some words");

        let mut second = Session::for_own(None);
        let words: Vec<_> = std::iter::from_fn(|| second.next_word()).collect();
        assert!(matches!(words[..], [_, FromSession::Ended { end: End::NotStarted(_), .. }]), "{words:?}");
    }

    #[test]
    fn a_console_keeps_its_input_from_a_machine_that_is_about_to_move() {
        let (reader, writer) = std::io::pipe().unwrap();
        set_nonblocking(reader.as_fd());
        let (mut reader, writer) = (Some(reader), File::from(OwnedFd::from(writer)));
        let mut session = Session::for_console(Some(writer), 7);
        type_in(&mut session, "before");
        session.carry(|_| true);
        session.hold();
        type_in(&mut session, "later");
        session.carry(|_| true);
        assert_eq!(session.last_word(), Some(FromSession::Parted(State { input: 13, signals: 0 })));
        assert_eq!(pipe::read(&mut reader, 99).unwrap(), b"before");
        session.go_on();
        session.carry(|_| true);
        assert_eq!(pipe::read(&mut reader, 99).unwrap(), b"later");
        session.hear(ToSession::InputEnd { length: 18 });
        session.carry(|_| true);
        session.hear(ToSession::Leave);
        assert!(session.is_over() && session.return_console().is_some());
        let mut second = Session::for_console(None, 0);
        let words: Vec<_> = std::iter::from_fn(|| second.next_word()).collect();
        assert!(matches!(words[..], [_, FromSession::Ended { end: End::NotStarted(_), .. }]), "{words:?}");
    }

    #[test]
    fn a_command_gets_sighup_when_its_client_leaves_the_terminal() {
        let mut session = at_terminal("echo ready; cat");
        read(&mut session, "ready");
        session.hear(ToSession::Leave);
        let end = Instant::now() + LIMIT;
        while !session.is_over() {
            assert!(Instant::now() < end);
            session.reap();
            sleep(Duration::from_millis(1));
        }
        assert_eq!(session.end, Some(End::Exited(128 + libc::SIGHUP)));
    }
}
