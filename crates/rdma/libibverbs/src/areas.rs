//! Checks the rights of a range of the program's memory.

use std::fs::{self, File};
use std::ops::Range;
use std::os::fd::AsRawFd;

use libc::c_ulong;

/// The kernel's list of mappings.
const MAPS: &str = "/proc/self/maps";

// From linux/fs.h, since Linux 6.11.
const PROCMAP_QUERY: c_ulong = 0xc068_6611;
const COVERING_OR_NEXT: u64 = 0x10;
const READABLE: u64 = 1;
const WRITABLE: u64 = 2;

/// `struct procmap_query`
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    rights: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    device: [u32; 2],
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

const _: () = assert!(size_of::<Query>() == 104);

/// One mapping.
struct Area {
    range: Range<u64>,
    readable: bool,
    writable: bool,
}

/// True if the program may read all of `range`, and write it if `writes`. Without `/proc` this cannot be known, and the answer is yes.
pub(crate) fn may_use(range: &Range<u64>, writes: bool) -> bool {
    let Ok(maps) = File::open(MAPS) else { return true };
    let allows = |area: &Area| if writes { area.writable } else { area.readable };
    let mut at = range.start;
    while at < range.end {
        match ask(&maps, at) {
            Ok(area) if area.range.start <= at && allows(&area) => at = area.range.end,
            Ok(_) => return false,
            Err(libc::ENOENT) => return false,
            // Kernels before 6.11 do not know the question.
            Err(_) => {
                return fs::read(MAPS)
                    .is_ok_and(|maps| covers(&String::from_utf8_lossy(&maps), range, allows));
            }
        }
    }
    true
}

/// The mapping at `address`, or the next one.
fn ask(maps: &File, address: u64) -> Result<Area, i32> {
    let mut query =
        Query { size: size_of::<Query>() as u64, flags: COVERING_OR_NEXT, address, ..Query::default() };
    // SAFETY: the argument is live and of the request's type; it asks for no text.
    if unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY, &raw mut query) } == -1 {
        return Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::ENOTTY));
    }
    let has = |right| query.rights & right != 0;
    Ok(Area { range: query.start..query.end, readable: has(READABLE), writable: has(WRITABLE) })
}

/// Whether the mappings of `maps` cover `range` with areas that `allows` accepts.
fn covers(maps: &str, range: &Range<u64>, allows: impl Fn(&Area) -> bool) -> bool {
    let mut at = range.start;
    for area in maps.lines().filter_map(parse).skip_while(|area| area.range.end <= range.start) {
        if at >= range.end {
            break;
        }
        if area.range.start > at || !allows(&area) {
            return false;
        }
        at = area.range.end;
    }
    at >= range.end
}

/// The mapping in a line.
fn parse(line: &str) -> Option<Area> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let rights = fields.next()?.as_bytes();
    let range = u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?;
    Some(Area { range, readable: rights.first() == Some(&b'r'), writable: rights.get(1) == Some(&b'w') })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;

    /// Five pages: the third may only be read, the fourth not even that.
    fn pages() -> u64 {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: the pages of a fresh mapping get other rights.
        unsafe {
            let start = libc::mmap(std::ptr::null_mut(), 5 * PAGE, rights, flags, -1, 0);
            assert_ne!(start, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(start.byte_add(2 * PAGE), PAGE, libc::PROT_READ), 0);
            assert_eq!(libc::mprotect(start.byte_add(3 * PAGE), PAGE, libc::PROT_NONE), 0);
            start.addr() as u64
        }
    }

    #[test]
    fn areas_match_by_the_whole_range() {
        let start = pages();
        let range = |from: usize, to: usize| start + (from * PAGE) as u64..start + (to * PAGE) as u64;
        let text = fs::read_to_string(MAPS).unwrap();
        for (from, to, reads, writes) in [
            (0, 2, true, true),
            (0, 3, true, false),
            (1, 4, false, false),
            (0, 5, false, false),
            (4, 5, true, true),
        ] {
            let range = range(from, to);
            assert_eq!((may_use(&range, false), may_use(&range, true)), (reads, writes), "{from}..{to}");
            let by_text = |writes: bool| {
                covers(&text, &range, |area| if writes { area.writable } else { area.readable })
            };
            assert_eq!((by_text(false), by_text(true)), (reads, writes), "{from}..{to}, as text");
        }
        assert!(!may_use(&(u64::MAX - 2 * PAGE as u64..u64::MAX - PAGE as u64), false));
        assert!(!covers(&text, &(u64::MAX - 2 * PAGE as u64..u64::MAX - PAGE as u64), |_| true));
    }
}
