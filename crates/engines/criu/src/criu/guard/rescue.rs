//! Restores processes whose CRIU dies.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::ptrace::{self, Context, Stop};
use super::{Guard, Infection, Tracee};
use crate::linux::task::{Stat, numbers_in, read};

/// `syscall; int3`.
const SYSCALL_AND_TRAP: u64 = 0x00cc_050f;
const BYTES: u64 = 0x00ff_ffff;
/// `SIGTRAP` in a set of signals.
const TRAP: u64 = 1 << (libc::SIGTRAP - 1);
/// CRIU's name for the memory that it shares with a process.
pub(crate) const MAPPING: &str = "/memfd:CRIUMFD";
/// How long processes may take to stop.
const AT_REST: Duration = Duration::from_secs(2);

/// The time of a rescue.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Before CRIU's descriptors are closed.
    Before,
    /// After CRIU's end.
    After,
}

impl Guard {
    /// Restores the state of all threads that CRIU still traces, and leaves them stopped.
    ///
    /// If CRIU is already dead, its parasite code may have noticed that, and its thread may have continued with its own code. Such
    /// a thread keeps its state.
    pub(super) fn rescue(&mut self, when: When) {
        // A thread that has ended meanwhile needs nothing.
        for (pid, tracee) in &mut self.tracees {
            let _ended = tracee.settle(*pid);
        }
        for (pid, tracee) in &self.tracees {
            if when == When::Before || self.is_in_foreign_code(*pid) {
                let _ended = tracee.context.as_ref().map(|context| context.restore(*pid));
            }
        }
        for (pid, infection) in &self.infections {
            if self.tracees.contains_key(pid) {
                let _ended = infection.cure(*pid);
            }
        }
        let processes = self.processes();
        for pid in &processes {
            unmount(Path::new(&format!("/proc/{pid}/cwd")));
            // SAFETY: no memory is passed.
            unsafe { libc::kill(*pid, libc::SIGSTOP) };
        }
        for pid in self.tracees.keys() {
            let _ended = ptrace::detach(*pid);
        }
        wait_for_rest(&processes);
        self.tracees.clear();
        self.infections.clear();
    }

    /// Whether a stopped thread is in CRIU's mapping, or at code of the program that CRIU has overwritten.
    fn is_in_foreign_code(&self, pid: i32) -> bool {
        let Ok(context) = Context::of(pid) else { return false };
        let at = context.instruction();
        let mapped = mappings(pid).unwrap_or_default();
        let written = self.infections.values().flat_map(|infection| infection.words.keys());
        mapped.iter().any(|(start, end)| (*start..*end).contains(&at))
            || written.into_iter().any(|word| (*word..=word + 8).contains(&at))
    }

    fn processes(&self) -> BTreeSet<i32> {
        self.tracees.keys().filter_map(|thread| process_of(*thread)).collect()
    }
}

/// The directory in the working directory of an instance's first process at which CRIU mounts the instance's `/proc` for a moment.
/// As long as it exists, no other dump succeeds.
const MOUNT: &str = "proc.crtools";
/// The age at which it counts as left over.
const LEFT_OVER: Duration = Duration::from_secs(10);

fn unmount(directory: &Path) {
    let Ok(path) = CString::new(directory.join(MOUNT).as_os_str().as_bytes()) else { return };
    // SAFETY: `path` is a live C string.
    unsafe {
        libc::umount2(path.as_ptr(), libc::MNT_DETACH);
        libc::rmdir(path.as_ptr());
    }
}

/// Deletes the remains in `directory` of a CRIU that was killed together with its guard.
pub(crate) fn clean(directory: &Path) {
    let age = fs::symlink_metadata(directory.join(MOUNT)).and_then(|found| found.modified());
    if age.is_ok_and(|since| since.elapsed().is_ok_and(|age| age > LEFT_OVER)) {
        unmount(directory);
    }
}

