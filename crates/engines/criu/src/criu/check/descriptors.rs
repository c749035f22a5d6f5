//! Blockers among the open file descriptors of a process.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::linux::fs::MetadataExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use super::contents::is_sqlite_database;
use super::findings::{Findings, MEMORY, is_deleted, named};
use super::process::is_namespace;
use crate::criu::fixups::own_files;
use crate::criu::rpc::GHOST_LIMIT;
use crate::linux::files::statfs;
use crate::linux::task::{self, Task, TaskId};

/// The anonymous inodes that CRIU can dump.
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

/// The major number of the memory devices: null, zero, full, random and urandom are among them.
const MEMORY_DEVICES: u32 = 1;
const HARMLESS: [u32; 5] = [3, 5, 7, 8, 9];
/// The major numbers of terminals: consoles, `/dev/tty`, pseudo-terminals.
const TERMINALS: [u32; 4] = [4, 5, 88, PSEUDO_TERMINALS];
const PSEUDO_TERMINALS: u32 = 136;
/// `/dev/ptmx`, which makes pseudo-terminals.
const MAKER: libc::dev_t = libc::makedev(5, 2);
/// `/dev/tty`, the controlling terminal of the process.
const CONTROLLING: libc::dev_t = libc::makedev(5, 0);

/// The open flag of a thread's pidfd: `linux/pidfd.h`.
const PIDFD_THREAD: libc::c_int = libc::O_EXCL;

/// CRIU's limit of pipes, its `NR_PIPES_WITH_DATA`. It counts the read ends, also of empty pipes.
const MOST_PIPES: usize = 1024;

/// The descriptors that CRIU opens in a process: memory, a socket, and a pipe for its pages.
const SPARE: usize = 3;

