//! The resources of a host that belong to machines. A host without a machine has none, so whatever it has then is left over.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use lab::Place;
use lab::daemons;
use lab::layout::Layout;
use lab::process::file;

/// The names of the resources of one host.
pub type Resources = BTreeSet<String>;

/// The resources of `place`: files of the engine and of moves, network devices, and the node's network namespaces.
#[must_use]
pub fn of(layout: &Layout, place: Place) -> Resources {
    let state = layout.state(place);
    let folders =
        [state.join("machines"), state.join("images"), layout.images_in_memory().join(place.to_string())];
    let mut found: Resources = folders.iter().flat_map(|folder| names(folder)).collect();
    let Some(node) = daemons::running(layout, place) else { return found };
    let devices = fs::read_to_string(file(node.pid, "net/dev")).unwrap_or_default();
    let devices = devices.lines().filter_map(|line| line.split_once(':'));
    found.extend(devices.map(|(device, _)| format!("device {}", device.trim())));
    let links = names(&file(node.pid, "fd")).filter_map(|link| fs::read_link(link).ok());
    let namespaces = links.map(|link| link.display().to_string()).filter(|link| link.starts_with("net:"));
    found.extend(namespaces.map(|namespace| format!("namespace {namespace}")));
    found
}

fn names(folder: &Path) -> impl Iterator<Item = String> + use<> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path().display().to_string())
}

/// The path of a host's file, as all processes of the machine see it.
#[must_use]
pub fn seen_from_outside(node: i32, path: &Path) -> PathBuf {
    file(node, "root").join(path.strip_prefix("/").unwrap_or(path))
}
