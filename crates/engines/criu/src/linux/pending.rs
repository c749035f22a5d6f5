//! Pending signals of the threads of a stopped tree.

use std::io;
use std::mem;
use std::ptr;
use std::time::{Duration, Instant};

use crate::linux::task;

/// A set of signals as the kernel shows it: bit 0 is signal 1.
pub type Set = u64;

/// Whether `signal` is in the set.
pub fn has(set: Set, signal: libc::c_int) -> bool {
    (1..=64).contains(&signal) && set >> (signal - 1) & 1 == 1
}

/// One thread of a process.
#[derive(Clone, Debug)]
pub struct Thread {
    /// Its TID on this host.
    pub tid: i32,
    /// Its TID in the instance.
    pub number: i32,
    /// Signals pending for it alone.
    pub waiting: Set,
    /// Signals that it blocks.
    pub blocked: Set,
}

/// The pending signals of a process.
#[derive(Clone, Debug)]
pub struct Pending {
    /// Signals pending for the process.
    pub shared: Set,
    /// The first thread comes first.
    pub threads: Vec<Thread>,
}

impl Pending {
    /// The pending signals of process `pid`.
    pub fn of(pid: i32) -> io::Result<Self> {
        let mut pending = Self { shared: 0, threads: Vec::new() };
        for tid in task::numbers_in(&format!("/proc/{pid}/task"))? {
            let status = task::read(&format!("/proc/{pid}/task/{tid}/status"))?;
            let set = |name| set_in(&status, name).ok_or(io::ErrorKind::InvalidData);
            let number = task::innermost_number(&status).ok_or(io::ErrorKind::InvalidData)?;
            let (waiting, blocked) = (set("SigPnd:")?, set("SigBlk:")?);
            pending.threads.push(Thread { tid, number, waiting, blocked });
            pending.shared = set("ShdPnd:")?;
        }
        Ok(pending)
    }

