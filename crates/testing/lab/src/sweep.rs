//! Removes a lab in any state.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::mount::{UnmountFlags, unmount};

use crate::error::Doing;
use crate::layout::{Layout, RUN};
use crate::mark::Marks;
use crate::process::{Handle, wait_for_end};
use crate::record::Record;
use crate::{Error, Result, network, run_folder};

/// Time limit for killed processes to end: they may be writing large image files.
const END_LIMIT: Duration = Duration::from_secs(30);

/// Kills the lab's processes, then removes its namespaces, mounts, cgroups and files. Any of them may be
/// missing.
///
/// # Errors
/// [`Error::WillNotEnd`], and the errors of removing namespaces, mounts, cgroups and files.
pub fn sweep(layout: &Layout) -> Result<()> {
    end_processes(layout)?;
    network::remove(layout)?;
    detach_mounts(layout)?;
    remove_cgroups(layout)?;
    remove_files(layout)
}

/// Criteria for the lab's processes. Missing parts of a lab give no criteria.
pub fn marks(layout: &Layout) -> Marks {
    let record = Record::read(layout);
    let namespaces = network::namespaces(layout);
    let files: Vec<PathBuf> = namespaces.iter().map(|name| network::namespace_file(name)).collect();
    let id = record.as_ref().map(|record| record.id.as_str());
    Marks::new(id, files.iter().map(PathBuf::as_path)).and_in_cgroups(cgroup_prefix(layout))
}

/// Kills the lab's processes and waits for their end. Repeats until none is left, because a process
/// may have started another before it was killed.
fn end_processes(layout: &Layout) -> Result<()> {
    let deadline = Instant::now() + END_LIMIT;
    let marks = marks(layout);
    loop {
        let found: Vec<Handle> = marks.processes().filter_map(|found| found.open()).collect();
        if found.is_empty() {
            return Ok(());
        }
        found.iter().for_each(Handle::kill);
        let left = wait_for_end(found, deadline);
        if let Some(first) = left.first() {
            return Err(Error::WillNotEnd { count: left.len(), pid: first.identity().pid });
        }
    }
}

fn detach_mounts(layout: &Layout) -> Result<()> {
    let mounts = fs::read_to_string("/proc/self/mounts").doing(|| "cannot read /proc/self/mounts".into())?;
    for target in mount_points(&mounts).filter(|target| is_ours(layout, target)) {
        unmount(&target, UnmountFlags::DETACH).doing(|| format!("cannot unmount {}", target.display()))?;
    }
    Ok(())
}

/// Removes the empty cgroups of containers.
fn remove_cgroups(layout: &Layout) -> Result<()> {
    let prefix = cgroup_prefix(layout);
    let mounts = fs::read_to_string("/proc/self/mounts").doing(|| "cannot read /proc/self/mounts".into())?;
    for hierarchy in hierarchies(&mounts) {
        let entries = fs::read_dir(&hierarchy).doing(|| format!("cannot list {}", hierarchy.display()))?;
        let ours = |name: &str| name.starts_with(&prefix);
        for entry in entries.flatten().filter(|entry| entry.file_name().to_str().is_some_and(ours)) {
            let path = entry.path();
            fs::remove_dir(&path).doing(|| format!("cannot remove the cgroup {}", path.display()))?;
        }
    }
    Ok(())
}

/// The prefix of the names of the lab's cgroups, unique because a lab's name contains no hyphen.
fn cgroup_prefix(layout: &Layout) -> String {
    format!("{}-", fabric::cgroup_name(layout.root()))
}

/// The cgroup hierarchies in `/proc/self/mounts`.
fn hierarchies(mounts: &str) -> impl Iterator<Item = PathBuf> {
    let is_one =
        |line: &&str| line.split(' ').nth(2).is_some_and(|kind| ["cgroup", "cgroup2"].contains(&kind));
    mounts.lines().filter(is_one).filter_map(|line| Some(line.split(' ').nth(1)?.into()))
}

fn is_ours(layout: &Layout, path: &Path) -> bool {
    [layout.root(), &layout.images_in_memory(), &layout.disks()].iter().any(|ours| path.starts_with(ours))
}

/// The mount points of `/proc/self/mounts`, the latest first.
fn mount_points(mounts: &str) -> impl Iterator<Item = PathBuf> {
    let escaped = mounts.lines().rev().filter_map(|line| line.split(' ').nth(1));
    escaped.map(|path| path.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\").into())
}

fn remove_files(layout: &Layout) -> Result<()> {
    remove(&layout.images_in_memory())?;
    remove(&layout.disks())?;
    remove(layout.root())?;
    private::lock::remove(Path::new(fabric::DUMP_LOCK));
    run_folder::remove_if_empty().doing(|| format!("cannot remove {RUN}"))
}

fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).doing(|| format!("cannot remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn later_mounts_come_first_and_blanks_are_read() {
        let mounts = "proc /proc proc rw 0 0\nnone /run/a\\040b tmpfs rw 0 0\n";
        let points: Vec<_> = mount_points(mounts).collect();
        assert_eq!(points, [PathBuf::from("/run/a b"), PathBuf::from("/proc")]);
    }

    #[test]
    fn hierarchies_of_both_versions_are_found() {
        let mounts = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let found: Vec<_> = hierarchies(mounts).collect();
        assert_eq!(found, ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/unified"].map(PathBuf::from));
    }

    /// As after an OCI runtime that was killed while it created a container.
    #[test]
    fn kills_processes_in_the_labs_cgroups() {
        let layout = Layout::of(&format!("s{:x}", std::process::id()).parse().unwrap());
        let mut left = Command::new("sleep").arg("60").spawn().unwrap();
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let joins = |hierarchy: PathBuf| {
            let cgroup = hierarchy.join(format!("{}h1-containers-c", cgroup_prefix(&layout)));
            fs::create_dir(&cgroup).is_ok()
                && fs::write(cgroup.join("cgroup.procs"), left.id().to_string()).is_ok()
        };
        assert!(hierarchies(&mounts).filter(|hierarchy| joins(hierarchy.clone())).count() > 0);
        sweep(&layout).unwrap();
        assert!(!left.wait().unwrap().success());
    }
}
