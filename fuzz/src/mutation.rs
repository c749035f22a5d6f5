//! Mutations without a fuzzer, the same ones for the same seed.

/// xorshift64*.
pub struct Mutator(u64);

impl Mutator {
    /// `seed` may be anything.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: usize) -> usize {
        ((self.next() >> 11) % end.max(1) as u64) as usize
    }

    /// One of `all`, changed in a few places, perhaps with a part of another one of them.
    pub fn mutate(&mut self, all: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = self.one_of(all).to_vec();
        for _ in 0..=self.below(4) {
            self.change(&mut bytes, all);
        }
        bytes
    }

    fn one_of<'a>(&mut self, all: &'a [Vec<u8>]) -> &'a [u8] {
        all.get(self.below(all.len())).map_or(&[], Vec::as_slice)
    }

    fn change(&mut self, bytes: &mut Vec<u8>, all: &[Vec<u8>]) {
        const TELLING: [u8; 8] = [0, 1, 0x7f, 0x80, 0xff, 0xfe, 16, 64];
        let at = self.below(bytes.len());
        match self.below(8) {
            0 | 1 if !bytes.is_empty() => bytes[at] ^= 1 << self.below(8),
            2 if !bytes.is_empty() => bytes[at] = TELLING[self.below(TELLING.len())],
            3 if !bytes.is_empty() => bytes[at] = self.next() as u8,
            4 if !bytes.is_empty() => {
                let end = bytes.len().min(at + 1 + self.below(8));
                bytes.drain(at..end);
            }
            5 => bytes.truncate(at),
            6 => {
                let other = self.one_of(all);
                let from = self.below(other.len());
                let part = &other[from..other.len().min(from + 1 + self.below(64))];
                bytes.splice(at..at, part.iter().copied());
            }
            _ => bytes.insert(at, self.next() as u8),
        }
    }
}