/// The process of a thread.
pub fn process_of(thread: i32) -> Option<i32> {
    let status = read(&format!("/proc/{thread}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
}

fn wait_for_rest(processes: &BTreeSet<i32>) {
    let end = Instant::now() + AT_REST;
    let moves = |pid: &i32| Stat::read(*pid).is_ok_and(|stat| !matches!(stat.state, 'T' | 'Z' | 'X'));
    while processes.iter().any(moves) && Instant::now() < end {
        sleep(Duration::from_micros(100));
    }
}

impl Tracee {
    /// Stops the thread at a point from which it continues with the registers that it is given there.
    fn settle(&mut self, pid: i32) -> io::Result<()> {
        loop {
            let signal = match self.stop {
                Some(Stop::Event(libc::PTRACE_EVENT_STOP)) if trap_is_pending(pid) => {
                    self.take_trap(pid)?;
                    continue;
                }
                Some(Stop::Event(libc::PTRACE_EVENT_STOP)) => break,
                Some(Stop::Syscall) => {
                    skip_syscall(pid)?;
                    0
                }
                // CRIU's code ends with a trap.
                Some(Stop::Signal(libc::SIGTRAP)) if self.context.is_some() => 0,
                Some(Stop::Signal(signal)) => signal,
                Some(Stop::Event(_)) | None => 0,
            };
            // Requested each time: any other stop that comes first cancels the request.
            ptrace::interrupt(pid)?;
            if self.stop.is_some() {
                ptrace::go_on(pid, signal)?;
            }
            self.stop = Stop::of(ptrace::wait(pid)?.1);
            if self.stop.is_none() {
                break;
            }
        }
        Ok(())
    }

    /// Takes a trap that CRIU's code has run into. The requested stop comes before it. The trap would end the process, or pass for
    /// the end of a call that the process shall make.
    fn take_trap(&mut self, pid: i32) -> io::Result<()> {
        ptrace::go_on(pid, 0)?;
        self.stop = Stop::of(ptrace::wait(pid)?.1);
        Ok(())
    }
}

/// Whether a `SIGTRAP` of its own is the first signal that a thread would get.
fn trap_is_pending(thread: i32) -> bool {
    let status = read(&format!("/proc/{thread}/status")).unwrap_or_default();
    let pending = status.lines().find_map(|line| line.strip_prefix("SigPnd:"));
    pending.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0) & TRAP != 0
}

/// At the beginning of a system call, skips the call.
fn skip_syscall(pid: i32) -> io::Result<()> {
    let mut registers = ptrace::registers(pid)?;
    registers.orig_rax = u64::MAX;
    ptrace::set_registers(pid, &registers)
}

impl Infection {
    /// Removes everything from a stopped process that CRIU has put into it.
    fn cure(&self, pid: i32) -> io::Result<()> {
        for (address, word) in &self.words {
            ptrace::poke(pid, *address, *word)?;
        }
        let mappings = mappings(pid)?;
        let opened: Vec<i32> = numbers_in(&format!("/proc/{pid}/fd"))?
            .into_iter()
            .filter(|fd| !self.descriptors.contains(fd))
            .collect();
        if mappings.is_empty() && opened.is_empty() {
            return Ok(());
        }
        let context = Context::of(pid)?;
        let at = context.instruction();
        let word = ptrace::peek(pid, at)?;
        ptrace::poke(pid, at, word & !BYTES | SYSCALL_AND_TRAP)?;
        for (start, end) in mappings {
            call(pid, at, libc::SYS_munmap, [start, end - start])?;
        }
        for fd in opened {
            call(pid, at, libc::SYS_close, [u64::from(fd.unsigned_abs()), 0])?;
        }
        ptrace::poke(pid, at, word)?;
        stop(pid)?;
        context.restore(pid)
    }
}

/// Lets the process make a system call with the instructions at `at`.
fn call(pid: i32, at: u64, number: i64, arguments: [u64; 2]) -> io::Result<()> {
    ptrace::set_signal_mask(pid, !TRAP)?;
    let mut registers = ptrace::registers(pid)?;
    (registers.rip, registers.orig_rax, registers.rax) = (at, u64::MAX, number.cast_unsigned());
    [registers.rdi, registers.rsi] = arguments;
    ptrace::set_registers(pid, &registers)?;
    loop {
        ptrace::go_on(pid, 0)?;
        // A stop that was requested earlier may come first.
        match Stop::of(ptrace::wait(pid)?.1) {
            Some(Stop::Event(_)) => {}
            _ => return Ok(()),
        }
    }
}

/// Moves a thread from a trap to a stop from which it continues with its restored state.
fn stop(pid: i32) -> io::Result<()> {
    ptrace::interrupt(pid)?;
    ptrace::go_on(pid, 0)?;
    ptrace::wait(pid).map(|_| ())
}

fn mappings(pid: i32) -> io::Result<Vec<(u64, u64)>> {
    let maps = read(&format!("/proc/{pid}/maps"))?;
    Ok(maps.lines().filter(|line| line.contains(MAPPING)).filter_map(range).collect())
}

fn range(line: &str) -> Option<(u64, u64)> {
    let (start, end) = line.split_once(' ')?.0.split_once('-')?;
    Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
}
