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

/// What images take beside pages and files, in bytes: tables, and what comes in meanwhile.
const MARGIN: u64 = 16 << 20;

/// The room that images take with so many bytes of pages and files.
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

/// Free bytes of the file system under a directory, which is made if it is not there. It is its owner's
/// alone: whoever could rename what lies in it could exchange an instance's memory.
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

/// Images of this instance do not fit there any more.
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

/// Deletes the images and their directory, and what was put aside; no error if nothing is there.
pub fn delete(directory: &Path) -> Result<()> {
    for directory in [directory, &aside(directory)] {
        let deleted = absent_is_fine(fs::remove_dir_all(directory));
        deleted.doing(|| format!("deleting {}", directory.display()))?;
    }
    Ok(())
}

/// Has the images deleted while the caller goes on, and keeps an empty directory: to give much memory back takes a tenth of a
/// second a GiB, in which nobody is to wait for an instance that runs.
pub fn put_aside(directory: &Path) -> Result<()> {
    let aside = aside(directory);
    let put = || -> io::Result<()> {
        absent_is_fine(fs::remove_dir_all(&aside))?;
        absent_is_fine(fs::rename(directory, &aside))?;
        recreate(directory)
    };
    put().doing(|| format!("emptying {}", directory.display()))?;
    // What is left, as by the end of this process, goes with the directory.
    thread::spawn(move || fs::remove_dir_all(aside));
    Ok(())
}

fn aside(directory: &Path) -> PathBuf {
    directory.with_extension("gone")
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

/// Shows a waiting CRIU the images, all but the inventory, and where those are that came before them.
pub fn show(images: &Path) -> Result<PathBuf> {
    let stage = stage_of(images);
    for image in list(images)?.iter().filter(|image| image.name != INVENTORY) {
        let link = fs::hard_link(images.join(&image.name), stage.join(&image.name));
        link.doing(|| format!("linking {} into {}", image.name, stage.display()))?;
    }
    // From directory to directory: CRIU follows it also from within a container's file systems.
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

/// No instance's name has a dot.
fn stage_of(images: &Path) -> PathBuf {
    images.with_extension("criu")
}

/// The images, in order of their names. CRIU's logs and figures stay here.
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
