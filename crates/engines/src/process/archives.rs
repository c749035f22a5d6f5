//! The tmpfs mounts of containers, which CRIU dumps as archives made and unpacked by `tar`.
//!
//! Pre-copy rounds read what the archives would be while the instance runs, like its memory, so that most of their pages are at the
//! destination when it stops. A file keeps its place in an archive as long as no file before it appears, disappears or changes its
//! holes; otherwise everything behind it is sent again.
//!
//! CRIU compresses archives, which takes much longer than sending them, while the instance is stopped. So a wrapper for `tar` comes
//! first in CRIU's `$PATH`. It does not compress, and keeps nanosecond times, extended attributes and ACLs: with an ACL, the mode alone
//! would give the group too many rights. It unpacks both compressed and plain archives. If the wrapper cannot run, for example in a
//! directory mounted `noexec`, CRIU uses the next `tar` in `$PATH`.

use std::collections::BTreeMap;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::check::used;
use super::container::{Container, unescaped};
use super::helper::end_with_the_node;
use super::layer::ATTRIBUTES;
use crate::instance::ImageFile;
use crate::memory::{MemorySink, Owner, PAGE};

/// Each word but that goes on to the `tar` behind this one, with `$attributes`, and to make an archive with `$exact` as well; a `*` in
/// those is for `tar`. From a pipe `tar` does not tell a compressed archive, from a file it does. Names are bytes, whatever a host's
/// language is.
const TAR: &str = r#"
set -f
for word; do
    shift
    case $word in
        --gzip) ;;
        --create) set -- "$@" "$word" $exact $attributes ;;
        --extract) set -- "$@" "$word" $attributes --file=/proc/self/fd/0 ;;
        *) set -- "$@" "$word" ;;
    esac
