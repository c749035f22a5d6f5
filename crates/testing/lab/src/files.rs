//! The files of a host: a mount namespace with its own folders in place of some of the machine's.
//!
//! | Path in the host | Contents |
//! |---|---|
//! | `/tmp`, `/run`, `/dev/shm` | the host's own, in memory, gone with the lab |
//! | `/var/lib/transhume` | the host's own folder on the machine's disk, with a folder `disks` |
//! | `/run/transhume`, `/run/netns` | the machine's: sockets, keys and state of labs, and named network namespaces |
//! | all else, and the shared folders | the machine's |
//!
//! A bind mount keeps the namespace while no process is in it, so that a host's files outlive its node. Mounts that are made in a
//! host later are its own. [`crate::sweep`] removes the bind mount, and with it the namespace.

use std::env;
use std::ffi::{CStr, CString, OsStr};
use std::fs::{self, File};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::mount::{MountPropagationFlags, mount_bind, mount_change};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::error::Doing;
use crate::layout::{Layout, NAMESPACES, RUN};
use crate::record::Record;
use crate::tool::UNSHARE;
use crate::{Host, Place, Result};

/// The files that the hosts of a lab see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Files {
    /// Each host has its own, except for these folders of the machine.
    Own {
        /// The shared folders.
        shared: Vec<PathBuf>,
    },
    /// All hosts share the machine's files.
    Shared,
}

impl Files {
    /// Each host has its own files, without further shared folders.
    #[must_use]
    pub fn own() -> Self {
        Self::Own { shared: Vec::new() }
    }
}

/// Makes the mounts of a host, in its namespace. The arguments are an empty folder, the host's folder on disk, and folders of the
/// machine that the host keeps. Each own folder is complete before it hides the one of the machine. `mount` keeps no table (`-n`),
/// as that would be in `/run`.
const MAKE: &str = r#"
stage=$1 disk=$2
shift 2
for path in /tmp /run /dev/shm /var/lib/transhume; do
    for kept in "$@"; do
        [ "$kept" != "$path" ] || continue 2
    done
    case $path in
        /var/lib/transhume) mount -n --bind "$disk" "$stage" ;;
        /run) mount -n -t tmpfs -o mode=755 tmpfs "$stage" ;;
        *) mount -n -t tmpfs -o mode=1777 tmpfs "$stage" ;;
    esac
    for kept in "$@"; do
        case $kept in
            "$path"/*)
                mkdir -p "$stage${kept#"$path"}"
                mount -n --rbind "$kept" "$stage${kept#"$path"}"
                ;;
        esac
    done
    mount -n --move "$stage" "$path"
done
mkdir -p /run/lock
"#;

/// Makes the mount namespaces of all hosts, or none if they share the machine's files.
///
/// # Errors
/// The errors of making folders and mounts, and of [`crate::tool::Tool::run`]. Resources created before the failure stay.
pub fn make(layout: &Layout, record: &Record, files: &Files) -> Result<()> {
    let Files::Own { shared } = files else { return Ok(()) };
    let kept = kept(layout, record, shared)?;
    let stage = layout.disks().join("stage");
    create(&stage)?;
    let folder = layout.mount_namespaces();
    create(&folder)?;
    // A namespace can be bound to a file in a private mount only: in a shared one it would get into itself.
    mount_bind(&folder, &folder)
        .and_then(|()| mount_change(&folder, MountPropagationFlags::PRIVATE))
        .doing(|| format!("cannot mount {}", folder.display()))?;
    Host::first(record.hosts).try_for_each(|host| make_host(layout, record, host, &stage, &kept))
}

/// The folders of the machine that hosts see in spite of their own ones.
fn kept(layout: &Layout, record: &Record, shared: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let program = record.program.parent().map(Path::to_owned);
    let own = [RUN.into(), NAMESPACES.into(), layout.images_in_memory()];
    let all = own.into_iter().chain(program).chain(shared.iter().cloned());
    all.map(|path| path.canonicalize().doing(|| format!("cannot share {}", path.display()))).collect()
}

fn make_host(layout: &Layout, record: &Record, host: Host, stage: &Path, kept: &[PathBuf]) -> Result<()> {
    let disk = layout.disks().join(host.to_string());
    create(&disk.join("disks"))?;
    let file = layout.mount_namespace(host);
    File::create(&file).doing(|| format!("cannot create {}", file.display()))?;
    let namespace = format!("--mount={}", file.display());
    let mut arguments: Vec<&OsStr> = vec![OsStr::new(&namespace)];
    arguments.extend(["--propagation", "slave", "--", "sh", "-ec", MAKE, "sh"].map(OsStr::new));
    arguments.extend([stage, &disk].map(Path::as_os_str));
    arguments.extend(kept.iter().map(|path| path.as_os_str()));
    UNSHARE.of_lab(&record.id).run(&arguments).map(drop)
}

fn create(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).doing(|| format!("cannot create {}", folder.display()))
}

/// The file of the mount namespace of `place`; `None` if it has the machine's files.
#[must_use]
pub fn namespace_file(layout: &Layout, place: Place) -> Option<PathBuf> {
    let Place::Host(host) = place else { return None };
    Some(layout.mount_namespace(host)).filter(|file| file.exists())
}

/// The mount namespace of `place`; `None` if it has the machine's files.
///
/// # Errors
/// The errors of opening its file.
pub fn namespace(layout: &Layout, place: Place) -> Result<Option<File>> {
    let open = |file: PathBuf| File::open(file).doing(|| format!("cannot enter the files of {place}"));
    namespace_file(layout, place).map(open).transpose()
}

/// The current directory, for [`join`].
#[must_use]
pub fn current_folder() -> Option<CString> {
    CString::new(env::current_dir().ok()?.into_os_string().into_vec()).ok()
}

/// Moves the calling process, which has one thread, into a mount namespace, and to `folder` if that exists there. It only makes
/// system calls, so a forked process may call it.
///
/// # Errors
/// Those of `setns`.
pub fn join(namespace: BorrowedFd<'_>, folder: Option<&CStr>) -> io::Result<()> {
    move_into_link_name_space(namespace, Some(LinkNameSpaceType::Mount))?;
    // Otherwise the process is in the root directory.
    let _ = folder.map(rustix::process::chdir);
    Ok(())
}
