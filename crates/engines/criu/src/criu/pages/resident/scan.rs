//! Finds the present pages of a process.

use std::fs::File;
use std::io;
use std::mem;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use super::Kind;
use crate::memory::PAGE;

/// Without `PAGEMAP_SCAN`, the kernel returns an entry for each page, present or not. A mapping larger than this many bytes is
/// mostly absent, and the scan would take longer than the dump.
const MAX_ASKED: u64 = 16 << 30;

/// The number of runs that the kernel returns at once.
const RUNS: usize = 512;

/// Bits of categories for `PAGEMAP_SCAN`: `linux/fs.h`.
mod category {
    pub const FILE: u64 = 1 << 2;
    pub const PRESENT: u64 = 1 << 3;
    pub const SWAPPED: u64 = 1 << 4;
    pub const PFNZERO: u64 = 1 << 5;
}

/// `struct pm_scan_arg`.
#[repr(C)]
#[derive(Default)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// `PAGEMAP_SCAN`: `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: libc::c_ulong = 0xc060_6610;

/// The runs of pages from `start` to `end` that a dump contains, according to `/proc/PID/pagemap`.
pub fn present(pagemap: &File, start: u64, end: u64, kind: Kind) -> io::Result<Vec<(u64, u64)>> {
    match scan(pagemap, start, end, kind) {
        // Before Linux 6.7.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOTTY | libc::EINVAL)) => {
            ask(pagemap, start, end, kind)
        }
        runs => runs,
    }
}

fn scan(pagemap: &File, mut start: u64, end: u64, kind: Kind) -> io::Result<Vec<(u64, u64)>> {
    let mut runs = Vec::new();
    let mut regions = [Region::default(); RUNS];
    let unwanted = match kind {
        Kind::Private => category::FILE | category::PFNZERO,
        Kind::Shared => 0,
    };
    while start < end {
        let mut scan = Scan {
            size: mem::size_of::<Scan>() as u64,
            start,
            end,
            vec: regions.as_mut_ptr() as u64,
            vec_len: RUNS as u64,
            category_inverted: unwanted,
            category_mask: unwanted,
            category_anyof_mask: category::PRESENT | category::SWAPPED,
            return_mask: category::PRESENT | category::SWAPPED,
            ..Scan::default()
        };
        // SAFETY: the argument is a live `pm_scan_arg`, whose vector is live, writable and as long as it says.
        let found = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, &raw mut scan) };
        let found = usize::try_from(found).map_err(|_| io::Error::last_os_error())?;
        regions.iter().take(found).for_each(|region| add(&mut runs, region.start, region.end));
        if scan.walk_end <= start {
            break;
        }
        start = scan.walk_end;
    }
    Ok(runs)
}

/// Reads the entry of each page.
fn ask(pagemap: &File, start: u64, end: u64, kind: Kind) -> io::Result<Vec<(u64, u64)>> {
    const ENTRY: u64 = 8;
    const THERE: u64 = 1 << 63 | 1 << 62;
    const FILE: u64 = 1 << 61;
    let mut runs = Vec::new();
    if end - start > MAX_ASKED {
        return Ok(runs);
    }
    let mut entries = [0; 4096];
    let mut page = start / PAGE as u64;
    let last = end / PAGE as u64;
    while page < last {
        let length = (((last - page) * ENTRY) as usize).min(entries.len());
        let read = pagemap.read_at(&mut entries[..length], page * ENTRY)?;
        for entry in entries[..read].as_chunks::<8>().0 {
            let entry = u64::from_le_bytes(*entry);
            if entry & THERE != 0 && (kind == Kind::Shared || entry & FILE == 0) {
                add(&mut runs, page * PAGE as u64, (page + 1) * PAGE as u64);
            }
            page += 1;
        }
        if read < ENTRY as usize {
            break;
        }
    }
    Ok(runs)
}

fn add(runs: &mut Vec<(u64, u64)>, start: u64, end: u64) {
    match runs.last_mut() {
        Some(last) if last.1 == start => last.1 = end,
        _ => runs.push((start, end)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mapping of eight pages: 1, 2 and 5 are written, and 7 is only read.
    fn mapped() -> *mut u8 {
        // SAFETY: the calls make new memory, and touch that memory only.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let start =
                libc::mmap(std::ptr::null_mut(), 8 * PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            assert_ne!(start, libc::MAP_FAILED);
            libc::madvise(start, 8 * PAGE, libc::MADV_NOHUGEPAGE);
            let start = start.cast::<u8>();
            for page in [1, 2, 5] {
                start.add(page * PAGE).write_volatile(1);
            }
            start.add(7 * PAGE).read_volatile();
            start
        }
    }

    #[test]
    fn both_methods_find_the_present_pages() {
        let start = mapped() as u64;
        let end = start + 8 * PAGE as u64;
        let pagemap = File::open("/proc/self/pagemap").unwrap();
        let page = |number: u64| start + number * PAGE as u64;
        let written = [(page(1), page(3)), (page(5), page(6))];
        let asked = ask(&pagemap, start, end, Kind::Private).unwrap();
        assert_eq!(asked[..2], written);
        match scan(&pagemap, start, end, Kind::Private) {
            Ok(scanned) => assert_eq!(scanned, written),
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOTTY)),
        }
    }

    #[test]
    fn reserved_memory_is_scanned_fast() {
        let pagemap = File::open("/proc/self/pagemap").unwrap();
        assert_eq!(ask(&pagemap, 0, MAX_ASKED + PAGE as u64, Kind::Private).unwrap(), []);
    }
}
