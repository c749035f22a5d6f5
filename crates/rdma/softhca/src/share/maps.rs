//! The kinds of this process' mappings, from `/proc/self/maps`.

use std::ffi::{CStr, OsStr};
use std::fs;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::ptr;

use libc::{c_int, c_void};
use waiting::SignalsBlocked;

use super::syscall::check;

/// A mapping of pages that may be converted.
pub(super) type Piece = Range<u64>;

/// The largest mapping without rights that is taken for the guard below a thread's stack. More is an allocator's
/// reserve.
const GUARD: u64 = 64 << 10;

/// The mappings that make up `range`, if all of it is private, anonymous, writable memory and no stack. A stack is not
/// to be converted: a thread that runs on it would wait for itself.
pub(super) fn anonymous_pieces(range: &Range<u64>) -> Option<Vec<Piece>> {
    pieces(&read_maps().ok()?, range)
}

/// Where some memory is mapped, and from which offset on.
pub(super) type Mapping = (Range<u64>, u64);

/// A file: the device that it is on, and its number there. Files of other devices may have the same number.
#[derive(Clone, Copy, PartialEq, Eq)]
struct FileId {
    device: (u32, u32),
    inode: u64,
}

impl FileId {
    fn of(memory: &OwnedFd) -> io::Result<Self> {
        // SAFETY: a stat of zeros is valid, and the call fills it.
        let mut about: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the argument is live and of the right type.
        if unsafe { libc::fstat(memory.as_raw_fd(), &raw mut about) } == -1 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { device: (libc::major(about.st_dev), libc::minor(about.st_dev)), inode: about.st_ino })
    }
}

/// The kind of a mapping. Names of files may be anything.
fn read_maps() -> io::Result<String> {
    let maps = match fs::read(OsStr::from_bytes(MAPS.to_bytes())) {
        Err(error) if error.raw_os_error() == Some(libc::EMFILE) => read_by_a_child(),
        maps => maps,
    };
    Ok(String::from_utf8_lossy(&maps?).into_owned())
}

/// For `open`.
const MAPS: &CStr = c"/proc/self/maps";

/// The bytes that fit into `text`, and their number.
struct Copied<'a> {
    text: &'a mut [u8],
    length: io::Result<usize>,
}

/// Reads it in a child that has the program's memory and descriptors of its own, for when the program has no free one: the
/// mappings have to be known above all before a fork, and when memory is given back.
fn read_by_a_child() -> io::Result<Vec<u8>> {
    const STACK: usize = 64 << 10;
    let _unseen = SignalsBlocked::new();
    let mut stack = vec![0u8; STACK];
    let mut text = vec![0; 1 << 20];
    loop {
        let mut copied = Copied { text: &mut text, length: Err(io::ErrorKind::Interrupted.into()) };
        // SAFETY: the child runs on a stack of its own, aligned for anything at its end, while this thread waits until it has ended.
        let child = unsafe {
            let top = stack.as_mut_ptr().add(STACK).map_addr(|end| end & !63);
            let flags = libc::CLONE_VM | libc::CLONE_VFORK;
            libc::clone(copy_maps, top.cast(), flags, (&raw mut copied).cast())
        };
        if child == -1 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: no memory is passed. The child has ended, and sends no signal.
        unsafe { libc::waitpid(child, ptr::null_mut(), libc::__WCLONE) };
        let length = copied.length?;
        if length < text.len() {
            text.truncate(length);
            return Ok(text);
        }
        text.resize(2 * length, 0);
    }
}

