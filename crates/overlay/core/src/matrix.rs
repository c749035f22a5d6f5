//! The traffic matrix: how much each pair of addresses sends.
//!
//! For each pair of addresses, bytes and frames are counted in slots of some seconds; a rate is the sum of the newest
//! slots. The matrix has a limit: new pairs in a full matrix without quiet pairs are counted together.
//!
//! Each thread has its own matrix; their [`Sum`] is reported.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

use foldhash::fast::RandomState;

use crate::ethernet::Front;
use crate::mac::Mac;
use crate::segment::split::Plan;
use crate::segment::vnet::VnetHeader;

/// How long one slot is filled.
pub const SLOT: Duration = Duration::from_secs(5);

/// Slots of a pair; the newest is being filled.
const SLOTS: usize = 13;

/// The longest time that rates can be about.
pub const LONGEST: Duration = Duration::from_secs(SLOT.as_secs() * (SLOTS as u64 - 1));

/// The most pairs.
const MAX_PAIRS: usize = 16 * 1024;

/// Bytes and frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// Bytes of frames, with their Ethernet headers.
    pub bytes: u64,
    /// Frames, as they are on the wire: a segment counts as all that it is cut into.
    pub frames: u64,
}

impl Volume {
    /// The volume of `frame`, which came with `vnet`; `None` if the two contradict each other.
    #[must_use]
    #[inline]
    pub fn of(vnet: &VnetHeader, frame: &[u8]) -> Option<Self> {
        if !vnet.is_segment() {
            return Some(Self { bytes: frame.len() as u64, frames: 1 });
        }
        let plan = Plan::of(vnet, frame).ok()?;
        Some(Self { bytes: plan.bytes() as u64, frames: plan.pieces() as u64 })
    }

    fn add(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.frames = self.frames.saturating_add(other.frames);
    }
}

/// The counts of one pair.
#[derive(Clone, Debug, Default)]
struct Pair {
    slots: [Volume; SLOTS],
    /// The slot of the newest entry, counted from the beginning of time.
    newest: u64,
}

impl Pair {
    fn add(&mut self, volume: Volume, slot: u64) {
        for stale in (self.newest + 1..=slot).take(SLOTS) {
            self.slots[stale as usize % SLOTS] = Volume::default();
        }
        // After a skip of more than all slots, all have been cleared: which ones does not matter.
        self.newest = self.newest.max(slot);
        self.slots[self.newest as usize % SLOTS].add(volume);
    }

    /// The volume sent in slots `from` to `to`, without the last.
    fn between(&self, from: u64, to: u64) -> Volume {
        let oldest = (self.newest + 1).saturating_sub(SLOTS as u64);
        let mut sum = Volume::default();
        (from.max(oldest)..to.min(self.newest + 1))
            .for_each(|slot| sum.add(self.slots[slot as usize % SLOTS]));
        sum
    }

    fn is_quiet(&self, slot: u64) -> bool {
        self.newest + (SLOTS as u64) <= slot
    }
}

/// The source and the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Flow {
    /// The sender.
    pub from: Mac,
    /// The receiver, which may be a group.
    pub to: Mac,
}

impl Flow {
    /// The flow of `frame`; `None` if it is too short to have one.
    #[must_use]
    #[inline]
    pub fn of(frame: &[u8]) -> Option<Self> {
        Front::of(frame).map(|front| Self { from: front.source, to: front.destination })
    }
}

/// The traffic matrix.
#[derive(Default)]
pub struct Matrix {
    pairs: HashMap<Flow, Pair, RandomState>,
    /// All pairs for which there was no room.
    others: Pair,
}

impl Matrix {
    /// Counts the bytes that `flow` has sent at `now`.
    #[inline]
    pub fn count(&mut self, flow: Flow, volume: Volume, now: Duration) {
        let slot = slot(now);
        if let Some(pair) = self.pairs.get_mut(&flow) {
            return pair.add(volume, slot);
        }
        if self.has_room(slot) {
            self.pairs.entry(flow).or_default().add(volume, slot);
        } else {
            self.others.add(volume, slot);
        }
    }

    /// The volume that each pair has sent within `interval`, and the volume of all pairs for which there was
    /// no room.
    fn within(&self, interval: Interval) -> (impl Iterator<Item = (Flow, Volume)>, Volume) {
        let Interval { from, to } = interval;
        let all = self.pairs.iter().map(move |(flow, pair)| (*flow, pair.between(from, to)));
        (all.filter(|(_, volume)| volume.frames > 0), self.others.between(from, to))
    }

    /// True if there is a place, perhaps since quiet flows gave up theirs.
    #[cold]
    fn has_room(&mut self, slot: u64) -> bool {
        // To look at all pairs for each frame of a flood of addresses costs too much: once in a slot is enough.
        if self.pairs.len() >= MAX_PAIRS && self.others.newest < slot {
            self.pairs.retain(|_, pair| !pair.is_quiet(slot));
        }
        self.pairs.len() < MAX_PAIRS
    }
}

