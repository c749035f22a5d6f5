//! Output and input of the serial console that have not arrived when the machine stops.
//!
//! **Output** that the node has not received: QEMU writes it into a pipe that init reads. Init does not read while it has no node, so the
//! rest waits in the pipe. The source copies that without consuming it: after a rollback, init sends it as ever. The destination puts it into
//! the new pipe. The few bytes that were in the serial port when the source's pipe was full come after it: QEMU writes them as soon as it
//! has loaded the port.
//!
//! **Input** that QEMU has not read: init writes it into a pipe, and writes nothing from the node's order to suspend on. The source takes
//! the rest out of the pipe once the guest is stopped, since QEMU goes on to read: a key that it takes after it has sent the state of
//! the serial port would be lost. The destination puts it into the new pipe, and the source back into its own after a rollback.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::thread;

/// The most bytes that a pipe holds.
const PIPE: usize = 64 * 1024;

/// A copy of the bytes in the pipe that is the standard output of process `pid`.
pub fn waiting(pid: i32) -> io::Result<Vec<u8>> {
    let theirs =
        File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path_of(pid, Stream::Output))?;
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

/// Takes the bytes that QEMU has not read yet out of the pipe that is its standard input, into which nobody writes meanwhile. Of what is
/// in the pipe, QEMU and this function read each byte once.
pub fn take_keys(pid: i32) -> io::Result<Vec<u8>> {
    take(pid, Stream::Input)
}

/// Takes the bytes out of a pipe.
fn take(pid: i32, stream: Stream) -> io::Result<Vec<u8>> {
    let mut theirs = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path_of(pid, stream))?;
    let (mut bytes, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        match theirs.read(&mut piece) {
            Ok(0) => return Ok(bytes),
            Ok(length) => bytes.extend_from_slice(&piece[..length]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(bytes),
            Err(error) => return Err(error),
        }
    }
}

/// Moves the contents of the file `from`, if it exists, into the pipe, before any output that is there.
pub fn put_back(pid: i32, stream: Stream, from: &Path) -> io::Result<()> {
    let mut bytes = match fs::read(from) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        bytes => bytes?,
    };
    if stream == Stream::Output {
        bytes.extend(take(pid, stream)?);
    }
    let path = path_of(pid, stream);
    let mut theirs = File::options().write(true).custom_flags(libc::O_NONBLOCK).open(&path)?;
    let written = write_some(&mut theirs, &bytes)?;
    let rest = bytes.split_off(written);
    if !rest.is_empty() {
        // There is room when init reads. If it ends before, so does the thread.
        let mut theirs = File::options().write(true).open(&path)?;
        thread::spawn(move || theirs.write_all(&rest));
    }
    fs::remove_file(from)
}

/// Writes as much as there is room for, and returns its length.
fn write_some(pipe: &mut File, bytes: &[u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < bytes.len() {
        match pipe.write(&bytes[done..]) {
            Ok(length) => done += length,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// A standard stream of QEMU: a pipe, and an end of the guest's console.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// What users type.
    Input,
    /// What the guest writes.
    Output,
}

fn path_of(pid: i32, stream: Stream) -> String {
    format!("/proc/{pid}/fd/{}", stream as i32)
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
        put_back(pid, Stream::Output, &file).unwrap();
        assert_eq!(waiting(pid).unwrap(), b"two\none\n");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn as_much_as_the_pipe_of_the_source_held_fits_behind_new_output() {
        let mut child = Command::new("sh")
            .args(["-c", "printf new; exec sleep 60"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (pid, begun) = (child.id().cast_signed(), Instant::now());
        while waiting(pid).unwrap() != b"new" {
            assert!(begun.elapsed() < Duration::from_secs(10), "nothing arrives");
        }
        let directory = tempfile::tempdir().unwrap();
        let (file, old) = (directory.path().join("console"), vec![b'o'; PIPE]);
        fs::write(&file, &old).unwrap();
        put_back(pid, Stream::Output, &file).unwrap();
        let mut all = vec![0; PIPE + 3];
        child.stdout.take().unwrap().read_exact(&mut all).unwrap();
        assert!(all.starts_with(&old) && all.ends_with(b"new"));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn an_empty_pipe_has_nothing_waiting() {
        let mut child = Command::new("sleep").arg("60").stdout(Stdio::piped()).spawn().unwrap();
        assert_eq!(waiting(child.id().cast_signed()).unwrap(), b"");
        put_back(child.id().cast_signed(), Stream::Output, Path::new("/nowhere/console")).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn keys_are_taken_out_and_put_back_once() {
        let mut child = Command::new("sh")
            .args(["-c", "read line; echo \"$line\"; exec sleep 60"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = child.id().cast_signed();
        let mut keyboard = child.stdin.take().unwrap();
        keyboard.write_all(b"ls").unwrap();
        let begun = Instant::now();
        let mut keys = Vec::new();
        while keys.is_empty() && begun.elapsed() < Duration::from_millis(200) {
            keys = take_keys(pid).unwrap();
        }
        assert_eq!(take_keys(pid).unwrap(), b"");
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("keys");
        fs::write(&file, &keys).unwrap();
        put_back(pid, Stream::Input, &file).unwrap();
        put_back(pid, Stream::Input, &file).unwrap();
        keyboard.write_all(b" -l\n").unwrap();
        while waiting(pid).unwrap() != b"ls -l\n" {
            assert!(begun.elapsed() < Duration::from_secs(10), "nothing arrives");
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
