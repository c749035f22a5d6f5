//! Protects a dumped tree from CRIU's death.
//!
//! To dump a process, CRIU traces it and runs code of its own in it. When a tracer dies, the kernel lets its processes run on as
//! they are: in CRIU's code, with CRIU's registers. Therefore CRIU does not trace: the guard, a process beside it, traces on its
//! behalf.
//!
//! ```text
//! CRIU ──ptrace, wait4──▶ guard ──ptrace, wait4──▶ instance     a seccomp filter hands them over
//!   └───────────────── all else ─────────────────▶ instance
//! ```
//!
//! The guard traces CRIU too, so the kernel reports CRIU's death to it before any descriptor of CRIU is closed. If CRIU has detached
//! from all processes by then, there is nothing to do. Otherwise the guard gives each process back its registers, signal mask and code,
//! removes CRIU's mappings and descriptors from it, and leaves it stopped ([`rescue`]), as after a successful dump. Only then may CRIU
//! end.
//!
//! A call that is handed over costs some ten microseconds. [`ptrace`] has the system calls, [`seccomp`] the filter, and [`proxy`] the
//! tracing on behalf of CRIU.

mod proxy;
mod ptrace;
mod rescue;
mod seccomp;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;

use self::proxy::Wait;
use self::ptrace::{Context, Stop};
use self::rescue::When;
pub(crate) use self::rescue::{MAPPING, clean};
use crate::linux::mounts;

/// The first argument of this mode, in place of the arguments of an instance's first process. The PID of the CRIU follows.
pub(crate) const WORD: &str = "guard";

/// Guards the CRIU whose PID is in `arguments`, until it has ended. Writes `ready` to its standard output when CRIU may start.
pub(crate) fn run(arguments: &[OsString]) -> io::Result<()> {
    let criu = arguments.first().and_then(|pid| pid.to_str()?.parse().ok());
    let criu = criu.ok_or_else(|| io::Error::other("the guard needs the PID of a CRIU"))?;
    // CRIU makes its mounts in this namespace.
    mounts::enter(File::open(format!("/proc/{criu}/ns/mnt"))?.as_fd())?;
    seccomp::install(criu)?;
    io::stdout().write_all(b"ready\n")?;
    Guard { criu, tracees: BTreeMap::new(), infections: BTreeMap::new(), wait: None }.watch()
}

struct Guard {
    criu: i32,
    /// The threads that the guard traces for CRIU.
    tracees: BTreeMap<i32, Tracee>,
    /// CRIU's changes in processes, by the thread through which it made them.
    infections: BTreeMap<i32, Infection>,
    /// The pending `wait4` of CRIU.
    wait: Option<Wait>,
}

/// A thread.
#[derive(Default)]
struct Tracee {
    /// Its state when it was first stopped.
    context: Option<Context>,
    /// Its present stop; `None` if it runs.
    stop: Option<Stop>,
    /// Wait statuses that CRIU has not yet collected.
    untold: VecDeque<i32>,
}

/// A process with CRIU's code in it.
#[derive(Default)]
struct Infection {
    /// The original words that CRIU has overwritten, by address.
    words: BTreeMap<u64, u64>,
    /// The descriptors that were open before.
    descriptors: BTreeSet<i32>,
}

impl Guard {
    fn watch(&mut self) -> io::Result<()> {
        loop {
            let (pid, status) = ptrace::wait(-1)?;
            if pid != self.criu {
                self.tracee_changed(pid, status);
                let _dying = self.answer_wait();
                continue;
            }
            match Stop::of(status) {
                None => {
                    self.rescue(When::After);
                    return Ok(());
                }
                // This fails if CRIU is killed meanwhile; the report of its end then comes next.
                Some(Stop::Event(libc::PTRACE_EVENT_SECCOMP)) => {
                    let _dying = self.serve();
                }
                Some(Stop::Event(libc::PTRACE_EVENT_EXIT)) => {
                    self.rescue(When::Before);
                    ptrace::go_on(self.criu, 0)?;
                }
                Some(Stop::Signal(signal)) => ptrace::go_on(self.criu, signal)?,
                Some(Stop::Event(_) | Stop::Syscall) => ptrace::go_on(self.criu, 0)?,
            }
        }
    }

    /// Lets CRIU continue after a system call that was handed over. A CRIU that was killed there may have ended meanwhile.
    fn let_criu_go(&mut self) -> io::Result<()> {
        if ptrace::is_at_exit(self.criu)? {
            self.rescue(When::Before);
        }
        ptrace::go_on(self.criu, 0)
    }

    fn tracee_changed(&mut self, pid: i32, status: i32) {
        let Some(tracee) = self.tracees.get_mut(&pid) else { return };
        tracee.stop = Stop::of(status);
        tracee.untold.push_back(status);
        if tracee.context.is_none() && tracee.stop == Some(Stop::Event(libc::PTRACE_EVENT_STOP)) {
            // For a stopped thread, this fails only if the thread ends.
            tracee.context = Context::of(pid).ok();
        }
    }
}
