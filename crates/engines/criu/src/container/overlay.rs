//! The root of a container: an overlay file system. The lower directory is the user's, the upper one is the instance's own layer.

use std::ffi::CString;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::linux::files::absent_is_fine;

/// The overlay file system of one container.
pub struct Overlay {
    /// The directory below the layer.
    rootfs: Arc<PathBuf>,
    /// The directory of the layer and the mount point.
    folder: PathBuf,
}

impl Overlay {
    /// An overlay in `folder`, above `rootfs`. Makes nothing yet.
    pub fn new(rootfs: Arc<PathBuf>, folder: &Path) -> Self {
        Self { rootfs, folder: folder.to_owned() }
    }

    /// The directory below the layer.
    pub fn rootfs(&self) -> &Path {
        &self.rootfs
    }

    /// The mount point.
    pub fn root(&self) -> PathBuf {
        self.folder.join("root")
    }

    /// The layer: the files that the container has written.
    pub fn layer(&self) -> PathBuf {
        self.folder.join("layer")
    }

    /// The kernel's work directory.
    fn work(&self) -> PathBuf {
        self.folder.join("work")
    }

    /// Makes an empty layer.
    pub fn lay_out(&self) -> io::Result<()> {
        let layer = self.layer();
        for folder in [&layer, &self.work(), &self.root()] {
            absent_is_fine(fs::remove_dir_all(folder))?;
            fs::create_dir(folder)?;
        }
        // The layer's directory becomes the root directory that the instance sees.
        let rootfs = fs::metadata(self.rootfs.as_path())?;
        fs::set_permissions(&layer, Permissions::from_mode(rootfs.mode()))?;
        std::os::unix::fs::chown(&layer, Some(rootfs.uid()), Some(rootfs.gid()))
    }

    /// Mounts the overlay file system.
    pub fn mount(&self) -> io::Result<()> {
        let (layer, work, root) = (self.layer(), self.work(), self.root());
        // File numbers that the layer refers to would name other files on another host.
        let options = format!(
            "lowerdir={},upperdir={},workdir={},index=off,metacopy=off,redirect_dir=off,xino=off",
            self.rootfs.display(),
            layer.display(),
            work.display()
        );
        let (root, options) = (CString::new(root.as_os_str().as_bytes())?, CString::new(options)?);
        let kind = c"overlay".as_ptr();
        // SAFETY: all are live C strings.
        check(unsafe { libc::mount(kind, root.as_ptr(), kind, 0, options.as_ptr().cast()) })?;
        // SAFETY: the path is a live C string, and nothing else is passed.
        check(unsafe {
            libc::mount(std::ptr::null(), root.as_ptr(), std::ptr::null(), libc::MS_PRIVATE, std::ptr::null())
        })
    }

    /// Unmounts the overlay file system; succeeds if it is not mounted.
    pub fn unmount(&self) -> io::Result<()> {
        let root = CString::new(self.root().as_os_str().as_bytes())?;
        // SAFETY: the path is a live C string.
        match check(unsafe { libc::umount2(root.as_ptr(), libc::MNT_DETACH) }) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOENT)) => Ok(()),
            other => other,
        }
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
