//! The instance's own command, as a child of init.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd};
use std::process::{ChildStderr, ChildStdin, ChildStdout, ExitStatus, Stdio};

use fabric::attach::{MAX_OUTPUT, NotStarted, OutputStream, ToNode};
use sessions::children::code_of;
use sessions::launch::{Company, Launch};
use sessions::pipe::{self, set_nonblocking};

/// The command's process, its output, and its end.
pub struct Child {
    pid: Option<i32>,
    /// The write end of its standard input, until a session takes it.
    stdin: Option<ChildStdin>,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    /// Whether the report that the command runs is still due.
    starting: bool,
    /// The message about its end, or the reason why it did not start.
    end: Option<ToNode>,
}

impl Child {
    /// Starts the command with exactly this environment.
    pub fn start(launch: &Launch, environment: impl Iterator<Item = (OsString, OsString)>) -> Self {
        match launch.spawn(environment, [launch.stdin(), Stdio::piped(), Stdio::piped()], Company::Init) {
            Ok(mut child) => {
                let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
                let pipes = [
                    stdin.as_ref().map(AsFd::as_fd),
                    stdout.as_ref().map(AsFd::as_fd),
                    stderr.as_ref().map(AsFd::as_fd),
                ];
                pipes.into_iter().flatten().for_each(set_nonblocking);
                Self { pid: Some(child.id().cast_signed()), stdin, stdout, stderr, starting: true, end: None }
            }
            Err(error) => Self::unstarted(launch.explain(&error)),
        }
    }

    fn unstarted(why: NotStarted) -> Self {
        let end = Some(ToNode::NotStarted(why));
        Self { pid: None, stdin: None, stdout: None, stderr: None, starting: false, end }
    }

    /// Takes the write end of its standard input, if it has one.
    pub fn take_stdin(&mut self) -> Option<ChildStdin> {
        self.stdin.take()
    }

    /// Forwards a signal that init received.
    pub fn signalled(&self, signal: libc::c_int) {
        if let Some(pid) = self.pid {
            // SAFETY: no memory is passed; the process is ours and not reaped.
            unsafe { libc::kill(pid, signal) };
        }
    }

    /// Records the end of a process of the instance, which was reaped.
    pub fn reaped(&mut self, pid: i32, status: ExitStatus) {
        if Some(pid) == self.pid {
            self.pid = None;
            self.end = Some(ToNode::Exited { code: code_of(status) });
        }
    }

    /// The message about the command's end, once it has ended.
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

    /// The output pipes that are still open.
    pub fn pipes(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        [self.stdout.as_ref().map(AsFd::as_fd), self.stderr.as_ref().map(AsFd::as_fd)].into_iter().flatten()
    }

    /// The next message: that the command has started, and then available output, if any.
    pub fn read_output(&mut self) -> Option<ToNode> {
        if std::mem::take(&mut self.starting) {
            return Some(ToNode::Started);
        }
        let stdout = pipe::read(&mut self.stdout, MAX_OUTPUT).map(|bytes| (OutputStream::Stdout, bytes));
        let output = stdout
            .or_else(|| pipe::read(&mut self.stderr, MAX_OUTPUT).map(|bytes| (OutputStream::Stderr, bytes)));
        output.map(|(stream, bytes)| ToNode::Output { stream, bytes })
    }
}
