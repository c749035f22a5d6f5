use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

const PROCESS: Owner = Owner::Process(7);

#[test]
fn dumped_mappings_are_distinguished_from_others() {
    let kind =
        |line: &str| mapping(line, PROCESS).map(|mapping| (mapping.owner, mapping.address, mapping.kind));
    let private = Some((PROCESS, 0x1000, Kind::Private));
    assert_eq!(kind("1000-3000 rw-p 00000000 00:00 0 "), private);
    assert_eq!(kind("1000-3000 r-xp 00004000 fe:00 5        /usr/bin/x y"), private);
    assert_eq!(kind("1000-3000 rw-p 00000000 00:00 0        [heap]"), private);
    assert_eq!(kind("1000-3000 r--p 00000000 00:00 0        [vvar]"), None);
    assert_eq!(kind("1000-3000 rw-s 00000000 fe:00 5        /var/file"), None);
    let shared = Some((Owner::Shared(77), 0x2000, Kind::Shared));
    assert_eq!(kind("1000-3000 rw-s 00002000 00:01 77       /memfd:x (deleted)"), shared);
    assert_eq!(kind("1000-3000 rw-s 00002000 00:01 77       /dev/zero (deleted)"), shared);
    let borrowed = Some((PROCESS, 0x1000, Kind::Shared));
    assert_eq!(kind("1000-3000 rw-s 00002000 00:01 77       /memfd:transhume-pages (deleted)"), borrowed);
    assert_eq!(kind("nonsense"), None);
}

/// Counts pages, and searches for one.
#[derive(Default)]
struct Seen {
    pages: AtomicUsize,
    expected: AtomicUsize,
    owners: Mutex<Vec<Owner>>,
}

impl MemorySink for Seen {
    fn begin(&self) -> io::Result<()> {
        Ok(())
    }

    fn open(&self, _owner: Owner) -> io::Result<()> {
        Ok(())
    }

    fn expect(&self, bytes: u64) {
        self.expected.store(bytes as usize / PAGE, Ordering::Relaxed);
    }

    fn take(&self, owner: Owner, _address: u64, pages: &[u8]) -> io::Result<()> {
        self.pages.fetch_add(pages.len() / PAGE, Ordering::Relaxed);
        self.owners.lock().unwrap().push(owner);
        Ok(())
    }

    fn end(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A running process: it has written back its input.
fn running() -> Child {
    let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    child
}

#[test]
fn a_running_process_is_read() {
    let mut child = running();
    let pid = i32::try_from(child.id()).unwrap();
    let seen = Seen::default();
    let whole = show(pid, &[], &seen, &|| true).unwrap();
    let stopped = show(pid, &[], &Seen::default(), &|| false).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(whole && !stopped);
    let pages = seen.pages.load(Ordering::Relaxed);
    assert!(pages >= 5 && seen.expected.load(Ordering::Relaxed) == pages, "{pages} of {:?}", seen.expected);
    assert!(seen.owners.lock().unwrap().contains(&Owner::Process(child.id())));
}

#[test]
fn an_ended_process_has_no_memory() {
    let mut child = running();
    let pid = i32::try_from(child.id()).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(show(pid, &[], &Seen::default(), &|| true).unwrap());
}
