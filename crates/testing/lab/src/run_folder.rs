//! The parent directories of all labs, which the first lab creates and the last one removes.

use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::layout::{DISKS, RUN};

/// The lock for creating and removing the directory. It is beside the directory, and is removed with it.
const TURN: &str = "/run/transhume-labs";

/// How long to wait for the lock, which is held for microseconds, and how often to check.
const TURN_LIMIT: Duration = Duration::from_secs(2);
const TURN_INTERVAL: Duration = Duration::from_millis(1);

/// Creates `root`, a lab's directory, which other users cannot open.
///
/// # Errors
/// [`ErrorKind::AlreadyExists`] if it exists, and the errors of creating directories and of locking.
pub fn add(root: &Path) -> io::Result<()> {
    let _turn = turn()?;
    fs::create_dir_all(RUN)?;
    fs::create_dir_all(DISKS)?;
    DirBuilder::new().mode(0o700).create(root)
}

/// Removes the directories, and the file of the RDMA device with it, unless another lab or a coordinator has
/// files there.
///
/// # Errors
/// The errors of locking.
pub fn remove_if_empty() -> io::Result<()> {
    {
        let _turn = turn()?;
        if fs::remove_dir(RUN).is_ok() {
            fabric::device_file::remove();
        }
        // It stays as long as anything is in it.
        let _ = fs::remove_dir(DISKS);
    }
    private::lock::remove(Path::new(TURN));
    Ok(())
}

fn turn() -> io::Result<File> {
    let deadline = Instant::now() + TURN_LIMIT;
    loop {
        match private::lock::try_take(Path::new(TURN))? {
            Some(turn) => return Ok(turn),
            None if Instant::now() > deadline => {
                return Err(io::Error::new(
                    ErrorKind::TimedOut,
                    format!("another process holds {TURN} for too long"),
                ));
            }
            None => thread::sleep(TURN_INTERVAL),
        }
    }
}
