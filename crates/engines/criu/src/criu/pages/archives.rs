//! The tmpfs mounts of containers, which CRIU dumps as archives made and unpacked by `tar`.
//!
//! While the instance runs, pre-copy rounds read the future contents of the archives, like its memory, so that most of their pages
//! are at the destination when the instance stops. A file keeps its place in an archive as long as no file before it appears,
//! disappears or changes its holes; otherwise everything behind it is sent again.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::criu::root::OwnRoot;
use crate::instance::ImageFile;
use crate::linux::files::used;
use crate::linux::helper::end_with_the_node;
use crate::linux::mountinfo::unescaped;
use crate::memory::{MemorySink, Owner, PAGE};

/// The arguments with which CRIU lets `tar` make an archive, without compression: `criu/filesystems.c` of CRIU.
const MAKE: [&str; 9] = [
    "--create",
    "--no-unquote",
    "--no-wildcards",
    "--one-file-system",
    "--check-links",
    "--preserve-permissions",
    "--sparse",
    "--numeric-owner",
    "--directory",
];

/// The number of bytes that are read at once.
const PART: usize = 1 << 20;

/// The smallest contents of a file system, in bytes, for which pre-copy is worthwhile; smaller ones are read when the instance is
/// stopped.
const LEAST: u64 = 1 << 20;

/// The limit of archives of one instance.
const MOST: usize = 256;

/// A tmpfs mount of a running container.
#[derive(Debug, PartialEq, Eq)]
pub struct FileSystem {
    owner: Owner,
    place: PathBuf,
    /// The search path for `tar` that CRIU uses, if it differs from this process's own.
    search_path: Option<OsString>,
}

/// Those of an instance, whose first process is `first`, for which pre-copy is worthwhile.
pub fn worth_a_look(own: &OwnRoot<'_>, first: i32) -> io::Result<Vec<FileSystem>> {
    let mut found: Vec<FileSystem> = Vec::new();
    for line in fs::read_to_string(format!("/proc/{first}/mountinfo"))?.lines() {
        let Some((owner, place)) = in_memory(line) else { continue };
        let is_bound = own.binds.iter().any(|bind| bind.destination == place);
        let place = Path::new(&format!("/proc/{first}/root")).join(place.strip_prefix("/").unwrap_or(&place));
        if !is_bound && used(&place) >= LEAST && found.iter().all(|other| other.owner != owner) {
            let search_path = own.search_path.map(OsStr::to_owned);
            found.push(FileSystem { owner, place, search_path });
        }
    }
    Ok(found)
}

/// The tmpfs that a line of `mountinfo` mounts as a whole, and its mount point.
fn in_memory(line: &str) -> Option<(Owner, PathBuf)> {
    let (mount, kind) = line.split_once(" - ")?;
    let mut fields = mount.split(' ').skip(2);
    let (device, root, place) = (fields.next()?, fields.next()?, fields.next()?);
    let number = device.strip_prefix("0:")?.parse().ok()?;
    (kind.starts_with("tmpfs ") && root == "/").then(|| (Owner::Archive(number), unescaped(place)))
}

impl FileSystem {
    /// The size of its contents, in bytes.
    pub fn bytes(&self) -> u64 {
        used(&self.place)
    }

    /// Gives `sink` the present contents of its archive, until `goes_on` returns false; returns `false` then.
    pub fn show(&self, sink: &dyn MemorySink, goes_on: &dyn Fn() -> bool) -> io::Result<bool> {
        let mut tar = Command::new("tar");
        tar.args(MAKE).arg(&self.place).arg(".");
        tar.envs(self.search_path.as_ref().map(|path| ("PATH", path)));
        tar.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        // SAFETY: between fork and exec, one system call.
        unsafe { tar.pre_exec(end_with_the_node) };
        let mut child = tar.spawn()?;
        let shown = child.stdout.take().map(|archive| show(self.owner, archive, sink, goes_on));
        let _ended = child.kill();
        child.wait()?;
        shown.unwrap_or(Ok(true))
    }
}

