//! The RDMA libraries in a container's root file system. The engine mounts its own over them, because programs that start with a
//! fresh environment (over ssh, by `su -`) find libraries only at these usual paths.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, open, openat2};

use instance::container::Bind;

/// The library directories of the dynamic linkers of usual distributions: Debian's family, Red Hat's family, and others.
const FOLDERS: [&str; 8] = [
    "lib/x86_64-linux-gnu",
    "usr/lib/x86_64-linux-gnu",
    "lib64",
    "usr/lib64",
    "usr/local/lib64",
    "usr/local/lib",
    "lib",
    "usr/lib",
];

/// Mounts for each of `libraries` over those of its name in `rootfs`, if `rootfs` has the `linker` for which ours are built.
///
/// None if the root file system cannot be read: making the container then fails with the reason.
pub fn binds_over(rootfs: &Path, linker: &str, libraries: &[Bind]) -> Vec<Bind> {
    let Ok(root) = Root::open(rootfs) else { return Vec::new() };
    if !FOLDERS.iter().any(|folder| root.file(&Path::new(folder).join(linker)).is_some()) {
        return Vec::new();
    }
    let mut found = BTreeMap::new();
    for Bind { source, destination } in libraries {
        let Some((name, ours)) = destination.file_name().zip(machine(source)) else { continue };
        for folder in FOLDERS {
            let Some((place, file)) = root.file(&Path::new(folder).join(name)) else { continue };
            if machine(&file) == Some(ours) {
                found.insert(place, source.clone());
            }
        }
    }
    found.into_iter().map(|(destination, source)| Bind { source, destination }).collect()
}

/// The target of a file according to its ELF header: class, byte order and machine.
fn machine(path: &Path) -> Option<[u8; 4]> {
    let mut header = [0; 20];
    File::open(path).ok()?.read_exact(&mut header).ok()?;
    header.starts_with(b"\x7fELF").then_some([header[4], header[5], header[18], header[19]])
}

/// A root file system; symbolic links do not lead out of it.
struct Root {
    descriptor: OwnedFd,
    path: PathBuf,
}

impl Root {
    fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let descriptor = open(path, flags, Mode::empty())?;
        Ok(Self { path: fs::read_link(link(&descriptor))?, descriptor })
    }

    /// The path of a regular file in the root file system after all links, and the path with which this process can open it.
    fn file(&self, path: &Path) -> Option<(PathBuf, PathBuf)> {
        let (flags, resolve) = (OFlags::PATH | OFlags::CLOEXEC, ResolveFlags::IN_ROOT);
        let file = openat2(&self.descriptor, path, flags, Mode::empty(), resolve).ok()?;
        let is_regular = FileType::from_raw_mode(fstat(&file).ok()?.st_mode) == FileType::RegularFile;
        let on_host = fs::read_link(link(&file)).ok().filter(|_| is_regular)?;
        let below = on_host.strip_prefix(&self.path).ok()?;
        Some((Path::new("/").join(below), on_host))
    }
}

fn link(descriptor: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", descriptor.as_raw_fd())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::*;

    const LINKER: &str = "ld-linux-x86-64.so.2";

    /// A library of 64 bits (or 32) for this machine.
    fn library(path: &Path, class: u8) {
        let header = [b"\x7fELF".as_slice(), &[class, 1], &[0; 12], &[62, 0]].concat();
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, header).unwrap();
    }

    fn ours(folder: &Path) -> Vec<Bind> {
        let bind = |name: &str| {
            let source = folder.join(name);
            library(&source, 2);
            Bind { source, destination: Path::new("/.transhume/lib").join(name) }
        };
        vec![bind("libibverbs.so.1"), bind("librdmacm.so.1")]
    }

    #[test]
    fn libraries_are_found_behind_links() {
        let (own, root) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let (ours, root) = (ours(own.path()), root.path());
        let debian = "usr/lib/x86_64-linux-gnu";
        library(&root.join(debian).join("libibverbs.so.1.14.44.0"), 2);
        symlink("libibverbs.so.1.14.44.0", root.join(debian).join("libibverbs.so.1")).unwrap();
        library(&root.join("usr/lib/librdmacm.so.1"), 1);
        library(&root.join("opt/librdmacm.so.1"), 2);
        fs::create_dir(root.join("usr/lib64")).unwrap();
        symlink("/opt/librdmacm.so.1", root.join("usr/lib64/librdmacm.so.1")).unwrap();
        symlink("usr/lib", root.join("lib")).unwrap();
        assert_eq!(binds_over(root, LINKER, &ours), [], "nothing there that would load ours");

        library(&root.join(debian).join(LINKER), 2);
        let places = [(1, "/opt/librdmacm.so.1"), (0, "/usr/lib/x86_64-linux-gnu/libibverbs.so.1.14.44.0")];
        let expected = places.map(|(which, place): (usize, _)| Bind {
            source: ours[which].source.clone(),
            destination: place.into(),
        });
        assert_eq!(binds_over(root, LINKER, &ours), expected);
    }

    #[test]
    fn files_that_are_no_libraries_are_not_mounted_over() {
        let (own, root) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let (ours, root) = (ours(own.path()), root.path());
        library(&root.join("lib64").join(LINKER), 2);
        fs::create_dir_all(root.join("usr/lib/libibverbs.so.1")).unwrap();
        fs::write(root.join("lib64/libibverbs.so.1"), "GROUP ( libibverbs.so.1.14 )").unwrap();
        symlink("../../../../../../../dev/zero", root.join("usr/lib/librdmacm.so.1")).unwrap();
        assert_eq!(binds_over(root, LINKER, &ours), []);
        assert_eq!(binds_over(&root.join("none"), LINKER, &ours), []);
    }
}
