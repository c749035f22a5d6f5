//! Network namespaces, and traffic between them.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::Command;
use std::time::Duration;

/// How long anything may take.
pub const LIMIT: Duration = Duration::from_secs(30);

/// A network namespace.
pub struct Namespace(OwnedFd);

impl Namespace {
    pub fn new() -> Self {
        let namespace = fabric::netns::create().expect("a network namespace: these tests run as root");
        let new = Self(namespace);
        new.ip("link set lo up");
        new
    }

    /// Calls `inside` in the namespace.
    pub fn enter<T: Send>(&self, inside: impl FnOnce() -> T + Send) -> T {
        fabric::netns::enter(self.0.as_fd(), inside).unwrap()
    }

    pub fn ip(&self, line: &str) {
        self.run("ip", line);
    }

    /// The output of `program` in the namespace.
    pub fn run(&self, program: &str, line: &str) -> String {
        let output = self.enter(|| Command::new(program).args(line.split(' ')).output().unwrap());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {line}: {error}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Its name in commands.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// One end of a new veth pair, called `here`; the other end `there` is in `other`.
    pub fn connect(&self, here: &str, other: &Self, there: &str) {
        self.ip(&format!("link add {here} type veth peer name {there} netns {}", other.path()));
        self.ip(&format!("link set {here} up"));
        other.ip(&format!("link set {there} up"));
    }
}

/// Sends so many bytes both ways at the same time, and looks at each.
pub fn exchange(ends: &(TcpStream, TcpStream), length: usize) {
    let sent = pattern(length, 1);
    std::thread::scope(|scope| {
        for (mut from, to) in [(&ends.0, &ends.1), (&ends.1, &ends.0)] {
            let sent = &sent;
            scope.spawn(move || from.write_all(sent).unwrap());
            scope.spawn(move || assert!(read(to, length) == *sent, "a byte is wrong"));
        }
    });
}

/// Bytes that repeat nowhere soon.
pub fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|at| ((at + seed).wrapping_mul(0x9e37_79b9) >> 13) as u8).collect()
}

/// The bytes of `stream` until `length` bytes have come.
pub fn read(mut stream: &TcpStream, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}
