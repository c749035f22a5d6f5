//! Decides whether a feature, such as an offload, causes failures, by disabling it on trial:
//!
//! ```text
//!              several failures without a success between               many successes
//!   trusted ─────────────────────────────────────────────▶ disabled ───────────────────▶ to blame, for good
//!      ▲                                                       │
//!      └───── as many failures also without it: restored ──────┘
//! ```
//!
//! So failures with another cause disable nothing for long: each time twice as many are needed.

/// So many bad ones put something aside at first, and at most.
const PATIENCE: (u32, u32) = (16, 1 << 16);

/// For each of them so many good ones have to come without it.
const PROOF: u32 = 4;

/// See the module.
#[derive(Clone, Debug)]
pub struct Suspicion {
    state: State,
    patience: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Trusted { bad: u32 },
    PutAside { good: u32, bad: u32 },
    ToBlame,
}

/// The action to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is not to be used for now.
    PutAside,
    /// It may be used again.
    Restored,
    /// It stays unused.
    ToBlame,
}

impl Default for Suspicion {
    fn default() -> Self {
        Self { state: State::Trusted { bad: 0 }, patience: PATIENCE.0 }
    }
}

impl Suspicion {
    /// True as long as it is used.
    #[must_use]
    pub fn trusts(&self) -> bool {
        matches!(self.state, State::Trusted { .. })
    }

    /// True once it is found to be to blame: nothing changes any more.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.state == State::ToBlame
    }

    /// Something was as it should be, or not.
    pub fn saw(&mut self, is_good: bool) -> Option<Change> {
        let (state, change) = match self.state {
            State::Trusted { .. } if is_good => (State::Trusted { bad: 0 }, None),
            State::Trusted { bad } if bad + 1 < self.patience => (State::Trusted { bad: bad + 1 }, None),
            State::Trusted { .. } => (State::PutAside { good: 0, bad: 0 }, Some(Change::PutAside)),
            State::PutAside { good, .. } if is_good && good + 1 >= self.patience * PROOF => {
                (State::ToBlame, Some(Change::ToBlame))
            }
            State::PutAside { good, bad } if is_good => (State::PutAside { good: good + 1, bad }, None),
            State::PutAside { good, bad } if bad + 1 < self.patience => {
                (State::PutAside { good, bad: bad + 1 }, None)
            }
            State::PutAside { .. } => {
                self.patience = (self.patience * 2).min(PATIENCE.1);
                (State::Trusted { bad: 0 }, Some(Change::Restored))
            }
            State::ToBlame => (State::ToBlame, None),
        };
        self.state = state;
        change
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The changes within `count` observations, each with its number.
    fn see(suspicion: &mut Suspicion, is_good: bool, count: u32) -> Vec<(u32, Change)> {
        (1..=count).filter_map(|number| Some((number, suspicion.saw(is_good)?))).collect()
    }

    #[test]
    fn success_without_it_blames_it() {
        let mut suspicion = Suspicion::default();
        assert_eq!(see(&mut suspicion, false, 16), [(16, Change::PutAside)]);
        assert!(!suspicion.trusts() && !suspicion.is_over());
        // Data that was already in flight.
        assert_eq!(see(&mut suspicion, false, 15), []);
        assert_eq!(see(&mut suspicion, true, 64), [(64, Change::ToBlame)]);
        assert!(suspicion.is_over() && !suspicion.trusts());
        assert_eq!(see(&mut suspicion, true, 1000), []);
        assert_eq!(see(&mut suspicion, false, 1000), []);
    }

    #[test]
    fn failure_without_it_clears_it() {
        let mut suspicion = Suspicion::default();
        assert_eq!(see(&mut suspicion, false, 32), [(16, Change::PutAside), (32, Change::Restored)]);
        assert!(suspicion.trusts());
        // Twice as many each time.
        assert_eq!(see(&mut suspicion, false, 64), [(32, Change::PutAside), (64, Change::Restored)]);
        for _ in 0..20 {
            see(&mut suspicion, false, 1 << 18);
        }
        assert_eq!(see(&mut suspicion, false, 1 << 18).len(), 4, "it takes no more than 2^16 each time");
    }

    #[test]
    fn some_failures_among_successes_are_tolerated() {
        let mut suspicion = Suspicion::default();
        for _ in 0..1000 {
            assert_eq!(see(&mut suspicion, false, 15), []);
            assert_eq!(see(&mut suspicion, true, 1), []);
        }
        assert!(suspicion.trusts());
    }
}
