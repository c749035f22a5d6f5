//! The tmpfs mounts of containers, which CRIU dumps as archives made and unpacked by `tar`.
//!
//! Pre-copy rounds read what the archives would be while the instance runs, like its memory, so that most of their pages are at the
//! destination when it stops. A file keeps its place in an archive as long as no file before it appears, disappears or changes its
//! holes; otherwise everything behind it is sent again.

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

/// What CRIU has `tar` do to make one, but for compressing it: `criu/filesystems.c` of CRIU.
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

/// The most bytes that are read at once.
const PART: usize = 1 << 20;

/// A file system with less in it is not looked at before the instance stands still.
const LEAST: u64 = 1 << 20;

/// The most archives of one instance.
const MOST: usize = 256;

/// A file system in memory of a container that runs.
#[derive(Debug, PartialEq, Eq)]
pub struct FileSystem {
    owner: Owner,
    place: PathBuf,
    /// Where CRIU finds `tar`, if not where this process does.
    search_path: Option<OsString>,
}

/// Those of an instance whose first process is `first` that are worth a look.
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

/// The file system in memory that a line of `mountinfo` mounts as a whole, and where.
fn in_memory(line: &str) -> Option<(Owner, PathBuf)> {
    let (mount, kind) = line.split_once(" - ")?;
    let mut fields = mount.split(' ').skip(2);
    let (device, root, place) = (fields.next()?, fields.next()?, fields.next()?);
    let number = device.strip_prefix("0:")?.parse().ok()?;
    (kind.starts_with("tmpfs ") && root == "/").then(|| (Owner::Archive(number), unescaped(place)))
}

impl FileSystem {
    /// What is in it, in bytes.
    pub fn bytes(&self) -> u64 {
        used(&self.place)
    }

    /// Shows `sink` what its archive would be, as long as `goes_on` says so; `false` if it does not.
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

/// Tells `sink` the archives of a dump.
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

/// The archive that an image is, if it is one.
fn archive(image: &str) -> Option<Owner> {
    let number = image.strip_prefix("tmpfs-dev-")?.strip_suffix(".tar.gz.img")?;
    number.parse().ok().map(Owner::Archive)
}

/// Shows all that comes, in whole pages.
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

/// Archives in a directory of images, where they are to be unpacked from.
pub struct Archives {
    directory: PathBuf,
    files: BTreeMap<u32, File>,
    /// How long they are as of the present account, in bytes.
    lengths: BTreeMap<u32, u64>,
}

impl Archives {
    /// None is in `directory` yet.
    #[must_use]
    pub fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned(), files: BTreeMap::new(), lengths: BTreeMap::new() }
    }

    /// Says that so many pages at `address` belong to an archive as it is at last.
    ///
    /// # Errors
    /// If it cannot be so long, or there are too many archives.
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

    /// All has come: archives end where they were said to, and what was of others goes.
    ///
    /// # Errors
    /// If one cannot be made so.
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
            // An earlier file may be somebody's still.
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
