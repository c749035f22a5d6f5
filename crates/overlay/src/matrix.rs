//! Who sends how much to whom.
//!
//! For each pair of addresses, bytes and frames are counted in slots of some seconds; a rate is what the newest slots
//! hold. The matrix has a limit: pairs that come when it is full and none has been quiet are counted together.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::time::Duration;

use crate::mac::Mac;

/// How long one slot is filled.
pub const SLOT: Duration = Duration::from_secs(5);

/// Slots of a pair, one of which is being filled.
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
    fn add(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.frames = self.frames.saturating_add(other.frames);
    }
}

/// What one pair has sent.
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

    /// What was sent in slots `from` to `to`, without the last.
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

/// From whom to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Flow {
    /// The sender.
    pub from: Mac,
    /// The receiver, which may be a group.
    pub to: Mac,
}

/// Who sends how much to whom.
#[derive(Default)]
pub struct Matrix<S = std::hash::RandomState> {
    pairs: HashMap<Flow, Pair, S>,
    /// All pairs for which there was no room.
    others: Pair,
}

impl<S: BuildHasher> Matrix<S> {
    /// Counts what `flow` has sent at `now`.
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

    /// What each pair has sent within `time` before the present slot, which is at most [`LONGEST`] and is rounded up to
    /// whole slots; and what all pairs together have for which there was no room.
    pub fn within(&self, time: Duration, now: Duration) -> (impl Iterator<Item = (Flow, Volume)>, Volume) {
        let to = slot(now);
        let slots = time.min(LONGEST).as_nanos().div_ceil(SLOT.as_nanos());
        let from = to.saturating_sub(slots as u64);
        let all = self.pairs.iter().map(move |(flow, pair)| (*flow, pair.between(from, to)));
        (all.filter(|(_, volume)| volume.frames > 0), self.others.between(from, to))
    }

    /// True if there is a place, perhaps since those that have been quiet gave up theirs.
    #[cold]
    fn has_room(&mut self, slot: u64) -> bool {
        // To look at all is too much for each frame of a flood of addresses: once in a slot is enough.
        if self.pairs.len() >= MAX_PAIRS && self.others.newest < slot {
            self.pairs.retain(|_, pair| !pair.is_quiet(slot));
        }
        self.pairs.len() < MAX_PAIRS
    }
}

fn slot(now: Duration) -> u64 {
    now.as_secs() / SLOT.as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let mut all: Vec<_> = matrix.within(time, now).0.collect();
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
    fn windows_slide() {
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
    fn what_was_before_a_pause_is_not_now() {
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
        let (pairs, others) = matrix.within(SLOT, now + SLOT);
        assert_eq!((pairs.count(), others), (MAX_PAIRS, volume(64 * MAX_PAIRS as u64, MAX_PAIRS as u64)));
        let later = now + SLOT * SLOTS as u32;
        matrix.count(flow(1, 2), volume(9, 1), later);
        assert_eq!(matrix.pairs.len(), 1);
        assert_eq!(within(&matrix, SLOT, later + SLOT), [(flow(1, 2), volume(9, 1))]);
    }
}
