//! One run of CRIU, driven through its RPC socket (`criu swrk`).
//!
//! CRIU runs in the instance's network and mount namespaces, so that it neither dumps nor makes one. For a container, which has its
//! own file systems, it runs in the host's mount namespace. CRIU stops at hooks and waits for an answer. When this process's end of
//! the socket closes, also by the death of this process, CRIU rolls back: a dumped tree runs on, and a restored tree is killed.

mod ending;
mod view;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use fabric::seqpacket;

use self::ending::UNDO;
use self::view::View;
use crate::criu::guard;
use crate::criu::images;
use crate::criu::log::reason_in;
use crate::criu::root::OwnRoot;
use crate::criu::rpc::{self, FileSystems, Request, Response};
use crate::engine::Watch;
use crate::error::{Doing, Error, Result};
use crate::instance::Blocker;
use crate::instance::InstanceName;
use crate::linux::task::TaskId;

/// CRIU's messages when a process cannot pass its descriptors to CRIU (`ETOOMANYREFS`): the kernel compares those that all programs
/// of its user have sent, and nobody has received yet, with its `RLIMIT_NOFILE`.
const TOO_MANY_IN_FLIGHT: [&str; 2] = ["send_fds failed (-109)", "Can't get proc fd"];

/// How often a wait checks for cancellation.
const GLANCE: Duration = Duration::from_millis(20);

/// How long CRIU may take from hook to hook before cancellation interrupts it; at a hook, it undoes its work by itself.
const SILENCE: Duration = Duration::from_secs(1);

/// How long the guard may take to report that it traces CRIU.
const GUARD: Duration = Duration::from_secs(5);

/// The inputs of a run.
pub struct Launch<'a> {
    /// The program.
    pub program: &'a Path,
    /// The network namespace in which it runs.
    pub namespace: BorrowedFd<'a>,
    /// The directory of the images.
    pub images: &'a Path,
    /// The instance.
    pub name: &'a InstanceName,
    /// The instance's file systems, if it has any of its own.
    pub own: Option<OwnRoot<'a>>,
    /// The request.
    pub request: Request,
}

/// A running CRIU.
pub struct Criu {
    socket: OwnedFd,
    /// The stream with the pages of a dump, until it is taken.
    pages: Option<UnixStream>,
    child: Child,
    /// The guard, which traces on CRIU's behalf and ends after it.
    guard: Option<Child>,
    id: TaskId,
    request: Request,
    name: InstanceName,
    log: PathBuf,
    root: Option<i32>,
    /// Whether CRIU has changed nothing yet, and may be killed at any time.
    harmless: bool,
    /// Whether it has ended and was reaped, so that another process may have its PID.
    waited_for: bool,
}

impl Criu {
    /// The hook of a dump at which the tree is stopped, before CRIU reads its state.
    pub const ALL_STOPPED: &str = "query-ext-files";

    /// Starts CRIU and sends the request.
    pub fn start(launch: &Launch<'_>) -> Result<Self> {
        let images = launch.images.to_str().ok_or_else(|| unprintable(launch.images))?;
        let (near, far) = match launch.request {
            Request::Dump { .. } => UnixStream::pair().map(|(near, far)| (Some(near), Some(far))),
            Request::Restore { .. } => Ok((None, None)),
        }
        .doing(|| "making a socket for CRIU".into())?;
        let started = Self::spawn(launch, near, far.as_ref().map(AsRawFd::as_raw_fd));
        let mut criu = started.doing(|| format!("starting {}", launch.program.display()))?;
        let own = launch.own.as_ref().map(|own| FileSystems { root: &own.root, binds: own.binds });
        let asked = criu.send(&launch.request.encode(images, own, far.as_ref().map(AsRawFd::as_raw_fd)));
        asked.map_err(|_| criu.failure())?;
        Ok(criu)
    }

