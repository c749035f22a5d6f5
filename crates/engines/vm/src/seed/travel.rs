//! The image of a seed disk on its way to another host, over a channel of its own, while the guest runs.
//!
//! ```text
//! source                               destination
//!   │                          prepare  makes an empty image of that size; QEMU opens it
//!   │ precopy  the image's bytes ──────▶ written in place
//!   │ ◀─────────────────────────── done
//! ```
//!
//! The source goes on only then, so the guest finds the whole image at its destination.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// The name of the channel.
pub const CHANNEL: &str = "seed";

/// What the destination says when it has the whole image.
const DONE: u8 = 1;

/// How often the source checks whether the move goes on.
const LOOK: Duration = Duration::from_millis(50);

/// Source: sends the image, and waits until the destination has it.
///
/// # Errors
/// If the image cannot be read, the channel breaks, or the move does not go on.
pub fn send(channel: OwnedFd, image: &Path, goes_on: &dyn Fn() -> bool) -> io::Result<()> {
    let mut channel = Patient { channel: channel.into(), goes_on };
    channel.channel.set_read_timeout(Some(LOOK))?;
    channel.channel.set_write_timeout(Some(LOOK))?;
    io::copy(&mut File::open(image)?, &mut channel)?;
    let mut answer = [0];
    channel.read_exact(&mut answer)?;
    if answer == [DONE] { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// Destination: makes an empty image of `size` bytes, which the emulator can open.
///
/// # Errors
/// Those of the file.
pub fn make(image: &Path, size: u64) -> io::Result<()> {
    private::open(image, File::options().write(true).create(true).truncate(true))?.set_len(size)
}

/// Destination: writes the image that comes over the channel into its place.
///
/// # Errors
/// If the channel ends before `size` bytes have come, or the file cannot be written.
pub fn receive(channel: OwnedFd, image: &Path, size: u64) -> io::Result<()> {
    let mut channel = UnixStream::from(channel);
    let mut file = File::options().write(true).open(image)?;
    let come = io::copy(&mut (&channel).take(size), &mut file)?;
    if come < size {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    file.sync_all()?;
    channel.write_all(&[DONE])
}

/// A channel that is given up when the move does not go on.
struct Patient<'a> {
    channel: UnixStream,
    goes_on: &'a dyn Fn() -> bool,
}

impl Patient<'_> {
    fn patiently<T>(&self, mut call: impl FnMut(&UnixStream) -> io::Result<T>) -> io::Result<T> {
        loop {
            match call(&self.channel) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && (self.goes_on)() => {}
                done => return done,
            }
        }
    }
}

impl Read for Patient<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.patiently(|mut channel| channel.read(bytes))
    }
}

impl Write for Patient<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.patiently(|mut channel| channel.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::thread;

    use super::*;

    #[test]
    fn an_image_arrives_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        let bytes: Vec<u8> = (0..3_000_000_u32).map(|at| (at >> 3) as u8).collect();
        fs::write(&from, &bytes).unwrap();
        make(&to, bytes.len() as u64).unwrap();
        let (near, far) = UnixStream::pair().unwrap();
        let there = to.clone();
        let receiving = thread::spawn(move || receive(far.into(), &there, 3_000_000));
        send(near.into(), &from, &|| true).unwrap();
        receiving.join().unwrap().unwrap();
        assert!(fs::read(&to).unwrap() == bytes);
    }

    #[test]
    fn a_move_that_ends_early_does_not_wait_for_the_image() {
        let folder = tempfile::tempdir().unwrap();
        let from = folder.path().join("from");
        fs::write(&from, vec![0; 3_000_000]).unwrap();
        let (near, _silent) = UnixStream::pair().unwrap();
        assert!(send(near.into(), &from, &|| false).is_err());
        let (near, far) = UnixStream::pair().unwrap();
        drop(far);
        assert!(send(near.into(), &from, &|| true).is_err());
    }
}
