//! The command, as init runs it.

use std::ffi::{CString, OsStr, OsString};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{self, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};

use fabric::attach::{MAX_OUTPUT, NotStarted, OutputStream, ToNode};

/// What to run, and as whom.
pub struct Order<'a> {
    user: u32,
    group: u32,
    groups: Vec<u32>,
    directory: &'a OsStr,
    program: &'a OsStr,
    arguments: &'a [OsString],
}

impl<'a> Order<'a> {
    /// Reads what [`super::arguments`] wrote.
    pub fn parse(arguments: &'a [OsString]) -> io::Result<Self> {
        let [user, group, groups, directory, program, arguments @ ..] = arguments else {
            return Err(io::Error::other("transhume init is started by a node only"));
        };
        let groups = groups.to_str().unwrap_or("?").split(',').filter(|group| !group.is_empty());
        let groups = groups.map(|group| number(OsStr::new(group))).collect::<io::Result<_>>()?;
        let (user, group) = (number(user)?, number(group)?);
        Ok(Self { user, group, groups, directory, program, arguments })
    }

    fn spawn(&self, environment: impl Iterator<Item = (OsString, OsString)>) -> io::Result<process::Child> {
        let mut command = Command::new(self.program);
        command.args(self.arguments).env_clear().envs(environment);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let (user, group, groups) = (self.user, self.group, self.groups.clone());
        let directory = CString::new(self.directory.as_bytes())?;
        // SAFETY: between fork and exec, system calls only; `groups` is live and as long as said.
        unsafe {
            command.pre_exec(move || {
                let failed = unblock_signals() == -1
                    || libc::setgroups(groups.len(), groups.as_ptr()) == -1
                    || libc::setgid(group) == -1
                    || libc::setuid(user) == -1
                    || libc::chdir(directory.as_ptr()) == -1;
                if failed { Err(io::Error::last_os_error()) } else { Ok(()) }
            });
        }
        command.spawn()
    }
}

impl Order<'_> {
    /// Why the command did not start. The directory is looked at first: without it, no command is found.
    fn explain(&self, error: &io::Error) -> NotStarted {
        let (program, directory) = (self.program.display(), self.directory.display());
        if !Path::new(self.directory).is_dir() {
            let what =
                format!("`{program}` cannot be started: there is no directory {directory} on its host");
            return not_started(126, what, "start it from a directory that is on the host as well");
        }
        let what = format!("`{program}` cannot be started in {directory}: {error}");
        if error.kind() == io::ErrorKind::NotFound {
            let way_out =
                "see that it is installed on the host and in $PATH; a script's interpreter counts as well";
            return not_started(127, what, way_out);
        }
        not_started(126, what, "see that it is an executable file that its user may run (`ls -l`, `file`)")
    }
}

fn not_started(code: u8, what: String, way_out: &str) -> NotStarted {
    NotStarted { code, what, way_out: way_out.to_owned() }
}

/// A program expects to start with no signal blocked; init has blocked those that it hears.
fn unblock_signals() -> libc::c_int {
    // SAFETY: the set is made empty before it is used.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut())
    }
}

fn number(text: &OsStr) -> io::Result<u32> {
    let number = text.to_str().and_then(|text| text.parse().ok());
    number.ok_or_else(|| io::Error::other(format!("transhume init: {} is no number", text.display())))
}

/// The command's process, its output, and its end.
pub struct Child {
    pid: Option<i32>,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    /// That the command runs is still to be told.
    starting: bool,
    /// How it ended, or why it did not start.
    end: Option<ToNode>,
}

impl Child {
    /// Starts the command with this environment and no other.
    pub fn start(order: &Order<'_>, environment: impl Iterator<Item = (OsString, OsString)>) -> Self {
        match order.spawn(environment) {
            Ok(mut child) => {
                let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
                for pipe in [stdout.as_ref().map(AsFd::as_fd), stderr.as_ref().map(AsFd::as_fd)] {
                    pipe.into_iter().for_each(set_nonblocking);
                }
                Self { pid: Some(child.id().cast_signed()), stdout, stderr, starting: true, end: None }
            }
            Err(error) => Self::unstarted(order.explain(&error)),
        }
    }

    fn unstarted(why: NotStarted) -> Self {
        let end = Some(ToNode::NotStarted(why));
        Self { pid: None, stdout: None, stderr: None, starting: false, end }
    }

    /// Acts on a signal that init heard: reaps, or passes it on.
    pub fn signalled(&mut self, signal: libc::c_int) {
        if signal == libc::SIGCHLD {
            self.reap();
        } else if let Some(pid) = self.pid {
            // SAFETY: no memory is passed; the process is ours and not reaped.
            unsafe { libc::kill(pid, signal) };
        }
    }

    /// Reaps every process of the instance that has ended.
    fn reap(&mut self) {
        loop {
            let mut status = 0;
            // SAFETY: `status` is live and writable.
            let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
            if pid <= 0 {
                return;
            }
            if Some(pid) == self.pid {
                self.pid = None;
                self.end = Some(ToNode::Exited { code: code_of(ExitStatus::from_raw(status)) });
            }
        }
    }

    /// What there is to tell of the command's end, once it has ended.
    pub fn end(&self) -> Option<&ToNode> {
        self.end.as_ref()
    }

    /// The command's exit code as a shell gives it.
    pub fn code(&self) -> i32 {
        match &self.end {
            Some(ToNode::Exited { code }) => *code,
            Some(ToNode::NotStarted(why)) => why.code.into(),
            _ => 0,
        }
    }

    /// The pipes that may still bring output.
    pub fn pipes(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        [self.stdout.as_ref().map(AsFd::as_fd), self.stderr.as_ref().map(AsFd::as_fd)].into_iter().flatten()
    }

    /// That the command has started, and then output that is there now, if any.
    pub fn read_output(&mut self) -> Option<ToNode> {
        if std::mem::take(&mut self.starting) {
            return Some(ToNode::Started);
        }
        let stdout = read(&mut self.stdout).map(|bytes| (OutputStream::Stdout, bytes));
        let output = stdout.or_else(|| read(&mut self.stderr).map(|bytes| (OutputStream::Stderr, bytes)));
        output.map(|(stream, bytes)| ToNode::Output { stream, bytes })
    }
}

/// What is in the pipe; a pipe at its end is closed.
fn read(pipe: &mut Option<impl Read>) -> Option<Vec<u8>> {
    let mut bytes = vec![0; MAX_OUTPUT];
    match pipe.as_mut()?.read(&mut bytes) {
        Ok(0) => *pipe = None,
        Ok(length) => {
            bytes.truncate(length);
            return Some(bytes);
        }
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
        Err(_) => *pipe = None,
    }
    None
}

fn code_of(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

fn set_nonblocking(pipe: BorrowedFd<'_>) {
    // SAFETY: no memory is passed, and the descriptor is open.
    unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_read_whole_or_not_at_all() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        let written = words("7 8 9,10 /srv program argument");
        let order = Order::parse(&written).unwrap();
        assert_eq!((order.user, order.group, &order.groups[..]), (7, 8, &[9, 10][..]));
        assert_eq!((order.program, order.arguments.len()), (OsStr::new("program"), 1));
        assert!(Order::parse(&words("7 8  /srv program")).unwrap().groups.is_empty());
        assert!(Order::parse(&words("7 x  /srv program")).is_err());
        assert!(Order::parse(&words("sleep 10")).is_err());
    }
}