    fn spawn(launch: &Launch<'_>, pages: Option<UnixStream>, its_pages: Option<RawFd>) -> io::Result<Self> {
        let (near, far) = seqpacket::pair()?;
        let (theirs, namespace) = (far.as_raw_fd(), launch.namespace.as_raw_fd());
        let view = View::of(launch.request, launch.own.is_some())?;
        let mut command = Command::new(launch.program);
        command.arg("swrk").arg(theirs.to_string());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.current_dir("/").process_group(0);
        if let Some(path) = launch.own.as_ref().and_then(|own| own.search_path) {
            command.env("PATH", path);
        }
        // SAFETY: between fork and exec, only system calls; their descriptors stay open.
        unsafe {
            command.pre_exec(move || {
                let kept = libc::fcntl(theirs, libc::F_SETFD, 0);
                if let Some(pages) = its_pages {
                    libc::fcntl(pages, libc::F_SETFD, 0);
                }
                let entered = libc::setns(namespace, libc::CLONE_NEWNET);
                if kept == -1 || entered == -1 {
                    return Err(io::Error::last_os_error());
                }
                view.enter()
            });
        }
        let child = command.spawn()?;
        let id = TaskId::of(child.id().cast_signed())?;
        let log = launch.images.join(format!("{}.log", launch.request.word()));
        Ok(Self {
            socket: near,
            pages,
            child,
            guard: None,
            id,
            request: launch.request,
            name: launch.name.clone(),
            log,
            root: None,
            harmless: true,
            waited_for: false,
        })
    }

    /// Starts a guard that traces on CRIU's behalf, so that CRIU's death does not harm the traced processes: see
    /// [`crate::criu::guard`]. CRIU must wait at a hook.
    pub fn guard(&mut self, init: &[OsString]) -> Result<()> {
        let name = self.name.clone();
        let started =
            init.split_first().map_or(Err(io::ErrorKind::InvalidInput.into()), |(program, words)| {
                let mut command = Command::new(program);
                command.args(words).arg(guard::WORD).arg(self.id.pid.to_string());
                command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
                command.process_group(0).spawn()
            });
        let guard = self.guard.insert(started.doing(|| format!("starting the guard of `{name}`"))?);
        if guard.stdout.take().and_then(line_in_time).as_deref() == Some("ready\n") {
            return Ok(());
        }
        Err(Error::unusable(
            format!("the guard of `{name}` cannot trace CRIU"),
            "detach the debugger that traces it",
        ))
    }

    /// Takes the stream with the pages of a dump, which must be read during the dump: see [`crate::criu::pages::page_server`].
    pub fn take_pages(&mut self) -> Option<UnixStream> {
        self.pages.take()
    }

    /// Its identity, for the record.
    pub fn id(&self) -> TaskId {
        self.id
    }

    /// The root of the tree that is being restored, once CRIU has reported it.
    pub fn root(&self) -> Option<i32> {
        self.root
    }

    /// Lets CRIU continue until it is done, or until the hook `until`; it passes other hooks. If the caller cancels, CRIU undoes
    /// its work at the next hook, or is forced to if it reaches none.
    pub fn run_to(&mut self, until: Option<&str>, watch: &Watch<'_>, end: Instant) -> Result<()> {
        loop {
            let response = self.receive(watch, end)?;
            if let Response::Hook { pid: Some(pid), .. } = response {
                self.root = Some(pid);
            }
            match response {
                Response::Done { success: true } => return Ok(()),
                Response::Done { success: false } => return Err(self.failure()),
                Response::Hook { .. } if (watch.cancelled)() => {
                    self.undo();
                    return Err(Error::Cancelled);
                }
                Response::Hook { name, .. } if Some(name.as_str()) == until => return Ok(()),
                Response::Hook { .. } => self.answer(true)?,
            }
        }
    }

