//! Output of the serial console that the node has not received when the machine stops.
//!
//! QEMU writes it into a pipe that init reads. Init does not read while it has no node, so the rest waits in the pipe. The source copies
//! that without consuming it: after a rollback, init sends it as ever. The destination puts it into the new pipe, before any of the guest's.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The most bytes that a pipe holds.
const PIPE: usize = 64 * 1024;

/// A copy of the bytes in the pipe that is the standard output of process `pid`.
pub fn waiting(pid: i32) -> io::Result<Vec<u8>> {
    let theirs = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(output_of(pid))?;
    let (mut reader, writer) = io::pipe()?;
    // SAFETY: no memory is passed, and both descriptors are open.
    let copied = unsafe { libc::tee(theirs.as_raw_fd(), writer.as_raw_fd(), PIPE, libc::SPLICE_F_NONBLOCK) };
    drop(writer);
    match io::Error::last_os_error() {
        error if copied == -1 && error.kind() != io::ErrorKind::WouldBlock => return Err(error),
        _ => {}
    }
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Puts the contents of the file `from`, if it exists, into that pipe, which is empty.
pub fn put_back(pid: i32, from: &Path) -> io::Result<()> {
    let bytes = match fs::read(from) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        bytes => bytes?,
    };
    let mut theirs = File::options().write(true).custom_flags(libc::O_NONBLOCK).open(output_of(pid))?;
    theirs.write_all(&bytes)
}

fn output_of(pid: i32) -> String {
    format!("/proc/{pid}/fd/1")
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn waiting_output_is_copied_and_stays() {
        let mut child = Command::new("sh")
            .args(["-c", "echo one; exec sleep 60"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (pid, begun) = (child.id().cast_signed(), Instant::now());
        while waiting(pid).unwrap() != b"one\n" {
            assert!(begun.elapsed() < Duration::from_secs(10), "nothing arrives");
        }
        assert_eq!(waiting(pid).unwrap(), b"one\n");
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("console");
        fs::write(&file, "two\n").unwrap();
        put_back(pid, &file).unwrap();
        assert_eq!(waiting(pid).unwrap(), b"one\ntwo\n");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn an_empty_pipe_has_nothing_waiting() {
        let mut child = Command::new("sleep").arg("60").stdout(Stdio::piped()).spawn().unwrap();
        assert_eq!(waiting(child.id().cast_signed()).unwrap(), b"");
        put_back(child.id().cast_signed(), Path::new("/nowhere/console")).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
