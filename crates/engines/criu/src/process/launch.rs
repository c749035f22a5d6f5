//! Starts an instance's first process, in namespaces of its own. It stays root, as CRIU requires; the command need not.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use crate::init;
use crate::instance::{Kind, Program, ResourceLimit};
use crate::linux::mounts;
use crate::linux::spawn::leave_the_node;

/// Starts `first` with the instance's command as its arguments, and returns its PID. It becomes a child of this process.
///
/// It joins the cgroups of `doors`, and gets `limits`, in their order. The first forked process only makes the PID namespace. The first process of that namespace
/// must be a child of its maker: the forked process forks once more, with this process as the parent, and ends.
pub fn start(
    program: &Program,
    kind: Kind,
    first: &[OsString],
    namespace: BorrowedFd<'_>,
    doors: Vec<File>,
    limits: Vec<ResourceLimit>,
) -> io::Result<i32> {
    let (own, arguments) = first.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let (reader, writer) = pipe()?;
    let mut command = Command::new(own);
    command.args(arguments).args(init::arguments(program, kind));
    command.env_clear().envs(init::shield(&program.environment)).current_dir(init::DIRECTORY);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let entry = Entry { namespace: namespace.as_raw_fd(), report: writer.as_raw_fd(), doors, limits };
    // SAFETY: between fork and exec, `enter` makes system calls only.
    unsafe { command.pre_exec(move || entry.enter()) };
    let mut maker = command.spawn()?;
    drop(writer);
    maker.wait()?;
    let mut pid = [0; 4];
    File::from(reader).read_exact(&mut pid)?;
    Ok(i32::from_ne_bytes(pid))
}

/// The steps of a forked process before it becomes the instance's first process. Prepared before the fork, because a forked process
/// must not allocate memory.
struct Entry {
    namespace: i32,
    report: i32,
    doors: Vec<File>,
    limits: Vec<ResourceLimit>,
}

impl Entry {
    fn enter(&self) -> io::Result<()> {
        // SAFETY: no memory is passed but the child's PID and limits, live and as long as said.
        unsafe {
            check(libc::setns(self.namespace, libc::CLONE_NEWNET))?;
            check(libc::unshare(libc::CLONE_NEWPID | libc::CLONE_NEWUTS))?;
            mounts::have_own()?;
            be_silent()?;
            let pid = sibling()?;
            if pid != 0 {
                libc::write(self.report, (&raw const pid).cast(), size_of_val(&pid));
                libc::_exit(0);
            }
            check(libc::setsid())?;
            // Before it joins cgroups, which may have no budget for the node's real-time policy.
            leave_the_node()?;
            for door in &self.doors {
                // 0 stands for the process that writes it.
                check(libc::write(door.as_raw_fd(), c"0".as_ptr().cast(), 1) as i32)?;
            }
            for limit in &self.limits {
                let both = libc::rlimit { rlim_cur: limit.soft, rlim_max: limit.hard };
                check(libc::setrlimit(limit.resource, &raw const both))?;
            }
            Ok(())
        }
    }
}

/// The inherited standard streams belong to another mount namespace, which CRIU does not know.
fn be_silent() -> io::Result<()> {
    // SAFETY: the path is live.
    let null = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    check(null)?;
    for standard in 0..3 {
        // SAFETY: no memory is passed.
        check(unsafe { libc::dup2(null, standard) })?;
    }
    Ok(())
}

/// Forks a child of this process's parent.
///
/// # Safety
/// As `fork` in a program with threads: until exec, the child makes system calls only.
unsafe fn sibling() -> io::Result<i32> {
    let flags = (libc::CLONE_PARENT | libc::SIGCHLD) as libc::c_long;
    // SAFETY: with no flag that shares memory and no stack given, this is a fork.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    check(pid as i32)?;
    Ok(pid as i32)
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut pair = [0; 2];
    // SAFETY: the kernel writes two descriptors into `pair`.
    check(unsafe { libc::pipe2(pair.as_mut_ptr(), libc::O_CLOEXEC) })?;
    // SAFETY: the kernel has just made both for us.
    Ok(pair.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }).into())
}

fn check(result: i32) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
