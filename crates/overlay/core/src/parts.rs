//! Fragmentation of frames that are longer than a datagram.
//!
//! The inner network may have a larger MTU than the path between two nodes. Such a frame is sent in parts of one size
//! (only the last may be shorter), and is reassembled when all have arrived, in any order. One lost part loses the
//! frame.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

/// The most bytes of a frame: an IP datagram's limit, with an Ethernet header and two tags.
pub const MAX_FRAME: usize = 65_535 + 14 + 2 * 4;

/// The most parts of a frame.
pub const MAX_PARTS: usize = 64;

/// Frames of one sender that may be incomplete at a time.
const MAX_FRAMES: usize = 32;

/// How long a frame's parts are waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// The position of a part in its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The sender's number of the frame.
    pub frame: u32,
    /// Bytes of the frame.
    pub total: u32,
    /// Which part, from 0 on.
    pub index: u8,
    /// Of how many.
    pub count: u8,
}

/// The part contradicts others of its frame, or itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("contradictory part of a frame")]
pub struct InvalidPart;

impl Part {
    /// Bytes of an encoded part.
    pub const LENGTH: usize = 10;

    /// Into how many parts of `room` bytes at most a frame of `total` bytes has to be cut; `None` if they would be too
    /// many.
    #[must_use]
    pub fn count(total: usize, room: usize) -> Option<u8> {
        let count = total.checked_div(room)? + usize::from(!total.is_multiple_of(room));
        u8::try_from(count).ok().filter(|_| total <= MAX_FRAME && count <= MAX_PARTS)
    }

    /// Its bytes of the frame.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        let total = self.total as usize;
        let size = total.div_ceil(usize::from(self.count).max(1));
        let start = (size * usize::from(self.index)).min(total);
        start..(start + size).min(total)
    }

    /// The part's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        bytes[..4].copy_from_slice(&self.frame.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.total.to_le_bytes());
        bytes[8..].copy_from_slice(&[self.index, self.count]);
        bytes
    }

    /// The part in `bytes`.
    ///
    /// # Errors
    /// If no frame is cut like that.
    pub fn decode(bytes: &[u8; Self::LENGTH]) -> Result<Self, InvalidPart> {
        let [f0, f1, f2, f3, t0, t1, t2, t3, index, count] = *bytes;
        let (frame, total) = (u32::from_le_bytes([f0, f1, f2, f3]), u32::from_le_bytes([t0, t1, t2, t3]));
        let part = Self { frame, total, index, count };
        let is_one = total as usize <= MAX_FRAME && (1..=MAX_PARTS).contains(&count.into()) && index < count;
        if is_one && !part.range().is_empty() { Ok(part) } else { Err(InvalidPart) }
    }
}

/// A partly received frame.
struct Incomplete {
    number: u32,
    count: u8,
    /// A bit for each part that has not come.
    missing: u64,
    bytes: Vec<u8>,
    since: Duration,
}

/// The partly received frames of one sender.
#[derive(Default)]
pub struct Reassembly {
    /// The oldest one first.
    frames: VecDeque<Incomplete>,
}

impl Reassembly {
    /// Takes in `content`, which is `part` of a frame. Returns the frame when it is whole.
    ///
    /// # Errors
    /// If its length is wrong, or it contradicts earlier parts.
    pub fn take(
        &mut self,
        part: &Part,
        content: &[u8],
        now: Duration,
    ) -> Result<Option<Vec<u8>>, InvalidPart> {
        self.forget_old(now);
        let range = part.range();
        if content.len() != range.len() {
            return Err(InvalidPart);
        }
        let at = self.find(part, now);
        let Some(frame) = self.frames.get_mut(at) else { return Ok(None) };
        if frame.count != part.count || frame.bytes.len() != part.total as usize {
            return Err(InvalidPart);
        }
        frame.bytes[range].copy_from_slice(content);
        frame.missing &= !(1 << part.index);
        if frame.missing != 0 {
            return Ok(None);
        }
        Ok(self.frames.remove(at).map(|frame| frame.bytes))
    }

    /// Where the frame of `part` is, which may be a new one.
    fn find(&mut self, part: &Part, now: Duration) -> usize {
        if let Some(at) = self.frames.iter().rposition(|frame| frame.number == part.frame) {
            return at;
        }
        if self.frames.len() == MAX_FRAMES {
            self.frames.pop_front();
        }
        self.frames.push_back(Incomplete {
            number: part.frame,
            count: part.count,
            missing: u64::MAX >> (MAX_PARTS - usize::from(part.count)),
            bytes: vec![0; part.total as usize],
            since: now,
        });
        self.frames.len() - 1
    }

