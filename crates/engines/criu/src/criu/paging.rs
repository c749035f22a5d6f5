//! The node's handle of an instance's pager process: see [`crate::criu::pager`].

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use fabric::seqpacket;
use serde::{Deserialize, Serialize};

use crate::criu::pager::wire::Message;
use crate::criu::pager::{self};
use crate::criu::pages::memory_images;
use crate::linux::task::{Task, TaskId};
use crate::memory::PAGE;

/// The socket in the directory of the images at which CRIU expects the receiver of its userfaultfds.
const SOCKET: &str = "lazy-pages.socket";

/// How long a dismissed pager may take to end.
const DISMISSED: Duration = Duration::from_secs(2);

/// A handle of a running pager.
pub struct Pager {
    id: PagerId,
    task: Task,
    /// The node's end of the connection.
    connection: OwnedFd,
}

/// Identifies a pager process durably, and the descriptor in it that is the node's end of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PagerId {
    task: TaskId,
    connection: RawFd,
}

impl Pager {
    /// Starts the pager of an instance that CRIU will restore from `images`. The pager ends with this process until it knows the
    /// instance.
    pub fn start(init: &[OsString], images: &Path) -> io::Result<Self> {
        let (program, words) = init.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let (ours, theirs) = seqpacket::pair()?;
        set_nonblocking(&theirs)?;
        let criu = listen(images)?;
        let passed = [theirs.as_raw_fd(), ours.as_raw_fd(), criu.as_raw_fd()];
        let mut command = Command::new(program);
        command.args(words).arg(pager::WORD).args(passed.map(|fd| fd.to_string())).current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        // SAFETY: between fork and exec, only system calls; their descriptors stay open.
        unsafe {
            command.pre_exec(move || {
                for fd in passed {
                    if libc::fcntl(fd, libc::F_SETFD, 0) == -1 {
                        return Err(io::Error::last_os_error());
                    }
                }
                Ok(())
            });
        }
        let task = TaskId::of(command.spawn()?.id().cast_signed())?;
        let id = PagerId { task, connection: ours.as_raw_fd() };
        let task =
            Task::open(task).ok_or_else(|| io::Error::other("the pager ended as soon as it started"))?;
        Ok(Self { id, task, connection: ours })
    }

    /// Adopts the pager that an earlier run of the node has started; `None` if it has ended.
    pub fn adopt(id: PagerId) -> Option<Self> {
        let task = Task::open(id.task)?;
        let connection = task.descriptor(id.connection).ok()?;
        Some(Self { id, task, connection })
    }

    /// Its identity, for the record.
    pub fn id(&self) -> PagerId {
        self.id
    }

    /// The process.
    pub fn task(&self) -> io::Result<Task> {
        self.task.try_clone()
    }

    /// A connection to it, for the messages of [`crate::criu::pager::wire`].
    pub fn connection(&self) -> io::Result<OwnedFd> {
        self.connection.try_clone()
    }

    /// Sends it the list of pages that are not among the images.
    pub fn owe(&self, images: &Path) -> io::Result<()> {
        for entry in fs::read_dir(images)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(pid) = name.to_str().and_then(memory_images::process_of) else { continue };
            let runs = memory_images::left_behind(&fs::read(entry.path())?);
            for (page, pages) in runs.ok_or(io::ErrorKind::InvalidData)? {
                self.say(Message::Owe { pid, address: page * PAGE as u64, pages }, None)?;
            }
        }
        Ok(())
    }

    /// Sends it the instance's first process.
    pub fn name_root(&self, first: &Task) -> io::Result<()> {
        self.say(Message::Root, Some(first))
    }

    /// Lets it end, after the node has recorded that no page is missing.
    pub fn dismiss(self) -> io::Result<()> {
        self.say(Message::Dismiss, None)?;
        self.task.ended_within(DISMISSED);
        Ok(())
    }

    /// Ends it when its instance has ended, or was never restored.
    pub fn end(self) {
        let _gone = self.task.signal(libc::SIGKILL);
        self.task.ended_within(DISMISSED);
    }

    fn say(&self, message: Message, beside: Option<&Task>) -> io::Result<()> {
        let beside: Vec<_> = beside.iter().map(|task| task.as_fd()).collect();
        seqpacket::send(self.connection.as_fd(), &message.encode(), &beside)
    }
}

/// The socket to which CRIU will connect. Its path may be longer than a socket address can be.
fn listen(images: &Path) -> io::Result<UnixListener> {
    let directory = File::open(images)?;
    UnixListener::bind(format!("/proc/self/fd/{}/{SOCKET}", directory.as_raw_fd()))
}

fn set_nonblocking(socket: &OwnedFd) -> io::Result<()> {
    // SAFETY: no memory is passed.
    let result = unsafe { libc::fcntl(socket.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
