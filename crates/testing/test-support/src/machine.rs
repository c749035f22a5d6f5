//! The machine, which most tests share and some need to themselves. Each test may be a process of its own, so they
//! exclude each other by a lock on a file of this crate.

use std::env;
use std::fs::File;
use std::os::fd::AsRawFd as _;

/// Keeps tests that exclude this one from beginning, until it is dropped.
#[derive(Debug)]
pub struct Hold {
    _file: File,
}

/// Waits until no test has the machine to itself, and runs beside others.
#[must_use]
pub fn shared() -> Hold {
    hold(libc::LOCK_SH)
}

/// Waits until all tests that use the machine have ended: this one measures, or uses something that the machine has once.
///
/// # Panics
/// If nextest starts other tests meanwhile, which would wait for this one and be late.
#[must_use]
pub fn alone() -> Hold {
    let group = env::var("NEXTEST_TEST_GROUP").unwrap_or_else(|_| "alone".into());
    assert_eq!(group, "alone", "name this test in the group `alone` of .config/nextest.toml");
    hold(libc::LOCK_EX)
}

fn hold(how: libc::c_int) -> Hold {
    const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let file = File::open(FILE).unwrap_or_else(|error| panic!("{FILE}: {error}"));
    // SAFETY: the descriptor is open; no memory is passed.
    while unsafe { libc::flock(file.as_raw_fd(), how) } != 0 {
        let error = std::io::Error::last_os_error();
        assert_eq!(error.kind(), std::io::ErrorKind::Interrupted, "{FILE}: {error}");
    }
    Hold { _file: file }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_refused(how: libc::c_int) -> bool {
        let file = File::open(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")).unwrap();
        // SAFETY: the descriptor is open; no memory is passed.
        unsafe { libc::flock(file.as_raw_fd(), how | libc::LOCK_NB) != 0 }
    }

    #[test]
    fn a_test_that_shares_the_machine_keeps_out_one_that_needs_it_alone() {
        let _hold = shared();
        assert!(is_refused(libc::LOCK_EX));
    }
}