    /// Gives an armed restore its inventory, which starts it. CRIU reads it from a named pipe, and has done everything by then that
    /// does not need the images.
    pub fn feed(&mut self, inventory: &Path, pipe: &Path, watch: &Watch<'_>) -> Result<()> {
        let (end, silent) = (Instant::now() + watch.timeout, Instant::now() + SILENCE);
        loop {
            match feed(inventory, pipe) {
                Err(error) if error.raw_os_error() == Some(libc::ENXIO) => {}
                other => return other.doing(|| format!("handing {} to CRIU", inventory.display())),
            }
            if self.has_ended() || Instant::now() > end {
                return Err(self.failure());
            }
            if Instant::now() > silent && (watch.cancelled)() {
                self.undo();
                return Err(Error::Cancelled);
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Answers the hook at which CRIU waits.
    pub fn answer(&mut self, go: bool) -> Result<()> {
        self.harmless = false;
        self.send(&rpc::encode_answer(go)).map_err(|_| self.failure())
    }

    fn send(&self, packet: &[u8]) -> io::Result<()> {
        // SAFETY: `packet` is live and as long as said.
        let sent = unsafe {
            libc::send(self.socket.as_raw_fd(), packet.as_ptr().cast(), packet.len(), libc::MSG_NOSIGNAL)
        };
        if sent == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn receive(&mut self, watch: &Watch<'_>, end: Instant) -> Result<Response> {
        let silent = Instant::now() + SILENCE;
        while !self.readable()? {
            // The tree that CRIU was restoring may hold CRIU's end of the socket as well.
            if self.has_ended() && !self.readable()? {
                return Err(self.failure());
            }
            // CRIU sends pages only after the stream is taken. Data before that means that CRIU gives up.
            if self
                .pages
                .as_ref()
                .is_some_and(|pages| readable_within(pages.as_fd(), Duration::ZERO).unwrap_or(true))
            {
                self.take_no_pages();
            }
            let now = Instant::now();
            if now > end {
                self.undo();
                return Err(Error::TimedOut { doing: self.request.word(), name: self.name.clone() });
            }
            if now > silent && (watch.cancelled)() {
                self.undo();
                return Err(Error::Cancelled);
            }
        }
        let mut packet = [0; 16 * 1024];
        // SAFETY: `packet` is live, writable and as long as said.
        let length =
            unsafe { libc::recv(self.socket.as_raw_fd(), packet.as_mut_ptr().cast(), packet.len(), 0) };
        let packet =
            usize::try_from(length).ok().filter(|length| *length > 0).map(|length| &packet[..length]);
        packet.and_then(rpc::decode).ok_or_else(|| self.failure())
    }

    fn readable(&self) -> Result<bool> {
        readable_within(self.socket.as_fd(), GLANCE).doing(|| "waiting for CRIU".into())
    }

    /// The error that CRIU's end means, once it has ended.
    fn failure(&mut self) -> Error {
        self.end_within(UNDO);
        if let Some(images) = self.log.parent().filter(|images| images::is_full(images)) {
            return images::no_room(&self.name, images);
        }
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        if log.contains("In-flight connection (l)") {
            let what = "the instance has not accepted an incoming connection";
            let blocker = Blocker::new(what, "move it when it receives fewer new connections");
            return Error::Pinned { name: self.name.clone(), blocker };
        }
        if TOO_MANY_IN_FLIGHT.iter().any(|message| log.contains(message)) {
            let what =
                "its user has more open files in flight between processes than the instance may have open";
            let remedy = "raise its limit of open files, or find which program leaves descriptors unread";
            return Error::Pinned { name: self.name.clone(), blocker: Blocker::new(what, remedy) };
        }
        let reason = reason_in(&log).unwrap_or_else(|| match self.child.try_wait() {
            Ok(Some(status)) => format!("it ended early ({status})"),
            _ => "it ended early".into(),
        });
        Error::Criu { doing: self.request.word(), name: self.name.clone(), reason }
    }
}

fn readable_within(descriptor: BorrowedFd<'_>, time: Duration) -> io::Result<bool> {
    let mut poll = libc::pollfd { fd: descriptor.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one live pollfd is passed.
    match unsafe { libc::poll(&raw mut poll, 1, time.as_millis() as libc::c_int) } {
        -1 if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted => {
            Err(io::Error::last_os_error())
        }
        ready => Ok(ready == 1),
    }
}

/// The line that the guard writes when it is ready, if it comes in time.
fn line_in_time(output: ChildStdout) -> Option<String> {
    let mut line = String::new();
    readable_within(output.as_fd(), GUARD).ok().filter(|ready| *ready)?;
    BufReader::new(output).read_line(&mut line).ok()?;
    Some(line)
}

/// Writes the inventory into the pipe; fails with `ENXIO` until CRIU opens the pipe.
fn feed(inventory: &Path, pipe: &Path) -> io::Result<()> {
    let bytes = fs::read(inventory)?;
    let mut pipe = File::options().write(true).custom_flags(libc::O_NONBLOCK).open(pipe)?;
    pipe.write_all(&bytes)
}

fn unprintable(path: &Path) -> Error {
    Error::unusable(
        format!("the image directory {} is not UTF-8", path.display()),
        "choose another directory",
    )
}
