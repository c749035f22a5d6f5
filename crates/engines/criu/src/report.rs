//! The result of checking an instance: its blockers, and its needs at the destination.

use std::path::PathBuf;

pub use engine_api::Shortage;
pub use instance::Blocker;
use instance::ContainerImage;
use serde::{Deserialize, Serialize};

/// The result of [`ProcessEngine::check`](crate::ProcessEngine::check).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Reasons why the instance cannot leave this host.
    pub blockers: Vec<Blocker>,
    /// Its requirements of the destination.
    pub needs: Needs,
}

/// The requirements of an instance at its destination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Needs {
    /// Files that are open, mapped or the working directory of a process.
    pub files: Vec<OpenFile>,
    /// The memory in use by the processes and tmpfs mounts, in bytes. The destination needs it twice: for the images, and to restore.
    pub memory: u64,
    /// The files that a container has written, in bytes. The destination needs the room twice: for the images, and to unpack.
    pub layer: u64,
    /// Whether it is a container.
    pub container: bool,
    /// The container image, if the container has one.
    pub image: Option<ContainerImage>,
    /// The directory of its root file system otherwise.
    pub rootfs: Option<PathBuf>,
    /// The paths in the container at which each host mounts its own support files.
    pub support: Vec<PathBuf>,
    /// The cgroup controllers that its limits need.
    pub controllers: Vec<String>,
    /// The source, whose CPU features and versions the destination must have.
    pub host: Host,
}

impl Needs {
    /// The size of the images, in bytes.
    #[must_use]
    pub fn images(&self) -> u64 {
        self.memory + self.layer
    }
}

/// A file that must be the same at the destination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenFile {
    /// Its path on the host.
    #[serde(with = "bytes")]
    pub path: PathBuf,
    /// Its type.
    pub kind: FileKind,
    /// Its permission bits.
    pub mode: u32,
    /// In bytes; compared for regular files.
    pub size: u64,
    /// The identity of a regular file. A host that has a file of this identity shares this file, whatever it contains by now.
    pub identity: Option<Identity>,
    /// The contents that a copy must have.
    pub contents: Contents,
}

/// Identifies a file on all hosts that share its file system: the beginning of a SHA-256 digest.
pub type Identity = [u8; 16];

/// The contents of a file, for comparison.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Contents {
    /// Not compared: it is not a regular file, or the kernel generates it.
    Any,
    /// An executable or a library: its ELF build ID, in hexadecimal digits.
    Build(String),
    /// The SHA-256 digest of the whole file, or of samples if it is large.
    Digest([u8; 32]),
    /// It could not be read, for this reason.
    Unreadable(String),
}

/// The type of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileKind {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A named pipe.
    Fifo,
    /// A character device with its numbers.
    Character {
        /// The driver.
        major: u32,
        /// The driver's device.
        minor: u32,
    },
}

/// The versions, features and free resources of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// The kernel's release.
    pub kernel: String,
    /// CRIU's version: major, minor, patch.
    pub criu: (u32, u32, u32),
    /// The machine's architecture, as `uname -m` says it.
    pub architecture: String,
    /// CPU features, as `/proc/cpuinfo` names them, sorted.
    pub cpu_features: Vec<String>,
    /// Available memory, in bytes.
    pub memory_available: u64,
    /// Room for images, in bytes.
    pub image_room: u64,
    /// Room for what containers write, in bytes.
    pub layer_room: u64,
    /// Whether it has an OCI runtime, for containers.
    pub containers: bool,
    /// The cgroup controllers by which it can limit these.
    pub controllers: Vec<String>,
}

/// A path that may be no UTF-8.
mod bytes {
    use std::ffi::OsString;
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    use std::path::{Path, PathBuf};

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
        path.as_os_str().as_bytes().serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
        Vec::deserialize(deserializer).map(|bytes| OsString::from_vec(bytes).into())
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn a_path_may_be_any_bytes() {
        let path = OsStr::from_bytes(b"/srv/\xff").into();
        let kind = FileKind::Directory;
        let file = OpenFile { path, kind, mode: 0o755, size: 0, identity: None, contents: Contents::Any };
        let words = serde_json::to_string(&file).unwrap();
        assert_eq!(serde_json::from_str::<OpenFile>(&words).unwrap(), file);
    }
}