    fn forget_old(&mut self, now: Duration) {
        while self.frames.front().is_some_and(|frame| now.saturating_sub(frame.since) > PATIENCE) {
            self.frames.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(9);

    fn frame(length: usize) -> Vec<u8> {
        (0..length).map(|at| (at * 7 + at / 256) as u8).collect()
    }

    /// The parts of `whole`, and their bytes.
    fn cut(number: u32, whole: &[u8], room: usize) -> Vec<(Part, Vec<u8>)> {
        let count = Part::count(whole.len(), room).unwrap();
        let part = |index| Part { frame: number, total: whole.len() as u32, index, count };
        (0..count).map(part).map(|part| (part, whole[part.range()].to_vec())).collect()
    }

    #[test]
    fn frames_are_whole_again_in_any_order() {
        for (length, room) in
            [(1, 1), (2, 1), (1401, 1400), (9014, 1400), (9014, 4507), (MAX_FRAME, 1100), (64, 1)]
        {
            let whole = frame(length);
            let parts = cut(3, &whole, room);
            assert!(parts.iter().all(|(_, content)| !content.is_empty() && content.len() <= room));
            for turn in 0..parts.len() {
                let (mut reassembly, mut parts) = (Reassembly::default(), parts.clone());
                parts.rotate_left(turn);
                let (last, first) = parts.split_last().unwrap();
                assert!(first.iter().all(|(part, content)| reassembly.take(part, content, NOW) == Ok(None)));
                assert_eq!(reassembly.take(&last.0, &last.1, NOW), Ok(Some(whole.clone())));
                assert!(reassembly.frames.is_empty());
            }
        }
    }

    #[test]
    fn frames_may_be_mixed() {
        let mut reassembly = Reassembly::default();
        let frames: Vec<Vec<u8>> = (0..MAX_FRAMES).map(|number| frame(3000 + number)).collect();
        let cut: Vec<_> =
            frames.iter().enumerate().map(|(number, whole)| cut(number as u32, whole, 1400)).collect();
        for index in 0..3 {
            for (whole, parts) in frames.iter().zip(&cut) {
                let (part, content) = &parts[index];
                let taken = reassembly.take(part, content, NOW).unwrap();
                assert_eq!(taken.as_ref(), (index == 2).then_some(whole));
            }
        }
    }

    #[test]
    fn excess_and_late_parts_are_dropped() {
        let mut reassembly = Reassembly::default();
        let parts = cut(0, &frame(3000), 1400);
        for number in 0..2 * MAX_FRAMES as u32 {
            let (part, content) = &parts[0];
            assert_eq!(reassembly.take(&Part { frame: number, ..*part }, content, NOW), Ok(None));
            assert!(reassembly.frames.len() <= MAX_FRAMES);
        }
        let late = NOW + PATIENCE + Duration::from_millis(1);
        assert_eq!(reassembly.take(&parts[1].0, &parts[1].1, late), Ok(None));
        assert_eq!(reassembly.frames.len(), 1);
    }

    #[test]
    fn contradictions_are_refused() {
        let whole = frame(3000);
        let parts = cut(0, &whole, 1400);
        let mut reassembly = Reassembly::default();
        reassembly.take(&parts[0].0, &parts[0].1, NOW).unwrap();
        assert_eq!(reassembly.take(&parts[1].0, &parts[1].1[1..], NOW), Err(InvalidPart));
        let other = cut(0, &frame(2999), 1400);
        assert_eq!(reassembly.take(&other[2].0, &other[2].1, NOW), Err(InvalidPart));
        let other = cut(0, &whole, 1600);
        assert_eq!(reassembly.take(&other[1].0, &other[1].1, NOW), Err(InvalidPart));
        assert_eq!(reassembly.take(&parts[1].0, &parts[1].1, NOW), Ok(None));
        assert_eq!(reassembly.take(&parts[2].0, &parts[2].1, NOW), Ok(Some(whole)));
    }

    #[test]
    fn impossible_parts_are_refused() {
        let good = Part { frame: 1, total: 3000, index: 2, count: 3 };
        assert_eq!(Part::decode(&good.encode()), Ok(good));
        let bad = [
            Part { total: 0, ..good },
            Part { total: MAX_FRAME as u32 + 1, ..good },
            Part { index: 3, ..good },
            Part { count: 0, ..good },
            Part { count: MAX_PARTS as u8 + 1, ..good },
            // Two parts of two bytes are all of it.
            Part { total: 4, index: 2, count: 3, ..good },
        ];
        assert!(bad.iter().all(|part| Part::decode(&part.encode()) == Err(InvalidPart)));
        assert_eq!(Part::count(MAX_FRAME, 1000), None);
        assert_eq!(Part::count(MAX_FRAME + 1, 9000), None);
        assert_eq!(Part::count(100, 0), None);
    }
}
