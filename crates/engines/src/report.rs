//! What pins an instance to its host, and what it needs at its destination.

use std::path::PathBuf;

pub use instance::Blocker;
use instance::ContainerImage;
use serde::{Deserialize, Serialize};

/// What [`Engine::check`](crate::Engine::check) finds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// What pins the instance here. Empty: it can leave.
    pub blockers: Vec<Blocker>,
    /// What it needs at its destination.
    pub needs: Needs,
}

/// What an instance needs at its destination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Needs {
    /// Files that are open, mapped or the working directory of a process.
    pub files: Vec<OpenFile>,
    /// Memory that the processes have in use, with file systems in memory, in bytes: room for the images, and again to restore.
    pub memory: u64,
    /// What a container has written, in bytes: room for the images, and again where it is unpacked.
    pub layer: u64,
    /// Whether it is a container.
    pub container: bool,
    /// The image of which that is made, if it is one.
    pub image: Option<ContainerImage>,
    /// The directory of which it is made otherwise.
    pub rootfs: Option<PathBuf>,
    /// Where the container sees what each host has of its own for containers.
    pub support: Vec<PathBuf>,
    /// The cgroup controllers that its limits need.
    pub controllers: Vec<String>,
    /// The source, whose CPU features and versions the destination must have.
    pub host: Host,
}

impl Needs {
    /// What the images hold, in bytes.
    #[must_use]
    pub fn images(&self) -> u64 {
        self.memory + self.layer
    }
}

/// How often the kernel has ended a process of an instance for want of memory, and the limit in bytes if that was reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shortage {
    /// Processes that were ended.
    pub kills: u64,
    /// The limit of the instance's cgroup; `None` if it is the host that had no more.
    pub limit: Option<u64>,
}

/// A file that must be the same at the destination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenFile {
    /// Its path on the host.
    #[serde(with = "bytes")]
    pub path: PathBuf,
    /// What it is.
    pub kind: FileKind,
    /// Its permission bits.
    pub mode: u32,
    /// In bytes; compared for regular files.
    pub size: u64,
    /// Of a regular file. Who has the one of this identity has this very file, whatever is in it by now.
    pub identity: Option<Identity>,
    /// What must be in another one, which is a copy.
    pub contents: Contents,
}

/// What a file is known by on all hosts that share its file system: the beginning of a SHA-256 digest.
pub type Identity = [u8; 16];

/// What is in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Contents {
    /// Not compared: it is no regular file, or the kernel makes it up.
    Any,
    /// An executable or a library: its ELF build ID, in hexadecimal digits.
    Build(String),
    /// The SHA-256 digest of all of it, or of parts if it is large.
    Digest([u8; 32]),
    /// It could not be read: why.
    Unreadable(String),
}

/// What a file is.
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

/// What a host has to offer.
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
    /// Memory that can be had, in bytes.
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
