//! Threads of this process that wait on a process-shared futex.
//!
//! The kernel identifies such a futex by its page: by process and address if the page is private, by the file if it is shared. After
//! a page was converted, a wake-up does not find the threads that went to sleep before. Process-shared semaphores and mutexes
//! are such futexes, and so are robust mutexes and the word on which `pthread_join` waits.
//!
//! This module uses only system calls and the stack: memory of the program may be missing at that moment.

use std::ffi::CStr;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use libc::c_long;

use super::syscall::{check, owned};

/// `futex_wait`, of Linux 6.7.
const SYS_FUTEX_WAIT: c_long = 455;

/// The buffer for the kernel's answers. Their beginning is enough.
const ANSWER: usize = 256;

/// The bytes of one directory listing.
const LIST: usize = 4096;

/// Of an entry in a list of the kernel's: how long it is, and where its name begins.
const LENGTH: usize = 16;
const NAME: usize = 19;

/// Whether a thread sleeps on a word in `range`, or may do so.
///
/// # Errors
/// The errors of reading `/proc`; it may be missing.
pub(super) fn any_waiter_in(range: &Range<u64>) -> io::Result<bool> {
    let mut any = false;
    Tasks::open()?
        .each(|call| any |= call.may_wait_elsewhere() || call.words().any(|word| range.contains(&word)))?;
    Ok(any)
}

/// Tells `tell` the words in `range` that threads sleep on.
///
/// # Errors
/// The errors of reading `/proc`; it may be missing.
pub(super) fn for_each_in(range: &Range<u64>, mut tell: impl FnMut(u64)) -> io::Result<()> {
    Tasks::open()?.each(|call| call.words().filter(|word| range.contains(word)).for_each(&mut tell))
}

/// This process' threads.
struct Tasks(OwnedFd);

impl Tasks {
    fn open() -> io::Result<Self> {
        const TASKS: &CStr = c"/proc/self/task";
        open(libc::AT_FDCWD, TASKS, libc::O_DIRECTORY).map(Self)
    }

    /// Tells `tell` the system calls that threads sleep in.
    fn each(&self, mut tell: impl FnMut(&Call)) -> io::Result<()> {
        let mut list = [0u8; LIST];
        // SAFETY: no memory is passed.
        check(unsafe { libc::lseek(self.0.as_raw_fd(), 0, libc::SEEK_SET) })?;
        loop {
            // SAFETY: the list is live, and has this length.
            let read =
                unsafe { libc::syscall(libc::SYS_getdents64, self.0.as_raw_fd(), list.as_mut_ptr(), LIST) };
            let mut entries = &list[..check(read)?];
            if entries.is_empty() {
                return Ok(());
            }
            while let Some(length) = entries.get(LENGTH..LENGTH + 2) {
                let length = usize::from(u16::from_ne_bytes([length[0], length[1]])).clamp(1, entries.len());
                let name = entries.get(NAME..length).and_then(|name| CStr::from_bytes_until_nul(name).ok());
                if let Some(call) = name.map_or(Ok(None), |name| self.call_of(name))? {
                    tell(&call);
                }
                entries = &entries[length..];
            }
        }
    }

    /// `None` if the thread runs, has ended, or is not a thread.
    fn call_of(&self, thread: &CStr) -> io::Result<Option<Call>> {
        let mut answer = [0u8; ANSWER];
        match self.ask(thread, &mut answer) {
            Ok(length) => Ok(Call::parse(&answer[..length])),
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn ask(&self, thread: &CStr, answer: &mut [u8]) -> io::Result<usize> {
        const FILE: &CStr = c"syscall";
        let directory = open(self.0.as_raw_fd(), thread, libc::O_DIRECTORY)?;
        let file = open(directory.as_raw_fd(), FILE, 0)?;
        // SAFETY: the buffer is live, and has this length.
        let read = unsafe { libc::read(file.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len()) };
        check(read as c_long)
    }
}

/// A system call that a thread sleeps in.
struct Call {
    number: c_long,
    arguments: [u64; 6],
}

impl Call {
    /// Reads `/proc/self/task/*/syscall`: the number, and six arguments in hexadecimal; another word if the thread runs, and -1 if it sleeps
    /// without a call.
    fn parse(answer: &[u8]) -> Option<Self> {
        let mut words = str::from_utf8(answer).ok()?.split_ascii_whitespace();
        let number = words.next()?.parse().ok()?;
        let mut arguments = [0; 6];
        for argument in &mut arguments {
            *argument = u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
        }
        Some(Self { number, arguments })
    }

    /// The words that it waits for.
    fn words(&self) -> impl Iterator<Item = u64> {
        let [first, operation, _, _, second, _] = self.arguments;
        let words = match self.number {
            libc::SYS_futex if operation & libc::FUTEX_PRIVATE_FLAG as u64 != 0 => [None, None],
            // The arguments of an interrupted call that goes on are the original ones.
            libc::SYS_futex | libc::SYS_restart_syscall => [Some(first), Some(second)],
            SYS_FUTEX_WAIT => [Some(first), None],
            _ => [None, None],
        };
        words.into_iter().flatten()
    }

    /// Whether it waits for words that are not among its arguments.
    fn may_wait_elsewhere(&self) -> bool {
        self.number == libc::SYS_futex_waitv
    }
}

fn open(directory: RawFd, name: &CStr, flags: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: the name is a C string.
    owned(unsafe { libc::openat(directory, name.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC | flags) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(answer: &str) -> Option<Vec<u64>> {
        Call::parse(answer.as_bytes()).map(|call| call.words().collect())
    }

    #[test]
    fn only_process_shared_futex_waits_are_found() {
        let call = |number: c_long, operation: u64| {
            format!(
                "{number} 0x1000 {operation:#x} 0x0 0x0 0x2000 0xffffffff 0x7ffc00000000 0x7f0000000000\n"
            )
        };
        let wait_bitset = libc::FUTEX_WAIT_BITSET as u64;
        assert_eq!(words(&call(libc::SYS_futex, wait_bitset)), Some(vec![0x1000, 0x2000]));
        assert_eq!(words(&call(libc::SYS_futex, wait_bitset | 128)), Some(vec![]));
        assert_eq!(words(&call(libc::SYS_restart_syscall, 128)), Some(vec![0x1000, 0x2000]));
        assert_eq!(words(&call(SYS_FUTEX_WAIT, 0)), Some(vec![0x1000]));
        assert_eq!(words(&call(libc::SYS_read, 0)), Some(vec![]));
        for other in
            ["running\n", "-1 0x7ffc00000000 0x7f0000000000\n", "", "202 0x1000", "202 1000 0 0 0 0 0"]
        {
            assert_eq!(words(other), None, "{other}");
        }
        assert!(Call::parse(call(libc::SYS_futex_waitv, 0).as_bytes()).unwrap().may_wait_elsewhere());
    }
}
