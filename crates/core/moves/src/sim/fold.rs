//! The hash that identifies states.

use std::hash::{Hash, Hasher};

/// Folds a 128-bit product: fast, and good enough to distinguish millions of states.
#[derive(Default)]
pub(super) struct Fold(u64);

impl Fold {
    pub fn of(value: &impl Hash) -> u64 {
        let mut hasher = Self::default();
        value.hash(&mut hasher);
        hasher.finish()
    }
}

impl Hasher for Fold {
    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.write_u64(u64::from_le_bytes(word) ^ part.len() as u64);
        }
    }

    fn write_u64(&mut self, word: u64) {
        let product =
            u128::from(self.0 ^ word ^ 0x9e37_79b9_7f4a_7c15) * u128::from(0xd6e8_feb8_6659_fd93_u64);
        self.0 = (product >> 64) as u64 ^ product as u64 ^ self.0.rotate_left(23);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
