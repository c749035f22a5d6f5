//! Cgroups: those of a container's processes, which CRIU does not restore here, and those of an emulator.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::linux::files::absent_is_fine;
use crate::linux::spawn::without_real_time;
use crate::linux::task::{Task, TaskId};
use crate::report::Shortage;

/// Opens the files with which a process joins the cgroups of process `pid`, one for each mounted hierarchy.
///
/// # Errors
/// If they cannot be found or opened.
pub fn doors(pid: i32) -> io::Result<Vec<File>> {
    let own = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let open = |path: PathBuf| File::options().write(true).open(path);
    paths(&own, &mounts).into_iter().map(open).collect()
}

/// The limits of a cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Memory, in bytes.
    pub memory: u64,
    /// Processors.
    pub cpus: u32,
    /// Processes and threads.
    pub pids: u32,
}

/// A limit: its controller, and its files and values in version 1 and in version 2.
type Setting = (&'static str, [(&'static str, String); 2]);

impl Limits {
    fn settings(self) -> [Setting; 3] {
        /// In microseconds; the default of both versions.
        const PERIOD: u64 = 100_000;
        let quota = u64::from(self.cpus) * PERIOD;
        let (memory, pids) = (self.memory.to_string(), self.pids.to_string());
        [
            ("memory", [("memory.limit_in_bytes", memory.clone()), ("memory.max", memory)]),
            ("cpu", [("cpu.cfs_quota_us", quota.to_string()), ("cpu.max", format!("{quota} {PERIOD}"))]),
            ("pids", [("pids.max", pids.clone()), ("pids.max", pids)]),
        ]
    }
}

/// Makes the cgroups of this name with these limits, unless they exist, and opens the files with which a process joins them. A controller
/// that this host lacks limits nothing.
///
/// # Errors
/// Errors of the kernel.
pub fn make(name: &str, limits: Limits) -> io::Result<Vec<File>> {
    make_in(&fs::read_to_string("/proc/self/mountinfo")?, name, limits)
}

fn make_in(mounts: &str, name: &str, limits: Limits) -> io::Result<Vec<File>> {
    let mut doors = Vec::new();
    for (controller, [first, second]) in limits.settings() {
        let (hierarchy, (file, value)) = match mount_of(controller, "/", mounts) {
            Some(hierarchy) => (hierarchy, first),
            None => match unified_with(controller, mounts)? {
                Some(hierarchy) => (hierarchy, second),
                None => continue,
            },
        };
        let cgroup = hierarchy.join(name);
        match fs::create_dir(&cgroup) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => fs::write(cgroup.join(file), value)?,
        }
        doors.push(File::options().write(true).open(cgroup.join("cgroup.procs"))?);
    }
    Ok(doors)
}

/// The hierarchy of version 2, if it has this controller, which its cgroups get.
fn unified_with(controller: &str, mounts: &str) -> io::Result<Option<PathBuf>> {
    let Some(hierarchy) = mount_of("", "/", mounts) else { return Ok(None) };
    let controllers = fs::read_to_string(hierarchy.join("cgroup.controllers"))?;
    if !controllers.split_whitespace().any(|found| found == controller) {
        return Ok(None);
    }
    fs::write(hierarchy.join("cgroup.subtree_control"), format!("+{controller}"))?;
    Ok(Some(hierarchy))
}

/// Moves process `pid` into the cgroups of `doors`. Removes a real-time policy first, for which the cgroups may have no budget.
///
/// # Errors
/// Errors of the kernel; `EINVAL` for a process that may not be in the cgroup.
pub fn join(doors: &[File], pid: i32) -> io::Result<()> {
    without_real_time(pid)?;
    doors.iter().try_for_each(|mut door| door.write_all(pid.to_string().as_bytes()))
}

/// A lifted process limit: CRIU restores helper processes too, for which the limit may have no room.
pub struct LiftedLimit {
    file: PathBuf,
    limit: String,
}

impl LiftedLimit {
    /// Lifts the process limit of the cgroups of this name, if they have one.
    ///
    /// # Errors
    /// If it cannot be lifted.
    pub fn of(name: &str) -> io::Result<Option<Self>> {
        const NONE: &str = "max";
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let files = hierarchies(&mounts).map(|hierarchy| hierarchy.join(name).join("pids.max"));
        let found =
            files.filter_map(|file| Some(Self { limit: fs::read_to_string(&file).ok()?, file })).next();
        let Some(lifted) = found.filter(|found| found.limit.trim() != NONE) else { return Ok(None) };
        fs::write(&lifted.file, NONE)?;
        Ok(Some(lifted))
    }

