//! The build ID of an ELF file, with which two hosts find out whether they have the same library.

use std::fs::File;
use std::os::unix::fs::FileExt;

const PT_NOTE: u32 = 4;
const NT_GNU_BUILD_ID: u32 = 3;
/// The length limit of notes, in bytes.
const MOST_NOTES: u64 = 64 * 1024;
const MOST_SEGMENTS: u16 = 128;

/// The build ID in hexadecimal digits; `None` if the file has none or is not a 64-bit ELF file of this architecture.
pub fn build_id(file: &File) -> Option<String> {
    let mut header = [0; 64];
    file.read_exact_at(&mut header, 0).ok()?;
    if !header.starts_with(b"\x7fELF\x02") {
        return None;
    }
    let (table, size, count) = (u64_at(&header, 32)?, u16_at(&header, 54)?, u16_at(&header, 56)?);
    (0..count.min(MOST_SEGMENTS)).find_map(|number| {
        let mut segment = [0; 56];
        file.read_exact_at(&mut segment, table.checked_add(u64::from(number) * u64::from(size))?).ok()?;
        let (offset, length) = (u64_at(&segment, 8)?, u64_at(&segment, 32)?);
        if u32_at(&segment, 0)? != PT_NOTE || length > MOST_NOTES {
            return None;
        }
        let mut notes = vec![0; usize::try_from(length).ok()?];
        file.read_exact_at(&mut notes, offset).ok()?;
        build_id_in(&notes)
    })
}

pub fn build_id_in(mut notes: &[u8]) -> Option<String> {
    loop {
        let (name, length, kind) = (u32_at(notes, 0)?, u32_at(notes, 4)?, u32_at(notes, 8)?);
        let value = 12 + (name as usize).next_multiple_of(4);
        let next = value + (length as usize).next_multiple_of(4);
        if kind == NT_GNU_BUILD_ID && notes.get(12..16) == Some(b"GNU\0") {
            let id = notes.get(value..value + length as usize)?;
            return Some(id.iter().map(|byte| format!("{byte:02x}")).collect());
        }
        notes = notes.get(next..)?;
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_library_has_a_build_id() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let library =
            maps.lines().find_map(|line| line.split(' ').next_back().filter(|p| p.contains("libc.so")));
        assert_eq!(build_id(&File::open(library.unwrap()).unwrap()).unwrap().len(), 40);
    }

    #[test]
    fn the_id_is_found_behind_other_notes() {
        let mut notes = Vec::new();
        for (kind, value) in [(1_u32, &b"abcd"[..]), (NT_GNU_BUILD_ID, b"\x01\xff")] {
            for number in [4, value.len() as u32, kind] {
                notes.extend(number.to_ne_bytes());
            }
            notes.extend(b"GNU\0");
            notes.extend(value);
        }
        assert_eq!(build_id_in(&notes).unwrap(), "01ff");
        assert_eq!(build_id_in(&notes[..20]), None);
    }
}
