//! Reads `/proc/PID/mountinfo`.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// The mount points that process `pid` sees.
pub fn mountpoints(pid: i32) -> io::Result<Vec<PathBuf>> {
    let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo"))?;
    Ok(mounts.lines().filter_map(|line| line.split(' ').nth(4)).map(unescaped).collect())
}

/// Decodes a field: the kernel writes blanks and similar characters as `\040`.
pub fn unescaped(field: &str) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = field.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let octal = tail.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let octal = octal.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        (bytes, rest) = match octal.filter(|_| first == b'\\') {
            Some(byte) => ([bytes, vec![byte]].concat(), &tail[3..]),
            None => ([bytes, vec![first]].concat(), tail),
        };
    }
    PathBuf::from(std::ffi::OsStr::from_bytes(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_of_mount_points_are_read_as_the_kernel_writes_them() {
        assert_eq!(unescaped("/srv/a\\040b\\134c"), PathBuf::from("/srv/a b\\c"));
        assert_eq!(unescaped("/srv/a\\"), PathBuf::from("/srv/a\\"));
    }
}
