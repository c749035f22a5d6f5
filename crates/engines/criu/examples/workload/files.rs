//! Programs that use files.

use std::ffi::{CString, OsStr};
use std::fs::{File, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;

use crate::{PAUSE, checked, count};

pub fn memory_file() -> File {
    // SAFETY: the name is a C string, and the descriptor is new.
    unsafe { File::from_raw_fd(libc::memfd_create(c"workload".as_ptr(), 0)) }
}

/// Keeps a file open.
pub fn open(path: &str) {
    let _file = File::options().read(true).write(true).open(path).unwrap();
    count(u64::MAX);
}

/// Keeps a file mapped, and not open.
pub fn map(path: &str) {
    let file = File::open(path).unwrap();
    // SAFETY: a new mapping, which nobody uses.
    let mapped = unsafe {
        let (none, kind) = (std::ptr::null_mut(), libc::MAP_PRIVATE);
        libc::mmap(none, 1, libc::PROT_READ, kind, file.as_raw_fd(), 0)
    };
    assert_ne!(mapped, libc::MAP_FAILED);
    drop(file);
    count(u64::MAX);
}

/// Keeps a file locked.
pub fn lock(path: &str) {
    let file = File::open(path).unwrap();
    file.lock().unwrap();
    count(u64::MAX);
}

/// Writes into a FIFO, and reads nothing.
pub fn leave_unread(path: &str) {
    let name = CString::new(path).unwrap();
    // SAFETY: the name is a live C string.
    checked(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }).unwrap();
    let mut fifo = File::options().read(true).write(true).open(path).unwrap();
    fifo.write_all(&[0; 8]).unwrap();
    count(u64::MAX);
}

/// Locks a file for a moment, again and again.
pub fn lock_often(path: &str) {
    let file = File::open(path).unwrap();
    for number in 0_u64.. {
        file.lock().unwrap();
        thread::sleep(PAUSE);
        file.unlock().unwrap();
        println!("{number}");
        thread::sleep(3 * PAUSE);
    }
}

/// Keeps files locked that have no name, and looks again and again whether they are.
pub fn lock_unnamed(path: &str) {
    let deleted = File::create_new(path).unwrap();
    std::fs::remove_file(path).unwrap();
    let files = [deleted, memory_file()];
    files.iter().for_each(|file| file.lock().unwrap());
    for number in 0_u64.. {
        for file in &files {
            let again = File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
            assert!(matches!(again.try_lock(), Err(TryLockError::WouldBlock)));
        }
        println!("{number}");
        thread::sleep(PAUSE);
    }
}

/// Works in a directory whose name is no text, has it open and a file in it mapped, and is called like it.
pub fn name_oddly(path: &str) {
    let odd = OsStr::from_bytes(b"\xff");
    let directory = Path::new(path).join(odd);
    std::fs::create_dir(&directory).unwrap();
    std::env::set_current_dir(&directory).unwrap();
    std::fs::write(odd, [7]).unwrap();
    let _open = File::open(&directory).unwrap();
    let file = File::open(odd).unwrap();
    // SAFETY: a new mapping of an open file's first page.
    let mapped = unsafe {
        let (none, flags) = (std::ptr::null_mut(), libc::MAP_PRIVATE);
        libc::mmap(none, 1, libc::PROT_READ, flags, file.as_raw_fd(), 0).cast::<u8>()
    };
    drop(file);
    // SAFETY: the name is a C string.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"\xff".as_ptr()) };
    for number in 0_u64.. {
        // SAFETY: the mapping stays, and nobody cuts the file off.
        assert_eq!(unsafe { mapped.read_volatile() }, 7);
        assert!(std::fs::exists(odd).unwrap());
        println!("{number}");
        thread::sleep(PAUSE);
    }
}

/// Deletes a file that has a second name, `PATH.2`, and goes on to use it.
pub fn delete(path: &str) {
    let file = File::options().read(true).write(true).create_new(true).open(path).unwrap();
    file.set_len(8).unwrap();
    std::fs::hard_link(path, format!("{path}.2")).unwrap();
    std::fs::remove_file(path).unwrap();
    // SAFETY: a new mapping of an open file's first page.
    let mapped = unsafe {
        let (none, access) = (std::ptr::null_mut(), libc::PROT_READ | libc::PROT_WRITE);
        libc::mmap(none, 8, access, libc::MAP_SHARED, file.as_raw_fd(), 0).cast::<u64>()
    };
    for number in 0_u64.. {
        // SAFETY: the mapping stays, and nobody cuts the file off.
        unsafe { mapped.write_volatile(number) };
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(u64::from_ne_bytes(bytes), number);
        println!("{number}");
        thread::sleep(PAUSE);
    }
}

/// Has a ring for asynchronous requests to disks, and looks again and again whether it can be asked.
pub fn await_disks() {
    let mut ring: libc::c_ulong = 0;
    // SAFETY: the kernel writes the ring's address.
    assert_eq!(unsafe { libc::syscall(libc::SYS_io_setup, 8, &raw mut ring) }, 0);
    for number in 0_u64.. {
        // SAFETY: no event is asked for, and so none is written.
        let events = unsafe { libc::syscall(libc::SYS_io_getevents, ring, 0, 0, 0, 0) };
        assert_eq!(events, 0, "{}", io::Error::last_os_error());
        println!("{number}");
        thread::sleep(PAUSE);
    }
}

/// Looks up by a descriptor that it keeps open where its own memory is.
pub fn know_itself() {
    let mut maps = File::open("/proc/self/maps").unwrap();
    let mine = Box::new(0_u8);
    let address = (&raw const *mine).addr();
    for number in 0_u64.. {
        let mut text = String::new();
        maps.seek(SeekFrom::Start(0)).unwrap();
        maps.read_to_string(&mut text).unwrap();
        assert!(text.lines().any(|line| holds(line, address)), "{address:x} is not in {text}");
        println!("{number}");
        thread::sleep(PAUSE);
    }
}

/// Whether a line of `/proc/self/maps` is of the mapping with this address.
fn holds(line: &str, address: usize) -> bool {
    let number = |text| usize::from_str_radix(text, 16).unwrap();
    let (range, _) = line.split_once(' ').unwrap();
    let (from, to) = range.split_once('-').unwrap();
    (number(from)..number(to)).contains(&address)
}