impl Findings<'_> {
    pub(super) fn descriptors(&mut self, pid: i32) -> io::Result<()> {
        let id = TaskId::of(pid)?;
        let Some(task) = Task::open(id) else { return Ok(()) };
        let numbers = task::numbers_in(&format!("/proc/{pid}/fd"))?;
        self.room(pid, numbers.len())?;
        for number in numbers {
            let Ok(target) = fs::read_link(format!("/proc/{pid}/fd/{number}")) else { continue };
            match target.to_string_lossy() {
                name if name.starts_with("socket:") => self.socket(pid, &task, number),
                name if name.starts_with("anon_inode:") => self.nameless(pid, number, &name),
                name if name.starts_with("pipe:") => self.pipe(pid, number, &target),
                name if is_namespace(&name) => self.namespace(pid, &name),
                name if name.starts_with('/') => self.file(pid, &task, number, &target),
                _ => {}
            }
        }
        Ok(())
    }

    /// CRIU's parasite code opens descriptors in the process, which already has `count` of them.
    fn room(&mut self, pid: i32, count: usize) -> io::Result<()> {
        let limit = open_files(&task::read(&format!("/proc/{pid}/limits"))?);
        if limit.is_some_and(|limit| count + SPARE > limit) {
            let what = format!("{} has {count} descriptors open, which is its limit", named(pid));
            self.block(what, "have it close some, or start it with a higher limit (`ulimit -n`)");
        }
        Ok(())
    }

    /// Checks the number of pipes that [`descriptors`](Self::descriptors) has found in all processes.
    pub(super) fn pipes(&mut self) {
        let count = self.pipes.len();
        if count > MOST_PIPES {
            let what = format!("the instance has {count} pipes open, and CRIU dumps at most {MOST_PIPES}");
            self.block(what, "have it close some of them");
        }
    }

    fn pipe(&mut self, pid: i32, number: i32, name: &Path) {
        let flags = flags_in(&info_of(pid, number));
        if flags & libc::O_ACCMODE != libc::O_WRONLY {
            self.pipes.insert(name.to_owned());
        }
        if flags & libc::O_DIRECT != 0 {
            let what = format!("{} has a pipe in packet mode open (O_DIRECT)", named(pid));
            self.block(what, "have it use a Unix socket of type SOCK_SEQPACKET");
        }
    }

    /// A restore writes a FIFO's data back. If both hosts share the FIFO, the data would be in it twice.
    fn fifo(&mut self, pid: i32, task: &Task, number: i32, path: &Path) {
        if task.descriptor(number).is_ok_and(|fifo| has_data(&fifo)) {
            let what = format!("{} has unread data in the FIFO {}", named(pid), path.display());
            self.block(what, "move it after it has read the data, or have it use an unnamed pipe");
        }
    }

    /// CRIU writes unread data to the restored terminal, whose line discipline changes it, and blocks for ever if there is no room.
    /// The instance's first process reads its terminals in time.
    fn master(&mut self, pid: i32, task: &Task, number: i32) {
        if pid != self.first && task.descriptor(number).is_ok_and(|master| has_data(&master)) {
            let what = format!("{} has unread data in a pseudo-terminal", named(pid));
            self.block(what, "move it after it has read the data");
        }
    }

    fn namespace(&mut self, pid: i32, name: &str) {
        let what = format!("{} has the namespace {name} open", named(pid));
        self.block(what, "have it close that file before the move");
    }

    fn nameless(&mut self, pid: i32, number: i32, name: &str) {
        let kind = name.trim_start_matches("anon_inode:").trim_matches(['[', ']']);
        if kind == "eventfd" && info_of(pid, number).contains("\neventfd-semaphore: 1\n") {
            let what = format!("{} has an eventfd in semaphore mode open (EFD_SEMAPHORE)", named(pid));
            return self.block(what, "have it use an unnamed POSIX semaphore or a pipe");
        }
        if kind == "pidfd" && flags_in(&info_of(pid, number)) & PIDFD_THREAD != 0 {
            let what = format!("{} has a thread's pidfd open (PIDFD_THREAD)", named(pid));
            return self.block(what, "have it close that before the move: CRIU cannot dump it");
        }
        if ["inotify", "fanotify"].contains(&kind) {
            self.watches(pid, kind, &info_of(pid, number));
        }
        if CARRIED.contains(&name) || (kind == "userfaultfd" && is_page_turner(&info_of(pid, number))) {
            return;
        }
        let remedy = match kind {
            "io_uring" => "have it use epoll or threads for its I/O",
            "userfaultfd" => "have it close the userfaultfd before the move",
            _ => "have it close that before the move: CRIU cannot dump it",
        };
        self.block(format!("{} has {kind} open", named(pid)), remedy);
    }

    fn file(&mut self, pid: i32, task: &Task, number: i32, path: &Path) {
        let via = PathBuf::from(format!("/proc/{pid}/fd/{number}"));
        let via = via.as_path();
        let Ok(metadata) = fs::metadata(via) else { return };
        let kind = metadata.file_type();
        let shown = path.display();
        let is_memory = path.to_string_lossy().starts_with(MEMORY);
        if kind.is_block_device() {
            self.block(
                format!("{} has the block device {shown} open", named(pid)),
                "have it use files instead",
            );
        } else if kind.is_char_device() {
            self.device(pid, task, number, path, metadata.st_rdev());
        } else if is_memory && statfs(via).is_some_and(|found| found.f_type == libc::HUGETLBFS_MAGIC) {
            let what = format!("{} has {shown} open, which consists of huge pages", named(pid));
            self.block(what, "have it map anonymous huge pages (MAP_ANONYMOUS) or normal pages");
        } else if is_message_queue(via) {
            let what = format!("{} has the message queue {shown} open", named(pid));
            self.block(what, "have it close the queue before the move: CRIU cannot dump it");
        } else if metadata.st_nlink() == 0 {
            if metadata.st_size() > GHOST_LIMIT && !is_memory {
                let limit = GHOST_LIMIT >> 20;
                let what = format!(
                    "{} has the deleted file {shown} open, which is larger than {limit} MiB",
                    named(pid)
                );
                self.block(what, "have it close the file, or not delete it while it is open");
            }
            self.nameless_file(&metadata);
        } else if is_deleted(path, &metadata) {
            self.half_deleted(pid, path, "open");
        } else if self.places.is_none() && own_files::is_own(pid, path) {
            // At the destination, it becomes the process's own file.
        } else if self.places.is_none() && own_files::is_of_a_process(path) {
            let what = format!("{} has {shown} open, which is a different file on another host", named(pid));
            self.block(what, "have it close the file before the move");
        } else if kind.is_dir() && own_files::is_of_a_process(path) {
            let what = format!("{} has the directory {shown} open", named(pid));
            self.block(what, "have it close the directory before the move");
        } else {
            if kind.is_fifo() {
                self.fifo(pid, task, number, path);
            }
            self.named_file(pid, number, path, via);
        }
    }

    /// Checks a file that must exist at the destination too.
    fn named_file(&mut self, pid: i32, number: i32, path: &Path, via: &Path) {
        let info = info_of(pid, number);
        if holds_lock(&info) {
            // The stopped copy keeps the lock. If both hosts share the file, the new copy would wait for it.
            let what = format!("{} holds a lock on {}", named(pid), path.display());
            self.block(what, "move it after it has released the lock");
        } else if is_written(&info) && self.becomes_another(path) && is_sqlite_database(via) {
            self.database(pid, path);
        } else {
            self.need(path, via);
        }
    }

    /// SQLite compares the inode of its open file with that of the path before it writes. If they differ, it reports a read-only
    /// database.
    fn database(&mut self, pid: i32, path: &Path) {
        let (process, path) = (named(pid), path.display());
        let what = format!(
            "{process} has the SQLite database {path} open, which has another inode after a move or a restore; \
             SQLite then refuses to write to it"
        );
        let remedy = "have it close the database before the move, or keep it on a file system that both hosts have mounted (`--volume`)";
        self.block(what, remedy);
    }

    fn device(&mut self, pid: i32, task: &Task, number: i32, path: &Path, device: u64) {
        let (major, minor) = (libc::major(device), libc::minor(device));
        if major == MEMORY_DEVICES && HARMLESS.contains(&minor) {
            let via = PathBuf::from(format!("/proc/{pid}/fd/{number}"));
            return self.named_file(pid, number, path, &via);
        }
        if device == MAKER {
            return self.master(pid, task, number);
        }
        // Each instance has pseudo-terminals of its own, which travel with both ends.
        if major == PSEUDO_TERMINALS {
            return;
        }
        let (what, remedy) = if device == CONTROLLING {
            // CRIU requires that the process holds the other end of the terminal too.
            (
                "its controlling terminal",
                "end it before the move; for a shell, use `bash`, which does not keep that file open",
            )
        } else if TERMINALS.contains(&major) {
            ("the terminal", "redirect its input and output when you start it")
        } else {
            ("the device", "have it close the device before the move")
        };
        self.block(format!("{} has {what} {} open", named(pid), path.display()), remedy);
    }
}

