//! Programs that notice if a move loses or repeats anything, for the tests of this crate.

mod changes;
mod files;
mod options;
mod pins;
mod scheduling;
mod streams;
mod threads;
mod timers;
mod waits;

use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::thread;
use std::time::Duration;

const PAUSE: Duration = Duration::from_millis(1);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["count", to] => count(to.parse().unwrap()),
        ["flood", lines] => flood(lines.parse().unwrap()),
        ["hold", mebibytes] => hold(mebibytes.parse().unwrap()),
        ["change", mebibytes] => changes::change(mebibytes.parse().unwrap()),
        ["share", mebibytes] => changes::share(mebibytes.parse().unwrap()),
        ["serve", address] => streams::serve(address),
        ["ask", address] => streams::ask(address),
        ["say", address, trigger] => streams::say(address, trigger),
        ["drink", address] => streams::drink(address),
        ["pour", address] => streams::pour(address),
        ["mixed"] => threads::mixed(),
        ["crowd", address] => threads::crowd(address),
        ["brief"] => threads::brief(),
        ["leave", trigger] => threads::leave(trigger),
        ["reply"] => threads::reply(),
        ["open", path] => files::open(path),
        ["map", path] => files::map(path),
        ["pin", kind] => pins::pin(kind),
        ["lock", path] => files::lock(path),
        ["lock_often", path] => files::lock_often(path),
        ["lock_unnamed", path] => files::lock_unnamed(path),
        ["leave_unread", path] => files::leave_unread(path),
        ["name_oddly", path] => files::name_oddly(path),
        ["delete", path] => files::delete(path),
        ["await_disks"] => files::await_disks(),
        ["extend", words] => extend(words),
        ["ignore"] => ignore(),
        ["know_itself"] => files::know_itself(),
        ["keep_name", name] => keep_name(name),
        ["keep_options"] => options::keep_options(),
        ["keep_scheduling"] => scheduling::keep_scheduling(),
        ["keep_time"] => timers::keep_time(),
        ["expire_once", mebibytes] => timers::expire_once(mebibytes.parse().unwrap()),
        ["keep_waiting"] => waits::keep_waiting(),
        ["end_by_timer", milliseconds, mebibytes] => {
            waits::end_by_timer(milliseconds.parse().unwrap(), mebibytes.parse().unwrap());
        }
        ["end_children"] => waits::end_children(),
        ["end", milliseconds] => waits::end(milliseconds.parse().unwrap()),
        ["listen", trigger] => streams::listen(trigger),
        ["fill", trigger] => streams::fill(trigger),
        ["rename_socket", path] => streams::rename_socket(path),
        ["listen_on_one_path"] => streams::listen_on_one_path(),
        ["read_to_the_end"] => streams::read_to_the_end(),
        ["fill_back", port, trigger] => streams::exchange(streams::connect_to(port), trigger),
        ["whisper", port, trigger] => streams::whisper(port, trigger),
        _ => panic!("unknown workload {words:?}"),
    }
}

/// Counts slowly; exits with 7.
fn count(to: u64) {
    for number in 0..to {
        println!("{number}");
        thread::sleep(PAUSE);
    }
    std::process::exit(7);
}

/// Writes as fast as it can.
fn flood(lines: u64) {
    let mut out = std::io::stdout().lock();
    for number in 0..lines {
        writeln!(out, "{number:063}").unwrap();
    }
}

/// Fills memory with a pattern, and verifies it for ever.
fn hold(mebibytes: usize) {
    let mut memory: Vec<u64> = (0..mebibytes as u64 * 131_072).map(|n| n.wrapping_mul(0x9e37_79b9)).collect();
    for round in 0_u64.. {
        let at = (round as usize * 509) % memory.len();
        assert_eq!(memory[at], (at as u64).wrapping_mul(0x9e37_79b9));
        memory[at] = (at as u64).wrapping_mul(0x9e37_79b9);
        if round % 1000 == 0 {
            println!("{}", round / 1000);
            thread::sleep(PAUSE);
        }
    }
}

/// Listens, and accepts nothing.
fn ignore() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let _ignored = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    count(u64::MAX);
}

/// Changes its network by a command of `ip`.
fn extend(words: &str) {
    assert!(Command::new("ip").args(words.split(' ')).status().unwrap().success());
    count(u64::MAX);
}

/// Calls its host by this name, and looks again and again whether it is called so.
fn keep_name(name: &str) {
    // SAFETY: the name is live and as long as said.
    checked(unsafe { libc::sethostname(name.as_ptr().cast(), name.len()) }).unwrap();
    for number in 0_u64.. {
        assert_eq!(std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim_end(), name);
        println!("{number}");
        thread::sleep(PAUSE);
    }
}

fn checked(result: i32) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
