//! Memory that a fork does not copy: the child has zeros there (`MADV_WIPEONFORK`), or no mapping (`MADV_DONTFORK`).
//!
//! The pager must not fill such pages in a child that the process forks in the meantime. A userfaultfd reports the fork, but not the advice.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

use crate::linux::task;

/// The memory of each process that a fork does not copy, by PID in the instance, in ascending order.
#[derive(Debug, Default)]
pub struct NotCopied(BTreeMap<u32, Vec<Range<u64>>>);

impl NotCopied {
    /// Reads it for the processes of a stopped tree.
    pub fn of(tree: &[i32]) -> io::Result<Self> {
        let mut found = BTreeMap::new();
        for pid in tree {
            let number = u32::try_from(task::number_inside(*pid)?).map_err(|_| io::ErrorKind::InvalidData)?;
            match task::read(&format!("/proc/{pid}/smaps")) {
                // It has ended, and was not reaped.
                Err(error) if task::has_ended(&error) => {}
                mappings => drop(found.insert(number, not_copied(&mappings?))),
            }
        }
        Ok(Self(found))
    }

    /// Whether the page at `address` is in such memory, and the address up to which this answer holds.
    pub fn find(&self, pid: u32, address: u64) -> (bool, u64) {
        let ranges = self.0.get(&pid).map_or(&[][..], Vec::as_slice);
        match ranges.iter().find(|range| address < range.end) {
            Some(range) if address >= range.start => (true, range.end),
            Some(range) => (false, range.start),
            None => (false, u64::MAX),
        }
    }
}

/// The mappings with one of the flags, according to `/proc/PID/smaps`.
fn not_copied(mappings: &str) -> Vec<Range<u64>> {
    let mut found = Vec::new();
    let mut present = None;
    for line in mappings.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            let is_one = flags.split_whitespace().any(|flag| matches!(flag, "dc" | "wf"));
            found.extend(present.take().filter(|_| is_one));
        } else {
            present = range(line).or(present);
        }
    }
    found
}

/// The range of addresses at the beginning of the lines about a mapping.
fn range(line: &str) -> Option<Range<u64>> {
    let (start, end) = line.split_whitespace().next()?.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    Some(number(start)?..number(end)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_a_fork_does_not_copy_is_found() {
        // SAFETY: the calls make new memory, and advise on that memory only.
        let at = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let at = libc::mmap(std::ptr::null_mut(), 3 * 4096, libc::PROT_READ, flags, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            assert_eq!(libc::madvise(at.byte_add(4096), 4096, libc::MADV_WIPEONFORK), 0);
            at as u64
        };
        let me = std::process::id();
        let found = NotCopied::of(&[me.cast_signed()]).unwrap();
        let number = task::number_inside(me.cast_signed()).unwrap().unsigned_abs();
        assert_eq!(found.find(number, at), (false, at + 4096));
        assert_eq!(found.find(number, at + 4096), (true, at + 2 * 4096));
        assert!(!found.find(number, at + 2 * 4096).0 && !found.find(number + 1, at + 4096).0);
    }
}
