//! The home directory of a user of a container or guest, from its own `/etc/passwd`, which is untrusted input.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The variable with the home directory. An OCI runtime sets it for init if the configuration does not.
pub const HOME: &str = "HOME";

const USERS: &str = "/etc/passwd";

/// The length limit of the file; the rest is not read.
const MOST_BYTES: u64 = 1 << 20;

/// The home of a user that the file does not list, as in other container engines.
const OF_STRANGERS: &str = "/";

/// The home directory of `user`.
pub fn of(user: u32) -> OsString {
    let users = read(Path::new(USERS)).unwrap_or_default();
    let home = users.split(|byte| *byte == b'\n').find_map(|line| home_in(line, user));
    home.unwrap_or(OsStr::new(OF_STRANGERS)).to_owned()
}

/// Reads the file without blocking: if it is a pipe, init must not wait for a writer.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    let mut bytes = Vec::new();
    if file.metadata()?.is_file() {
        file.take(MOST_BYTES).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

/// The home directory in a line `NAME:PASSWORD:UID:GID:COMMENT:HOME:SHELL`, if it is this user's line.
fn home_in(line: &[u8], user: u32) -> Option<&OsStr> {
    let mut fields = line.split(|byte| *byte == b':');
    let number = str::from_utf8(fields.nth(2)?).ok()?.parse::<u32>().ok()?;
    let home = fields.nth(2)?;
    // Without another field behind it, the home may be cut off.
    fields.next()?;
    let is_path = home.starts_with(b"/") && home.len() < libc::PATH_MAX as usize && !home.contains(&0);
    (number == user && is_path).then(|| OsStr::from_bytes(home))
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::fs;

    use super::*;

    #[test]
    fn a_home_is_found_by_the_uid_in_a_valid_line() {
        let home = |line: &[u8]| home_in(line, 7).and_then(OsStr::to_str).map(str::to_owned);
        assert_eq!(home(b"seven:x:7:9:Seven,,:/home/seven:/bin/sh").as_deref(), Some("/home/seven"));
        let long = [b"a:x:7:7::/", &[b'x'; 5000][..], b":"].concat();
        let strange: [&[u8]; 10] = [
            b"",
            b"#",
            b":::::::::",
            b"other:x:8:7::/home:/bin/sh",
            b"a:x:seven:7::/home:/bin/sh",
            b"a:x:4294967303:7::/home:/bin/sh",
            b"a:x:\xff:7::/home:/bin/sh",
            b"a:x:7:7::home:/bin/sh",
            b"a:x:7:7::/ho\0me:/bin/sh",
            b"a:x:7:7::/hom",
        ];
        for line in strange.into_iter().chain([&long[..]]) {
            assert_eq!(home(line), None, "{}", line.escape_ascii());
        }
    }

    #[test]
    fn only_the_beginning_of_an_endless_file_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("passwd");
        let pipe = CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: the path is live.
        assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
        assert!(read(&path).unwrap().is_empty() && read(Path::new("/dev/zero")).unwrap().is_empty());
        fs::remove_file(&path).unwrap();
        File::create(&path).unwrap().set_len(MOST_BYTES + 1).unwrap();
        assert_eq!(read(&path).unwrap().len() as u64, MOST_BYTES);
    }
}