done
PATH=${PATH#*:}
export LC_ALL=C
exec tar "$@"
"#;

/// Has GNU tar keep times to the nanosecond, and nothing that is different when the same files are packed again: numbers of processes
/// in the names of headers, and when files were read.
const EXACT: &str =
    "--format=posix --sparse-version=0.0 --pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime";

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

/// Those of a container whose first process is `first` that are worth a look.
pub fn worth_a_look(container: &Container, first: i32) -> io::Result<Vec<FileSystem>> {
    let mut found: Vec<FileSystem> = Vec::new();
    for line in fs::read_to_string(format!("/proc/{first}/mountinfo"))?.lines() {
        let Some((owner, place)) = in_memory(line) else { continue };
        let is_bound = container.binds().iter().any(|bind| bind.destination == place);
        let place = Path::new(&format!("/proc/{first}/root")).join(place.strip_prefix("/").unwrap_or(&place));
        if !is_bound && used(&place) >= LEAST && found.iter().all(|other| other.owner != owner) {
            let search_path = container.search_path().map(OsStr::to_owned);
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

/// Writes that `tar` into `directory`, and returns a `$PATH` where it comes first.
pub fn provide(directory: &Path) -> io::Result<OsString> {
    private::directory(directory)?;
    let (tar, next) = (directory.join("tar"), directory.join("tar.next"));
    let (exact, attributes) = if is_gnu() { (EXACT, ATTRIBUTES.join(" ")) } else { Default::default() };
    fs::write(&next, format!("#!/bin/sh\nexact='{exact}'\nattributes='{attributes}'\n{TAR}"))?;
    fs::set_permissions(&next, Permissions::from_mode(0o700))?;
    fs::rename(next, tar)?;
    let others = env::var_os("PATH").unwrap_or_default();
    let all = std::iter::once(PathBuf::from(directory)).chain(env::split_paths(&others));
    env::join_paths(all).map_err(io::Error::other)
}

/// Whether the system's `tar` is GNU's.
fn is_gnu() -> bool {
    let said = Command::new("tar").arg("--version").stdin(Stdio::null()).output();
    said.is_ok_and(|said| said.stdout.starts_with(b"tar (GNU tar)"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;
    use std::sync::Mutex;
    use std::time::{Duration, UNIX_EPOCH};

    use rustix::fs::{XattrFlags, getxattr, setxattr};
    use tempfile::TempDir;

    use super::*;

    /// Puts what it is told where archives are to be.
    struct There(Mutex<Archives>);

    impl MemorySink for There {
        fn begin(&self) -> io::Result<()> {
            Ok(())
        }

        fn open(&self, _: Owner) -> io::Result<()> {
            Ok(())
        }

        fn take(&self, owner: Owner, address: u64, pages: &[u8]) -> io::Result<()> {
            let Owner::Archive(number) = owner else { panic!("{owner:?}") };
            let mut archives = self.0.lock().unwrap();
            archives.write(number, address, pages)?;
            archives.keep(number, address, (pages.len() / PAGE) as u64)
        }

        fn end(&self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn archives_come_in_pages_and_end_where_they_ended() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let image = "tmpfs-dev-7.tar.gz.img";
        let mut archives = Archives::new(to.path());
        archives.write(7, 0, &vec![1; 3 * PART]).unwrap();
        archives.write(8, 0, &[1; PAGE]).unwrap();
        fs::write(from.path().join(image), vec![2; PART + 10]).unwrap();
        fs::write(from.path().join("tmpfs-7.img"), "no archive").unwrap();
        let there = There(Mutex::new(archives));
        tell(from.path(), &there).unwrap();
        there.0.into_inner().unwrap().finish().unwrap();
        let expected = [vec![2; PART + 10], vec![0; PAGE - 10]].concat();
        assert!(fs::read(to.path().join(image)).unwrap() == expected);
        assert_eq!(fs::read_dir(to.path()).unwrap().count(), 1);
    }

    #[test]
    fn no_source_has_more_archives_than_any_instance_or_longer_ones_than_can_be() {
        let to = tempfile::tempdir().unwrap();
        let mut archives = Archives::new(to.path());
        for number in 0..MOST as u32 {
            archives.keep(number, 0, 1).unwrap();
        }
        archives.keep(0, PAGE as u64, 1).unwrap();
        assert!(archives.keep(MOST as u32, 0, 1).is_err());
        assert!(archives.keep(0, u64::MAX, 1).is_err() && archives.keep(0, 0, u64::MAX).is_err());
    }

    #[test]
    fn what_is_in_memory_is_told_by_its_mount() {
        let line =
            |root: &str, kind: &str| format!("36 35 0:98 {root} /dev/sh\\040m rw shared:1 - {kind} shm rw");
        let found = (Owner::Archive(98), PathBuf::from("/dev/sh m"));
        assert_eq!(in_memory(&line("/", "tmpfs")), Some(found));
        assert_eq!(in_memory(&line("/a", "tmpfs")), None);
        assert_eq!(in_memory(&line("/", "proc")), None);
        assert_eq!(in_memory("nonsense"), None);
    }

    fn tar(path: &OsString, words: &[&str], archive: &Path, is_made: bool) {
        let mut tar = Command::new("sh");
        // As CRIU calls it: by its name.
        tar.args(["-c", "exec tar \"$@\"", "sh"]).args(words).env("PATH", path);
        if is_made {
            tar.stdout(File::create(archive).unwrap());
        } else {
            tar.stdin(File::open(archive).unwrap());
        }
        assert!(tar.status().unwrap().success(), "{words:?}");
    }

    #[test]
    fn archives_are_made_as_they_are_and_unpacked_also_if_they_are_compressed() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join(name);
        let (from, to, archive) = (place("a file's folder"), place("to"), place("archive"));
        fs::create_dir(&from).unwrap();
        fs::write(from.join("file"), "words").unwrap();
        let usual = env::var_os("PATH").unwrap();
        let ours = provide(&place("tools")).unwrap();
        for (path, is_plain) in [(&ours, true), (&usual, false)] {
            fs::create_dir(&to).unwrap();
            tar(path, &["--create", "--gzip", "--directory", from.to_str().unwrap(), "."], &archive, true);
            let magic = fs::read(&archive).unwrap()[..2] == [0x1f, 0x8b];
            assert_eq!(magic, !is_plain);
            tar(&ours, &["--extract", "--gzip", "--directory", to.to_str().unwrap()], &archive, false);
            assert_eq!(fs::read_to_string(to.join("file")).unwrap(), "words");
            fs::remove_dir_all(&to).unwrap();
        }
    }

    /// Takes one archive.
    #[derive(Default)]
    struct Shown(Mutex<Vec<u8>>);

    impl MemorySink for Shown {
        fn begin(&self) -> io::Result<()> {
            Ok(())
        }

        fn open(&self, _: Owner) -> io::Result<()> {
            Ok(())
        }

        fn take(&self, _: Owner, _: u64, pages: &[u8]) -> io::Result<()> {
            self.0.lock().unwrap().extend(pages);
            Ok(())
        }

        fn end(&self) -> io::Result<()> {
            Ok(())
        }
    }

    /// As long as nothing changes there.
    #[test]
    fn what_is_shown_is_what_the_archive_will_be_with_all_of_the_times() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join(name);
        let (from, to, archive) = (place("from"), place("to"), place("archive"));
        fs::create_dir(&from).and_then(|()| fs::create_dir(&to)).unwrap();
        let name =
            OsStr::from_bytes(b"no UTF-8 \xe4, and longer than other formats take it".repeat(3).as_slice())
                .to_owned();
        let time = UNIX_EPOCH + Duration::new(1_700_000_000, 123_456_789);
        let file = File::create(from.join(&name)).unwrap();
        // With a hole, of which there is a note.
        file.write_all_at(b"words", 1 << 20).and_then(|()| file.set_modified(time)).unwrap();
        let search_path = provide(&place("tools")).unwrap();
        let file_system = FileSystem {
            owner: Owner::Archive(7),
            place: from.clone(),
            search_path: Some(search_path.clone()),
        };
        let shown = Shown::default();
        assert!(file_system.show(&shown, &|| true).unwrap());
        let words = ["--create", "--gzip"].iter().chain(&MAKE[1..]).copied();
        let words: Vec<&str> = words.chain([from.to_str().unwrap(), "."]).collect();
        tar(&search_path, &words, &archive, true);
        let mut made = fs::read(&archive).unwrap();
        made.resize(made.len().next_multiple_of(PAGE), 0);
        assert!(made == shown.0.into_inner().unwrap());
        tar(&search_path, &["--extract", "--gzip", "--directory", to.to_str().unwrap()], &archive, false);
        assert_eq!(fs::metadata(to.join(name)).unwrap().modified().unwrap(), time);
    }

    /// `user::rw-,user:1000:rw-,group::---,mask::rw-,other::---`, as the kernel has it.
    const ACL: [u8; 44] = [
        2, 0, 0, 0, // version
        0x01, 0, 6, 0, 0xff, 0xff, 0xff, 0xff, // user
        0x02, 0, 6, 0, 0xe8, 3, 0, 0, // user 1000
        0x04, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, // group
        0x10, 0, 6, 0, 0xff, 0xff, 0xff, 0xff, // mask
        0x20, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, // other
    ];
    /// `cap_net_bind_service=ep`, as the kernel has it.
    const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

    const KEPT: [(&str, &[u8]); 3] =
        [("user.note", b"words"), ("security.capability", &CAPABILITY), ("system.posix_acl_access", &ACL)];

    /// A folder whose file system keeps all of that, with a file `from/file` that has it.
    fn folder_with_attributes() -> TempDir {
        let places = [env::temp_dir(), "/dev/shm".into(), "/var/tmp".into(), env::current_dir().unwrap()];
        let made = |place: &PathBuf| {
            let folder = TempDir::new_in(place)?;
            let file = folder.path().join("from/file");
            fs::create_dir(folder.path().join("from")).and_then(|()| fs::write(&file, "words"))?;
            for (name, value) in KEPT {
                setxattr(&file, name, value, XattrFlags::empty())?;
            }
            io::Result::Ok(folder)
        };
        let found = places.iter().find_map(|place| made(place).ok());
        found.expect("root has a file system with attributes of users, capabilities and ACLs")
    }

    #[test]
    fn attributes_capabilities_and_acls_are_kept() {
        let folder = folder_with_attributes();
        let place = |name: &str| folder.path().join(name);
        let (from, to, archive) = (place("from"), place("to"), place("archive"));
        fs::create_dir(&to).unwrap();
        let ours = provide(&place("tools")).unwrap();
        let words = ["--create", "--gzip"].iter().chain(&MAKE[1..]).copied();
        let words: Vec<&str> = words.chain([from.to_str().unwrap(), "."]).collect();
        tar(&ours, &words, &archive, true);
        tar(&ours, &["--extract", "--gzip", "--directory", to.to_str().unwrap()], &archive, false);
        for (name, expected) in KEPT {
            let mut value = [0; 64];
            let length = getxattr(to.join("file"), name, &mut value).expect(name);
            assert_eq!(&value[..length], expected, "{name}");
        }
    }
}
