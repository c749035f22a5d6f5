//! A benchmark that is interrupted leaves nothing behind.

use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use lab::Lab;

fn labs_of(pid: u32) -> usize {
    let prefix = format!("t{pid:x}n");
    Lab::names().iter().filter(|name| name.as_str().starts_with(&prefix)).count()
}

/// Interrupts a benchmark as soon as its lab is on its way up.
fn interrupt(program: &str) {
    const LIMIT: Duration = Duration::from_secs(60);
    let mut bench = Command::new(program).stdout(Stdio::null()).spawn().unwrap();
    let deadline = Instant::now() + LIMIT;
    while labs_of(bench.id()) == 0 {
        assert!(bench.try_wait().unwrap().is_none() && Instant::now() < deadline);
        thread::sleep(Duration::from_millis(5));
    }
    // SAFETY: a plain call; the child has not been waited for.
    unsafe { libc::kill(bench.id().cast_signed(), libc::SIGINT) };
    assert!(!bench.wait().unwrap().success());
    assert_eq!(labs_of(bench.id()), 0);
}

#[test]
fn an_interrupted_benchmark_removes_its_lab() {
    interrupt(env!("CARGO_BIN_EXE_bench-verbs"));
    interrupt(env!("CARGO_BIN_EXE_bench-net"));
}
