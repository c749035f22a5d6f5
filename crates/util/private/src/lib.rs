//! Files and directories that only their owner may read: the daemons' state contains the
//! environments of programs, and thus passwords and keys.

pub mod lock;

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{self, Path, PathBuf};

use rustix::fs::OFlags;

const DIRECTORY: u32 = 0o700;
const PARENT: u32 = 0o755;
const STICKY: u32 = 0o1000;
const FILE: u32 = 0o600;

/// Makes the directory at `path` accessible to its owner only, and creates it if necessary. Its parents
/// get the usual permissions.
///
/// # Errors
/// If it cannot be created, belongs to or is a link of another user, or if another user could replace
/// it.
pub fn directory(path: &Path) -> io::Result<()> {
    let path = path::absolute(path)?;
    for parent in path.ancestors().skip(1).collect::<Vec<_>>().into_iter().rev() {
        make(parent, PARENT)?;
        require_trusted(parent)?;
    }
    make(&path, DIRECTORY)?;
    let opened = File::open(&path)?;
    require_own(&path, &fs::symlink_metadata(&path)?)?;
    require_own(&path, &opened.metadata()?)?;
    opened.set_permissions(Permissions::from_mode(DIRECTORY))
}

/// Creates the directory at `path`, accessible to its owner only. An existing one stays as it is.
///
/// # Errors
/// If it cannot be created, or if another user could replace it or its contents.
pub fn trusted(path: &Path) -> io::Result<()> {
    let path = path::absolute(path)?;
    for part in path.ancestors().collect::<Vec<_>>().into_iter().rev() {
        make(part, if part == path { DIRECTORY } else { PARENT })?;
        require_trusted(part)?;
    }
    Ok(())
}

/// Creates a directory with `mode`, if nothing exists there.
fn make(path: &Path, mode: u32) -> io::Result<()> {
    let Err(error) = DirBuilder::new().mode(mode).create(path) else { return Ok(()) };
    match path.metadata() {
        Ok(found) if found.is_dir() => Ok(()),
        // The existing directory was removed concurrently.
        Err(gone) if error.kind() == ErrorKind::AlreadyExists && !path.is_symlink() => Err(gone),
        _ => Err(error),
    }
}

fn require_own(path: &Path, found: &Metadata) -> io::Result<()> {
    let own = rustix::process::geteuid().as_raw();
    if found.uid() == own {
        return Ok(());
    }
    Err(refused(format!(
        "{} belongs to user {} instead of user {own}: remove it, or choose another directory",
        path.display(),
        found.uid(),
    )))
}

/// A user who may write to a directory can replace its contents, except those of others in a sticky directory.
fn require_trusted(parent: &Path) -> io::Result<()> {
    let own = rustix::process::geteuid().as_raw();
    let (link, found) = (fs::symlink_metadata(parent)?, fs::metadata(parent)?);
    if let Some(user) = [link.uid(), found.uid()].into_iter().find(|user| *user != 0 && *user != own) {
        return Err(refused(format!(
            "{} belongs to user {user}, which could replace its contents: remove it, or choose another directory",
            parent.display()
        )));
    }
    if others_can_write(&found) && found.mode() & STICKY == 0 {
        return Err(refused(format!(
            "other users can replace the contents of {0}: run `chmod go-w {0}`, or choose another directory",
            parent.display()
        )));
    }
    Ok(())
}

/// A group with the number of its user contains only that user.
fn others_can_write(directory: &Metadata) -> bool {
    let shared_group = directory.gid() != directory.uid();
    directory.mode() & 0o002 != 0 || (shared_group && directory.mode() & 0o020 != 0)
}

fn refused(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

/// Makes the directory at `path`, and everything below it, accessible to its owner only. Links are
/// not followed.
///
/// # Errors
/// Those of [`directory`]; also if the contents cannot be listed.
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

/// Opens the file at `path` with `options`, and makes it accessible to its owner only, even if it existed.
///
/// # Errors
/// As opening any file.
pub fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let file = options.mode(FILE).open(path)?;
    file.set_permissions(Permissions::from_mode(FILE))?;
    Ok(file)
}

/// Opens the regular file at `path` for reading. Other files are refused, because opening a named pipe could block.
///
/// # Errors
/// Those of opening a file; `InvalidData` if it is not a regular file.
pub fn regular(path: &Path) -> io::Result<File> {
    let without_waiting = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(without_waiting).open(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, format!("{} is not a regular file", path.display())))
}

/// Creates a file atomically and durably: readers see nothing or the complete file, and it survives a crash of the machine when
/// this returns.
///
/// # Errors
/// `AlreadyExists` if it exists, even if another process has just written it; otherwise those of writing a file.
pub fn create_durably(path: &Path, contents: &[u8]) -> io::Result<()> {
    let mut own = path.as_os_str().to_owned();
    own.push(format!(".{}", std::process::id()));
    let own = PathBuf::from(own);
    let mut file = open(&own, OpenOptions::new().write(true).create(true).truncate(true))?;
    let written = file.write_all(contents).and_then(|()| file.sync_all());
    let created = written.and_then(|()| fs::hard_link(&own, path));
    let _left = fs::remove_file(&own);
    created.and_then(|()| sync_folder_of(path))
}

/// The temporary file for new contents of the file at `path`, which is then renamed. It is unique per path: `a.pid` and
/// `a.sock` may be replaced concurrently.
#[must_use]
pub fn fresh_for(path: &Path) -> PathBuf {
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(".new");
    fresh.into()
}

/// Replaces a file atomically: readers see either the old or the new contents.
///
/// # Errors
/// As writing any file.
pub fn replace(path: &Path, contents: &[u8]) -> io::Result<()> {
    replace_after(path, contents, |_file| Ok(()))
}

