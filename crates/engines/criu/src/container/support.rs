//! Support files that a container gets from its host: the program of its first process, which must run with any image, the RDMA
//! libraries and the device files. They are mounted in [`FOLDER`] and `/dev`. After a move they are the destination's.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::container::libraries;
use crate::linux::maps::range_and_path;
use instance::container::Bind;
use instance::container::Config;

/// Their directory in a container.
pub const FOLDER: &str = fabric::attach::CONTAINER_FOLDER;

/// Where a container finds the drop-in libraries.
pub const LIBRARIES: &str = "/.transhume/lib";

const PROGRAM: &str = "/.transhume/program";
const SYSTEM: &str = "/.transhume/system";
const DEVICES: &str = "/dev/infiniband";
const HOSTS: &str = "/etc/hosts";

/// The support files of this host.
#[derive(Debug)]
pub struct Support {
    program: PathBuf,
    /// The folder with the system's C library and dynamic linker, which run the program.
    system: PathBuf,
    /// The linker's file name.
    linker: String,
    /// The drop-in libraries, each under all of its names.
    libraries: Vec<Bind>,
    /// The names of instances.
    hosts: Option<PathBuf>,
    /// The device files of RDMA devices.
    devices: Option<PathBuf>,
}

impl Support {
    /// Finds the support files: the `program` of an instance's first process, the drop-in libraries in the folder `libraries`, the
    /// file `hosts` and the directory `devices`.
    ///
    /// # Errors
    /// If this process is not linked as usual, or the folder cannot be read.
    pub fn find(
        program: &Path,
        libraries: Option<&Path>,
        hosts: Option<&Path>,
        devices: Option<&Path>,
    ) -> io::Result<Self> {
        let maps = fs::read_to_string("/proc/self/maps")?;
        let (system, linker) = linked(&maps).ok_or_else(|| {
            io::Error::other("this program's C library and dynamic linker are not in one folder")
        })?;
        let libraries = libraries.map(libraries_in).transpose()?.unwrap_or_default();
        let (program, hosts) = (program.to_owned(), hosts.map(Path::to_owned));
        let devices = devices.map(Path::to_owned);
        Ok(Self { program, system, linker, libraries, hosts, devices })
    }

    /// Whether the libraries with which a container finds the RDMA device are here.
    pub fn has_libraries(&self) -> bool {
        !self.libraries.is_empty()
    }

    /// The mounts beside the user's own.
    pub fn binds_beside(&self, config: &Config) -> Vec<Bind> {
        let taken = config.places();
        // The engine makes no mount points in directories of the host that the user mounts.
        let is_of_the_user =
            |place: &Path| config.binds().iter().any(|bind| place.starts_with(&bind.destination));
        let is_free = |place: &PathBuf| !taken.contains(place) && !is_of_the_user(place);
        self.binds().filter(|ours| is_free(&ours.destination)).collect()
    }

    /// The libraries that are mounted over those of `rootfs`.
    pub fn binds_over(&self, config: &Config, rootfs: &Path) -> Vec<Bind> {
        let taken = config.places();
        // The user's mounts above hide such files, and the engine must not write to them.
        let is_seen = |over: &Bind| !taken.iter().any(|place| over.destination.starts_with(place));
        let over = libraries::binds_over(rootfs, &self.linker, &self.libraries);
        over.into_iter().filter(is_seen).collect()
    }

    /// Whether this host has a support file for `place` in a container of `rootfs`, or of an image: an image has the same files on
    /// all hosts.
    pub fn has(&self, place: &Path, rootfs: Option<&Path>) -> bool {
        let is_there = |bind: Bind| bind.destination == place;
        self.binds().any(is_there)
            || match rootfs {
                Some(rootfs) => {
                    libraries::binds_over(rootfs, &self.linker, &self.libraries).into_iter().any(is_there)
                }
                None => {
                    ![FOLDER, DEVICES, HOSTS].iter().any(|own| place.starts_with(own)) && self.has_libraries()
                }
            }
    }

    fn binds(&self) -> impl Iterator<Item = Bind> + '_ {
        let bind = |source: &Path, destination: &str| Bind {
            source: source.to_owned(),
            destination: destination.into(),
        };
        let always = [bind(&self.program, PROGRAM), bind(&self.system, SYSTEM)];
        // A host that could not make the device files has reported that.
        let devices = self.devices.as_deref().filter(|devices| devices.is_dir());
        let devices = devices.map(|devices| bind(devices, DEVICES));
        let hosts = self.hosts.as_deref().map(|file| bind(file, HOSTS));
        always.into_iter().chain(self.libraries.iter().cloned()).chain(devices).chain(hosts)
    }

    /// The arguments with which `command` runs in a container. Its first word is the program.
    pub fn init(&self, command: &[OsString]) -> Vec<String> {
        let linker = format!("{SYSTEM}/{}", self.linker);
        let first = [linker, "--library-path".into(), SYSTEM.into(), PROGRAM.into()];
        let rest = command.iter().skip(1).map(|word| word.to_string_lossy().into_owned());
        first.into_iter().chain(rest).collect()
    }
}

