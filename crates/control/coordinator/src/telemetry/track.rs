//! The samples of one host or instance.

use std::collections::VecDeque;

use moves::HostName;
use rpc::telemetry::InstanceUse;

/// The number of points: an hour at one in 10 s. They take 12 KiB: 24 bytes each, in a buffer of 512.
const MOST: usize = 360;

/// What was used between two samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Point {
    /// Thousandths of a processor.
    pub cpu: u32,
    /// KiB of memory.
    pub memory: u32,
    /// KiB a second from and to disks, if known.
    pub disk: Option<u32>,
    /// KiB a second over the network, if known.
    pub network: Option<u32>,
}

/// The last points, and the counters after them.
#[derive(Debug, Default)]
pub struct Track {
    points: VecDeque<Point>,
    last: Option<(HostName, u64, InstanceUse)>,
}

impl Track {
    /// Adds a sample that was taken at this time on the clock of `host`. The first one there, and one whose counters have begun anew, have
    /// no rates yet.
    pub fn add(&mut self, host: &HostName, at_us: u64, used: InstanceUse) {
        let last = self.last.replace((host.clone(), at_us, used));
        let Some((_, since, before)) = last.filter(|(on, ..)| on == host) else { return };
        if let Some(point) = between(&before, &used, at_us.saturating_sub(since)) {
            if self.points.len() == MOST {
                self.points.pop_front();
            }
            self.points.push_back(point);
        }
    }

    /// The last point.
    pub fn last(&self) -> Option<Point> {
        self.points.back().copied()
    }

    /// The mean of the last points, at most so many.
    pub fn level(&self, points: usize) -> Option<Point> {
        let taken: Vec<_> = self.points.iter().rev().take(points).collect();
        let mean = |of: fn(&Point) -> Option<u32>| {
            let known: Vec<_> = taken.iter().filter_map(|point| of(point)).collect();
            let sum: u64 = known.iter().copied().map(u64::from).sum();
            sum.checked_div(known.len() as u64).map(|mean| mean as u32)
        };
        Some(Point {
            cpu: mean(|point| Some(point.cpu))?,
            memory: mean(|point| Some(point.memory))?,
            disk: mean(|point| point.disk),
            network: mean(|point| point.network),
        })
    }

    /// The highest of each figure.
    pub fn peak(&self) -> Option<Point> {
        let higher = |one: Point, other: &Point| Point {
            cpu: one.cpu.max(other.cpu),
            memory: one.memory.max(other.memory),
            disk: one.disk.max(other.disk),
            network: one.network.max(other.network),
        };
        (!self.points.is_empty()).then(|| self.points.iter().fold(Point::default(), higher))
    }
}

fn between(before: &InstanceUse, now: &InstanceUse, elapsed_us: u64) -> Option<Point> {
    let rate = |of: fn(&InstanceUse) -> Option<u64>, per_second: u64| {
        let grown = u128::from(of(now)?.checked_sub(of(before)?)?);
        let rate = (grown * u128::from(per_second)).checked_div(u128::from(elapsed_us))?;
        Some(u32::try_from(rate).unwrap_or(u32::MAX))
    };
    Some(Point {
        cpu: rate(|used| Some(used.cpu_us), 1000)?,
        memory: u32::try_from(now.memory / 1024).unwrap_or(u32::MAX),
        disk: rate(|used| used.disk, 1_000_000 / 1024),
        network: rate(|used| used.network, 1_000_000 / 1024),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str) -> HostName {
        HostName::new(name).unwrap()
    }

    fn used(cpu_us: u64) -> InstanceUse {
        InstanceUse { cpu_us, memory: 4096, disk: Some(cpu_us), network: None }
    }

    #[test]
    fn rates_are_differences_on_one_host_and_begin_anew_on_another() {
        let (one, other) = (host("h1"), host("h2"));
        let mut track = Track::default();
        track.add(&one, 0, used(0));
        assert_eq!(track.last(), None);
        track.add(&one, 2_000_000, used(1_000_000));
        let point = track.last().unwrap();
        assert_eq!((point.cpu, point.memory, point.disk, point.network), (500, 4, Some(488), None));
        track.add(&other, 1, used(10));
        track.add(&other, 1_000_001, used(5));
        assert_eq!(track.last(), Some(point), "a counter that is smaller has begun anew");
        track.add(&other, 2_000_001, used(250_005));
        assert_eq!(track.last().unwrap().cpu, 250);
        assert_eq!((track.level(2).unwrap().cpu, track.level(1).unwrap().cpu), (375, 250));
        assert_eq!(track.peak().unwrap().cpu, 500);
    }

    #[test]
    fn only_the_last_hour_is_kept() {
        let mut track = Track::default();
        for second in 0..=(2 * MOST as u64) {
            track.add(&host("h1"), second * 1_000_000, used(second * second * 1000));
        }
        assert_eq!(track.points.len(), MOST);
        assert_eq!(track.level(usize::MAX).unwrap().cpu, 1080);
        assert_eq!(Track::default().level(3), None);
    }
}
