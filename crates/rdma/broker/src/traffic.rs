//! How much payload instances have exchanged by RDMA, as their processes report it.
//!
//! Processes may report anything, so what is kept has limits: pairs without traffic are forgotten after a while, and there are
//! so many of an instance, and of a host, at most.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use fabric::Vid;
use fabric::traffic::{Traffic, Volume};

/// The most pairs of a host.
const MOST_PAIRS: usize = 16 * 1024;

/// The most peers of one instance.
const MOST_PEERS: usize = 1024;

/// How long a pair without traffic is kept.
const KEPT: Duration = Duration::from_secs(600);

/// The payload from one instance to another, as far as processes on this host count it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The instance that has it before.
    pub from: Vid,
    /// The instance that has it afterwards.
    pub to: Vid,
    /// Its amount since the node started, or since the pair was forgotten.
    pub volume: Volume,
}

/// An instance here, and its peer.
type Pair = (Vid, Vid);

/// The counts of all pairs.
#[derive(Default)]
pub(crate) struct Matrix {
    pairs: HashMap<Pair, (Traffic, Instant)>,
    peers: HashMap<Vid, usize>,
}

impl Matrix {
    /// Adds the report of a process of `own`.
    pub fn add(&mut self, own: Vid, report: &[(Vid, Traffic)], now: Instant) {
        for (peer, traffic) in report {
            if let Some((sum, changed)) = self.pairs.get_mut(&(own, *peer)) {
                sum.add(*traffic);
                *changed = now;
            } else if *peer != own && self.has_room(own) {
                self.pairs.insert((own, *peer), (*traffic, now));
                *self.peers.entry(own).or_default() += 1;
            }
        }
    }

    /// The traffic of all pairs, the largest first.
    pub fn flows(&mut self, now: Instant) -> Vec<Flow> {
        self.forget_quiet(now);
        let mut directed = HashMap::<Pair, Volume>::new();
        for ((own, peer), (traffic, _)) in &self.pairs {
            directed.entry((*own, *peer)).or_default().add(traffic.sent);
            directed.entry((*peer, *own)).or_default().add(traffic.fetched);
        }
        let flow = |((from, to), volume): (Pair, Volume)| Flow { from, to, volume };
        let mut flows: Vec<_> =
            directed.into_iter().map(flow).filter(|flow| flow.volume.messages > 0).collect();
        flows.sort_unstable_by_key(|flow| (std::cmp::Reverse(flow.volume.bytes), flow.from, flow.to));
        flows
    }

    /// Room comes with the next look at the flows: to search for it at each invented peer would take too long.
    fn has_room(&self, own: Vid) -> bool {
        self.pairs.len() < MOST_PAIRS && self.peers.get(&own).is_none_or(|peers| *peers < MOST_PEERS)
    }

    fn forget_quiet(&mut self, now: Instant) {
        self.pairs.retain(|_, (_, changed)| now.saturating_duration_since(*changed) < KEPT);
        self.peers.clear();
        for (own, _) in self.pairs.keys() {
            *self.peers.entry(*own).or_default() += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vid(number: u16) -> Vid {
        Vid::new(number).unwrap()
    }

    fn traffic(sent: u64, fetched: u64) -> Traffic {
        let volume = |bytes| Volume { bytes, messages: bytes / 10 };
        Traffic { sent: volume(sent), fetched: volume(fetched) }
    }

    #[test]
    fn both_ends_on_one_host_make_one_flow_for_each_direction() {
        let (mut matrix, now) = (Matrix::default(), Instant::now());
        matrix.add(vid(1), &[(vid(2), traffic(100, 30)), (vid(3), traffic(10, 0))], now);
        matrix.add(vid(1), &[(vid(2), traffic(50, 0)), (vid(1), traffic(10, 0))], now);
        matrix.add(vid(2), &[(vid(1), traffic(20, 1000))], now);
        let flows: Vec<_> =
            matrix.flows(now).iter().map(|flow| (flow.from, flow.to, flow.volume.bytes)).collect();
        assert_eq!(flows, [(vid(1), vid(2), 1150), (vid(2), vid(1), 50), (vid(1), vid(3), 10)]);
    }

    #[test]
    fn a_process_that_invents_peers_fills_only_the_room_of_its_instance() {
        let (mut matrix, now) = (Matrix::default(), Instant::now());
        let invented: Vec<_> = (2..5000).map(|number| (vid(number), traffic(u64::MAX, u64::MAX))).collect();
        matrix.add(vid(1), &invented, now);
        matrix.add(vid(1), &invented, now);
        matrix.add(vid(2), &[(vid(3), traffic(10, 0))], now);
        assert_eq!(matrix.pairs.len(), MOST_PEERS + 1);
        assert_eq!(matrix.flows(now).len(), 2 * MOST_PEERS + 1);
        assert_eq!(matrix.flows(now + KEPT), []);
        matrix.add(vid(1), &[(vid(6000), traffic(10, 0))], now + KEPT);
        assert_eq!(matrix.flows(now + KEPT).len(), 1);
    }
}
