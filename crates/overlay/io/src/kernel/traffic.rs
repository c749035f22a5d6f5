//! The traffic that the programs have carried, by its ends, and the frames that they dropped.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use aya::Ebpf;
use aya::maps::{MapData, PerCpuArray};
use overlay::Mac;
use overlay::matrix::{Flow, Volume};

use super::tables::{Counts, counts, missing};
use crate::counters::Counter;

/// A pair that has been silent for so long gives up its place.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why the programs drop something, in their order.
const DROPS: [Counter; 3] = [Counter::Stranger, Counter::Malformed, Counter::NotWritten];

/// The traffic since the last call.
#[derive(Default)]
pub struct Seen {
    pub flows: Vec<(Flow, Volume)>,
    pub dropped: Vec<(Counter, u64)>,
}

/// The traffic of a pair, and when it was read.
struct Pair {
    volume: [u64; 2],
    heard: Duration,
}

/// See the module.
pub struct Traffic {
    flows: Counts<[u8; 12], [u64; 2]>,
    drops: PerCpuArray<MapData, u64>,
    pairs: HashMap<[u8; 12], Pair>,
    dropped: [u64; DROPS.len()],
}

impl Traffic {
    pub fn new(programs: &mut Ebpf) -> io::Result<Self> {
        let drops = programs.take_map("drops").ok_or_else(|| missing("drops"))?;
        let drops = PerCpuArray::try_from(drops).map_err(io::Error::other)?;
        let flows = counts(programs, "flows")?;
        Ok(Self { flows, drops, pairs: HashMap::new(), dropped: Default::default() })
    }

    pub fn look(&mut self, now: Duration) -> Seen {
        Seen { flows: self.look_at_flows(now), dropped: self.look_at_drops() }
    }

    fn look_at_flows(&mut self, now: Duration) -> Vec<(Flow, Volume)> {
        let Self { flows, pairs, .. } = self;
        let mut seen = Vec::new();
        for (ends, volumes) in flows.iter().filter_map(Result::ok) {
            let sum = |which: usize| volumes.iter().map(|volume| volume[which]).sum::<u64>();
            let volume = [sum(0), sum(1)];
            let pair = pairs.entry(ends).or_insert(Pair { volume: [0; 2], heard: now });
            let [bytes, frames] = [0, 1].map(|which| volume[which].saturating_sub(pair.volume[which]));
            if frames > 0 {
                *pair = Pair { volume, heard: now };
                seen.push((flow(ends), Volume { bytes, frames }));
            }
        }
        pairs.retain(|ends, pair| now < pair.heard + PATIENCE || flows.remove(ends).is_err());
        seen
    }

    fn look_at_drops(&mut self) -> Vec<(Counter, u64)> {
        let mut seen = Vec::new();
        for (index, counter) in DROPS.into_iter().enumerate() {
            let Ok(now) = self.drops.get(&(index as u32), 0) else { continue };
            let now = now.iter().sum();
            let more = now - std::mem::replace(&mut self.dropped[index], now);
            if more > 0 {
                seen.push((counter, more));
            }
        }
        seen
    }
}

fn flow(ends: [u8; 12]) -> Flow {
    let [a, b, c, d, e, f, g, h, i, j, k, l] = ends;
    Flow { to: Mac([a, b, c, d, e, f]), from: Mac([g, h, i, j, k, l]) }
}
