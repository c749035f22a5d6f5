//! A hash for handles that this process itself gave out: fast, and no defence against chosen keys.
//!
//! Keys that a peer chooses are only ever looked up in these tables, never inserted. Tables that a peer fills use the standard hash.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map keyed by handles.
pub type HandleMap<V> = HashMap<u32, V, BuildHasherDefault<HandleHasher>>;

/// Fibonacci hashing.
#[derive(Clone, Copy, Debug, Default)]
pub struct HandleHasher(u64);

impl Hasher for HandleHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(u32::from(byte));
        }
    }

    fn write_u32(&mut self, handle: u32) {
        let mixed = (self.0 ^ u64::from(handle)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }
}
