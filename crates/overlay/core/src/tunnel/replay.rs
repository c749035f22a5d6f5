//! Replay protection: no datagram is accepted twice, though they may overtake each other.
//!
//! A ring of bits, one for each of the newest counters, as in RFC 6479: whole words are cleared as the window advances.

/// Bits of a word.
const BITS: u64 = u64::BITS as u64;

/// Words of the ring.
const WORDS: usize = 128;

/// How far a datagram may be behind the newest one. One word is always being refilled.
pub const REACH: u64 = (WORDS as u64 - 1) * BITS;

/// Which counters have been seen.
#[derive(Clone, Debug)]
pub struct ReplayWindow {
    /// One more than the highest counter that was seen.
    next: u64,
    words: [u64; WORDS],
}

impl Default for ReplayWindow {
    fn default() -> Self {
        Self { next: 0, words: [0; WORDS] }
    }
}

impl ReplayWindow {
    /// How many counters there are up to the highest that was seen.
    #[must_use]
    pub fn reached(&self) -> u64 {
        self.next
    }

    /// True if `counter` has not been seen, and is not too old for that to be known.
    #[must_use]
    #[inline]
    pub fn is_fresh(&self, counter: u64) -> bool {
        if counter >= self.next {
            return counter < u64::MAX;
        }
        self.next - counter <= REACH && self.words[word(counter)] & bit(counter) == 0
    }

    /// `counter`, which is fresh, has been seen.
    #[inline]
    pub fn mark(&mut self, counter: u64) {
        if counter >= self.next {
            self.advance(counter);
        }
        self.words[word(counter)] |= bit(counter);
    }

    /// Clears the marks of the counters that share a word with the counters from the newest one to `counter`.
    fn advance(&mut self, counter: u64) {
        // The word of the newest counter is in use already, if there is one.
        let begun = self.next.div_ceil(BITS);
        let last = counter / BITS;
        for cleared in begun..=last.min(begun + WORDS as u64 - 1) {
            self.words[cleared as usize % WORDS] = 0;
        }
        self.next = counter + 1;
    }
}

fn word(counter: u64) -> usize {
    (counter / BITS) as usize % WORDS
}

fn bit(counter: u64) -> u64 {
    1 << (counter % BITS)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The same, as a set of all that was ever seen.
    #[derive(Default)]
    struct Model {
        seen: BTreeSet<u64>,
    }

    impl Model {
        fn is_fresh(&self, counter: u64) -> bool {
            let is_within = self.seen.last().is_none_or(|newest| counter + REACH > *newest);
            is_within && !self.seen.contains(&counter)
        }
    }

    /// A generator of numbers that look random.
    fn random(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }

    #[test]
    fn the_replay_window_agrees_with_a_full_list() {
        for seed in 1..200 {
            let (mut window, mut model, mut state) =
                (ReplayWindow::default(), Model::default(), seed * 0x9e37_79b9);
            let (mut newest, stride) = (random(&mut state) % 3 * 1000, 1 << (random(&mut state) % 15));
            for _ in 0..2000 {
                let counter = match random(&mut state) % 4 {
                    0 => newest + random(&mut state) % stride,
                    1 => newest + 1,
                    _ => newest.saturating_sub(random(&mut state) % (REACH + 2 * BITS)),
                };
                assert_eq!(
                    window.is_fresh(counter),
                    model.is_fresh(counter),
                    "seed {seed}: {counter} after {newest}"
                );
                if window.is_fresh(counter) {
                    window.mark(counter);
                    model.seen.insert(counter);
                    newest = newest.max(counter);
                }
            }
        }
    }

    #[test]
    fn the_last_counter_is_never_fresh() {
        let mut window = ReplayWindow::default();
        window.mark(u64::MAX - 1);
        assert!(!window.is_fresh(u64::MAX) && !window.is_fresh(u64::MAX - 1) && !window.is_fresh(0));
        assert!(window.is_fresh(u64::MAX - 2));
    }
}
