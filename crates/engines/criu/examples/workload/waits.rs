//! Programs that notice how what they wait for in the kernel ends.

use std::fs;
use std::io::{self, Read};
use std::mem;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::timers::{once, start_itimer};
use crate::{checked, count};

const LONG: Duration = Duration::from_secs(1000);

/// Counts, beside threads that wait where what is left of the time is known or short, and tell if that is interrupted or ends
/// early. The first thread waits, too.
pub fn keep_waiting() {
    // SAFETY: no memory is passed.
    let epoll = unsafe { libc::epoll_create1(0) };
    checked(epoll).unwrap();
    let short = Duration::from_millis(900);
    thread::spawn(move || repeat("nanosleep", || sleep_by(libc::SYS_nanosleep, short)));
    thread::spawn(move || repeat("clock_nanosleep", || sleep_by(libc::SYS_clock_nanosleep, short)));
    thread::spawn(|| repeat("poll", || poll(-1)));
    thread::spawn(|| repeat("poll for a time", || poll(300)));
    thread::spawn(|| repeat("sigwaitinfo", || wait_for_signal(libc::SIGUSR2)));
    thread::spawn(|| repeat("futex", wait_long));
    thread::spawn(move || repeat("epoll_wait", || wait_for_event(epoll)));
    thread::spawn(|| count(u64::MAX));
    repeat("first thread's nanosleep", || sleep_by(libc::SYS_nanosleep, LONG));
}

fn repeat(name: &str, wait: impl Fn() -> io::Result<()>) {
    loop {
        if let Err(error) = wait() {
            eprintln!("{name}: {error}");
        }
    }
}

/// Sleeps, and is told in another place what is left.
fn sleep_by(call: libc::c_long, time: Duration) -> io::Result<()> {
    let (wanted, mut left) = (timespec(time), timespec(Duration::ZERO));
    let begin = Instant::now();
    // SAFETY: the times are live, `left` is writable.
    let result = unsafe {
        match call {
            libc::SYS_nanosleep => libc::syscall(call, &raw const wanted, &raw mut left),
            _ => libc::syscall(call, libc::CLOCK_MONOTONIC, 0, &raw const wanted, &raw mut left),
        }
    };
    checked(result as i32)?;
    not_early(begin, time)
}

fn not_early(begin: Instant, time: Duration) -> io::Result<()> {
    if begin.elapsed() < time { Err(io::Error::other("ended early")) } else { Ok(()) }
}

fn timespec(time: Duration) -> libc::timespec {
    libc::timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: i64::from(time.subsec_nanos()) }
}

fn poll(milliseconds: libc::c_int) -> io::Result<()> {
    let begin = Instant::now();
    // SAFETY: no descriptors are passed.
    checked(unsafe { libc::poll(ptr::null_mut(), 0, milliseconds) })?;
    not_early(begin, Duration::from_millis(milliseconds as u64))
}

fn wait_for_signal(signal: libc::c_int) -> io::Result<()> {
    let set = block(signal);
    // SAFETY: the set is live, and no siginfo is asked for.
    checked(unsafe { libc::sigwaitinfo(&raw const set, ptr::null_mut()) })
}

/// Blocks a signal in this thread, and returns the set of it.
fn block(signal: libc::c_int) -> libc::sigset_t {
    // SAFETY: all-zero is a valid set.
    let mut set: libc::sigset_t = unsafe { mem::zeroed() };
    // SAFETY: the set is live and writable.
    unsafe {
        libc::sigaddset(&raw mut set, signal);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut());
    }
    set
}

/// Waits until a point in time for what never comes.
fn wait_long() -> io::Result<()> {
    let word = 0_u32;
    let mut until = timespec(Duration::ZERO);
    // SAFETY: the time is live and writable.
    checked(unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut until) })?;
    until.tv_sec += timespec(LONG).tv_sec;
    let (operation, none) = (libc::FUTEX_WAIT_BITSET | libc::FUTEX_PRIVATE_FLAG, ptr::null::<u32>());
    // SAFETY: the word and the time are live.
    checked(unsafe {
        libc::syscall(libc::SYS_futex, &raw const word, operation, 0, &raw const until, none, u32::MAX)
    } as i32)
}

