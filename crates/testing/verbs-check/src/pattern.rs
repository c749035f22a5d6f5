//! Bytes derived from a key and their position, so that code with the key can check any
//! part of them.

/// Mixes `value` so that neighbouring values have nothing in common (the finaliser of SplitMix64).
#[must_use]
pub fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// A key for the stream that `parts` name.
#[must_use]
pub fn key(parts: &[u64]) -> u64 {
    parts.iter().fold(0x7472_616e_7368_756d, |key, part| mix(key.wrapping_add(GAMMA) ^ mix(*part)))
}

/// The distance of two successive states of SplitMix64.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// Pseudo-random numbers from a seed (SplitMix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GAMMA);
        mix(self.0)
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.number() % bound
    }

    /// True once in `of` times.
    pub fn one_in(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }
}

/// The endless sequence of bytes of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    key: u64,
}

/// A byte that differs from the one for its key and position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Where in the checked slice.
    pub at: usize,
    /// The byte there.
    pub found: u8,
    /// The byte that should be there.
    pub expected: u8,
}

impl Pattern {
    /// The bytes of `key`.
    #[must_use]
    pub fn new(key: u64) -> Self {
        Self { key }
    }

    /// Writes the bytes from position `start` on.
    pub fn fill(self, start: u64, bytes: &mut [u8]) {
        let head = head_length(start, bytes.len());
        let (head, body) = bytes.split_at_mut(head);
        self.fill_bytewise(start, head);
        let body_start = start + head.len() as u64;
        let mut words = body.chunks_exact_mut(8);
        let mut at = body_start / 8;
        for word in &mut words {
            word.copy_from_slice(&self.word(at));
            at += 1;
        }
        self.fill_bytewise(at * 8, words.into_remainder());
    }

    /// The first byte that differs from the expected bytes from position `start` on.
    ///
    /// # Errors
    /// That byte.
    pub fn check(self, start: u64, bytes: &[u8]) -> Result<(), Mismatch> {
        let head = head_length(start, bytes.len());
        self.check_bytewise(start, bytes, 0..head)?;
        let words = (bytes.len() - head) / 8;
        for word in 0..words {
            let at = head + word * 8;
            if bytes[at..at + 8] != self.word((start + at as u64) / 8) {
                self.check_bytewise(start, bytes, at..at + 8)?;
            }
        }
        self.check_bytewise(start, bytes, head + words * 8..bytes.len())
    }

    fn word(self, index: u64) -> [u8; 8] {
        mix(self.key.wrapping_add(index.wrapping_mul(GAMMA))).to_le_bytes()
    }

    fn byte(self, position: u64) -> u8 {
        self.word(position / 8)[usize::try_from(position % 8).unwrap_or(0)]
    }

    fn fill_bytewise(self, start: u64, bytes: &mut [u8]) {
        for (position, byte) in (start..).zip(bytes) {
            *byte = self.byte(position);
        }
    }

    fn check_bytewise(self, start: u64, bytes: &[u8], range: std::ops::Range<usize>) -> Result<(), Mismatch> {
        for at in range {
            let (found, expected) = (bytes[at], self.byte(start + at as u64));
            if found != expected {
                return Err(Mismatch { at, found, expected });
            }
        }
        Ok(())
    }
}

/// How many of `length` bytes from `start` on come before the first whole word.
fn head_length(start: u64, length: usize) -> usize {
    let to_boundary = usize::try_from(start.next_multiple_of(8) - start).unwrap_or(0);
    to_boundary.min(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_part_can_be_filled_and_checked_alone() {
        let pattern = Pattern::new(key(&[1, 2, 3]));
        let mut whole = [0; 100];
        pattern.fill(0, &mut whole);
        for start in 0..40 {
            for end in start..60 {
                let mut part = vec![0; end - start];
                pattern.fill(start as u64, &mut part);
                assert_eq!(part, whole[start..end]);
                assert_eq!(pattern.check(start as u64, &part), Ok(()));
            }
        }
    }

    #[test]
    fn each_single_wrong_byte_is_found() {
        let pattern = Pattern::new(7);
        let mut bytes = [0; 41];
        pattern.fill(3, &mut bytes);
        for at in 0..bytes.len() {
            let expected = bytes[at];
            bytes[at] ^= 0x10;
            let found = bytes[at];
            assert_eq!(pattern.check(3, &bytes), Err(Mismatch { at, found, expected }));
            bytes[at] = expected;
        }
    }

    #[test]
    fn keys_depend_on_each_part_and_its_place() {
        assert_ne!(key(&[1, 2]), key(&[2, 1]));
        assert_ne!(key(&[0]), key(&[0, 0]));
    }
}
