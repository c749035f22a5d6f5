//! Unpacked container images on this host: each once, however many instances use it.
//!
//! ```text
//! FOLDER/<digits>   the files of an image: renamed from `new` when complete and on disk
//! FOLDER/new        an image that is being unpacked
//! FOLDER/old        an image that is being deleted
//! ```
//!
//! Images that no instance uses are deleted before another one is unpacked.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use oci_image::{Digest, Limits, Source, podman};

use crate::criu::images;
use crate::error::{Doing, Error, Result};
use crate::init::unpack;
use crate::instance::ContainerImage;
use crate::linux::files::absent_is_fine;
use crate::linux::helper::Helper;
use crate::lock::lock;

/// How long an image may take to be unpacked.
const UNPACK: Duration = Duration::from_secs(240);
/// The limit of files in an image.
const MAX_FILES: u64 = 4_000_000;
/// The bytes to leave free on the file system.
const RESERVE: u64 = 64 << 20;

/// The unpacked images of this host.
pub struct Unpacked {
    folder: PathBuf,
    /// The command that runs an instance's first process, which also unpacks.
    init: Vec<OsString>,
    /// The images in use.
    used: Mutex<HashMap<Digest, Weak<PathBuf>>>,
    /// The lock for unpacking and deleting.
    turn: Mutex<()>,
}

impl Unpacked {
    /// The images in this folder, which is created with the first one.
    pub fn new(folder: PathBuf, init: &[OsString]) -> Self {
        Self { folder, init: init.to_vec(), used: Mutex::default(), turn: Mutex::new(()) }
    }

    /// The directory of an image's files, existing or not. They are not deleted while the result is held.
    pub fn place(&self, root: &Digest) -> Arc<PathBuf> {
        let mut used = lock(&self.used);
        used.retain(|_, place| place.strong_count() > 0);
        if let Some(place) = used.get(root).and_then(Weak::upgrade) {
            return place;
        }
        let place = Arc::new(self.folder.join(root.digits()));
        used.insert(root.clone(), Arc::downgrade(&place));
        place
    }

    /// The reason why this host cannot provide the image, if it cannot.
    pub fn lack(&self, image: &ContainerImage) -> Option<oci_image::Error> {
        if self.place(&image.root).is_dir() {
            return None;
        }
        source(image).and_then(|source| source.must_have(&image.root)).err()
    }

    /// Unpacks the image whose files belong in `place`, unless they are there.
    ///
    /// # Errors
    /// If it is not on this host, is damaged, or there is no room.
    pub fn provide(&self, image: &ContainerImage, place: &Path) -> Result<()> {
        let _turn = lock(&self.turn);
        if place.is_dir() {
            return Ok(());
        }
        let source = source(image).map_err(unusable)?;
        source.must_have(&image.root).map_err(unusable)?;
        self.delete_unused().doing(|| format!("deleting unused images in {}", self.folder.display()))?;
        let new = self.folder.join("new");
        let unpacked = self.unpack(&source, &image.root, &new, place);
        absent_is_fine(fs::remove_dir_all(&new)).doing(|| format!("deleting {}", new.display()))?;
        unpacked
    }

    fn unpack(&self, source: &Source, root: &Digest, new: &Path, place: &Path) -> Result<()> {
        let doing = || format!("unpacking the image {source} into {}", self.folder.display());
        let files = new.join("root");
        fs::create_dir(new).and_then(|()| fs::create_dir(&files)).doing(doing)?;
        let layout = match source {
            Source::Layout { directory, .. } => directory.clone(),
            Source::Podman(name) => {
                let layout = new.join("layout");
                podman::save(name, &layout).map_err(unusable)?;
                layout
            }
        };
        let bytes = images::room_in(&self.folder)?.saturating_sub(RESERVE);
        let limits = Limits { bytes, files: MAX_FILES };
        let (program, words) = self
            .init
            .split_first()
            .ok_or(io::ErrorKind::InvalidInput)
            .map_err(io::Error::from)
            .doing(doing)?;
        let mut command = Command::new(program);
        command.args(words).arg(unpack::WORD).args(unpack::arguments(&layout, root, &files, limits));
        let log = new.join("log");
        let helper = Helper::begin(&mut command, log.clone()).doing(doing)?;
        let unpacked = helper.succeed(UNPACK, &|| false, doing);
        unpacked.map_err(|error| unpack::complaint(&log).map_or(error, unusable))?;
        let folder = File::open(&self.folder).doing(doing)?;
        // On disk before the rename: even after a crash of the host, the image is complete or absent.
        // SAFETY: the descriptor is open.
        if unsafe { libc::syncfs(folder.as_raw_fd()) } == -1 {
            return Err(io::Error::last_os_error()).doing(doing);
        }
        fs::rename(&files, place).doing(doing)
    }

    /// Deletes unused images and the remains of a crash. The node has found all its instances by then.
    fn delete_unused(&self) -> io::Result<()> {
        private::directory(&self.folder)?;
        let old = self.folder.join("old");
        for leftover in [&old, &self.folder.join("new")] {
            absent_is_fine(fs::remove_dir_all(leftover))?;
        }
        let used: Vec<PathBuf> =
            lock(&self.used).values().filter_map(Weak::upgrade).map(|place| place.to_path_buf()).collect();
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            if !used.contains(&path) {
                // A partly deleted image never has an image's name.
                fs::rename(&path, &old)?;
                fs::remove_dir_all(&old)?;
            }
        }
        Ok(())
    }
}

fn source(image: &ContainerImage) -> oci_image::Result<Source> {
    let wrong = |why| oci_image::Error::new(why, "start the container again with a valid image source");
    match image.source.parse().map_err(wrong)? {
        Source::Layout { directory, .. } if !directory.is_absolute() => {
            Err(wrong(format!("the path of the image layout {} is not absolute", directory.display())))
        }
        source => Ok(source),
    }
}

fn unusable(error: oci_image::Error) -> Error {
    Error::unusable(error.what, error.remedy)
}
