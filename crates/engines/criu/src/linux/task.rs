//! Processes of this host, as `/proc` shows them, and pidfds, so that a reused PID is never mistaken for them.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Identifies one process durably: its PID and start time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskId {
    /// Its PID on this host.
    pub pid: i32,
    /// Clock ticks from boot to its start.
    pub started: u64,
}

impl TaskId {
    /// The process that has this PID now.
    pub fn of(pid: i32) -> io::Result<Self> {
        Ok(Self { pid, started: Stat::read(pid)?.started })
    }
}

/// A process held by a pidfd.
#[derive(Debug)]
pub struct Task {
    id: TaskId,
    handle: OwnedFd,
}

impl Task {
    /// Opens the process; `None` if it has ended, even if its PID is reused.
    pub fn open(id: TaskId) -> Option<Self> {
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, id.pid, 0) };
        let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0)?;
        // SAFETY: the kernel has just made it for us.
        let handle = unsafe { OwnedFd::from_raw_fd(fd) };
        let same = TaskId::of(id.pid).ok()? == id;
        let task = Self { id, handle };
        (same && !task.ended_within(Duration::ZERO)).then_some(task)
    }

    /// Its identity.
    pub fn id(&self) -> TaskId {
        self.id
    }

    /// Another handle of the same process.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { id: self.id, handle: self.handle.try_clone()? })
    }

    /// Waits for its end, and reaps it if it is our child.
    pub fn ended_within(&self, timeout: Duration) -> bool {
        let mut poll = libc::pollfd { fd: self.handle.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let milliseconds = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: one live pollfd is passed.
        let ended = unsafe { libc::poll(&raw mut poll, 1, milliseconds) } == 1;
        if ended {
            // SAFETY: a null status asks for none. It fails harmlessly for what is not our child.
            unsafe { libc::waitpid(self.id.pid, std::ptr::null_mut(), libc::WNOHANG) };
        }
        ended
    }

    /// Sends a signal; no error if the process has ended.
    pub fn signal(&self, signal: libc::c_int) -> io::Result<()> {
        let none = std::ptr::null::<libc::siginfo_t>();
        // SAFETY: a null siginfo asks for the default one.
        let result =
            unsafe { libc::syscall(libc::SYS_pidfd_send_signal, self.handle.as_raw_fd(), signal, none, 0) };
        let error = io::Error::last_os_error();
        if result == 0 || error.raw_os_error() == Some(libc::ESRCH) { Ok(()) } else { Err(error) }
    }

    /// A copy of one of its descriptors.
    pub fn descriptor(&self, number: i32) -> io::Result<OwnedFd> {
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_getfd, self.handle.as_raw_fd(), number, 0) };
        match i32::try_from(fd) {
            // SAFETY: the kernel has just made it for us.
            Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl AsFd for Task {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

/// The contents of `/proc/PID/stat`.
pub struct Stat {
    /// `R`, `S`, `T`, `Z`, …
    pub state: char,
    /// Clock ticks from boot to its start.
    pub started: u64,
}

impl Stat {
    /// Reads it.
    pub fn read(pid: i32) -> io::Result<Self> {
        let text = read(&format!("/proc/{pid}/stat"))?;
        Self::parse(&text).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Parses it. The command's name may contain anything, so fields count from its closing bracket.
    pub fn parse(text: &str) -> Option<Self> {
        let fields: Vec<&str> = text.rsplit_once(") ")?.1.split(' ').collect();
        Some(Self { state: fields.first()?.chars().next()?, started: fields.get(19)?.parse().ok()? })
    }
}

/// Whether a signal has stopped the process.
pub fn is_stopped(pid: i32) -> bool {
    Stat::read(pid).is_ok_and(|stat| stat.state == 'T')
}

/// The PID of process `pid` in its innermost PID namespace.
pub fn number_inside(pid: i32) -> io::Result<i32> {
    let status = read(&format!("/proc/{pid}/status"))?;
    innermost_number(&status).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The PID or TID in the innermost PID namespace, from this `/proc/PID/status`.
pub fn innermost_number(status: &str) -> Option<i32> {
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    numbers.split_whitespace().last()?.parse().ok()
}

/// The processes below `root` and itself, each after its parent.
pub fn tree(root: i32) -> io::Result<Vec<i32>> {
    let mut found = vec![root];
    let mut next = 0;
    while let Some(&pid) = found.get(next) {
        found.extend(children(pid)?);
        next += 1;
    }
    Ok(found)
}

fn children(pid: i32) -> io::Result<Vec<i32>> {
    let mut found = Vec::new();
    for thread in numbers_in(&format!("/proc/{pid}/task"))? {
        let list = fs::read_to_string(format!("/proc/{pid}/task/{thread}/children")).unwrap_or_default();
        found.extend(list.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok()));
    }
    Ok(found)
}

/// Calls `show` for each thread of a tree, with its TID on this host and in the instance.
pub fn for_each_thread(tree: &[i32], mut show: impl FnMut(i32, i32) -> io::Result<()>) -> io::Result<()> {
    for &pid in tree {
        for tid in numbers_in(&format!("/proc/{pid}/task"))? {
            // In a stopped tree, no thread ends; in a restored tree, CRIU's helpers do.
            let Ok(thread) = number_inside(tid) else { continue };
            show(tid, thread)?;
        }
    }
    Ok(())
}

/// Reads a file of `/proc`, which may contain names of any bytes.
pub fn read(path: &str) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&fs::read(path)?).into_owned())
}

/// The entries of a process's directory that are numbers; none if the process has ended.
pub fn numbers_in(directory: &str) -> io::Result<Vec<i32>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if has_ended(&error) => return Ok(Vec::new()),
        entries => entries?,
    };
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
}

/// Whether an error means that the process has ended.
pub fn has_ended(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_found_by_its_pid() {
        let me = i32::try_from(std::process::id()).unwrap();
        let id = TaskId::of(me).unwrap();
        assert!(Task::open(id).is_some());
        assert!(Task::open(TaskId { started: id.started + 1, ..id }).is_none());
    }

    #[test]
    fn a_command_name_may_contain_brackets() {
        let text = "7 (a) R 1) S 3 7 7 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 4711 0";
        let stat = Stat::parse(text).unwrap();
        assert_eq!((stat.state, stat.started), ('S', 4711));
    }

    #[test]
    fn children_follow_their_parents() {
        let mut child = std::process::Command::new("sleep").arg("10").spawn().unwrap();
        let me = i32::try_from(std::process::id()).unwrap();
        let family = tree(me).unwrap();
        assert_eq!(family[0], me);
        assert!(family.contains(&i32::try_from(child.id()).unwrap()));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_process_that_has_ended_has_nothing_below_it() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let ended = i32::try_from(child.id()).unwrap();
        child.wait().unwrap();
        assert_eq!(tree(ended).unwrap(), [ended]);
        assert_eq!(numbers_in(&format!("/proc/{ended}/fd")).unwrap(), [0; 0]);
    }
}
