//! Blockers in the attributes of a process: its namespaces, root directory, tracer and threads.

use std::fs;
use std::io;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::findings::{Findings, MEMORY, named};
use crate::linux::task::{self, Stat};

/// The namespaces that an instance shares with its host; a container does not share [`OF_CONTAINERS`].
const SHARED: [&str; 3] = ["ipc", "user", "cgroup"];
/// The namespace that each container has of its own.
const OF_CONTAINERS: &str = "ipc";
/// The namespaces that all processes of an instance share. CRIU restores the time namespace with clocks that continue where they stopped.
const TOGETHER: [&str; 5] = ["mnt", "net", "pid", "time", "uts"];
/// A parent that waits longer than this for a child created with vfork is a blocker: most children start their program at once.
const SHORT: Duration = Duration::from_millis(500);
/// The system calls in which a thread may wait for its child.
const MAKES_A_CHILD: [libc::c_long; 3] = [libc::SYS_vfork, libc::SYS_clone, libc::SYS_clone3];

impl Findings<'_> {
    pub(super) fn process(&mut self, pid: i32) -> io::Result<()> {
        self.threads(pid)?;
        let status = task::read(&format!("/proc/{pid}/status"))?;
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        if field("TracerPid:").is_some_and(|tracer| tracer != "0") {
            self.block(format!("{} is being traced", named(pid)), "detach the debugger");
        }
        let parent = field("PPid:").and_then(|parent| parent.parse().ok());
        if parent.is_some_and(|parent| self.members.contains(&parent) && have_one_directory(pid, parent)) {
            let what = format!("{} shares its working directory with its parent (CLONE_FS)", named(pid));
            self.block(what, "have the parent create it with fork");
        }
        let is_root = |ids: &str| ids.split_whitespace().take(3).all(|id| id == "0");
        let is_roots = ["Uid:", "Gid:"].into_iter().all(|name| field(name).is_some_and(is_root));
        if !is_roots && !may_read_limits() {
            let what = format!(
                "{} does not run as root only, and the node may not read its resource limits",
                named(pid)
            );
            self.block(
                what,
                "give the node CAP_SYS_RESOURCE, or run the instance as root and with root's group",
            );
        }
        let kibibytes = field("RssAnon:").and_then(|value| value.split(' ').next()?.parse::<u64>().ok());
        self.memory += kibibytes.unwrap_or(0) << 10;
        for kind in SHARED.into_iter().chain(TOGETHER) {
            let theirs = fs::read_link(format!("/proc/{pid}/ns/{kind}"))?;
            let first = fs::read_link(format!("/proc/{}/ns/{kind}", self.first))?;
            let own = self.places.is_some() && kind == OF_CONTAINERS;
            let shared = SHARED.contains(&kind) && !own;
            if shared && first != fs::read_link(format!("/proc/self/ns/{kind}"))? {
                let what = format!(
                    "the node runs in another {kind} namespace than the one that started the instance"
                );
                self.block(what, "start the node in the namespace in which it ran before");
            }
            if theirs != first {
                let what = format!("{} has a {kind} namespace of its own", named(pid));
                self.block(what, "start it without unshare or a sandbox");
            }
        }
        self.namespaces_of_children(pid)?;
        self.program(pid)?;
        self.directories(pid)
    }

    /// Children forked after the restore would get their parent's namespaces instead.
    fn namespaces_of_children(&mut self, pid: i32) -> io::Result<()> {
        for kind in ["pid", "time"] {
            let own = fs::read_link(format!("/proc/{pid}/ns/{kind}"))?;
            // A PID namespace without a first process has no link.
            if fs::read_link(format!("/proc/{pid}/ns/{kind}_for_children")).ok().as_ref() != Some(&own) {
                let what = format!("{} has a {kind} namespace for its children", named(pid));
                self.block(what, "start it without unshare or a sandbox");
            }
        }
        Ok(())
    }

    /// CRIU opens a program by its path.
    fn program(&mut self, pid: i32) -> io::Result<()> {
        if fs::read_link(format!("/proc/{pid}/exe"))?.to_string_lossy().starts_with(MEMORY) {
            let what = format!("{} runs a program from memory (memfd_create)", named(pid));
            self.block(what, "start the program from a file");
        }
        Ok(())
    }

    /// CRIU cannot stop a thread in `vfork` before its child lets it continue.
    fn threads(&mut self, pid: i32) -> io::Result<()> {
        let threads = task::numbers_in(&format!("/proc/{pid}/task"))?;
        if threads.len() > 1 && Stat::read(pid)?.state == 'Z' {
            let what = format!("the main thread of {} has ended while other threads run", named(pid));
            self.block(what, "move it after those have ended, too");
        }
        // SAFETY: no memory is passed.
        if threads.iter().any(|thread| unsafe { libc::sched_getscheduler(*thread) } == libc::SCHED_DEADLINE) {
            let what = format!("{} has a thread with deadline scheduling (SCHED_DEADLINE)", named(pid));
            self.block(what, "have it use another scheduling policy");
        }
        if threads.into_iter().any(|thread| waits_long_for_a_child(pid, thread)) {
            let what = format!("{} waits for a child created with vfork", named(pid));
            self.block(what, "move it after the child has started its program or ended");
        }
        Ok(())
    }

    fn directories(&mut self, pid: i32) -> io::Result<()> {
        let root = fs::read_link(format!("/proc/{pid}/root"))?;
        if root != Path::new("/") {
            let what = format!("{} has {} as its root directory", named(pid), root.display());
            self.block(what, "start it without chroot");
        }
        let link = format!("/proc/{pid}/cwd");
        let directory = fs::read_link(&link)?;
        if directory.to_string_lossy().ends_with(" (deleted)") {
            let what = format!("{} has a deleted directory as its working directory", named(pid));
            self.block(what, "have it change to another directory");
        } else {
            self.need(&directory, Path::new(&link));
        }
        Ok(())
    }
}

/// Whether an open file is a namespace by its name, such as `net:[4026531840]`.
pub(super) fn is_namespace(name: &str) -> bool {
    name.split_once(":[").is_some_and(|(kind, _)| SHARED.contains(&kind) || TOGETHER.contains(&kind))
}

fn have_one_directory(one: i32, other: i32) -> bool {
    const KCMP_FS: libc::c_int = 3;
    // SAFETY: no memory is passed.
    unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_FS, 0, 0) == 0 }
}

fn waits_long_for_a_child(pid: i32, thread: i32) -> bool {
    let end = Instant::now() + SHORT;
    while waits_for_a_child(pid, thread) {
        if Instant::now() > end {
            return true;
        }
        sleep(Duration::from_millis(5));
    }
    false
}

/// Whether a thread is in a call that creates a child, in a sleep that only SIGKILL interrupts.
fn waits_for_a_child(pid: i32, thread: i32) -> bool {
    let read = |name: &str| task::read(&format!("/proc/{pid}/task/{thread}/{name}")).ok();
    let sleeps = read("stat").and_then(|stat| Stat::parse(&stat)).is_some_and(|stat| stat.state == 'D');
    let call = || read("syscall")?.split(' ').next()?.parse().ok();
    sleeps && call().is_some_and(|call| MAKES_A_CHILD.contains(&call))
}

/// Whether CRIU may read the resource limits of a process of another user or group, which takes `CAP_SYS_RESOURCE`. A node in a
/// container often lacks it.
fn may_read_limits() -> bool {
    const CAP_SYS_RESOURCE: u64 = 24;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    effective.is_some_and(|bits| bits & 1 << CAP_SYS_RESOURCE != 0)
}
