//! Locks that only their owner can take: other users could hold a lock on a file that they can open, for ever.

use std::fs::{self, File, Metadata, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// How often the directory may be removed between its creation and its locking before the lock counts as held.
const ATTEMPTS: u32 = 1000;

/// How often a held lock is tried again.
const LOOK: Duration = Duration::from_millis(20);

/// Locks the directory at `path`, which is created if necessary; `None` while another process holds the lock.
/// The lock is released when the file is dropped, or its process ends.
///
/// # Errors
/// Those of [`crate::directory`], and of locking.
pub fn try_take(path: &Path) -> io::Result<Option<File>> {
    for _ in 0..ATTEMPTS {
        let lock = match crate::directory(path).and_then(|()| File::open(path)) {
            // The directory was removed concurrently.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            lock => lock?,
        };
        match lock.try_lock() {
            Ok(()) if is_still(&lock, path) => return Ok(Some(lock)),
            // As above.
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Ok(None)
}

/// Like [`try_take`], but retries until `patience` has elapsed while another process holds the lock.
///
/// # Errors
/// Those of [`try_take`].
pub fn take(path: &Path, patience: Duration) -> io::Result<Option<File>> {
    let end = Instant::now() + patience;
    take_after(path, || {
        let goes_on = Instant::now() < end;
        if goes_on {
            thread::sleep(LOOK);
        }
        goes_on
    })
}

/// Like [`try_take`], but retries as long as `pause` returns true while another process holds the lock.
fn take_after(path: &Path, mut pause: impl FnMut() -> bool) -> io::Result<Option<File>> {
    loop {
        match try_take(path)? {
            None if pause() => {}
            taken => return Ok(taken),
        }
    }
}

/// Removes the directory at `path`, unless another process holds its lock or it is not empty.
pub fn remove(path: &Path) {
    if !path.exists() {
        return;
    }
    // A process that holds the lock, or takes it later, removes the directory itself.
    if let Ok(Some(_lock)) = try_take(path) {
        let _ = fs::remove_dir(path);
    }
}

/// Whether `lock` is still the directory at `path`.
fn is_still(lock: &File, path: &Path) -> bool {
    let same = |(one, other): (Metadata, Metadata)| (one.dev(), one.ino()) == (other.dev(), other.ino());
    lock.metadata().ok().zip(fs::metadata(path).ok()).is_some_and(same)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn lock_is_exclusive_and_inaccessible_to_others() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("turn");
        let first = try_take(&path).unwrap().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        assert!(try_take(&path).unwrap().is_none());
        remove(&path);
        assert!(path.exists());
        drop(first);
        remove(&path);
        assert!(!path.exists());
    }

    #[test]
    fn lock_is_acquired_after_release() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("turn");
        let mut others = vec![try_take(&path).unwrap().unwrap()];
        others.push(others[0].try_clone().unwrap());
        let own = take_after(&path, || others.pop().is_some()).unwrap();
        assert!(own.is_some() && others.is_empty());
        assert!(take(&path, Duration::ZERO).unwrap().is_none());
    }

    #[test]
    fn lock_survives_concurrent_take_and_remove() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("turn");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        drop(try_take(&path).unwrap());
                        remove(&path);
                    }
                });
            }
        });
        remove(&path);
        assert!(!path.exists());
    }

    #[test]
    fn a_removed_directory_holds_no_lock() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("turn");
        let lock = try_take(&path).unwrap().unwrap();
        assert!(is_still(&lock, &path));
        fs::remove_dir(&path).unwrap();
        assert!(!is_still(&lock, &path));
        assert!(try_take(&path).unwrap().is_some());
    }
}
