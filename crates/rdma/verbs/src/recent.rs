//! A cache of recent lookups: programs use few handles for long, and a hash takes longer than all other work
//! for a short message.

use std::cell::Cell;

/// Handles that may take turns.
const PLACES: usize = 16;

/// The handles that were looked up lately, and what was found.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    /// Handle 0, which names nothing, is an empty place's.
    places: [Cell<(u32, u32)>; PLACES],
}

impl Recent {
    /// The cached entry for `handle`.
    #[inline]
    pub fn get(&self, handle: u32) -> Option<u32> {
        let (known, found) = self.place(handle).get();
        (known == handle && handle != 0).then_some(found)
    }

    /// `found` is what `handle` leads to.
    pub fn keep(&self, handle: u32, found: u32) {
        self.place(handle).set((handle, found));
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Numbers of queue pairs count in their lowest bits, keys of regions in the second byte.
    #[inline]
    fn place(&self, handle: u32) -> &Cell<(u32, u32)> {
        &self.places[(handle ^ handle >> 8) as usize % PLACES]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ones_are_known_until_all_are_forgotten() {
        let mut recent = Recent::default();
        assert_eq!(recent.get(0), None);
        (1..=PLACES as u32).for_each(|handle| recent.keep(handle, handle + 100));
        assert!((1..=PLACES as u32).all(|handle| recent.get(handle) == Some(handle + 100)));
        recent.keep(1 + PLACES as u32, 7);
        assert_eq!((recent.get(1), recent.get(1 + PLACES as u32)), (None, Some(7)));
        recent.clear();
        assert_eq!(recent.get(2), None);
    }
}
