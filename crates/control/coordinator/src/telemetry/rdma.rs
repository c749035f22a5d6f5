//! RDMA traffic between instances, from the counters of all hosts.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use api::TopRate;
use fabric::Vid;
use fabric::traffic::Volume;
use moves::HostName;
use rpc::telemetry::RdmaFlow;

use crate::core::Base;

/// Rates are means over this time.
const WINDOW: Duration = Duration::from_secs(60);

/// What is counted within this time is kept as one figure.
const SLOT: Duration = Duration::from_secs(5);

/// Two instances, the lower number first.
pub type Pair = (Vid, Vid);

/// The traffic of all pairs, in both directions together.
#[derive(Default)]
pub struct Rdma {
    /// The counters in the last sample of each host, by the directions of flows.
    counters: BTreeMap<HostName, BTreeMap<(Vid, Vid), Volume>>,
    pairs: BTreeMap<Pair, Traffic>,
}

/// The traffic of a pair.
#[derive(Debug, Default)]
struct Traffic {
    total: Volume,
    /// What was counted in the last slots, with the time of the first count in each.
    recent: VecDeque<(Instant, Volume)>,
}

impl Rdma {
    /// Adds the counters of `host`. Those of instances that have never been there do not count.
    pub fn add(&mut self, host: &HostName, flows: &[RdmaFlow], base: &Base, now: Instant) {
        let instances = &base.snapshot().instances;
        let before = self.counters.get(host);
        let is_here = |vid| instances.get(&vid).is_some_and(|at| at.host == *host);
        let counted = |flow: &&RdmaFlow| {
            let was_here = before.is_some_and(|counters| counters.contains_key(&(flow.from, flow.to)));
            let are_known = instances.contains_key(&flow.from) && instances.contains_key(&flow.to);
            are_known && (was_here || is_here(flow.from) || is_here(flow.to))
        };
        let counters = flows.iter().filter(counted).map(|flow| ((flow.from, flow.to), flow.volume)).collect();
        self.replace(host, counters, now);
    }

    fn replace(&mut self, host: &HostName, counters: BTreeMap<(Vid, Vid), Volume>, now: Instant) {
        let before = self.counters.insert(host.clone(), counters);
        let is_first = before.is_none();
        let before = before.unwrap_or_default();
        for (ends, volume) in &self.counters[host] {
            let added = volume.since(before.get(ends).copied().unwrap_or_default());
            let pair = (ends.0.min(ends.1), ends.0.max(ends.1));
            let traffic = self.pairs.entry(pair).or_default();
            traffic.total.add(added);
            if !is_first && added.messages > 0 {
                traffic.note(added, now);
            }
        }
    }

    /// Forgets an instance that has ended.
    pub fn forget(&mut self, vid: Vid) {
        self.pairs.retain(|(one, other), _| *one != vid && *other != vid);
    }

    /// The total and the rate of each pair.
    pub fn talks(&self, now: Instant) -> impl Iterator<Item = (Pair, Volume, TopRate)> {
        self.pairs.iter().map(move |(pair, traffic)| (*pair, traffic.total, traffic.rate(now)))
    }
}

impl Traffic {
    fn note(&mut self, added: Volume, now: Instant) {
        self.recent.retain(|(since, _)| now.saturating_duration_since(*since) < WINDOW);
        match self.recent.back_mut() {
            Some((since, volume)) if now.saturating_duration_since(*since) < SLOT => volume.add(added),
            _ => self.recent.push_back((now, added)),
        }
    }

    fn rate(&self, now: Instant) -> TopRate {
        let mut sum = Volume::default();
        let recent = self.recent.iter().filter(|(since, _)| now.saturating_duration_since(*since) < WINDOW);
        recent.for_each(|(_, volume)| sum.add(*volume));
        TopRate {
            bytes_per_second: sum.bytes / WINDOW.as_secs(),
            messages_per_second: sum.messages / WINDOW.as_secs(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vid(number: u16) -> Vid {
        Vid::new(number).unwrap()
    }

    fn counters(bytes: u64) -> BTreeMap<(Vid, Vid), Volume> {
        BTreeMap::from([((vid(2), vid(1)), Volume { bytes, messages: bytes / 10 })])
    }

    #[test]
    fn counts_add_up_over_hosts_moves_and_restarts_of_nodes() {
        let (h1, h2) = (HostName::new("h1").unwrap(), HostName::new("h2").unwrap());
        let begun = Instant::now();
        let after = |seconds| begun + Duration::from_secs(seconds);
        let mut rdma = Rdma::default();
        rdma.replace(&h1, counters(6000), begun);
        let bytes = |rdma: &Rdma, now| {
            let (pair, total, rate) = rdma.talks(now).next().unwrap();
            assert_eq!(pair, (vid(1), vid(2)));
            (total.bytes, rate.bytes_per_second)
        };
        assert_eq!(bytes(&rdma, begun), (6000, 0), "the coordinator has not seen when");
        rdma.replace(&h1, counters(12_000), after(10));
        assert_eq!(bytes(&rdma, after(10)), (12_000, 100));
        // The instance has moved, and the first host says the same again.
        rdma.replace(&h2, BTreeMap::new(), after(11));
        rdma.replace(&h1, counters(12_000), after(20));
        rdma.replace(&h2, counters(600), after(21));
        assert_eq!(bytes(&rdma, after(21)), (12_600, 110));
        // The node of the second host has restarted.
        rdma.replace(&h2, counters(60), after(31));
        assert_eq!(bytes(&rdma, after(31)), (12_660, 111));
        assert_eq!(bytes(&rdma, after(71)), (12_660, 11));
        assert_eq!(bytes(&rdma, after(200)), (12_660, 0));
        rdma.forget(vid(2));
        assert_eq!(rdma.talks(begun).count(), 0);
    }
}
