//! Unpacks one layer over the files of the layers below, in the root directory of this process.
//!
//! A whiteout file `.wh.NAME` removes `NAME` of the layers below, and `.wh..wh..opq` all their entries in its directory.

use std::collections::HashSet;
use std::ffi::{CString, OsStr};
use std::fs::{self, File, Metadata, Permissions};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, lchown};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime};

use tar::{Archive, Entry, EntryType};

/// The prefix of a whiteout file.
const WHITEOUT: &str = ".wh.";
/// The prefix of metadata files of a layer.
const META: &str = ".wh..wh.";
/// The opaque whiteout, which empties a directory.
const OPAQUE: &str = ".wh..wh..opq";

/// The prefix of extended attributes in an archive.
const ATTRIBUTE: &str = "SCHILY.xattr.";
/// Prefixes of extended attributes that belong to files. Other ones belong to the kernel of a host.
const CARRIED: [&str; 2] = ["user.", "security.capability"];

/// A layer that is being unpacked.
pub struct Unpacking {
    left: u64,
    /// The files of this layer, to which its whiteouts do not apply.
    brought: HashSet<PathBuf>,
    /// The parent directories of these files.
    holding: HashSet<PathBuf>,
    /// The modification times of its directories, set at the end because new entries change them.
    times: Vec<(PathBuf, SystemTime)>,
}

impl Unpacking {
    /// An unpacking of at most so many files.
    pub fn of(files: u64) -> Self {
        Self { left: files, brought: HashSet::new(), holding: HashSet::new(), times: Vec::new() }
    }

    /// Unpacks the whole archive, and returns the remaining number of files.
    ///
    /// # Errors
    /// If a file cannot be created as the archive says.
    pub fn all(mut self, archive: impl Read) -> io::Result<u64> {
        let mut archive = Archive::new(archive);
        archive.set_preserve_permissions(true);
        archive.set_preserve_ownerships(true);
        archive.set_preserve_mtime(true);
        for entry in archive.entries()? {
            let mut entry = entry?;
            self.left = self.left.checked_sub(1).ok_or_else(|| io::Error::other("it has too many files"))?;
            let path = plain(&entry.path()?)?;
            self.put(&mut entry, path.clone())
                .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
        }
        for (path, time) in self.times.into_iter().rev() {
            // A later entry may have replaced the directory.
            if fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir()) {
                File::open(&path)?.set_modified(time)?;
            }
        }
        Ok(self.left)
    }

    fn put(&mut self, entry: &mut Entry<'_, impl Read>, path: PathBuf) -> io::Result<()> {
        let name = path.file_name().unwrap_or_default().as_bytes();
        let parent = path.parent().unwrap_or(Path::new("/")).to_owned();
        if name == OPAQUE.as_bytes() {
            return self.take_away_all(&parent);
        }
        if name.starts_with(META.as_bytes()) {
            return Ok(());
        }
        if let Some(name) = name.strip_prefix(WHITEOUT.as_bytes()) {
            // The name must be a single component.
            let gone = parent.join(OsStr::from_bytes(name));
            let leads_on = name.is_empty() || name == b"." || name == b"..";
            return if leads_on { Err(io::ErrorKind::InvalidData.into()) } else { self.take_away(&gone) };
        }
        if !parent.is_dir() {
            fs::create_dir_all(&parent)?;
        }
        let kind = entry.header().entry_type();
        make_way(&path, kind)?;
        match kind {
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse | EntryType::Symlink => {
                entry.unpack(&path)?;
            }
            EntryType::Directory => {
                entry.unpack(&path)?;
                let time = SystemTime::UNIX_EPOCH + Duration::from_secs(entry.header().mtime()?);
                self.times.push((path.clone(), time));
            }
            EntryType::Link => link(entry, &path)?,
            EntryType::Char | EntryType::Block | EntryType::Fifo => make_node(entry, &path)?,
            EntryType::XGlobalHeader => return Ok(()),
            other => return Err(io::Error::other(format!("a file of an unknown type ({other:?})"))),
        }
        carry_attributes(entry, &path)?;
        self.remember(path);
        Ok(())
    }

    fn remember(&mut self, path: PathBuf) {
        // If a directory is recorded, its parents are too.
        for above in path.ancestors().skip(1) {
            if !self.holding.insert(above.to_owned()) {
                break;
            }
        }
        self.brought.insert(path);
    }

    /// Removes the file of this name of the layers below.
    fn take_away(&self, path: &Path) -> io::Result<()> {
        if self.brought.contains(path) {
            return Ok(());
        }
        match fs::symlink_metadata(path) {
            // Files of this layer in it stay.
            Ok(_) if self.holding.contains(path) => self.take_away_all(path),
            Ok(found) => remove(path, &found),
            Err(_) => Ok(()),
        }
    }

    /// Removes all entries of the layers below in a directory.
    fn take_away_all(&self, directory: &Path) -> io::Result<()> {
        let Ok(entries) = fs::read_dir(directory) else { return Ok(()) };
        for entry in entries {
            self.take_away(&entry?.path())?;
        }
        Ok(())
    }
}

