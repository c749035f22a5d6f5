//! Files and directories that only their owner may read: what daemons remember of instances has the
//! environment of their programs in it, and with it passwords and keys.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

const DIRECTORY: u32 = 0o700;
const FILE: u32 = 0o600;

/// Makes the directory at `path` its owner's alone, and makes it if it is not there. Directories above it
/// are made as others are.
///
/// # Errors
/// If it cannot be made, or is another user's.
pub fn directory(path: &Path) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    match DirBuilder::new().mode(DIRECTORY).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {
            fs::set_permissions(path, Permissions::from_mode(DIRECTORY))
        }
        made => made,
    }
}

/// Makes the directory at `path`, and all directories and files below it, their owner's alone. Links are
/// not followed.
///
/// # Errors
/// As [`directory`]; also if what is there cannot be listed.
pub fn tree(path: &Path) -> io::Result<()> {
    directory(path)?;
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            tree(&entry.path())?;
        } else if kind.is_file() {
            fs::set_permissions(entry.path(), Permissions::from_mode(FILE))?;
        }
    }
    Ok(())
}

/// Opens the file at `path` with `options`, its owner's alone also if it was there.
///
/// # Errors
/// As opening any file.
pub fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let file = options.mode(FILE).open(path)?;
    file.set_permissions(Permissions::from_mode(FILE))?;
    Ok(file)
}

/// Writes a file of which readers see either the old contents or all of the new ones.
///
/// # Errors
/// As writing any file.
pub fn replace(path: &Path, contents: &[u8]) -> io::Result<()> {
    let fresh = path.with_extension("new");
    let mut file = open(&fresh, OpenOptions::new().write(true).create(true).truncate(true))?;
    let replaced = file.write_all(contents).and_then(|()| fs::rename(&fresh, path));
    if replaced.is_err() {
        // Half of it would only take room.
        let _left = fs::remove_file(&fresh);
    }
    replaced
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn what_is_made_is_its_owners_alone() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("lib/state");
        directory(&state).unwrap();
        replace(&state.join("record.json"), b"secret").unwrap();
        assert_eq!((mode(&state), mode(&state.join("record.json"))), (0o700, 0o600));
        assert_eq!(fs::read(state.join("record.json")).unwrap(), b"secret");
        assert_ne!(mode(&folder.path().join("lib")), 0o700);
    }

    #[test]
    fn what_others_could_read_is_closed_and_links_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let (state, outside) = (folder.path().join("state"), folder.path().join("outside"));
        fs::create_dir_all(state.join("deep")).unwrap();
        for file in [&outside, &state.join("deep/file")] {
            fs::write(file, "").unwrap();
            set_mode(file, 0o644);
        }
        std::os::unix::fs::symlink(&outside, state.join("link")).unwrap();
        set_mode(&state, 0o755);
        tree(&state).unwrap();
        assert_eq!([mode(&state), mode(&state.join("deep"))], [0o700; 2]);
        assert_eq!((mode(&state.join("deep/file")), mode(&outside)), (0o600, 0o644));
    }
}