    /// Restores the limit.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn set_again(&self) -> io::Result<()> {
        fs::write(&self.file, &self.limit)
    }
}

/// Kills all processes in the cgroups of this name, in all hierarchies, and removes the cgroups. Succeeds if there are none.
///
/// # Errors
/// If they cannot be removed.
pub fn remove(name: &str) -> io::Result<()> {
    const PATIENCE: Duration = Duration::from_secs(5);
    let end = Instant::now() + PATIENCE;
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    for cgroup in hierarchies(&mounts).map(|hierarchy| hierarchy.join(name)) {
        for pid in fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default().lines() {
            if let Some(task) = pid.parse().ok().and_then(|pid| TaskId::of(pid).ok()).and_then(Task::open) {
                task.signal(libc::SIGKILL)?;
            }
        }
        loop {
            match absent_is_fine(fs::remove_dir(&cgroup)) {
                Err(_) if Instant::now() < end => sleep(Duration::from_millis(5)),
                removed => break removed?,
            }
        }
    }
    Ok(())
}

/// The controllers with which this host can limit resources, by their names in cgroups.
///
/// # Errors
/// If hierarchies cannot be found.
pub fn controllers() -> io::Result<Vec<String>> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let of_second = |hierarchy: PathBuf| fs::read_to_string(hierarchy.join("cgroup.controllers"));
    let of_second = hierarchies(&mounts).filter_map(|hierarchy| of_second(hierarchy).ok());
    let mut found = of_first_version(&mounts);
    found.extend(of_second.flat_map(|list| list.split_whitespace().map(str::to_owned).collect::<Vec<_>>()));
    Ok(found)
}

/// The controllers of cgroup hierarchies of version 1, from their mount options.
fn of_first_version(mounts: &str) -> Vec<String> {
    let options = mounts.lines().filter_map(|line| {
        let mut kind = line.split_once(" - ")?.1.split(' ');
        (kind.next()? == "cgroup").then(|| kind.nth(1))?
    });
    options.flat_map(|options| options.split(',').map(str::to_owned)).collect()
}

/// The out-of-memory kills in the cgroups of this name, and the memory limit if it was reached.
///
/// # Errors
/// If hierarchies cannot be found.
pub fn shortage(name: &str) -> io::Result<Shortage> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let read = |cgroup: &Path, file: &str| fs::read_to_string(cgroup.join(file)).unwrap_or_default();
    let found = hierarchies(&mounts).map(|hierarchy| hierarchy.join(name)).find_map(|cgroup| {
        // Files of version 1 and of version 2.
        let told = [read(&cgroup, "memory.oom_control"), read(&cgroup, "memory.events")].concat();
        let kills = counter(&told, "oom_kill")?;
        let reached = counter(&told, "oom").unwrap_or(0) + number(&read(&cgroup, "memory.failcnt"));
        let limit = [read(&cgroup, "memory.limit_in_bytes"), read(&cgroup, "memory.max")].concat();
        Some(Shortage { kills, limit: (reached > 0).then(|| number(&limit)).filter(|limit| *limit > 0) })
    });
    Ok(found.unwrap_or_default())
}

/// The open files with the counters of out-of-memory kills, so that reading them is cheap.
pub struct Kills {
    file: PathBuf,
    before: u64,
}

impl Kills {
    /// Counts the kills in the cgroups of this name from now on; `None` if the kernel does not count them.
    pub fn of(name: &str) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        // Files of version 1 and of version 2.
        const FILES: [&str; 2] = ["memory.oom_control", "memory.events"];
        let mut files =
            hierarchies(&mounts).flat_map(|hierarchy| FILES.map(|file| hierarchy.join(name).join(file)));
        files.find_map(|file| Some(Self { before: kills(&file)?, file }))
    }

    /// Whether there was a kill.
    pub fn any(&self) -> bool {
        kills(&self.file).is_some_and(|now| now > self.before)
    }
}

fn kills(file: &Path) -> Option<u64> {
    counter(&fs::read_to_string(file).ok()?, "oom_kill")
}

