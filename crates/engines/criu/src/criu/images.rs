//! The directories of images: an instance's images lie in the first configured directory that has room.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};
use std::thread;

use crate::criu::pages::memory_images::PARENT;
use crate::error::{Doing, Error, Result};
use crate::instance::ImageFile;
use crate::instance::InstanceName;
use crate::linux::files::{absent_is_fine, free_bytes};

/// The size of images beside pages and files, in bytes: tables, and state that is added until the dump.
const MARGIN: u64 = 16 << 20;

/// The size of images with so many bytes of pages and files.
fn size_of(bytes: u64) -> u64 {
    bytes + bytes / 8 + MARGIN
}

/// Whether images with so many bytes of pages and files fit into `images`, which is empty.
pub fn fit(images: &Path, bytes: u64) -> Result<bool> {
    Ok(room_in(images)? >= size_of(bytes))
}

/// Makes an empty directory for the instance's images where `bytes` of pages and files fit.
pub fn make_room(directories: &[PathBuf], name: &InstanceName, bytes: u64) -> Result<PathBuf> {
    let wanted = size_of(bytes);
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

/// The free bytes of the file system under a directory, which is made if it is missing. Only its owner can write to it: another
/// user who could rename files in it could replace an instance's memory.
pub fn room_in(directory: &Path) -> Result<u64> {
    let free = || {
        private::directory(directory)?;
        free_bytes(directory)
    };
    free().doing(|| format!("measuring the free space of {}", directory.display()))
}

/// Whether the file system under a directory is so full that not even a log can be written there.
pub fn is_full(directory: &Path) -> bool {
    const LOG: u64 = 64 << 10;
    free_bytes(directory).is_ok_and(|free| free < LOG)
}

/// The error for images of this instance that no longer fit there.
pub fn no_room(name: &InstanceName, images: &Path) -> Error {
    Error::NoRoom(format!("the images of `{name}` in {}", images.display()))
}

fn recreate(directory: &Path) -> io::Result<()> {
    absent_is_fine(fs::remove_dir_all(directory))?;
    fs::DirBuilder::new().mode(0o700).create(directory)
}

/// Deletes the images, and keeps the directory.
pub fn clear(directory: &Path) -> Result<()> {
    recreate(directory).doing(|| format!("emptying {}", directory.display()))
}

/// Deletes the images, their directory, and images that were put aside. Succeeds if nothing is there.
pub fn delete(directory: &Path) -> Result<()> {
    for directory in [directory, &aside(directory)] {
        let deleted = absent_is_fine(fs::remove_dir_all(directory));
        deleted.doing(|| format!("deleting {}", directory.display()))?;
    }
    Ok(())
}

/// Deletes the images in the background, and keeps an empty directory. Freeing memory takes a tenth of a second per GiB; a running
/// instance must not wait for that.
pub fn put_aside(directory: &Path) -> Result<()> {
    let aside = aside(directory);
    let put = || -> io::Result<()> {
        absent_is_fine(fs::remove_dir_all(&aside))?;
        absent_is_fine(fs::rename(directory, &aside))?;
        recreate(directory)
    };
    put().doing(|| format!("emptying {}", directory.display()))?;
    // If this process ends before, the rest is deleted with the directory.
    thread::spawn(move || fs::remove_dir_all(aside));
    Ok(())
}

fn aside(directory: &Path) -> PathBuf {
    directory.with_extension("gone")
}

/// The image of the thread that has this TID in its instance.
pub fn core_of(images: &Path, number: i32) -> PathBuf {
    images.join(format!("core-{number}.img"))
}

/// The image that CRIU reads first.
pub const INVENTORY: &str = "inventory.img";

/// Makes a directory for a CRIU that waits for images, with a named pipe in place of the inventory.
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

/// Links the images, except the inventory, and their parent directories into the directory of a waiting CRIU.
pub fn show(images: &Path) -> Result<PathBuf> {
    let stage = stage_of(images);
    for image in list(images)?.iter().filter(|image| image.name != INVENTORY) {
        let link = fs::hard_link(images.join(&image.name), stage.join(&image.name));
        link.doing(|| format!("linking {} into {}", image.name, stage.display()))?;
    }
    // A relative link: CRIU can follow it from within a container's file systems too.
    let link_parent = || match (fs::read_link(images.join(PARENT)), images.file_name()) {
        (Ok(earlier), Some(name)) => symlink(Path::new("..").join(name).join(earlier), stage.join(PARENT)),
        (absent, _) => absent_is_fine(absent.map(drop)),
    };
    link_parent().doing(|| format!("linking into {}", stage.display()))?;
    Ok(stage)
}

/// Deletes the directory of [`stage`]; no error if there is none.
pub fn unstage(images: &Path) -> Result<()> {
    delete(&stage_of(images))
}

/// The name of the directory. Names of instances contain no dot.
fn stage_of(images: &Path) -> PathBuf {
    images.with_extension("criu")
}

/// The images, in order of their names. Logs and statistics of CRIU are not among them.
pub fn list(directory: &Path) -> Result<Vec<ImageFile>> {
    let read = || -> io::Result<Vec<ImageFile>> {
        let mut images = Vec::new();
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.ends_with(".img") {
                images.push(ImageFile { name, size: entry.metadata()?.len() });
            }
        }
        images.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(images)
    };
    read().doing(|| format!("listing {}", directory.display()))
}