/// Slots from `from` on, before `to`.
#[derive(Clone, Copy)]
struct Interval {
    from: u64,
    to: u64,
}

impl Interval {
    /// The whole slots that hold `time` before the one that is being filled at `now`: at least one, if there has been one.
    fn new(time: Duration, now: Duration) -> Self {
        let to = slot(now);
        let slots = time.clamp(SLOT, LONGEST).as_nanos().div_ceil(SLOT.as_nanos());
        Self { from: to.saturating_sub(slots as u64), to }
    }

    fn length(self) -> Duration {
        SLOT * (self.to - self.from) as u32
    }
}

/// The traffic of a pair.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Traffic {
    /// The pair; `None` for all that are counted together.
    pub flow: Option<Flow>,
    /// Its volume.
    pub volume: Volume,
    /// How much of it in a second.
    pub bytes_per_second: f64,
    /// How many in a second.
    pub frames_per_second: f64,
}

/// The sum of several matrices.
pub struct Sum {
    interval: Interval,
    pairs: HashMap<Flow, Volume, RandomState>,
    others: Volume,
}

impl Sum {
    /// The sum over `time` before the present slot: at most [`LONGEST`], and rounded up to whole slots.
    #[must_use]
    pub fn new(time: Duration, now: Duration) -> Self {
        Self { interval: Interval::new(time, now), pairs: HashMap::default(), others: Volume::default() }
    }

    /// Adds the counts of `matrix`.
    pub fn add(&mut self, matrix: &Matrix) {
        let (pairs, others) = matrix.within(self.interval);
        pairs.for_each(|(flow, volume)| self.pairs.entry(flow).or_default().add(volume));
        self.others.add(others);
    }

    /// The pairs that have sent the most bytes, the busiest first, at most `most` of them; behind them the sum of all
    /// others, if they have sent anything.
    #[must_use]
    pub fn busiest(self, most: usize) -> Vec<Traffic> {
        let Self { interval, pairs, mut others } = self;
        let mut pairs: Vec<_> = pairs.into_iter().collect();
        pairs.sort_unstable_by_key(|(flow, volume)| (Reverse(volume.bytes), *flow));
        pairs.iter().skip(most).for_each(|(_, volume)| others.add(*volume));
        pairs.truncate(most);
        let all = pairs.into_iter().map(|(flow, volume)| (Some(flow), volume));
        let others = (others.frames > 0).then_some((None, others));
        let seconds = interval.length().as_secs_f64();
        let rate = |count: u64| count as f64 / seconds;
        let traffic = |(flow, volume): (_, Volume)| Traffic {
            flow,
            volume,
            bytes_per_second: rate(volume.bytes),
            frames_per_second: rate(volume.frames),
        };
        all.chain(others).map(traffic).collect()
    }
}

