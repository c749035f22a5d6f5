//! What a process has open.

use std::ffi::CString;
use std::fs;
use std::io;
use std::mem;
use std::os::linux::fs::MetadataExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use super::super::own_files;
use super::super::rpc::GHOST_LIMIT;
use super::super::task::{self, Task, TaskId};
use super::process::is_namespace;
use super::{Findings, is_deleted, named};

/// What CRIU carries of what has no file.
const CARRIED: [&str; 8] = [
    "anon_inode:[eventfd]",
    "anon_inode:[eventpoll]",
    "anon_inode:[signalfd]",
    "anon_inode:[timerfd]",
    "anon_inode:[fanotify]",
    "anon_inode:[pidfd]",
    "anon_inode:inotify",
    "anon_inode:[inotify]",
];

/// `/dev/mem`'s driver, which has null, zero, full, random and urandom among its devices.
const MEMORY_DEVICES: u32 = 1;
const HARMLESS: [u32; 5] = [3, 5, 7, 8, 9];
/// Drivers of terminals: consoles, `/dev/tty`, pseudo-terminals.
const TERMINALS: [u32; 4] = [4, 5, 88, 136];

/// The most pipes that CRIU carries: its `NR_PIPES_WITH_DATA`. It counts the ends to read from, also of empty ones.
const MOST_PIPES: usize = 1024;

impl Findings<'_> {
    pub(super) fn descriptors(&mut self, pid: i32) -> io::Result<()> {
        let id = TaskId::of(pid)?;
        let Some(task) = Task::open(id) else { return Ok(()) };
        for number in task::numbers_in(&format!("/proc/{pid}/fd"))? {
            let link = format!("/proc/{pid}/fd/{number}");
            let Ok(target) = fs::read_link(&link) else { continue };
            match target.to_string_lossy() {
                name if name.starts_with("socket:") => self.socket(pid, &task, number),
                name if name.starts_with("anon_inode:") => self.nameless(pid, number, &name),
                name if name.starts_with("pipe:") => self.pipe(pid, number, &target),
                name if is_namespace(&name) => self.namespace(pid, &name),
                name if name.starts_with('/') => self.file(pid, number, &target, Path::new(&link)),
                _ => {}
            }
        }
        Ok(())
    }

    /// What has been found by [`descriptors`](Self::descriptors) in all processes.
    pub(super) fn pipes(&mut self) {
        let count = self.pipes.len();
        if count > MOST_PIPES {
            let what = format!("the instance has {count} pipes open");
            self.block(what, format!("let it close some: CRIU carries {MOST_PIPES}"));
        }
    }

    fn pipe(&mut self, pid: i32, number: i32, name: &Path) {
        if access(&info_of(pid, number)) != libc::O_WRONLY {
            self.pipes.insert(name.to_owned());
        }
    }

    fn namespace(&mut self, pid: i32, name: &str) {
        let what = format!("{} has the namespace {name} open", named(pid));
        self.block(what, "let it close that before the move");
    }

    fn nameless(&mut self, pid: i32, number: i32, name: &str) {
        let kind = name.trim_start_matches("anon_inode:").trim_matches(['[', ']']);
        if kind == "eventfd" && info_of(pid, number).contains("\neventfd-semaphore: 1\n") {
            let what = format!("{} has an eventfd open that is a semaphore (EFD_SEMAPHORE)", named(pid));
            return self.block(what, "let it use a POSIX semaphore without a name, or a pipe");
        }
        if CARRIED.contains(&name) || (kind == "userfaultfd" && is_page_turner(&info_of(pid, number))) {
            return;
        }
        let remedy = match kind {
            "io_uring" => "let it use epoll or threads for its I/O",
            "userfaultfd" => "let it close the userfaultfd before the move",
            _ => "let it close that before the move: CRIU cannot carry it",
        };
        self.block(format!("{} has {kind} open", named(pid)), remedy);
    }

    fn file(&mut self, pid: i32, number: i32, path: &Path, via: &Path) {
        let Ok(metadata) = fs::metadata(via) else { return };
        let kind = metadata.file_type();
        let shown = path.display();
        if kind.is_block_device() {
            self.block(format!("{} has the disk {shown} open", named(pid)), "let it use files instead");
        } else if kind.is_char_device() {
            self.device(pid, number, path, via, metadata.st_rdev());
        } else if is_message_queue(via) {
            let what = format!("{} has the message queue {shown} open", named(pid));
            self.block(what, "let it close the queue before the move: CRIU cannot carry it");
        } else if metadata.st_nlink() == 0 {
            if metadata.st_size() > GHOST_LIMIT && !shown.to_string().starts_with("/memfd:") {
                let limit = GHOST_LIMIT >> 20;
                let what = format!("{} has the deleted file {shown} open, over {limit} MiB", named(pid));
                self.block(what, "let it keep the file's name, or close it");
            }
        } else if is_deleted(path, &metadata) {
            self.half_deleted(pid, path, "open");
        } else if own_files::is_own(pid, path) {
            // It becomes the process' own elsewhere.
        } else if own_files::is_of_a_process(path) {
            let what = format!("{} has {shown} open, which is another file elsewhere", named(pid));
            self.block(what, "let it close the file before the move");
        } else {
            self.named_file(pid, number, path, via);
        }
    }

    /// A file that the destination has as well.
    fn named_file(&mut self, pid: i32, number: i32, path: &Path, via: &Path) {
        let info = info_of(pid, number);
        if holds_lock(&info) {
            // The stopped copy keeps it, and the new one would wait for it where both hosts share the file.
            let what = format!("{} holds a lock on {}", named(pid), path.display());
            self.block(what, "let it give the lock up before the move");
        } else {
            self.need(path, via, is_written(&info));
        }
    }

    fn device(&mut self, pid: i32, number: i32, path: &Path, via: &Path, device: u64) {
        let (major, minor) = (libc::major(device), libc::minor(device));
        if major == MEMORY_DEVICES && HARMLESS.contains(&minor) {
            return self.named_file(pid, number, path, via);
        }
        let (what, remedy) = if TERMINALS.contains(&major) {
            ("the terminal", "start it with its input and output elsewhere")
        } else {
            ("the device", "let it close the device before the move")
        };
        self.block(format!("{} has {what} {} open", named(pid), path.display()), remedy);
    }
}