    /// The first thread.
    pub fn first(&self) -> io::Result<&Thread> {
        self.threads.first().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Whether no signal is pending.
    pub fn is_empty(&self) -> bool {
        self.shared == 0 && self.threads.iter().all(|thread| thread.waiting == 0)
    }
}

/// Whether a signal is pending that thread `tid`, which blocks these signals, will handle.
pub fn waits_for_handler(tid: i32, blocked: Set) -> io::Result<bool> {
    let status = task::read(&format!("/proc/{tid}/status"))?;
    let set = |name| set_in(&status, name).ok_or(io::ErrorKind::InvalidData);
    Ok((set("SigPnd:")? | set("ShdPnd:")?) & set("SigCgt:")? & !blocked != 0)
}

fn set_in(status: &str, name: &str) -> Option<Set> {
    Set::from_str_radix(status.lines().find_map(|line| line.strip_prefix(name))?.trim(), 16).ok()
}

/// A queued signal: `siginfo_t`.
pub type Info = [u8; size_of::<libc::siginfo_t>()];

/// The queued signals of thread `tid` alone or, if `shared`, of its process, in order. The thread was told to stop and is not
/// traced; it stays stopped. The result is empty if a signal has ended it before it stopped.
pub fn queued(tid: i32, shared: bool) -> io::Result<Vec<Info>> {
    // On any failure, the kernel releases the traced thread when the tracing thread ends.
    std::thread::scope(|scope| scope.spawn(|| traced(tid, shared)).join())
        .unwrap_or_else(|_| Err(io::Error::other("reading a thread's pending signals failed")))
}

fn traced(tid: i32, shared: bool) -> io::Result<Vec<Info>> {
    /// Waits for children of any kind; only tracing makes the thread a child.
    const WAIT: libc::c_int = libc::__WALL | libc::WNOHANG;
    const LIMIT: Duration = Duration::from_secs(2);
    let end = Instant::now() + LIMIT;
    // A thread that is traced before it has stopped would stop for the tracer instead of for the signal, and run on when it is
    // released.
    loop {
        match task::Stat::read(tid) {
            Ok(stat) if stat.state == 'T' => break,
            Ok(stat) if matches!(stat.state, 'Z' | 'X') => return Ok(Vec::new()),
            Err(error) if task::has_ended(&error) => return Ok(Vec::new()),
            Err(error) => return Err(error),
            Ok(_) if Instant::now() > end => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => std::thread::sleep(Duration::from_micros(50)),
        }
    }
    trace(libc::PTRACE_SEIZE, tid, ptr::null_mut(), ptr::null_mut())?;
    // SAFETY: a null status asks for none.
    while unsafe { libc::waitpid(tid, ptr::null_mut(), WAIT) } != tid {
        if Instant::now() > end {
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    let queued = read_queue(tid, shared);
    trace(libc::PTRACE_DETACH, tid, ptr::null_mut(), ptr::null_mut())?;
    queued
}

/// `ptrace_peeksiginfo_args`
#[repr(C)]
struct Part {
    from: u64,
    flags: u32,
    count: i32,
}

fn read_queue(tid: i32, shared: bool) -> io::Result<Vec<Info>> {
    /// The number of signals read at a time.
    const MOST: usize = 32;
    /// `PTRACE_PEEKSIGINFO_SHARED`
    const SHARED: u32 = 1;
    let mut all = Vec::new();
    loop {
        let mut part = Part { from: all.len() as u64, flags: u32::from(shared) * SHARED, count: MOST as i32 };
        // SAFETY: all-zero bytes are a `siginfo_t`.
        let mut room: [libc::siginfo_t; MOST] = unsafe { mem::zeroed() };
        let got = trace(libc::PTRACE_PEEKSIGINFO, tid, (&raw mut part).cast(), room.as_mut_ptr().cast())?;
        // SAFETY: a `siginfo_t` is plain bytes, all of which were written.
        all.extend(room.iter().take(got).map(|info| unsafe { mem::transmute_copy::<_, Info>(info) }));
        if got < MOST {
            return Ok(all);
        }
    }
}

fn trace(
    request: libc::c_uint,
    tid: i32,
    address: *mut libc::c_void,
    data: *mut libc::c_void,
) -> io::Result<usize> {
    // SAFETY: `address` and `data` are as the request requires: null, or a live `Part` and room for its result.
    let result = unsafe { libc::ptrace(request, tid, address, data) };
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_sets_are_read() {
        let status = "SigQ:\t0/95\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000002200\n";
        assert_eq!(set_in(status, "SigPnd:"), Some(0));
        let shared = set_in(status, "ShdPnd:").unwrap();
        assert!(has(shared, libc::SIGALRM) && has(shared, libc::SIGUSR1) && !has(shared, libc::SIGUSR2));
        assert!(!has(Set::MAX, 0) && !has(Set::MAX, 65));
    }

    #[test]
    fn pending_signals_of_a_stopped_process_are_read_and_it_stays_stopped() {
        let mut child = std::process::Command::new("sleep").arg("30").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let send = |signal| {
            // SAFETY: no memory is passed; the child is ours.
            assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
        };
        send(libc::SIGSTOP);
        let state = || task::Stat::read(pid).unwrap().state;
        while state() != 'T' {
            assert_ne!(state(), 'Z', "it has ended");
            std::thread::sleep(Duration::from_millis(1));
        }
        // A thread that has not stopped yet would end at once.
        (0..2).for_each(|_| send(libc::SIGRTMIN()));
        let signals: Vec<i32> = queued(pid, true)
            .unwrap()
            .iter()
            .map(|info| i32::from_ne_bytes(*info.first_chunk().unwrap()))
            .collect();
        assert_eq!(signals, [libc::SIGRTMIN(), libc::SIGRTMIN()]);
        assert!(queued(pid, false).unwrap().is_empty());
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(state(), 'T');
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
