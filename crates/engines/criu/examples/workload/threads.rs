//! Programs with threads and children.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::files::memory_file;
use crate::streams::{ask, wait_for};
use crate::{PAUSE, checked};

/// Asks an echo for ever, beside threads that wait in the kernel and tell if that is interrupted.
pub fn crowd(address: &str) {
    let (reader, writer) = io::pipe().unwrap();
    thread::spawn(move || wait_for_ever("read", || (&reader).read(&mut [0]).map(|_| ())));
    thread::spawn(|| wait_for_ever("nanosleep", || sleep(Duration::from_millis(7))));
    thread::spawn(|| wait_for_ever("nanosleep", || sleep(Duration::from_secs(60))));
    thread::spawn(|| wait_for_ever("poll", || poll(50)));
    thread::spawn(spin);
    thread::spawn(move || {
        wait_for_ever("write", || {
            thread::sleep(Duration::from_millis(3));
            (&writer).write(&[0]).map(|_| ())
        })
    });
    ask(address);
}

/// Counts beside threads that start others for ever, which end at once.
pub fn brief() {
    for _ in 0..6 {
        thread::spawn(|| {
            loop {
                thread::spawn(|| thread::sleep(Duration::from_micros(500))).join().unwrap();
            }
        });
    }
    for number in 0.. {
        println!("{number}");
        thread::sleep(PAUSE);
    }
}

/// Repeats what must not fail but by a move, also where the standard library would try again.
fn wait_for_ever(name: &str, wait: impl Fn() -> io::Result<()>) {
    let host = || std::fs::read_link("/proc/self/ns/net").unwrap();
    loop {
        let before = host();
        if let Err(error) = wait()
            && host() == before
        {
            eprintln!("{name}: {error}");
        }
    }
}

fn sleep(time: Duration) -> io::Result<()> {
    let time =
        libc::timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: i64::from(time.subsec_nanos()) };
    // SAFETY: `time` is live, and nothing is asked back.
    checked(unsafe { libc::nanosleep(&raw const time, std::ptr::null_mut()) })
}

fn poll(milliseconds: i32) -> io::Result<()> {
    // SAFETY: no descriptors are passed.
    checked(unsafe { libc::poll(std::ptr::null_mut(), 0, milliseconds) })
}

/// Computes in registers, general ones and others, and never waits.
fn spin() {
    let expected = (0..100_000).fold((1, 1.0), step);
    loop {
        let found = (0..100_000).fold((1, 1.0), step);
        assert!(found == expected, "registers changed");
        thread::sleep(PAUSE);
    }
}

fn step((whole, real): (u64, f64), round: u64) -> (u64, f64) {
    (whole.wrapping_mul(0x9e37_79b9).rotate_left(7) ^ round, (real * 1.000_1 + round as f64).sqrt())
}

/// Threads that wake each other, a memfd, a child behind pipes: a number goes through all of them.
pub fn mixed() {
    let (to_thread, from_main) = mpsc::channel::<u64>();
    let (to_main, from_thread) = mpsc::channel::<u64>();
    thread::spawn(move || from_main.into_iter().try_for_each(|number| to_main.send(number)));
    let mut child = Command::new(std::env::current_exe().unwrap())
        .arg("reply")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut ask, mut answer) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut memory = memory_file();
    for number in 0_u64.. {
        to_thread.send(number).unwrap();
        assert_eq!(from_thread.recv().unwrap(), number);
        ask.write_all(&number.to_ne_bytes()).unwrap();
        let mut bytes = [0; 8];
        answer.read_exact(&mut bytes).unwrap();
        memory.seek(SeekFrom::Start(number % 4096 * 8)).unwrap();
        memory.write_all(&bytes).unwrap();
        memory.seek(SeekFrom::Current(-8)).unwrap();
        memory.read_exact(&mut bytes).unwrap();
        assert_eq!(u64::from_ne_bytes(bytes), number);
        println!("{number}");
        thread::sleep(PAUSE);
    }
    child.wait().unwrap();
}

/// Ends with 3 once the file `trigger` is there, with a last word, and leaves a child that has its output open.
pub fn leave(trigger: &str) {
    Command::new("sleep").arg("1000").spawn().unwrap();
    println!("0");
    wait_for(trigger);
    println!("1");
    std::process::exit(3);
}

/// Sends back what comes in.
pub fn reply() {
    let mut bytes = [0; 8];
    while std::io::stdin().read_exact(&mut bytes).is_ok() {
        std::io::stdout().write_all(&bytes).unwrap();
        std::io::stdout().flush().unwrap();
    }
}
