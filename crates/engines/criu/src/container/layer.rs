//! The files that a container has written, in transfer: an archive among the images.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::criu::pages::tar::ATTRIBUTES;
use crate::criu::root::{Packer, Packing};
use crate::error::{Doing, Result};
use crate::linux::helper::Helper;

/// The name of its archive.
const FILE: &str = "layer.img";

/// How long packing or unpacking may take.
const PATIENCE: Duration = Duration::from_secs(240);

/// The directories in a container's layer at which CRIU mounts file systems for a moment of a dump, to reach files below other
/// mounts.
const CRIU_PLACES: [&str; 2] = ["./tmp/cr-tmpfs.??????", "./cr-tmpfs.??????"];

/// The extended attributes in which an overlay file system records a copied file's origin, which differs on another host.
const ORIGIN: &str = "trusted.overlay.origin";

/// Begins to pack `layer` of the stopped instance into a file among `images`. `doing` names the operation in errors.
pub fn pack(layer: &Path, images: &Path, log: PathBuf, doing: String) -> Result<Packing> {
    let mut tar = tar("--create", layer, &images.join(FILE));
    let places = CRIU_PLACES.map(|place| format!("--exclude={place}"));
    tar.arg(format!("--xattrs-exclude={ORIGIN}")).arg("--anchored").args(places).arg(".");
    let tar = Helper::begin(&mut tar, log).doing(|| doing.clone())?;
    Ok(packing(tar.forgiven(is_of_criu), doing))
}

/// Begins to unpack the packed layer into an empty `layer`.
pub fn unpack(layer: &Path, images: &Path, log: PathBuf, doing: String) -> Result<Packing> {
    let mut tar = tar("--extract", layer, &images.join(FILE));
    // Warnings about implausible times must not hide the reason of a failure.
    tar.args(["--preserve-permissions", "--warning=no-timestamp"]);
    let tar = Helper::begin(&mut tar, log).doing(|| doing.clone())?;
    Ok(packing(tar, doing))
}

fn packing(helper: Helper, doing: String) -> Packing {
    Packing(Some(Packer { helper, patience: PATIENCE, doing }))
}

/// Whether a complaint is CRIU's effect: while the layer is packed the instance is stopped, but CRIU makes and removes its
/// directories there. A warning about a skipped socket is no change: CRIU makes sockets again.
fn is_of_criu(complaint: &str) -> bool {
    let changed = ["tar: .: file changed as we read it", "tar: ./tmp: file changed as we read it"];
    changed.contains(&complaint) || complaint.ends_with(": socket ignored")
}

fn tar(what: &str, folder: &Path, archive: &Path) -> Command {
    let mut tar = Command::new("tar");
    // The engine parses its standard error.
    tar.env("LC_ALL", "C").arg(what).args(ATTRIBUTES).args(["--numeric-owner", "--sparse", "--directory"]);
    tar.arg(folder).arg("--file").arg(archive);
    tar
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::FileExt;
    use std::time::{SystemTime, UNIX_EPOCH};

    use super::*;
    use crate::engine::Watch;

    /// An archive that is cut off, with a file from 1901 and a file from the future.
    #[test]
    fn implausible_times_are_not_the_reason_of_a_failed_unpacking() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join(name);
        let (from, to, images) = (place("from"), place("to"), place("images"));
        [&from, &to, &images].into_iter().for_each(|folder| fs::create_dir(folder).unwrap());
        let old = UNIX_EPOCH - Duration::from_secs(1);
        let now = SystemTime::now();
        for (name, time) in [("a", old), ("b", now + PATIENCE * 100), ("c", now)] {
            let file = File::create(from.join(name)).unwrap();
            file.write_all_at(&[1; 10_000], 0).and_then(|()| file.set_modified(time)).unwrap();
        }
        let ends = |packing: Result<Packing>| {
            packing.and_then(|packing| packing.succeed(&Watch::QUIET)).map_err(|error| error.to_string())
        };
        ends(pack(&from, &images, place("log"), "packing".into())).unwrap();
        let unpacked = || ends(unpack(&to, &images, place("log"), "unpacking".into()));
        unpacked().unwrap();
        assert_eq!(fs::metadata(to.join("a")).unwrap().modified().unwrap(), old);
        // In the middle of a file.
        File::options().write(true).open(images.join(FILE)).and_then(|file| file.set_len(15_000)).unwrap();
        assert_eq!(unpacked().unwrap_err(), "unpacking: tar: Unexpected EOF in archive");
    }
}