/// Whether a userfaultfd belongs to the RDMA library, which closes it on `Suspend`.
pub fn is_page_turner(info: &str) -> bool {
    const INITIALIZED: u64 = 1 << 31;
    let interface = info.lines().find_map(|line| line.strip_prefix("API:"));
    let features = interface.and_then(|interface| interface.trim().split(':').nth(1));
    let features = features.and_then(|features| u64::from_str_radix(features, 16).ok());
    features.is_some_and(|features| features & !INITIALIZED == fabric::PAGE_TURNER_FEATURES)
}

/// Whether `path` is a POSIX message queue.
pub(super) fn is_message_queue(via: &Path) -> bool {
    const MQUEUE_MAGIC: libc::__fsword_t = 0x1980_0202;
    statfs(via).is_some_and(|found| found.f_type == MQUEUE_MAGIC)
}

/// Whether an open file has a lock of any kind.
fn holds_lock(info: &str) -> bool {
    info.lines().any(|line| line.starts_with("lock:"))
}

/// Whether a descriptor is open for writing.
fn is_written(info: &str) -> bool {
    flags_in(info) & libc::O_ACCMODE != libc::O_RDONLY
}

pub(super) fn info_of(pid: i32, number: i32) -> String {
    fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).unwrap_or_default()
}

