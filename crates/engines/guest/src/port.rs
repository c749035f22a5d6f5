//! The agent's end of the port.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;

use crate::frames::encode;
use crate::wire::{PORT, ToHost};

/// A port. Any thread sends, one reads.
pub struct Port {
    reading: File,
    writing: Mutex<File>,
}

/// What a read has found.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard {
    /// So many bytes.
    Bytes(usize),
    /// Nothing for the given time.
    Nothing,
    /// Nobody is at the other end.
    Nobody,
}

impl Port {
    /// The device of the machine's port, found without the links that udev makes.
    ///
    /// # Errors
    /// If the machine has no such port, or its kernel no driver for it.
    pub fn device() -> io::Result<PathBuf> {
        let missing =
            || io::Error::new(io::ErrorKind::NotFound, format!("there is no virtio-serial port {PORT}"));
        for entry in fs::read_dir("/sys/class/virtio-ports").map_err(|_| missing())? {
            let entry = entry?;
            if fs::read_to_string(entry.path().join("name")).is_ok_and(|name| name.trim() == PORT) {
                return Ok(Path::new("/dev").join(entry.file_name()));
            }
        }
        Err(missing())
    }

    /// Opens a port's device.
    ///
    /// # Errors
    /// Those of `open`.
    pub fn open(device: &Path) -> io::Result<Self> {
        Self::over(OpenOptions::new().read(true).write(true).open(device)?.into())
    }

    /// A port over any descriptor of a stream.
    ///
    /// # Errors
    /// Those of `dup`.
    pub fn over(descriptor: OwnedFd) -> io::Result<Self> {
        let reading = File::from(descriptor);
        Ok(Self { writing: Mutex::new(reading.try_clone()?), reading })
    }

    /// Sends a message. Waits while nobody is at the other end of a virtio-serial port.
    ///
    /// # Errors
    /// Those of `write`.
    ///
    /// # Panics
    /// If a thread has panicked while it was sending.
    pub fn send(&self, message: &ToHost) -> io::Result<()> {
        self.writing.lock().expect("no thread panics while it sends").write_all(&encode(message))
    }

    /// Reads what is there, or waits for it for at most `patience`.
    ///
    /// # Errors
    /// Those of `poll` and `read`.
    pub fn receive(&self, into: &mut [u8], patience: Duration) -> io::Result<Heard> {
        let patience = Timespec::try_from(patience).map_err(io::Error::other)?;
        let mut ready = [PollFd::from_borrowed_fd(self.reading.as_fd(), PollFlags::IN)];
        if retry_on_intr(|| poll(&mut ready, Some(&patience)))? == 0 {
            return Ok(Heard::Nothing);
        }
        match (&self.reading).read(into)? {
            0 => Ok(Heard::Nobody),
            length => Ok(Heard::Bytes(length)),
        }
    }
}
