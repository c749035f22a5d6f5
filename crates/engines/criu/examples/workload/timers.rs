//! Programs that know when their timers expire.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::checked;

/// How often the signals of [`keep_time`] have come: `SIGALRM` and `SIGUSR1`.
static SIGNALS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

extern "C" fn count_signal(signal: libc::c_int) {
    SIGNALS[usize::from(signal == libc::SIGUSR1)].fetch_add(1, Ordering::Relaxed);
}

/// Counts the rounds in which each of its periodic timers has expired; says which one does not any more, and if a timer for
/// a point in time expires before.
pub fn keep_time() {
    const SIGNAL_PERIOD: libc::c_long = 2_000_000;
    const SILENCE: Duration = Duration::from_secs(3);
    let timers = [1_000_000, 5_000_000, 20_000_000].map(timerfd);
    let epoll = epoll_of(&timers);
    for signal in [libc::SIGALRM, libc::SIGUSR1] {
        // SAFETY: the handler only adds to an atomic.
        unsafe { libc::signal(signal, count_signal as *const () as libc::sighandler_t) };
    }
    start_itimer(&periodic(SIGNAL_PERIOD));
    let timer = posix_timer(libc::SIGEV_SIGNAL, libc::SIGUSR1, 0);
    start_posix_timer(timer, &periodic(SIGNAL_PERIOD));
    let mut due = Due::soon();
    let stopped = started_timerfd(0, &libc::itimerspec { it_value: once(0).it_value, ..periodic(7_000_000) });
    for number in 0_u64.. {
        let (mut expired, begin) = ([0; 5], Instant::now());
        SIGNALS.iter().for_each(|count| count.store(0, Ordering::Relaxed));
        while expired.contains(&0) {
            wait_for_any(&epoll);
            for (count, timer) in expired.iter_mut().zip(&timers) {
                *count += ticks(timer);
            }
            for (count, signals) in expired[timers.len()..].iter_mut().zip(&SIGNALS) {
                *count = signals.load(Ordering::Relaxed);
            }
            assert_eq!(ticks(&stopped), 0);
            if ticks(&due.timer) > 0 {
                assert!(monotonic() >= due.at, "{} ns early", due.at - monotonic());
                due = Due::soon();
            }
            assert!(begin.elapsed() < SILENCE, "1, 5, 20 ms, SIGALRM, SIGUSR1: {expired:?}");
        }
        println!("{number}");
    }
}

/// How often the timers of [`expire_once`] have expired.
static EXPIRED: [AtomicU64; 1 + POSIX.len()] = [const { AtomicU64::new(0) }; 1 + POSIX.len()];

/// Its timers besides that of `setitimer`: whom they signal, and by which signal.
const POSIX: [(libc::c_int, libc::c_int); 11] = {
    const REAL_TIME: libc::c_int = 40;
    const TO_PROCESS: libc::c_int = libc::SIGEV_SIGNAL;
    const TO_THREAD: libc::c_int = libc::SIGEV_THREAD_ID;
    [
        (TO_PROCESS, libc::SIGUSR1),
        (TO_PROCESS, libc::SIGUSR1),
        (TO_THREAD, libc::SIGUSR2),
        (TO_PROCESS, REAL_TIME),
        (TO_PROCESS, REAL_TIME),
        (TO_PROCESS, REAL_TIME),
        (TO_PROCESS, REAL_TIME),
        (TO_THREAD, REAL_TIME + 1),
        (TO_THREAD, REAL_TIME + 1),
        (TO_THREAD, REAL_TIME + 1),
        (TO_THREAD, REAL_TIME + 1),
    ]
};

extern "C" fn count_expiration(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a live one; what it says of a timer's signal is in it.
    let (code, value) = unsafe { ((*info).si_code, (*info).si_value().sival_ptr as usize) };
    let number = if code == libc::SI_TIMER { value } else { 0 };
    EXPIRED[number].fetch_add(1, Ordering::Relaxed);
}

/// Counts the rounds in which each of its timers has expired, which it sets again each time; says which one does not, or more
/// often than it was set. Its memory takes some time to be dumped.
pub fn expire_once(mebibytes: usize) {
    const SILENCE: Duration = Duration::from_secs(3);
    let memory = std::hint::black_box(vec![1_u8; mebibytes << 20]);
    for signal in POSIX.map(|(_, signal)| signal).into_iter().chain([libc::SIGALRM]) {
        // SAFETY: all-zero is a valid sigaction.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        (action.sa_sigaction, action.sa_flags) = (count_expiration as *const () as usize, libc::SA_SIGINFO);
        // SAFETY: the action is live, and its handler only adds to atomics.
        checked(unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) }).unwrap();
    }
    let mut number = 0;
    let timers = POSIX.map(|(notify, signal)| {
        number += 1;
        posix_timer(notify, signal, number)
    });
    let start = |timer: usize| {
        let times = once(20_000_000 + 7_000_000 * timer as libc::c_long);
        if timer == 0 { start_itimer(&times) } else { start_posix_timer(timers[timer - 1], &times) }
    };
    let (mut started, mut begin) = ([0; EXPIRED.len()], Instant::now());
    for number in 1.. {
        while started.iter().any(|count| *count <= number) {
            for (timer, (count, expired)) in started.iter_mut().zip(&EXPIRED).enumerate() {
                let expired = expired.load(Ordering::Relaxed);
                assert!(
                    expired <= *count,
                    "timer {timer} has expired {expired} times and was set {count} times"
                );
                if expired == *count {
                    start(timer);
                    *count += 1;
                }
            }
            assert!(begin.elapsed() < SILENCE, "set {started:?}, expired {EXPIRED:?}");
            thread::sleep(Duration::from_millis(1));
        }
        begin = Instant::now();
        assert_eq!(memory[number as usize % memory.len()], 1);
        println!("{}", number - 1);
    }
}