/// The absolute path of a name, which must not contain `..`.
fn plain(path: &Path) -> io::Result<PathBuf> {
    let mut plain = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::Normal(name) => plain.push(name),
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => {
                let what = format!("`{}` leads out of the image", path.display());
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
        }
    }
    Ok(plain)
}

/// Removes an existing file of another type. A directory stays if the entry is a directory.
fn make_way(path: &Path, kind: EntryType) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() && kind == EntryType::Directory => Ok(()),
        Ok(found) => remove(path, &found),
        Err(_) => Ok(()),
    }
}

fn remove(path: &Path, found: &Metadata) -> io::Result<()> {
    if found.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
}

fn link(entry: &Entry<'_, impl Read>, path: &Path) -> io::Result<()> {
    let target = entry.link_name()?.ok_or(io::ErrorKind::InvalidData)?;
    fs::hard_link(plain(&target)?, path)
}

/// Creates a device or a named pipe.
fn make_node(entry: &Entry<'_, impl Read>, path: &Path) -> io::Result<()> {
    let header = entry.header();
    let kind = match header.entry_type() {
        EntryType::Char => libc::S_IFCHR,
        EntryType::Block => libc::S_IFBLK,
        _ => libc::S_IFIFO,
    };
    let device = libc::makedev(header.device_major()?.unwrap_or(0), header.device_minor()?.unwrap_or(0));
    let name = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: `name` is a live C string.
    if unsafe { libc::mknod(name.as_ptr(), kind | 0o600, device) } == -1 {
        return Err(io::Error::last_os_error());
    }
    let id = |number: u64| u32::try_from(number).map_err(io::Error::other);
    lchown(path, Some(id(header.uid()?)?), Some(id(header.gid()?)?))?;
    fs::set_permissions(path, Permissions::from_mode(header.mode()? & 0o7777))
}

/// Sets the extended attributes. Must come after a change of owner, which removes some.
fn carry_attributes(entry: &mut Entry<'_, impl Read>, path: &Path) -> io::Result<()> {
    let Some(extensions) = entry.pax_extensions()? else { return Ok(()) };
    for extension in extensions {
        let extension = extension?;
        let Some(name) = extension.key().ok().and_then(|key| key.strip_prefix(ATTRIBUTE)) else { continue };
        if CARRIED.iter().any(|carried| name.starts_with(carried)) {
            set_attribute(path, name, extension.value_bytes())?;
        }
    }
    Ok(())
}

fn set_attribute(path: &Path, name: &str, value: &[u8]) -> io::Result<()> {
    let (path, name) = (CString::new(path.as_os_str().as_bytes())?, CString::new(name)?);
    // SAFETY: both are live C strings, and `value` is live and as long as said.
    let set = unsafe { libc::lsetxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) };
    if set == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