/// Gives `sink` the archives of a dump.
pub fn tell(images: &Path, sink: &dyn MemorySink) -> io::Result<()> {
    for entry in fs::read_dir(images)? {
        let entry = entry?;
        if let Some(owner) = entry.file_name().to_str().and_then(archive) {
            show(owner, File::open(entry.path())?, sink, &|| true)?;
        }
    }
    Ok(())
}

/// Whether the image is an archive.
pub fn is_archive(image: &ImageFile) -> bool {
    archive(&image.name).is_some()
}

/// The owner of the pages of an archive, from the name of its image file.
fn archive(image: &str) -> Option<Owner> {
    let number = image.strip_prefix("tmpfs-dev-")?.strip_suffix(".tar.gz.img")?;
    number.parse().ok().map(Owner::Archive)
}

/// Gives the sink all data that arrives, in whole pages.
fn show(
    owner: Owner,
    mut from: impl Read,
    sink: &dyn MemorySink,
    goes_on: &dyn Fn() -> bool,
) -> io::Result<bool> {
    sink.open(owner)?;
    let (mut part, mut address) = (Vec::with_capacity(PART), 0);
    loop {
        part.clear();
        let read = from.by_ref().take(PART as u64).read_to_end(&mut part)?;
        if read == 0 || !goes_on() {
            return Ok(read == 0);
        }
        part.resize(read.next_multiple_of(PAGE), 0);
        sink.take(owner, address, &part)?;
        address += part.len() as u64;
    }
}

/// The archives in a directory of images, from which CRIU unpacks them.
pub struct Archives {
    directory: PathBuf,
    files: BTreeMap<u32, File>,
    /// Their lengths in the present account, in bytes.
    lengths: BTreeMap<u32, u64>,
}

impl Archives {
    /// No archives yet; `directory` is empty.
    #[must_use]
    pub fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned(), files: BTreeMap::new(), lengths: BTreeMap::new() }
    }

    /// Adds pages at `address` to an archive's layout in the present account.
    ///
    /// # Errors
    /// If the archive would be too long, or there are too many archives.
    pub fn keep(&mut self, number: u32, address: u64, pages: u64) -> io::Result<()> {
        let end = pages.checked_mul(PAGE as u64).and_then(|length| address.checked_add(length));
        if self.lengths.len() == MOST && !self.lengths.contains_key(&number) {
            return Err(unacceptable());
        }
        let length = self.lengths.entry(number).or_default();
        *length = end.ok_or_else(unacceptable)?.max(*length);
        Ok(())
    }

    /// Writes whole pages to their place.
    ///
    /// # Errors
    /// If they cannot be written, or there are too many archives.
    pub fn write(&mut self, number: u32, address: u64, pages: &[u8]) -> io::Result<()> {
        self.file(number)?.write_all_at(pages, address)
    }

    /// Completes the archives: truncates them to the lengths of the last account, and deletes those that it does not contain.
    ///
    /// # Errors
    /// If one cannot be truncated or deleted.
    pub fn finish(mut self) -> io::Result<()> {
        for (number, length) in std::mem::take(&mut self.lengths) {
            self.file(number)?.set_len(length)?;
            self.files.remove(&number);
        }
        self.files.keys().try_for_each(|number| fs::remove_file(self.path(*number)))
    }

    fn file(&mut self, number: u32) -> io::Result<&File> {
        if !self.files.contains_key(&number) {
            if self.files.len() == MOST {
                return Err(unacceptable());
            }
            // An earlier file may be in use.
            let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(self.path(number))?;
            self.files.insert(number, file);
        }
        self.files.get(&number).ok_or_else(unacceptable)
    }

    fn path(&self, number: u32) -> PathBuf {
        self.directory.join(format!("tmpfs-dev-{number}.tar.gz.img"))
    }
}

fn unacceptable() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the description of its file systems is invalid")
}

#[cfg(test)]
mod tests;
