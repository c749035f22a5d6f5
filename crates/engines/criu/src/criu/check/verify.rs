//! Blockers at the destination: requirements of an instance that this host does not meet.

use std::fs::{self, Metadata};
use std::os::linux::fs::MetadataExt;

use super::contents::{self, Regular};
use super::findings::kind_of;
use crate::instance::Blocker;
use crate::report::{Contents, FileKind, Host, Needs, OpenFile};

/// The entries of `needs` that this host does not meet, as blockers.
pub fn verify(needs: &Needs, here: &Host) -> Vec<Blocker> {
    let regular = Regular::default();
    let files = needs.files.iter().filter_map(|needed| file(needed, &regular));
    let runtime = (needs.container && !here.containers).then(|| {
        Blocker::new("the destination has no OCI runtime", "install runc there, and restart its node")
    });
    let controllers = needs.controllers.iter().filter(|name| !here.controllers.contains(name)).map(|name| {
        let what = format!(
            "the destination lacks the cgroup controller `{name}`, which a limit of the container needs"
        );
        Blocker::new(what, "enable the controller there, or start the container without that limit")
    });
    versions(&needs.host, here)
        .into_iter()
        .chain(runtime)
        .chain(controllers)
        .chain(rooms(needs, here))
        .chain(files)
        .collect()
}

fn versions(source: &Host, here: &Host) -> Vec<Blocker> {
    let mut found = Vec::new();
    if source.architecture != here.architecture {
        found.push(Blocker::new(
            format!(
                "the destination's architecture is {}, the source's is {}",
                here.architecture, source.architecture
            ),
            "choose a destination with the same architecture",
        ));
    }
    let missing: Vec<&str> =
        source.cpu_features.iter().filter(|f| !here.cpu_features.contains(f)).map(String::as_str).collect();
    if !missing.is_empty() {
        found.push(Blocker::new(
            format!("the destination's CPU lacks {}", missing.join(", ")),
            "choose a destination with the same CPU or a newer one",
        ));
    }
    if here.criu < source.criu {
        found.push(Blocker::new(
            "the destination's CRIU is older than the source's",
            "update CRIU there with scripts/criu.sh",
        ));
    }
    if release(&here.kernel) < release(&source.kernel) {
        found.push(Blocker::new(
            format!("the destination's kernel {} is older than the source's {}", here.kernel, source.kernel),
            "update the destination's kernel",
        ));
    }
    found
}

fn rooms(needs: &Needs, here: &Host) -> Vec<Blocker> {
    let rooms = [
        (
            "free memory",
            here.memory_available,
            needs.memory,
            "choose a destination with more, or end another instance there",
        ),
        ("room for images", here.image_room, needs.images(), "free disk space there"),
        ("room for the container's written files", here.layer_room, needs.layer, "free disk space there"),
    ];
    let lacking = rooms.into_iter().filter(|(_, free, needed, _)| free < needed);
    lacking
        .map(|(what, free, needed, remedy)| {
            let (free, needed) = (free >> 20, needed >> 20);
            Blocker::new(
                format!("the destination has {free} MiB of {what}, and the instance needs {needed} MiB"),
                remedy,
            )
        })
        .collect()
}

fn file(needed: &OpenFile, regular: &Regular) -> Option<Blocker> {
    let path = needed.path.display();
    let Ok(found) = fs::metadata(&needed.path) else {
        let what = format!("{path} is in use and does not exist at the destination");
        return Some(Blocker::new(what, "create it there too, at the same path"));
    };
    if needed.identity.is_some_and(|identity| identity == regular.identity(&found)) {
        return None;
    }
    let contents = if is_alike(needed, &found) { compare(needed) } else { Comparison::Differs };
    let what = match contents {
        Comparison::Same => return None,
        Comparison::Differs => format!("{path} is in use and is a different file at the destination"),
        Comparison::Unreadable(whose, reason) => {
            format!("{path} is in use, and the {whose} cannot read its copy to compare it ({reason})")
        }
    };
    let remedy = if matches!(needed.contents, Contents::Build(_)) {
        "install the same version of it on both hosts"
    } else {
        "keep it on a file system that both hosts mount from the same source"
    };
    Some(Blocker::new(what, remedy))
}

/// Whether a file's type, size and mode match the needed one.
fn is_alike(needed: &OpenFile, found: &Metadata) -> bool {
    kind_of(found) == Some(needed.kind)
        && (needed.kind != FileKind::Regular || found.st_size() == needed.size)
        && found.st_mode() & 0o7777 == needed.mode
}