/// The flags of `open`.
fn flags_in(info: &str) -> i32 {
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok()).unwrap_or(0)
}

/// The soft limit of open files in `/proc/PID/limits`.
fn open_files(limits: &str) -> Option<usize> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

fn has_data(file: &OwnedFd) -> bool {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the kernel writes a number into `bytes`.
    unsafe { libc::ioctl(file.as_raw_fd(), libc::FIONREAD, &raw mut bytes) == 0 && bytes > 0 }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::net::Ipv4Addr;
    use std::process;

    use super::super::contents::Regular;
    use super::super::findings::{Subject, begin};
    use super::*;
    use crate::criu::root::OwnRoot;
    use crate::instance::Network;
    use instance::container::Bind;

    const NETWORK: Network = Network { mac: [2; 6], address: Ipv4Addr::LOCALHOST, prefix: 16, mtu: 1500 };

    /// The blockers if this process, as in a container, has that file open.
    fn in_the_way(own: &OwnRoot<'_>, file: &File, path: &Path) -> Vec<String> {
        let pid = process::id() as i32;
        let subject = Subject { first: pid, network: &NETWORK, own: Some(own.clone()) };
        let mut regular = Regular::default();
        let (_, mut findings) = begin(&subject, &mut regular).unwrap();
        let number = file.as_raw_fd();
        findings.named_file(pid, number, path, Path::new(&format!("/proc/{pid}/fd/{number}")));
        findings.blockers.into_iter().map(|blocker| blocker.what).collect()
    }

    #[test]
    fn a_travelling_database_is_a_blocker_if_it_is_open_for_writing() {
        let (folder, in_memory) = (tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm").unwrap());
        let own = OwnRoot {
            root: folder.path().join("root"),
            rootfs: Some(Path::new("/")),
            layer: folder.path().join("layer"),
            binds: &[],
            volumes: &[],
            controllers: &[],
            search_path: None,
        };
        let shared = [Bind { source: "/dev/shm".into(), destination: "/dev/shm".into() }];
        let bound = OwnRoot { binds: &shared, volumes: &shared, ..own.clone() };
        let (written, kept) = (folder.path().join("written.db"), in_memory.path().join("kept.db"));
        for path in [&written, &kept] {
            fs::write(path, "SQLite format 3\0").unwrap();
        }
        let in_layer = own.layer.join(written.strip_prefix("/").unwrap());
        fs::create_dir_all(in_layer.parent().unwrap()).and_then(|()| fs::write(in_layer, "")).unwrap();
        for (root, path, pins) in [(&own, &written, true), (&own, &kept, true), (&bound, &kept, false)] {
            let to_read = File::open(path).unwrap();
            assert_eq!(in_the_way(root, &to_read, path), [""; 0]);
            let to_write = File::options().read(true).write(true).open(path).unwrap();
            let found = in_the_way(root, &to_write, path);
            assert_eq!(found.len(), usize::from(pins), "{found:?}");
            let named = format!("has the SQLite database {} open", path.display());
            assert!(found.iter().all(|what| what.contains(&named)), "{found:?}");
        }
    }

    #[test]
    fn the_limit_of_descriptors_is_read_as_the_kernel_writes_it() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
                      Max processes             95981                95981                processes \n\
                      Max open files            1024                 1048576              files     \n";
        assert_eq!(open_files(limits), Some(1024));
        assert_eq!(
            open_files("Max open files            unlimited            unlimited            files"),
            None
        );
    }

    #[test]
    fn the_librarys_userfaultfd_is_distinguished_from_others() {
        assert!(is_page_turner("pos:\t0\nAPI:\taa:80011800:1ffff\n"));
        assert!(!is_page_turner("pos:\t0\nAPI:\taa:80000000:1ffff\n"));
        assert!(!is_page_turner("pos:\t0\n"));
    }
}
