//! What an instance uses, as the sum over its processes: its first process and all below it.
//!
//! A process that has ended counts in the times of its parent, as soon as that has waited for it. What ended processes have read and
//! written is in the parent's counters too.

use std::fs;
use std::path::{Path, PathBuf};

use engine_api::wiring::DEVICE;
use rpc::telemetry::InstanceUse;
use rustix::param::clock_ticks_per_second;

use super::devices;

/// The number of processes that are read at most.
const MOST: usize = 4096;

/// What the process `first` and all below it use; `None` if it has ended.
pub fn below(first: i32) -> Option<InstanceUse> {
    below_in(Path::new("/proc"), first)
}

fn below_in(proc: &Path, first: i32) -> Option<InstanceUse> {
    let mut used = of_process(&proc.join(first.to_string()))?;
    // Others than its own device, such as the TAP of an emulator, carry the same frames once more.
    used.network = devices::bytes_over(&proc.join(first.to_string()), DEVICE);
    let mut left = children(proc, first);
    let mut read = 1;
    while let Some(pid) = left.pop()
        && read < MOST
    {
        if let Some(its) = of_process(&proc.join(pid.to_string())) {
            used.cpu_us += its.cpu_us;
            used.memory += its.memory;
            used.disk = used.disk.zip(its.disk).map(|(one, other)| one + other);
        }
        left.extend(children(proc, pid));
        read += 1;
    }
    Some(used)
}

/// Microseconds of the unit in which the kernel counts the time of processors.
pub fn tick_us() -> u64 {
    1_000_000 / clock_ticks_per_second().max(1)
}

fn of_process(folder: &Path) -> Option<InstanceUse> {
    let ticks = ticks(&fs::read_to_string(folder.join("stat")).ok()?)?;
    let status = fs::read_to_string(folder.join("status")).ok()?;
    let io = fs::read_to_string(folder.join("io")).ok();
    Some(InstanceUse {
        cpu_us: ticks * tick_us(),
        memory: (field(&status, "RssAnon:") + field(&status, "RssShmem:")) * 1024,
        disk: io.map(|io| field(&io, "read_bytes:") + field(&io, "write_bytes:")),
        network: None,
    })
}

/// The ticks of a process and of its children for which it has waited.
fn ticks(stat: &str) -> Option<u64> {
    // The name before may contain anything.
    let (_, fields) = stat.rsplit_once(')')?;
    Some(fields.split_whitespace().skip(11).take(4).filter_map(|word| word.parse::<u64>().ok()).sum())
}

fn field(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// The children of all threads of a process.
fn children(proc: &Path, pid: i32) -> Vec<i32> {
    let tasks = fs::read_dir(proc.join(pid.to_string()).join("task"));
    let files = tasks.into_iter().flatten().flatten().map(|task| -> PathBuf { task.path().join("children") });
    let texts = files.filter_map(|file| fs::read_to_string(file).ok());
    texts
        .flat_map(|text| text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn write(proc: &Path, pid: i32, ticks: [u64; 4], anonymous: u64, children: &str) {
        let folder = proc.join(pid.to_string());
        fs::create_dir_all(folder.join(format!("task/{pid}"))).unwrap();
        let [user, system, waited_user, waited_system] = ticks;
        let times = format!("{user} {system} {waited_user} {waited_system}");
        fs::write(folder.join("stat"), format!("{pid} (a) b) S 1 1 1 0 -1 0 0 0 0 0 {times} 20 0")).unwrap();
        fs::write(folder.join("status"), format!("RssAnon:\t {anonymous} kB\nRssShmem:\t 4 kB\n")).unwrap();
        fs::write(folder.join("io"), "rchar: 9\nread_bytes: 10\nwrite_bytes: 20\n").unwrap();
        fs::write(folder.join(format!("task/{pid}/children")), children).unwrap();
    }

    #[test]
    fn all_processes_below_the_first_count_and_those_it_has_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let proc = folder.path();
        write(proc, 5, [1, 2, 3, 4], 8, "6 7");
        write(proc, 6, [10, 0, 0, 0], 4, "");
        fs::create_dir(proc.join("5/net")).unwrap();
        let devices = "Inter-| Receive\n face |bytes\n lo: 9 0 0 0 0 0 0 0 9\n eth0: 100 1 0 0 0 0 0 0 50 2\n \
                       vm0: 50 2 0 0 0 0 0 0 100 1\n";
        fs::write(proc.join("5/net/dev"), devices).unwrap();
        let used = below_in(proc, 5).unwrap();
        assert_eq!(used.cpu_us, 20 * tick_us());
        assert_eq!((used.memory, used.disk, used.network), (20 * 1024, Some(60), Some(150)));
        assert_eq!(below_in(proc, 8), None);
    }

    #[test]
    fn files_that_are_missing_leave_figures_out() {
        let folder = tempfile::tempdir().unwrap();
        let proc = folder.path();
        write(proc, 5, [1, 0, 0, 0], 4, "6");
        write(proc, 6, [1, 0, 0, 0], 4, "");
        fs::remove_file(proc.join("6/io")).unwrap();
        let used = below_in(proc, 5).unwrap();
        assert_eq!((used.memory, used.disk, used.network), (16 * 1024, None, None));
    }

    #[test]
    fn a_process_that_works_is_seen_to_work() {
        let mut child = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while below(pid).unwrap().cpu_us < 50_000 {
            assert!(std::time::Instant::now() < end, "no time is counted");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