/// Times of a timer that expires once.
pub fn once(nanoseconds: libc::c_long) -> libc::itimerspec {
    libc::itimerspec { it_interval: periodic(0).it_interval, ..periodic(nanoseconds) }
}

fn periodic(nanoseconds: libc::c_long) -> libc::itimerspec {
    let time = libc::timespec { tv_sec: 0, tv_nsec: nanoseconds };
    libc::itimerspec { it_interval: time, it_value: time }
}

fn timerfd(nanoseconds: libc::c_long) -> File {
    started_timerfd(0, &periodic(nanoseconds))
}

fn started_timerfd(flags: libc::c_int, times: &libc::itimerspec) -> File {
    // SAFETY: no memory is passed.
    let descriptor = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_NONBLOCK) };
    // SAFETY: the times are live, and the former ones are not asked for.
    checked(unsafe { libc::timerfd_settime(descriptor, flags, times, std::ptr::null_mut()) }).unwrap();
    // SAFETY: the kernel has just made it for us.
    unsafe { File::from_raw_fd(descriptor) }
}

/// A timer for a point in time.
struct Due {
    timer: File,
    /// In nanoseconds of the monotonic clock.
    at: libc::c_long,
}

impl Due {
    fn soon() -> Self {
        const SECOND: libc::c_long = 1_000_000_000;
        let at = monotonic() + SECOND / 3;
        let mut times = once(0);
        times.it_value = libc::timespec { tv_sec: at / SECOND, tv_nsec: at % SECOND };
        Self { timer: started_timerfd(libc::TFD_TIMER_ABSTIME, &times), at }
    }
}

/// The monotonic clock in nanoseconds.
fn monotonic() -> libc::c_long {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is live and writable.
    checked(unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) }).unwrap();
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// Starts the timer that sends `SIGALRM`.
pub fn start_itimer(times: &libc::itimerspec) {
    let of = |time: libc::timespec| libc::timeval { tv_sec: time.tv_sec, tv_usec: time.tv_nsec / 1000 };
    let times = libc::itimerval { it_interval: of(times.it_interval), it_value: of(times.it_value) };
    // SAFETY: the times are live, and the former ones are not asked for.
    checked(unsafe { libc::setitimer(libc::ITIMER_REAL, &times, std::ptr::null_mut()) }).unwrap();
}

/// A timer that sends `signal` to this process, or to this thread, with `value`.
fn posix_timer(notify: libc::c_int, signal: libc::c_int, value: usize) -> libc::timer_t {
    // SAFETY: all-zero is a valid sigevent, and a valid timer_t.
    let (mut event, mut timer): (libc::sigevent, libc::timer_t) = unsafe { std::mem::zeroed() };
    (event.sigev_notify, event.sigev_signo) = (notify, signal);
    event.sigev_value.sival_ptr = std::ptr::without_provenance_mut(value);
    // SAFETY: no memory is passed.
    event.sigev_notify_thread_id = unsafe { libc::gettid() };
    // SAFETY: `event` is live, and `timer` live and writable.
    checked(unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer) }).unwrap();
    timer
}

fn start_posix_timer(timer: libc::timer_t, times: &libc::itimerspec) {
    // SAFETY: the kernel has made the timer; the times are live, and the former ones are not asked for.
    checked(unsafe { libc::timer_settime(timer, 0, times, std::ptr::null_mut()) }).unwrap();
}

fn epoll_of(files: &[File]) -> OwnedFd {
    // SAFETY: no memory is passed.
    let descriptor = unsafe { libc::epoll_create1(0) };
    assert_ne!(descriptor, -1, "{}", io::Error::last_os_error());
    // SAFETY: the kernel has just made it for us.
    let epoll = unsafe { OwnedFd::from_raw_fd(descriptor) };
    for file in files {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        // SAFETY: `event` is live.
        checked(unsafe {
            libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, file.as_raw_fd(), &raw mut event)
        })
        .unwrap();
    }
    epoll
}

/// Waits until one of its files can be read, or for a signal, or for a moment.
fn wait_for_any(epoll: &OwnedFd) {
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    // SAFETY: there is room for the one event that is asked for.
    unsafe { libc::epoll_wait(epoll.as_raw_fd(), &raw mut event, 1, 100) };
}

/// How often a timer has expired since this was asked the last time.
fn ticks(mut timer: &File) -> u64 {
    let mut ticks = [0; 8];
    match timer.read(&mut ticks) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
        read => {
            assert_eq!(read.unwrap(), ticks.len());
            u64::from_ne_bytes(ticks)
        }
    }
}