/// Likewise, and the new contents survive a crash of the machine when this returns.
///
/// # Errors
/// As writing any file.
pub fn replace_durably(path: &Path, contents: &[u8]) -> io::Result<()> {
    replace_after(path, contents, fs::File::sync_all)?;
    sync_folder_of(path)
}

/// Calls `ready` with the new file before it replaces the old one.
fn replace_after(
    path: &Path,
    contents: &[u8],
    ready: impl FnOnce(&fs::File) -> io::Result<()>,
) -> io::Result<()> {
    let fresh = fresh_for(path);
    let mut file = open(&fresh, OpenOptions::new().write(true).create(true).truncate(true))?;
    let written = file.write_all(contents).and_then(|()| ready(&file));
    let replaced = written.and_then(|()| fs::rename(&fresh, path));
    if replaced.is_err() {
        // A partial file would only take room.
        let _left = fs::remove_file(&fresh);
    }
    replaced
}

/// Syncs the directory that contains `path`.
///
/// # Errors
/// Those of opening and syncing the directory.
pub fn sync_folder_of(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    fs::File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, lchown, symlink};

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn new_files_are_accessible_to_their_owner_only() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("lib/state");
        directory(&state).unwrap();
        replace(&state.join("record.json"), b"secret").unwrap();
        assert_eq!((mode(&state), mode(&state.join("record.json"))), (0o700, 0o600));
        assert_eq!(fs::read(state.join("record.json")).unwrap(), b"secret");
        assert_ne!(mode(&folder.path().join("lib")), 0o700);
    }

    #[test]
    fn files_of_one_stem_are_written_in_different_places() {
        let [pid, socket] =
            ["run/coordinator.pid", "run/coordinator.sock"].map(|path| fresh_for(Path::new(path)));
        assert_ne!(pid, socket);
        // The coordinator's socket is made there.
        assert_ne!(pid, Path::new("run/coordinator.new"));
    }

    #[test]
    fn tree_restricts_permissions_without_following_links() {
        let folder = tempfile::tempdir().unwrap();
        let (state, outside) = (folder.path().join("state"), folder.path().join("outside"));
        fs::create_dir_all(state.join("deep")).unwrap();
        for file in [&outside, &state.join("deep/file")] {
            fs::write(file, "").unwrap();
            set_mode(file, 0o644);
        }
        symlink(&outside, state.join("link")).unwrap();
        set_mode(&state, 0o755);
        tree(&state).unwrap();
        assert_eq!([mode(&state), mode(&state.join("deep"))], [0o700; 2]);
        assert_eq!((mode(&state.join("deep/file")), mode(&outside)), (0o600, 0o644));
    }

    #[test]
    fn a_directory_that_is_there_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let (old, new) = (folder.path().join("old"), folder.path().join("old/deep/new"));
        fs::create_dir(&old).unwrap();
        set_mode(&old, 0o755);
        trusted(&old).unwrap();
        trusted(&new).unwrap();
        assert_eq!([mode(&old), mode(&new)], [0o755, 0o700]);
        set_mode(&old, 0o777);
        assert_eq!(trusted(&new).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn create_durably_does_not_replace_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("record");
        create_durably(&path, b"first").unwrap();
        assert_eq!(create_durably(&path, b"second").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(
            (fs::read(&path).unwrap(), fs::read_dir(folder.path()).unwrap().count()),
            (b"first".to_vec(), 1)
        );
    }

    #[test]
    fn regular_does_not_block_on_a_pipe() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert_eq!(regular(&pipe).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(regular(folder.path()).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    /// A user that owns nothing else here.
    const NOBODY: u32 = 65534;

    fn refusal(path: &Path) -> String {
        let error = directory(path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
        error.to_string()
    }

    #[test]
    fn another_users_directory_is_refused_and_unchanged() {
        if !test_support::is_root() {
            return test_support::skip("only root can give a directory away");
        }
        let folder = tempfile::tempdir().unwrap();
        let foreign = folder.path().join("images");
        fs::create_dir(&foreign).unwrap();
        set_mode(&foreign, 0o755);
        chown(&foreign, Some(NOBODY), Some(NOBODY)).unwrap();
        let why = refusal(&foreign);
        assert!(why.contains("images belongs to user 65534 instead of user 0") && why.contains("remove it"));
        assert!(refusal(&foreign.join("h1")).contains("images belongs to user 65534, which could replace"));
        assert_eq!(mode(&foreign), 0o755);
        assert!(!foreign.join("h1").exists());
    }

    #[test]
    fn follows_links_only_within_the_same_owner() {
        let folder = tempfile::tempdir().unwrap();
        let (end, link) = (folder.path().join("end"), folder.path().join("link"));
        directory(&end).unwrap();
        symlink(&end, &link).unwrap();
        directory(&link).unwrap();
        if test_support::is_root() {
            lchown(&link, Some(NOBODY), Some(NOBODY)).unwrap();
            assert!(refusal(&link).contains("belongs to user 65534"));
            assert!(refusal(&link.join("h1")).contains("belongs to user 65534"));
        }
    }

    #[test]
    fn a_parent_in_which_all_can_write_must_be_sticky() {
        let folder = tempfile::tempdir().unwrap();
        let open = folder.path().join("open");
        fs::create_dir(&open).unwrap();
        set_mode(&open, 0o777);
        assert!(refusal(&open.join("state")).contains("`chmod go-w "));
        assert!(!open.join("state").exists());
        set_mode(&open, 0o1777);
        directory(&open.join("state")).unwrap();
    }

    #[test]
    fn a_file_in_the_place_of_a_directory_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        assert_eq!(directory(&file).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    }
}