fn wait_for_event(epoll: libc::c_int) -> io::Result<()> {
    // SAFETY: all-zero is a valid event, and there is room for one.
    checked(unsafe { libc::epoll_wait(epoll, &mut mem::zeroed(), 1, -1) })
}

/// The calls that have begun, and the signals that were handled.
static BEGUN: AtomicU64 = AtomicU64::new(0);
static HANDLED: AtomicU64 = AtomicU64::new(0);

extern "C" fn handle(_: libc::c_int) {
    HANDLED.fetch_add(1, Ordering::Relaxed);
}

/// Counts the calls that a timer has ended, and says if one waits on. Its memory takes some time to be dumped.
///
/// The timer, which takes a little longer each time, is started by another thread once the first one is in its call: a signal that came
/// before would end nothing.
pub fn end_by_timer(milliseconds: libc::c_long, mebibytes: usize) {
    let memory = std::hint::black_box(vec![1_u8; mebibytes << 20]);
    // SAFETY: all-zero is a valid action, which lets no call begin again, and its handler only adds to an atomic.
    checked(unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = handle as *const () as usize;
        libc::sigaction(libc::SIGALRM, &raw const action, ptr::null_mut())
    })
    .unwrap();
    let (nothing, _writer) = io::pipe().unwrap();
    thread::spawn(move || start_timers(milliseconds));
    for number in 0_u64.. {
        BEGUN.store(number + 1, Ordering::Relaxed);
        let ended = if number % 2 == 0 {
            // SAFETY: no memory is passed.
            unsafe { libc::pause() };
            io::Error::last_os_error()
        } else {
            (&nothing).read(&mut [0]).unwrap_err()
        };
        assert_eq!(ended.kind(), io::ErrorKind::Interrupted);
        assert_eq!(HANDLED.load(Ordering::Relaxed), number + 1);
        assert_eq!(memory.get(number as usize).copied().unwrap_or(1), 1);
        println!("{number}");
    }
}

/// Starts a timer for each call of the first thread, once it sleeps in it.
fn start_timers(milliseconds: libc::c_long) {
    const SILENCE: Duration = Duration::from_secs(10);
    block(libc::SIGALRM);
    for number in 0.. {
        let sleeps = || BEGUN.load(Ordering::Relaxed) > number && state_of_first() == b'S';
        await_within(SILENCE, sleeps, "no call began");
        start_itimer(&once((milliseconds + number as libc::c_long * 7 % 40) * 1_000_000));
        await_within(SILENCE, || HANDLED.load(Ordering::Relaxed) > number, "no signal came");
        await_within(SILENCE, || BEGUN.load(Ordering::Relaxed) > number + 1, "a call waits on");
    }
}

fn await_within(limit: Duration, is_so: impl Fn() -> bool, otherwise: &str) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < limit, "{otherwise}");
        thread::sleep(Duration::from_micros(100));
    }
}

/// The letter behind the name of the first thread, in which is no bracket.
fn state_of_first() -> u8 {
    let stat = fs::read("/proc/self/stat").unwrap();
    let end = stat.iter().position(|byte| *byte == b')').unwrap();
    stat[end + 2]
}

/// Counts children that a timer has ended, and says if one ends otherwise.
pub fn end_children() {
    for number in 0_u64.. {
        let children = [5, 20, 35].map(|milliseconds: u32| {
            let mut child = Command::new(std::env::current_exe().unwrap());
            child.args(["end", &milliseconds.to_string()]).spawn().unwrap()
        });
        for mut child in children {
            assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGALRM));
        }
        println!("{number}");
    }
}

/// Is ended by a timer.
pub fn end(milliseconds: libc::c_long) {
    start_itimer(&once(milliseconds * 1_000_000));
    thread::sleep(LONG);
}