/// The libraries in `folder`, file by file: the target of a link may be in another folder.
fn libraries_in(folder: &Path) -> io::Result<Vec<Bind>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        if name.to_string_lossy().contains(".so") {
            let source = fs::canonicalize(folder.join(&name))?;
            found.push(Bind { source, destination: Path::new(LIBRARIES).join(name) });
        }
    }
    found.sort_by(|one, other| one.destination.cmp(&other.destination));
    Ok(found)
}

/// The folder of the C library and the linker according to `maps`, and the linker's name.
fn linked(maps: &str) -> Option<(PathBuf, String)> {
    let files = || maps.lines().filter_map(range_and_path).map(|(_, path)| Path::new(path));
    let library = files().find(|path| path.file_name().is_some_and(|name| name == "libc.so.6"))?;
    let is_linker =
        |path: &&Path| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"ld-"));
    let linker = files().find(is_linker)?;
    let folder = library.parent().filter(|folder| linker.parent() == Some(folder))?;
    Some((folder.to_owned(), linker.file_name()?.to_str()?.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_linker_of_this_program_is_found() {
        let support = Support::find(Path::new("/usr/bin/transhume"), None, None, None).unwrap();
        assert!(support.system.join(&support.linker).exists());
        let command = ["/usr/bin/transhume", "init", "--"].map(OsString::from);
        let words = support.init(&command);
        assert_eq!(words[1..], ["--library-path", SYSTEM, PROGRAM, "init", "--"]);
    }

    #[test]
    fn nothing_is_mounted_where_the_user_has_mounted_something() {
        let folder = tempfile::tempdir().unwrap();
        let system = fs::canonicalize("/usr/lib/x86_64-linux-gnu/libibverbs.so.1").unwrap();
        fs::copy(&system, folder.path().join("libibverbs.so.1")).unwrap();
        let support =
            Support::find(Path::new("/usr/bin/transhume"), Some(folder.path()), None, None).unwrap();
        let over = |config: &str| {
            let config = Config::parse(config).unwrap();
            support
                .binds_over(&config, Path::new("/"))
                .into_iter()
                .map(|bind| bind.destination)
                .collect::<Vec<_>>()
        };
        assert_eq!(over("{}"), [system]);
        let above = r#"{ "mounts": [{ "destination": "/usr/lib", "source": "/srv", "options": ["bind"] }] }"#;
        assert_eq!(over(above), [""; 0].map(PathBuf::from));
        assert!(
            support.has(&over("{}")[0], Some(Path::new("/"))) && support.has(Path::new("/lib/any.so"), None)
        );
        assert!(!support.has(Path::new("/lib/any.so"), Some(Path::new("/"))));
        assert!(!support.has(Path::new(HOSTS), None), "this host writes none");
    }

    #[test]
    fn nothing_is_mounted_in_what_the_user_has_mounted_of_the_host() {
        let hosts = Some(Path::new("/var/lib/hosts"));
        let support = Support::find(Path::new("/usr/bin/transhume"), None, hosts, None).unwrap();
        let has_hosts = |mount: &str| {
            let config = Config::parse(&format!(r#"{{ "mounts": [{mount}] }}"#)).unwrap();
            support.binds_beside(&config).iter().any(|bind| bind.destination == Path::new(HOSTS))
        };
        assert!(!has_hosts(r#"{ "destination": "/etc", "source": "/srv", "options": ["bind"] }"#));
        assert!(!has_hosts(r#"{ "destination": "/etc/hosts", "source": "/srv", "options": ["bind"] }"#));
        assert!(has_hosts(r#"{ "destination": "/et", "source": "/srv", "options": ["bind"] }"#));
        assert!(has_hosts(r#"{ "destination": "/etc", "type": "tmpfs", "source": "tmpfs" }"#));
    }

    #[test]
    fn a_linker_in_another_folder_than_the_c_library_is_refused() {
        let maps = "7f00-7f10 r-xp 00000000 fe:00 123 /lib/libc.so.6\n7f20-7f30 r-xp 00000000 fe:00 124 /lib64/ld-linux.so.2\n";
        assert_eq!(linked(maps), None);
    }
}