enum Comparison {
    Same,
    Differs,
    /// The host whose file cannot be read, and the reason.
    Unreadable(&'static str, String),
}

fn compare(needed: &OpenFile) -> Comparison {
    match &needed.contents {
        Contents::Any => return Comparison::Same,
        Contents::Unreadable(reason) => return Comparison::Unreadable("source", reason.clone()),
        Contents::Build(_) | Contents::Digest(_) => {}
    }
    match contents::of(&needed.path, needed.size) {
        Contents::Unreadable(reason) => Comparison::Unreadable("destination", reason),
        found if found == needed.contents => Comparison::Same,
        _ => Comparison::Differs,
    }
}

/// The first two numbers of a kernel release.
pub fn release(kernel: &str) -> (u32, u32) {
    let mut numbers = kernel.split(['.', '-']).map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> Host {
        Host {
            kernel: "6.18.1".into(),
            criu: (4, 2, 1),
            architecture: "x86_64".into(),
            cpu_features: vec!["avx".into(), "sse".into()],
            memory_available: 1 << 30,
            image_room: 1 << 30,
            layer_room: 1 << 30,
            containers: false,
            controllers: Vec::new(),
        }
    }

    fn needs(files: Vec<OpenFile>) -> Needs {
        Needs {
            files,
            memory: 1 << 20,
            layer: 1 << 20,
            container: false,
            image: None,
            rootfs: None,
            support: Vec::new(),
            controllers: Vec::new(),
            host: host(),
        }
    }

    fn open_file(path: &str, size: u64) -> OpenFile {
        let path = path.into();
        let (kind, contents) = (FileKind::Regular, Contents::Any);
        OpenFile { path, kind, mode: 0o644, size, identity: None, contents }
    }

    #[test]
    fn a_host_meets_its_own_requirements() {
        assert_eq!(verify(&needs(Vec::new()), &host()), []);
    }

    #[test]
    fn each_missing_requirement_is_a_blocker() {
        let poor = Host {
            kernel: "6.12".into(),
            criu: (4, 1, 0),
            architecture: "aarch64".into(),
            cpu_features: vec!["sse".into()],
            memory_available: 0,
            image_room: 0,
            layer_room: 0,
            containers: false,
            controllers: Vec::new(),
        };
        let controllers = vec!["memory".into()];
        let container = Needs { container: true, controllers, ..needs(Vec::new()) };
        assert_eq!(verify(&container, &poor).len(), 9);
    }

    /// A container's written files are packed among the images, and unpacked in another directory.
    #[test]
    fn written_files_of_a_container_need_room_and_no_memory() {
        let needs = Needs { layer: 600 << 20, memory: 500 << 20, ..needs(Vec::new()) };
        let found = verify(&needs, &host());
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].what.contains("1024 MiB of room for images, and the instance needs 1100 MiB"),
            "{}",
            found[0]
        );
        let full = Host { layer_room: 599 << 20, image_room: 2 << 30, ..host() };
        assert!(verify(&needs, &full)[0].what.contains("599 MiB of room for the container's written files"));
    }

    #[test]
    fn a_missing_file_and_a_different_file_have_different_blockers() {
        let found = verify(&needs(vec![open_file("/no/such", 1), open_file("/etc/passwd", 1)]), &host());
        assert!(found[0].what.contains("does not exist at the destination"));
        assert!(found[1].what.contains("a different file"));
    }

    /// A possible `/etc/passwd` of a host.
    fn passwd(contents: Contents) -> OpenFile {
        let metadata = fs::metadata("/etc/passwd").unwrap();
        let mode = metadata.st_mode() & 0o7777;
        OpenFile { mode, contents, ..open_file("/etc/passwd", metadata.st_size()) }
    }

    #[test]
    fn an_unreadable_file_is_a_blocker_unless_both_hosts_share_it() {
        let unreadable = passwd(Contents::Unreadable("Permission denied".into()));
        let found = verify(&needs(vec![unreadable.clone()]), &host());
        let expected =
            "/etc/passwd is in use, and the source cannot read its copy to compare it (Permission denied)";
        assert_eq!(found[0].what, expected);
        let identity = Regular::default().identity(&fs::metadata("/etc/passwd").unwrap());
        let shared = OpenFile { identity: Some(identity), ..unreadable };
        assert_eq!(verify(&needs(vec![shared]), &host()), []);
    }

    #[test]
    fn a_library_that_differs_needs_the_same_version() {
        let found = verify(&needs(vec![passwd(Contents::Build("00".into()))]), &host());
        assert_eq!(found[0].remedy, "install the same version of it on both hosts");
    }
}
