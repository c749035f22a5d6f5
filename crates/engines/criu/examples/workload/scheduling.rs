//! A program that knows how its threads are scheduled.

use std::io;
use std::thread;

use crate::{PAUSE, checked};

/// How a thread is scheduled.
#[derive(Debug, PartialEq)]
struct Scheduling {
    processors: Vec<usize>,
    io_priority: libc::c_long,
    timer_slack: libc::c_int,
}

impl Scheduling {
    const ONE_THREAD: libc::c_int = 1;

    /// That of this thread.
    fn present() -> Self {
        // SAFETY: all-zero is a valid set of processors.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: `set` is live, writable and as long as said.
        checked(unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) }).unwrap();
        // SAFETY: the numbers are of the set.
        let has = |number: &usize| unsafe { libc::CPU_ISSET(*number, &set) };
        let processors = (0..libc::CPU_SETSIZE as usize).filter(has).collect();
        // SAFETY: no memory is passed.
        let io_priority = unsafe { libc::syscall(libc::SYS_ioprio_get, Self::ONE_THREAD, 0) };
        // SAFETY: no memory is passed.
        let timer_slack = unsafe { libc::prctl(libc::PR_GET_TIMERSLACK) };
        Self { processors, io_priority, timer_slack }
    }

    /// Makes it that of this thread.
    fn set(&self) {
        // SAFETY: all-zero is a valid set of processors.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        for number in &self.processors {
            // SAFETY: the number is of the set.
            unsafe { libc::CPU_SET(*number, &mut set) };
        }
        // SAFETY: `set` is live and as long as said.
        checked(unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) }).unwrap();
        // SAFETY: no memory is passed.
        let set = unsafe { libc::syscall(libc::SYS_ioprio_set, Self::ONE_THREAD, 0, self.io_priority) };
        assert_eq!(set, 0, "{}", io::Error::last_os_error());
        // SAFETY: no memory is passed.
        checked(unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, libc::c_long::from(self.timer_slack)) })
            .unwrap();
        assert_eq!(Self::present(), *self);
    }
}

/// Looks again and again whether its threads are scheduled as they have asked for, or as they were before.
pub fn keep_scheduling() {
    const LEAST: libc::c_long = 2 << 13 | 7;
    const IDLE: libc::c_long = 3 << 13;
    let all = Scheduling::present().processors;
    let (first, last) = (vec![all[0]], vec![*all.last().unwrap()]);
    let child = Scheduling { processors: last, io_priority: IDLE, timer_slack: 77_000 };
    let main = Scheduling { processors: first, io_priority: LEAST, timer_slack: 123_456 };
    let before = Scheduling::present();
    thread::spawn(move || {
        loop {
            expect_scheduling(&before);
        }
    });
    thread::spawn(move || {
        child.set();
        loop {
            expect_scheduling(&child);
        }
    });
    main.set();
    for number in 0_u64.. {
        expect_scheduling(&main);
        println!("{number}");
    }
}

fn expect_scheduling(expected: &Scheduling) {
    let present = Scheduling::present();
    if present != *expected {
        eprintln!("{present:?} instead of {expected:?}");
    }
    thread::sleep(PAUSE);
}