/// Makes system calls alone, and none in which a thread is cancelled: all but descriptors is a thread's of the program, which waits.
extern "C" fn copy_maps(copied: *mut c_void) -> c_int {
    // SAFETY: `read_by_a_child` passes it, and waits.
    let copied = unsafe { &mut *copied.cast::<Copied<'_>>() };
    // SAFETY: no memory is passed but a C string and the rest of the text. The descriptors are the child's copies.
    copied.length = unsafe {
        libc::syscall(libc::SYS_close_range, 0, libc::c_uint::MAX, 0);
        let file = libc::syscall(libc::SYS_openat, libc::AT_FDCWD, MAPS.as_ptr(), libc::O_RDONLY);
        let mut length = 0;
        loop {
            let rest = &mut copied.text[length..];
            match check(libc::syscall(libc::SYS_read, file, rest.as_mut_ptr(), rest.len())) {
                Ok(0) => break Ok(length),
                Ok(count) => length += count,
                Err(error) => break Err(error),
            }
        }
    };
    0
}

/// True if `range` shows `memory` from `offset` on.
pub(super) fn shows(range: &Range<u64>, memory: &OwnedFd, offset: u64) -> bool {
    mappings(memory).is_ok_and(|mappings| covers(range, &mappings, offset))
}

fn covers(range: &Range<u64>, mappings: &[Mapping], offset: u64) -> bool {
    let start = range.start.wrapping_sub(offset);
    let in_place = mappings.iter().filter(|(mapped, offset)| *offset == mapped.start.wrapping_sub(start));
    let mut at = range.start;
    for (mapped, _) in in_place {
        if (mapped.start..mapped.end).contains(&at) {
            at = mapped.end;
        }
    }
    at >= range.end
}

/// All mappings of `memory`.
///
/// # Errors
/// The errors of reading `/proc`; it may be missing, or the process may have no descriptor for it.
pub(super) fn mappings(memory: &OwnedFd) -> io::Result<Vec<Mapping>> {
    Ok(mappings_in(&read_maps()?, FileId::of(memory)?))
}

/// False if some part of the memory is at two places.
pub(super) fn is_shown_once(mappings: &[Mapping]) -> bool {
    let mut parts: Vec<_> =
        mappings.iter().map(|(range, offset)| (*offset, range.end - range.start)).collect();
    parts.sort_unstable();
    parts.is_sorted_by(|(offset, length), (next, _)| offset + length <= *next)
}

fn mappings_in(maps: &str, file: FileId) -> Vec<Mapping> {
    let shared = maps.lines().filter_map(parse_shared);
    shared.filter(|(_, shown)| *shown == file).map(|(mapping, _)| mapping).collect()
}

/// The kind of mapping in a line, and its file.
fn parse_shared(line: &str) -> Option<(Mapping, FileId)> {
    let (range, _) = parse(line)?;
    let mut fields = line.split_ascii_whitespace().skip(1);
    let shared = fields.next()?.ends_with('s');
    let offset = u64::from_str_radix(fields.next()?, 16).ok()?;
    let (major, minor) = fields.next()?.split_once(':')?;
    let device = (u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?);
    let inode = fields.next()?.parse().ok()?;
    shared.then_some(((range, offset), FileId { device, inode }))
}

fn pieces(maps: &str, range: &Range<u64>) -> Option<Vec<Piece>> {
    let mut found = Vec::new();
    let mut at = range.start;
    let mut guarded = 0;
    for line in maps.lines() {
        let (mapped, is_plain) = parse(line)?;
        if mapped.end <= at {
            let is_guard = line.contains(" ---p ") && mapped.end - mapped.start <= GUARD;
            guarded = if is_guard { mapped.end } else { guarded };
            continue;
        }
        if mapped.start > at || mapped.start == guarded || !is_plain {
            return None;
        }
        found.push(at..mapped.end.min(range.end));
        at = mapped.end;
        if at >= range.end {
            return Some(found);
        }
    }
    None
}

/// A line's range, and whether it is private, anonymous and writable.
fn parse(line: &str) -> Option<(Range<u64>, bool)> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let range = u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?;
    let rights = fields.next()?;
    let inode = fields.nth(2)?;
    let name = fields.next().unwrap_or("");
    let plain = rights.starts_with("rw") && rights.ends_with('p') && inode == "0";
    Some((range, plain && matches!(name, "" | "[heap]")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
00001000-00003000 rw-p 00000000 00:00 0                                  [heap]
00003000-00005000 rw-p 00000000 00:00 0 
00006000-00007000 rw-p 00000000 00:00 0 
00007000-00008000 r--p 00000000 00:00 0 
00009000-0000a000 rw-s 00000000 00:01 77                                 /memfd:x (deleted)
0000b000-0000c000 rw-p 00000000 00:00 0                                  [stack]
0000d000-0000e000 ---p 00000000 00:00 0 
0000e000-0000f000 rw-p 00000000 00:00 0 
";

    #[test]
    fn mappings_can_be_read_without_a_free_descriptor() {
        let file = fs::File::open("/proc/self/status").unwrap();
        let maps = String::from_utf8(read_by_a_child().unwrap()).unwrap();
        assert!(maps.contains("[stack]") && maps.lines().all(|line| parse(line).is_some()));
        assert!(file.metadata().is_ok(), "the program's descriptors are not touched");
    }

    #[test]
    fn only_ranges_of_plain_private_memory_are_eligible() {
        assert_eq!(pieces(MAPS, &(0x2000..0x4000)), Some(vec![0x2000..0x3000, 0x3000..0x4000]));
        assert_eq!(pieces(MAPS, &(0x6000..0x7000)).map(|pieces| pieces.len()), Some(1));
        let gaps = [0x4000..0x7000, 0x0..0x2000, 0x10000..0x11000];
        let others = [0x7000..0x8000, 0x9000..0xa000];
        let stacks = [0xb000..0xc000, 0xe000..0xf000];
        for refused in gaps.into_iter().chain(others).chain(stacks) {
            assert_eq!(pieces(MAPS, &refused), None, "{refused:x?}");
        }
    }

    #[test]
    fn unmapped_replaced_and_moved_ranges_are_not_found_in_place() {
        let maps = "\
00001000-00003000 rw-s 00000000 00:01 77                                 /memfd:x (deleted)
00003000-00004000 rw-s 00002000 00:01 78                                 /memfd:y (deleted)
00005000-00006000 rw-s 00000000 00:01 77                                 /memfd:x (deleted)
00006000-00009000 rw-s 00005000 00:01 77                                 /memfd:x (deleted)
0000a000-0000b000 rw-s 00000000 00:1a 77                                 /dev/shm/of another device
";
        let file = |minor, inode| FileId { device: (0, minor), inode };
        let mappings = mappings_in(maps, file(1, 77));
        assert_eq!(mappings, [(0x1000..0x3000, 0), (0x5000..0x6000, 0), (0x6000..0x9000, 0x5000)]);
        assert!(covers(&(0x2000..0x3000), &mappings, 0x1000) && !covers(&(0x2000..0x3000), &mappings, 0));
        assert_eq!(mappings_in(maps, file(0x1a, 77)), [(0xa000..0xb000, 0)]);
        assert_eq!(mappings_in(maps, file(1, 79)), []);
        assert!(covers(&(0x1000..0x3000), &mappings, 0) && !covers(&(0x1000..0x4000), &mappings, 0));
        assert!(covers(&(0x5000..0x6000), &mappings, 0) && !covers(&(0x5000..0x7000), &mappings, 0));
    }

    #[test]
    fn memory_mapped_twice_is_not_shown_once() {
        let mapping = |start: u64, length: u64, offset: u64| (start..start + length, offset);
        assert!(is_shown_once(&[]) && is_shown_once(&[mapping(9000, 100, 50)]));
        assert!(is_shown_once(&[mapping(9000, 100, 100), mapping(1000, 100, 0), mapping(5000, 1, 300)]));
        assert!(!is_shown_once(&[mapping(9000, 100, 99), mapping(1000, 100, 0)]));
        assert!(!is_shown_once(&[mapping(9000, 10, 20), mapping(1000, 100, 0)]));
    }
}
