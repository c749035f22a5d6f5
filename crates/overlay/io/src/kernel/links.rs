//! The links on which the kernel carries frames, and its counters.

use std::collections::HashMap;
use std::hash::Hash;
use std::io;

use aya::maps::PerCpuValues;
use aya::util::nr_cpus;
use aya::{Ebpf, Pod};
use overlay::topology::NodeId;

use super::tables::{Counts, Table, counts, table};
use crate::peer::Peer;
use crate::peers::Peers;

/// See the module.
pub struct Links {
    /// By node: address, VNI, bytes of the longest frame, and whether frames are known to arrive.
    peers: Mirror<u32, [u32; 4]>,
    /// By address and VNI: the session's number and node.
    sessions: Mirror<[u32; 2], [u32; 2]>,
    sent: Counted,
    received: Counted,
}

impl Links {
    pub fn new(programs: &mut Ebpf) -> io::Result<Self> {
        Ok(Self {
            peers: Mirror::new(table(programs, "peers")?),
            sessions: Mirror::new(table(programs, "sessions")?),
            sent: Counted::new(counts(programs, "sent")?)?,
            received: Counted::new(counts(programs, "received")?)?,
        })
    }

    pub fn follow(&mut self, peers: &Peers) {
        let ways: HashMap<_, _> = peers.all().iter().filter_map(|peer| way_to(peer)).collect();
        self.sent.follow(ways.keys().copied());
        self.peers.follow(ways);
        let ways: HashMap<_, _> = peers.sessions().iter().filter_map(|peer| way_from(peer)).collect();
        self.received.follow(ways.values().map(|[session, _]| *session));
        self.sessions.follow(ways);
    }

    /// Notes which nodes are spoken with.
    pub fn look(&mut self, peers: &Peers) {
        let by_node = |node: u32| peers.of_node(NodeId(u16::try_from(node).ok()?));
        self.sent.look().into_iter().filter_map(by_node).for_each(|peer| peer.use_it());
        let used = self.received.look().into_iter().filter_map(|session| peers.of_session(session));
        used.for_each(|peer| peer.use_it());
    }

    pub fn sent_to(&self, node: NodeId) -> u64 {
        self.sent.count(node.0.into())
    }
}

/// How frames get to `peer`.
fn way_to(peer: &Peer) -> Option<(u32, [u32; 4])> {
    let short_cut = peer.short_cut()?;
    let longest = short_cut.arrives().min(peer.longest_by_kernel()) as u32;
    let address = short_cut.address.to_bits();
    Some((peer.node.0.into(), [address, short_cut.theirs, longest, short_cut.is_alive().into()]))
}

/// The mark of the frames of `peer`.
fn way_from(peer: &Peer) -> Option<([u32; 2], [u32; 2])> {
    let short_cut = peer.short_cut()?;
    Some(([short_cut.address.to_bits(), short_cut.own], [peer.session, peer.node.0.into()]))
}

/// A map, and its content.
struct Mirror<K: Pod, V: Pod> {
    map: Table<K, V>,
    known: HashMap<K, V>,
}

impl<K: Pod + Eq + Hash, V: Pod + Eq> Mirror<K, V> {
    fn new(map: Table<K, V>) -> Self {
        Self { map, known: HashMap::new() }
    }

    /// Makes the map equal to `wanted`.
    fn follow(&mut self, wanted: HashMap<K, V>) {
        let Self { map, known } = self;
        known.retain(|key, _| wanted.contains_key(key) || map.remove(key).is_err());
        for (key, value) in wanted {
            // Entries without room are tried again the next time.
            if known.get(&key) != Some(&value) && map.insert(key, value, 0).is_ok() {
                known.insert(key, value);
            }
        }
    }
}

/// Frames that the programs count.
struct Counted {
    map: Counts<u32, u64>,
    zeroes: usize,
    /// As of the last look.
    known: HashMap<u32, u64>,
}

impl Counted {
    fn new(map: Counts<u32, u64>) -> io::Result<Self> {
        let processors = nr_cpus().map_err(|(_, error)| error)?;
        Ok(Self { map, zeroes: processors, known: HashMap::new() })
    }

    /// Counts for these `keys` from now on.
    fn follow(&mut self, keys: impl Iterator<Item = u32> + Clone) {
        let Self { map, zeroes, known } = self;
        let wanted: std::collections::HashSet<u32> = keys.collect();
        known.retain(|key, _| wanted.contains(key) || map.remove(key).is_err());
        for key in wanted {
            if !known.contains_key(&key)
                && let Ok(values) = PerCpuValues::try_from(vec![0; *zeroes])
                && map.insert(key, values, 0).is_ok()
            {
                known.insert(key, 0);
            }
        }
    }

    /// The keys for which something was counted since the last look.
    fn look(&mut self) -> Vec<u32> {
        let mut used = Vec::new();
        for (key, known) in &mut self.known {
            let Ok(now) = self.map.get(key, 0).map(|values| values.iter().sum()) else { continue };
            if std::mem::replace(known, now) != now {
                used.push(*key);
            }
        }
        used
    }

    fn count(&self, key: u32) -> u64 {
        self.map.get(&key, 0).map_or(0, |values| values.iter().sum())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::peer::{Path, PlainAgreement};

    #[test]
    fn kernel_frames_are_limited_by_probes_and_by_the_path_mtu() {
        let now = Duration::ZERO;
        let path = Path { address: ([10, 0, 0, 1], 7474).into(), longest: 1472, fallback: None };
        let peer = Peer::new(NodeId(2), path, PlainAgreement { own: 1, theirs: 2, kernel: true }, now);
        peer.search(|mtu| mtu.arrived(1472, now));
        for (answered, longest) in [(1000, 1000), (1464, 1464), (1500, 1464)] {
            assert!(peer.short_cut().unwrap().answered(answered, now));
            let (_, [.., known, is_alive]) = way_to(&peer).unwrap();
            assert_eq!((known, is_alive), (longest, 1));
        }
    }
}