/// True for a userfaultfd of the RDMA library, which closes it when it is suspended.
pub fn is_page_turner(info: &str) -> bool {
    const INITIALIZED: u64 = 1 << 31;
    let interface = info.lines().find_map(|line| line.strip_prefix("API:"));
    let features = interface.and_then(|interface| interface.trim().split(':').nth(1));
    let features = features.and_then(|features| u64::from_str_radix(features, 16).ok());
    features.is_some_and(|features| features & !INITIALIZED == fabric::PAGE_TURNER_FEATURES)
}

/// True for a POSIX message queue.
fn is_message_queue(via: &Path) -> bool {
    const MQUEUE_MAGIC: libc::__fsword_t = 0x1980_0202;
    let Ok(via) = CString::new(via.as_os_str().as_bytes()) else { return false };
    // SAFETY: all-zero is a valid statfs.
    let mut found: libc::statfs = unsafe { mem::zeroed() };
    // SAFETY: `via` is a live C string, and `found` is live and writable.
    unsafe { libc::statfs(via.as_ptr(), &raw mut found) == 0 && found.f_type == MQUEUE_MAGIC }
}

/// True for an open file with a lock of any kind.
fn holds_lock(info: &str) -> bool {
    info.lines().any(|line| line.starts_with("lock:"))
}

fn info_of(pid: i32, number: i32) -> String {
    fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).unwrap_or_default()
}

fn is_written(info: &str) -> bool {
    access(info) != libc::O_RDONLY
}

/// How it is open, of `O_ACCMODE`.
fn access(info: &str) -> i32 {
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok()).unwrap_or(0);
    flags & libc::O_ACCMODE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_librarys_userfaultfd_is_told_from_others() {
        assert!(is_page_turner("pos:\t0\nAPI:\taa:80001800:1ffff\n"));
        assert!(!is_page_turner("pos:\t0\nAPI:\taa:80000000:1ffff\n"));
        assert!(!is_page_turner("pos:\t0\n"));
    }
}