fn slot(now: Duration) -> u64 {
    now.as_secs() / SLOT.as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::vnet::gso;

    fn mac(number: u32) -> Mac {
        let [a, b, c, d] = number.to_be_bytes();
        Mac([2, 0, a, b, c, d])
    }

    fn flow(from: u32, to: u32) -> Flow {
        Flow { from: mac(from), to: mac(to) }
    }

    fn volume(bytes: u64, frames: u64) -> Volume {
        Volume { bytes, frames }
    }

    fn within(matrix: &Matrix, time: Duration, now: Duration) -> Vec<(Flow, Volume)> {
        let mut all: Vec<_> = matrix.within(Interval::new(time, now)).0.collect();
        all.sort_by_key(|(flow, _)| *flow);
        all
    }

    #[test]
    fn directions_and_pairs_are_apart() {
        let (mut matrix, now) = (Matrix::default(), SLOT * 100);
        matrix.count(flow(1, 2), volume(100, 1), now);
        matrix.count(flow(1, 2), volume(200, 2), now);
        matrix.count(flow(2, 1), volume(64, 1), now);
        assert_eq!(within(&matrix, SLOT, now), [], "the slot is being filled");
        let expected = [(flow(1, 2), volume(300, 3)), (flow(2, 1), volume(64, 1))];
        assert_eq!(within(&matrix, SLOT, now + SLOT), expected);
        assert_eq!(within(&matrix, SLOT, now + SLOT * 2), []);
        assert_eq!(within(&matrix, SLOT * 2, now + SLOT * 2), expected);
    }

    #[test]
    fn intervals_slide() {
        let mut matrix = Matrix::default();
        for slot in 100..200_u32 {
            matrix.count(flow(1, 2), volume(u64::from(slot), 1), SLOT * slot);
            // Late by a slot.
            matrix.count(flow(1, 3), volume(1, 1), SLOT * (slot - slot % 2));
        }
        for slots in 1..SLOTS as u64 {
            let bytes = (200 - slots..200).sum();
            let found = within(&matrix, SLOT * slots as u32, SLOT * 200);
            assert_eq!(found[0], (flow(1, 2), volume(bytes, slots)));
        }
        assert_eq!(within(&matrix, LONGEST * 9, SLOT * 200), within(&matrix, LONGEST, SLOT * 200));
    }

    #[test]
    fn traffic_before_a_pause_does_not_count() {
        for pause in [1, 5, SLOTS as u32 - 1, SLOTS as u32, 1000] {
            let mut matrix = Matrix::default();
            (0..20).for_each(|slot| matrix.count(flow(1, 2), volume(7, 1), SLOT * slot));
            matrix.count(flow(1, 2), volume(5, 1), SLOT * (19 + pause));
            let found = within(&matrix, SLOT, SLOT * (20 + pause));
            assert_eq!(found, [(flow(1, 2), volume(5, 1))], "{pause}");
            let all = within(&matrix, LONGEST, SLOT * (20 + pause))[0].1;
            assert_eq!(all.frames, 1 + u64::from((SLOTS as u32 - 1).saturating_sub(pause)), "{pause}");
        }
    }

    #[test]
    fn it_has_a_limit_and_forgets_the_quiet() {
        let (mut matrix, now) = (Matrix::default(), SLOT * 100);
        (0..2 * MAX_PAIRS as u32).for_each(|from| matrix.count(flow(from, 1), volume(64, 1), now));
        let (pairs, others) = matrix.within(Interval::new(SLOT, now + SLOT));
        assert_eq!((pairs.count(), others), (MAX_PAIRS, volume(64 * MAX_PAIRS as u64, MAX_PAIRS as u64)));
        let later = now + SLOT * SLOTS as u32;
        matrix.count(flow(1, 2), volume(9, 1), later);
        assert_eq!(matrix.pairs.len(), 1);
        assert_eq!(within(&matrix, SLOT, later + SLOT), [(flow(1, 2), volume(9, 1))]);
    }

    #[test]
    fn matrices_are_added_up_and_the_busiest_come_first() {
        let (mut one, mut two, now) = (Matrix::default(), Matrix::default(), SLOT * 100);
        one.count(flow(1, 2), volume(100, 1), now);
        one.count(flow(1, 3), volume(150, 2), now);
        two.count(flow(1, 2), volume(100, 2), now);
        two.count(flow(2, 1), volume(10, 1), now);
        two.count(flow(3, 1), volume(10, 1), now);
        let busiest = |time, most| {
            let mut sum = Sum::new(time, now + SLOT);
            sum.add(&one);
            sum.add(&two);
            sum.busiest(most)
        };
        let traffic = |flow, volume: Volume, seconds: f64| Traffic {
            flow,
            volume,
            bytes_per_second: volume.bytes as f64 / seconds,
            frames_per_second: volume.frames as f64 / seconds,
        };
        let expected = |seconds| {
            [(Some(flow(1, 2)), volume(200, 3)), (Some(flow(1, 3)), volume(150, 2)), (None, volume(20, 2))]
                .map(|(flow, volume)| traffic(flow, volume, seconds))
        };
        assert_eq!(busiest(Duration::ZERO, 2), expected(5.0));
        assert_eq!(busiest(SLOT * 2 - Duration::from_nanos(1), 2), expected(10.0));
        assert_eq!(busiest(LONGEST, 2), expected(60.0));
        assert_eq!(busiest(SLOT, 4).iter().filter(|traffic| traffic.flow.is_none()).count(), 0);
    }

    #[test]
    fn rates_cover_only_the_elapsed_time() {
        let mut matrix = Matrix::default();
        matrix.count(flow(1, 2), volume(1000, 10), Duration::ZERO);
        let busiest = |now| {
            let mut sum = Sum::new(LONGEST, now);
            sum.add(&matrix);
            sum.busiest(9)
        };
        assert_eq!(busiest(Duration::ZERO), [], "no slot is full");
        assert_eq!(busiest(SLOT)[0].bytes_per_second, 200.0);
        assert_eq!(busiest(SLOT * 2)[0].bytes_per_second, 100.0);
    }

    #[test]
    fn segments_count_as_their_pieces() {
        let frame = [0; 60];
        assert_eq!(Volume::of(&VnetHeader::default(), &frame), Some(volume(60, 1)));
        // Ethernet, IPv4 and UDP, and 2500 bytes in pieces of 1000.
        let mut segment = vec![0; 42 + 2500];
        segment[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
        (segment[16], segment[17], segment[23]) = (10, 0, 17);
        let vnet = VnetHeader { gso_type: gso::UDP_L4, gso_size: 1000, ..VnetHeader::partial(34, 6) };
        assert_eq!(Volume::of(&vnet, &segment), Some(volume(3 * 42 + 2500, 3)));
        assert_eq!(Volume::of(&vnet, &frame), None, "the frame is not a segment");
    }
}
