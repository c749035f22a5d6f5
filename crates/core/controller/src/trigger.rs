//! Thresholds with hysteresis and a hold time.

use std::collections::BTreeMap;
use std::time::Duration;

use moves::HostName;
use planner::{Score, View};

use crate::{Goal, Usage};

/// Two thresholds: a load that has risen to the upper one counts until it falls below the lower one.
#[derive(Clone, Copy, Debug)]
struct Threshold {
    upper: u64,
    lower: u64,
}

/// Thousandths of a host's processors.
const BUSY: Threshold = Threshold { upper: 900, lower: 750 };

/// Thousandths of time in which some program waited for a processor.
const CPU_PRESSURE: Threshold = Threshold { upper: 500, lower: 250 };

/// Thousandths of time in which some program waited for memory.
const MEMORY_PRESSURE: Threshold = Threshold { upper: 200, lower: 50 };

/// Bytes a second between hosts that have lasted.
const TRAFFIC: Threshold = Threshold { upper: 256 << 10, lower: 128 << 10 };

/// Thousandths by which the use of hosts differs, for a balance.
const SPREAD: Threshold = Threshold { upper: 300, lower: 150 };

/// Since when a load counts, and how high it is.
#[derive(Clone, Copy, Debug, Default)]
struct Trigger {
    since: Option<Duration>,
    level: u64,
}

impl Trigger {
    fn update(&mut self, now: Duration, level: u64, threshold: Threshold) {
        self.level = level;
        if level < threshold.lower {
            self.since = None;
        } else if level >= threshold.upper {
            self.since.get_or_insert(now);
        }
    }

    fn fires(&self, now: Duration, hold: Duration) -> bool {
        self.since.is_some_and(|since| now.saturating_sub(since) >= hold)
    }
}

/// What is too high on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resource {
    Processors,
    CpuPressure,
    MemoryPressure,
}

/// A load that has lasted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Of a host.
    Host(HostName, Resource),
    /// Traffic between hosts.
    Traffic,
    /// Hosts that are used unevenly.
    Spread,
}

/// The triggers of the whole cluster.
#[derive(Debug, Default)]
pub struct Triggers {
    hosts: BTreeMap<(HostName, Resource), Trigger>,
    traffic: Trigger,
    spread: Trigger,
}

impl Triggers {
    /// Takes what is used, and the figures of the present placement with traffic that has lasted.
    pub fn update(
        &mut self,
        now: Duration,
        goal: Goal,
        view: &View<'_>,
        usage: &BTreeMap<HostName, Usage>,
        score: &Score,
    ) {
        self.hosts.retain(|(host, _), _| usage.contains_key(host));
        for (host, used) in usage {
            let loads = [
                (Resource::Processors, used.busy, BUSY),
                (Resource::CpuPressure, used.cpu_pressure, CPU_PRESSURE),
                (Resource::MemoryPressure, used.memory_pressure, MEMORY_PRESSURE),
            ];
            for (resource, level, threshold) in loads {
                // No instance can leave an empty host.
                let level = if view.instances.is_empty() { 0 } else { level };
                self.hosts.entry((host.clone(), resource)).or_default().update(now, level, threshold);
            }
        }
        self.traffic.update(now, if goal == Goal::Traffic { score.traffic } else { 0 }, TRAFFIC);
        self.spread.update(now, if goal == Goal::Balance { score.spread } else { 0 }, SPREAD);
    }

    /// The loads that have lasted. Sustained traffic has lasted already.
    pub fn firing(&self, now: Duration, hold: Duration) -> Vec<Cause> {
        let of_hosts = self.hosts.iter().filter(|(_, trigger)| trigger.fires(now, hold));
        let of_hosts = of_hosts.map(|((host, resource), _)| Cause::Host(host.clone(), *resource));
        let traffic = self.traffic.fires(now, Duration::ZERO).then_some(Cause::Traffic);
        let spread = self.spread.fires(now, hold).then_some(Cause::Spread);
        of_hosts.chain(traffic).chain(spread).collect()
    }

    /// The height of a load.
    pub fn level(&self, cause: &Cause) -> u64 {
        match cause {
            Cause::Host(host, resource) => {
                self.hosts.get(&(host.clone(), *resource)).map_or(0, |trigger| trigger.level)
            }
            Cause::Traffic => self.traffic.level,
            Cause::Spread => self.spread.level,
        }
    }

    /// Whether the pressure on a host that was a cause is as high as ever.
    pub fn is_unrelieved(&self, cause: &Cause) -> bool {
        let upper = match cause {
            Cause::Host(_, Resource::CpuPressure) => CPU_PRESSURE.upper,
            Cause::Host(_, Resource::MemoryPressure) => MEMORY_PRESSURE.upper,
            _ => return false,
        };
        self.level(cause) >= upper
    }

    /// A load in words.
    pub fn in_words(&self, cause: &Cause) -> String {
        let level = self.level(cause);
        let percent = format!("{}.{} %", level / 10, level % 10);
        match cause {
            Cause::Host(host, Resource::Processors) => format!("{host} uses {percent} of its processors"),
            Cause::Host(host, Resource::CpuPressure) => {
                format!("programs on {host} wait for a processor {percent} of the time")
            }
            Cause::Host(host, Resource::MemoryPressure) => {
                format!("programs on {host} wait for memory {percent} of the time")
            }
            Cause::Traffic => format!("{} KiB/s cross between hosts", level >> 10),
            Cause::Spread => format!("hosts differ by {percent} of their processors"),
        }
    }

    /// Loads that have risen, but have not lasted yet: in words, and for how long they last.
    pub fn rising(&self, now: Duration, hold: Duration) -> Vec<(String, Duration)> {
        let of_hosts =
            self.hosts.iter().map(|((host, resource), it)| (Cause::Host(host.clone(), *resource), it));
        let all = of_hosts.chain([(Cause::Spread, &self.spread)]);
        let rising = all.filter_map(|(cause, trigger)| {
            let lasts = now.saturating_sub(trigger.since?);
            (lasts < hold).then(|| (self.in_words(&cause), lasts))
        });
        rising.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOLD: Duration = Duration::from_secs(60);

    /// When a trigger fires, for levels every 10 s.
    fn fires(levels: &[u64]) -> Vec<usize> {
        let mut trigger = Trigger::default();
        let mut fired = Vec::new();
        for (step, level) in levels.iter().enumerate() {
            let now = Duration::from_secs(10 * step as u64);
            trigger.update(now, *level, BUSY);
            fired.extend(trigger.fires(now, HOLD).then_some(step));
        }
        fired
    }

    #[test]
    fn a_load_counts_after_the_hold_time_and_until_it_falls_below_the_lower_threshold() {
        assert_eq!(fires(&[950, 800, 800, 800, 800, 800, 800, 760, 740, 950, 950]), [6, 7]);
    }

    #[test]
    fn a_load_that_oscillates_faster_than_the_hold_time_never_counts() {
        assert_eq!(fires(&[950, 950, 950, 700, 700].repeat(10)), Vec::<usize>::new());
    }

    #[test]
    fn a_load_between_the_thresholds_does_not_begin_to_count() {
        assert_eq!(fires(&[890; 30]), Vec::<usize>::new());
    }
}
