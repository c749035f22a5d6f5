//! Where images lie: in the first of the configured directories that has room for them.

use std::ffi::CString;
use std::fs;
use std::io;
use std::mem;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::record::absent_is_fine;
use crate::engine::Image;
use crate::error::{Doing, Error, Result};
use crate::instance::InstanceName;

/// What images take beside the memory's pages, in bytes: tables, and pages that come in meanwhile.
const MARGIN: u64 = 16 << 20;

/// The room that images take of an instance with so many bytes of memory.
fn size_of(memory: u64) -> u64 {
    memory + memory / 8 + MARGIN
}

/// Whether the images of an instance with so many bytes of memory fit into `images`, which is empty.
pub fn fit(images: &Path, memory: u64) -> Result<bool> {
    Ok(room_in(images)? >= size_of(memory))
}

/// Makes an empty directory for the instance's images where `memory` bytes fit.
pub fn make_room(directories: &[PathBuf], name: &InstanceName, memory: u64) -> Result<PathBuf> {
    let wanted = size_of(memory);
    for directory in directories {
        if room_in(directory)? >= wanted {
            let images = directory.join(name.as_str());
            recreate(&images).doing(|| format!("creating {}", images.display()))?;
            return Ok(images);
        }
    }
    let places: Vec<String> = directories.iter().map(|place| place.display().to_string()).collect();
    Err(Error::NoRoom(format!("{} MiB of images of `{name}` in {}", wanted >> 20, places.join(" or "))))
}

/// Free bytes of the file system under a directory, which is made if it is not there. It is its owner's
/// alone: whoever could rename what lies in it could exchange an instance's memory.
pub fn room_in(directory: &Path) -> Result<u64> {
    let free = || {
        private::directory(directory)?;
        free_bytes(directory)
    };
    free().doing(|| format!("looking for room in {}", directory.display()))
}

/// Whether the file system under a directory is so full that not even a log can be written there.
pub fn is_full(directory: &Path) -> bool {
    const LOG: u64 = 64 << 10;
    free_bytes(directory).is_ok_and(|free| free < LOG)
}

/// Free bytes of the file system under a directory.
pub fn free_bytes(directory: &Path) -> io::Result<u64> {
    let path = CString::new(directory.as_os_str().as_bytes())?;
    // SAFETY: all-zero is a valid statvfs.
    let mut found: libc::statvfs = unsafe { mem::zeroed() };
    // SAFETY: `path` is a live C string, and `found` is live and writable.
    if unsafe { libc::statvfs(path.as_ptr(), &raw mut found) } == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(found.f_bavail * found.f_frsize)
}

fn recreate(directory: &Path) -> io::Result<()> {
    absent_is_fine(fs::remove_dir_all(directory))?;
    fs::DirBuilder::new().mode(0o700).create(directory)
}

/// Deletes the images, and keeps the directory.
pub fn clear(directory: &Path) -> Result<()> {
    recreate(directory).doing(|| format!("emptying {}", directory.display()))
}

/// Deletes the images and their directory; no error if it is not there.
pub fn delete(directory: &Path) -> Result<()> {
    absent_is_fine(fs::remove_dir_all(directory)).doing(|| format!("deleting {}", directory.display()))
}

/// The image of the thread that has this number in its instance.
pub fn core_of(images: &Path, number: i32) -> PathBuf {
    images.join(format!("core-{number}.img"))
}

/// The image that CRIU reads first.
pub const INVENTORY: &str = "inventory.img";

/// A directory for a CRIU that waits for images, with a named pipe in the place of the inventory.
pub fn stage(images: &Path) -> Result<PathBuf> {
    let stage = stage_of(images);
    let make = || -> io::Result<()> {
        recreate(&stage)?;
        let pipe = CString::new(stage.join(INVENTORY).as_os_str().as_bytes())?;
        // SAFETY: `pipe` is a live C string.
        if unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) } == -1 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    };
    make().doing(|| format!("creating {}", stage.display()))?;
    Ok(stage)
}

/// Shows a waiting CRIU the images, all but the inventory.
pub fn show(images: &Path) -> Result<PathBuf> {
    let stage = stage_of(images);
    for image in list(images)?.iter().filter(|image| image.name != INVENTORY) {
        let link = fs::hard_link(images.join(&image.name), stage.join(&image.name));
        link.doing(|| format!("linking {} into {}", image.name, stage.display()))?;
    }
    Ok(stage)
}

/// Deletes the directory of [`stage`]; no error if there is none.
pub fn unstage(images: &Path) -> Result<()> {
    delete(&stage_of(images))
}

/// No instance's name has a dot.
fn stage_of(images: &Path) -> PathBuf {
    images.with_extension("criu")
}

/// The images, in order of their names. CRIU's logs and figures stay here.
pub fn list(directory: &Path) -> Result<Vec<Image>> {
    let read = || -> io::Result<Vec<Image>> {
        let mut images = Vec::new();
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.ends_with(".img") {
                images.push(Image { name, size: entry.metadata()?.len() });
            }
        }
        images.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(images)
    };
    read().doing(|| format!("listing {}", directory.display()))
}
