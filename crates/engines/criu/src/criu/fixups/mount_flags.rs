//! Mount flags of a container, such as `ro` and `nosuid`. CRIU loses those of a mount whose file system is mounted elsewhere too.
//!
//! They travel in a file beside CRIU's images, and are set after CRIU has made the mounts and before any process runs.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::thread;

use crate::criu::fixups::fixup::{Fixup, StoppedTree};
use crate::linux::mountinfo::unescaped;
use crate::linux::mounts;

/// The name of the fixup's image file, which CRIU ignores.
const FILE: &str = "mount-flags.img";

/// Option names in mountinfo, with their flags for mount(2).
const FLAGS: [(&str, libc::c_ulong); 8] = [
    ("ro", libc::MS_RDONLY),
    ("nosuid", libc::MS_NOSUID),
    ("nodev", libc::MS_NODEV),
    ("noexec", libc::MS_NOEXEC),
    ("noatime", libc::MS_NOATIME),
    ("nodiratime", libc::MS_NODIRATIME),
    ("relatime", libc::MS_RELATIME),
    ("nosymfollow", libc::MS_NOSYMFOLLOW),
];

/// The uppermost mount at each mount point, in the kernel's notation, with its options.
type Mounts = BTreeMap<String, String>;

/// The fixup of mount flags.
pub struct MountFlags;

impl Fixup for MountFlags {
    fn name(&self) -> &'static str {
        "mount options"
    }

    fn lacks(&self) -> &'static str {
        "CRIU loses those of a mount whose file system is mounted elsewhere too"
    }

    fn save(&mut self, stopped: &StoppedTree<'_>) -> io::Result<()> {
        match stopped.first_with_own_root() {
            Some(first) => note(stopped.images, first),
            None => Ok(()),
        }
    }

    fn apply(&self, held: &StoppedTree<'_>) -> io::Result<()> {
        match held.first_with_own_root() {
            Some(first) => set(held.images, first),
            None => Ok(()),
        }
    }
}

/// Records the mounts of a stopped container's first process among its images.
fn note(images: &Path, first: i32) -> io::Result<()> {
    fs::write(images.join(FILE), serde_json::to_vec(&mounted(first)?)?)
}

/// Sets the recorded options in a restored container.
///
/// # Errors
/// If an option cannot be set, with the mount point in the container.
fn set(images: &Path, first: i32) -> io::Result<()> {
    let noted: Mounts = serde_json::from_slice(&fs::read(images.join(FILE))?)?;
    let changed = differing(&noted, &mounted(first)?);
    if changed.is_empty() {
        return Ok(());
    }
    let namespace = File::open(format!("/proc/{first}/ns/mnt"))?;
    // In a thread of its own, which does not leave the container's namespace again.
    let set = move || {
        have_own_directory()?;
        mounts::enter(namespace.as_fd())?;
        changed.iter().try_for_each(|(place, options)| remount(place, options))
    };
    thread::spawn(set).join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))?;
    match differing(&noted, &mounted(first)?).keys().next() {
        None => Ok(()),
        Some(place) => Err(io::Error::other(format!("cannot set the options of the mount at {place}"))),
    }
}

fn mounted(first: i32) -> io::Result<Mounts> {
    let mounts = fs::read_to_string(format!("/proc/{first}/mountinfo"))?;
    let uppermost = |line: &str| {
        let mut fields = line.split(' ').skip(4).map(str::to_owned);
        Some((fields.next()?, fields.next()?))
    };
    Ok(mounts.lines().filter_map(uppermost).collect())
}

/// The mounts of `noted` that now have other options.
fn differing(noted: &Mounts, now: &Mounts) -> Mounts {
    let is_changed = |(place, options): &(&String, &String)| {
        now.get(*place).is_some_and(|now| flags(now) != flags(options))
    };
    noted.iter().filter(is_changed).map(|(place, options)| (place.clone(), options.clone())).collect()
}

fn flags(options: &str) -> libc::c_ulong {
    let set = |name: &str| options.split(',').any(|option| option == name);
    let flags = FLAGS.iter().filter(|(name, _)| set(name)).fold(0, |flags, (_, flag)| flags | flag);
    // Without these flags, the kernel does not change the options for access times.
    let says_of_times = flags & (libc::MS_NOATIME | libc::MS_RELATIME) != 0;
    if says_of_times { flags } else { flags | libc::MS_STRICTATIME }
}

fn remount(place: &str, options: &str) -> io::Result<()> {
    let path = CString::new(unescaped(place).as_os_str().as_bytes())?;
    let flags = libc::MS_REMOUNT | libc::MS_BIND | flags(options);
    // SAFETY: the path is a live C string; of the others a remount reads none.
    let result = unsafe { libc::mount(ptr::null(), path.as_ptr(), ptr::null(), flags, ptr::null()) };
    if result == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    Err(io::Error::new(error.kind(), format!("cannot set the options of the mount at {place}: {error}")))
}

/// Gives this thread a working directory of its own: only then may it enter a mount namespace.
fn have_own_directory() -> io::Result<()> {
    // SAFETY: no memory is passed.
    if unsafe { libc::unshare(libc::CLONE_FS) } == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_parsed_as_separate_words() {
        let strict = libc::MS_STRICTATIME;
        assert_eq!(flags("rw,relatime"), libc::MS_RELATIME);
        assert_eq!(flags("ro,nosuid"), libc::MS_RDONLY | libc::MS_NOSUID | strict);
        assert_eq!(flags("rw,noatime,nodiratime"), libc::MS_NOATIME | libc::MS_NODIRATIME);
        let mounts = |all: &[(&str, &str)]| -> Mounts {
            all.iter().map(|(place, options)| ((*place).to_owned(), (*options).to_owned())).collect()
        };
        let noted = mounts(&[("/", "rw,relatime"), ("/a", "ro,nosuid,relatime"), ("/gone", "ro,relatime")]);
        let now = mounts(&[("/", "rw,relatime"), ("/a", "rw,relatime"), ("/new", "rw")]);
        assert_eq!(differing(&noted, &now), mounts(&[("/a", "ro,nosuid,relatime")]));
    }

    #[test]
    fn the_uppermost_mount_counts() {
        let mine = mounted(std::process::id().cast_signed()).unwrap();
        assert!(mine.contains_key("/") && mine.contains_key("/proc"), "{mine:?}");
    }
}
