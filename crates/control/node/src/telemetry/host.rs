//! What a host has and uses, from `/proc`.

use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::thread;

use rpc::telemetry::{HostUse, Pressure};

use super::devices;
use super::processes::tick_us;

/// What this host, whose node has this address, has and uses.
pub fn in_use(address: IpAddr) -> HostUse {
    of(Path::new("/proc"), address)
}

fn of(proc: &Path, address: IpAddr) -> HostUse {
    let read = |name: &str| fs::read_to_string(proc.join(name)).unwrap_or_default();
    let meminfo = read("meminfo");
    let memory = kibibytes(&meminfo, "MemTotal:");
    HostUse {
        processors: thread::available_parallelism().map_or(1, |count| count.get() as u32),
        cpu_us: busy_ticks(&read("stat")) * tick_us(),
        memory,
        memory_used: memory.saturating_sub(kibibytes(&meminfo, "MemAvailable:")),
        pressure: pressure(&|name| read(&format!("pressure/{name}"))),
        network: devices::towards_hosts(&proc.join("self"), address),
        leaving: None,
    }
}

/// The ticks of all processors but those in which they were idle or waited for a disk.
fn busy_ticks(stat: &str) -> u64 {
    let all = stat.lines().next().and_then(|line| line.strip_prefix("cpu "));
    let ticks: Vec<u64> =
        all.unwrap_or_default().split_whitespace().map_while(|word| word.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal; what guests use is in `user` already.
    ticks
        .iter()
        .take(8)
        .enumerate()
        .filter(|(index, _)| !matches!(index, 3 | 4))
        .map(|(_, ticks)| ticks)
        .sum()
}

fn kibibytes(meminfo: &str, name: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).map_or(0, |kib| kib * 1024)
}

fn pressure(read: &dyn Fn(&str) -> String) -> Option<Pressure> {
    let of = |name| {
        let text = read(name);
        let percent: f32 =
            text.lines().next()?.strip_prefix("some avg10=")?.split(' ').next()?.parse().ok()?;
        Some((percent * 10.0) as u16)
    };
    Some(Pressure { cpu: of("cpu")?, memory: of("memory")?, io: of("io")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_read_from_its_files() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("stat"), "cpu  10 1 5 1000 50 2 3 4 9 9\ncpu0 1 1 1\n").unwrap();
        fs::write(folder.path().join("meminfo"), "MemTotal: 1000 kB\nMemAvailable:  400 kB\n").unwrap();
        fs::create_dir(folder.path().join("pressure")).unwrap();
        for (name, share) in [("cpu", "12.34"), ("memory", "0.00"), ("io", "100.00")] {
            let text = format!("some avg10={share} avg60=0.00 avg300=0.00 total=1\nfull avg10=0.00\n");
            fs::write(folder.path().join("pressure").join(name), text).unwrap();
        }
        let address = IpAddr::from([10, 0, 0, 1]);
        let host = of(folder.path(), address);
        assert_eq!((host.cpu_us, host.memory, host.memory_used), (25 * tick_us(), 1_024_000, 614_400));
        assert_eq!(host.pressure, Some(Pressure { cpu: 123, memory: 0, io: 1000 }));
        fs::remove_dir_all(folder.path().join("pressure")).unwrap();
        assert_eq!((of(folder.path(), address).pressure, host.network), (None, None));
    }
}