/// The counter of this name among lines of `NAME NUMBER`.
fn counter(lines: &str, name: &str) -> Option<u64> {
    lines.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

fn number(text: &str) -> u64 {
    text.trim().parse().unwrap_or(0)
}

/// The mount points of cgroup hierarchies in `/proc/self/mountinfo`.
fn hierarchies(mounts: &str) -> impl Iterator<Item = PathBuf> {
    let is_one = |line: &&str| line.split_once(" - ").is_some_and(|(_, kind)| kind.starts_with("cgroup"));
    mounts.lines().filter(is_one).filter_map(|line| Some(line.split(' ').nth(4)?.into()))
}

/// The directories of a process's cgroups. `own` is `/proc/PID/cgroup`, and `mounts` is `/proc/self/mountinfo`.
fn paths(own: &str, mounts: &str) -> Vec<PathBuf> {
    let lines = own.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        Some((fields.next()?, fields.next()?))
    });
    lines
        .filter_map(|(controllers, path)| Some(mount_of(controllers, path, mounts)?.join("cgroup.procs")))
        .collect()
}

/// The directory of the cgroup `path` in the hierarchy with these controllers; the hierarchy of version 2 has none.
fn mount_of(controllers: &str, path: &str, mounts: &str) -> Option<PathBuf> {
    let wanted: BTreeSet<&str> = controllers.split(',').filter(|name| !name.is_empty()).collect();
    mounts.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        let mut kind = kind.split(' ');
        let (system, options) = (kind.next()?, kind.nth(1)?);
        let options: BTreeSet<&str> = options.split(',').collect();
        let matches = match system {
            "cgroup2" => wanted.is_empty(),
            "cgroup" => !wanted.is_empty() && wanted.is_subset(&options),
            _ => false,
        };
        let mut place = place.split(' ').skip(3);
        let (root, mountpoint) = (place.next()?, place.next()?);
        let below = Path::new(path).strip_prefix(root).ok()?;
        matches.then(|| Path::new(mountpoint).join(below))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "9:name=systemd:/job\n4:cpu,cpuacct:/job\n0::/job\n";

    #[test]
    fn each_hierarchy_that_is_mounted_has_a_door() {
        let both = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
                    32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct\n\
                    40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd\n\
                    41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw\n";
        let expected =
            ["systemd", "cpu", "unified"].map(|name| format!("/sys/fs/cgroup/{name}/job/cgroup.procs"));
        assert_eq!(paths(OWN, both), expected.map(PathBuf::from));
        let found = of_first_version(both);
        assert!(found.contains(&"cpu".to_owned()) && !found.contains(&"memory".to_owned()), "{found:?}");
        let second = "41 31 0:38 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw\n";
        assert_eq!(paths(OWN, second), [PathBuf::from("/sys/fs/cgroup/job/cgroup.procs")]);
    }

    #[test]
    fn limits_are_set_in_the_version_that_has_the_controller() {
        let folder = tempfile::tempdir().unwrap();
        let (unified, cpu) = (folder.path().join("unified"), folder.path().join("cpu"));
        for hierarchy in [&unified, &cpu] {
            fs::create_dir_all(hierarchy.join("job")).unwrap();
            fs::write(hierarchy.join("job/cgroup.procs"), "").unwrap();
        }
        fs::write(unified.join("cgroup.controllers"), "cpuset memory\n").unwrap();
        let mounts = format!(
            "32 31 0:29 / {} rw - cgroup cgroup rw,cpu,cpuacct\n41 31 0:38 / {} rw - cgroup2 cgroup2 rw\n",
            cpu.display(),
            unified.display()
        );
        let doors = make_in(&mounts, "job", Limits { memory: 7 << 20, cpus: 3, pids: 9 }).unwrap();
        assert_eq!(doors.len(), 2, "no hierarchy has the controller of processes");
        let read = |path: PathBuf| fs::read_to_string(path).unwrap();
        assert_eq!(read(unified.join("job/memory.max")), "7340032");
        assert_eq!(read(unified.join("cgroup.subtree_control")), "+memory");
        assert_eq!(read(cpu.join("job/cpu.cfs_quota_us")), "300000");
    }

    #[test]
    fn counters_are_read_by_their_whole_names() {
        let events = "low 0\nhigh 0\nmax 7\noom 2\noom_kill 1\noom_group_kill 0\n";
        assert_eq!((counter(events, "oom"), counter(events, "oom_kill")), (Some(2), Some(1)));
        assert_eq!(counter("under_oom 0\n", "oom"), None);
        assert_eq!((number("16777216\n"), number("max\n")), (16 << 20, 0));
    }

    #[test]
    fn a_mount_of_a_part_of_a_hierarchy_is_recognized() {
        let part = "41 31 0:38 /outer /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        assert_eq!(paths("0::/outer/job\n", part), [PathBuf::from("/sys/fs/cgroup/job/cgroup.procs")]);
        assert!(paths("0::/other\n", part).is_empty());
    }
}
