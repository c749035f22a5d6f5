use std::hash::{Hash, Hasher};
use std::time::Duration;

/// A deadline on the daemon's clock.
///
/// It is ignored in hashes: to a checker that lets timers fire at any time, states that differ only in
/// their deadlines are equivalent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Due(pub(crate) Duration);

impl Due {
    pub(crate) fn after(now: Duration, delay: Duration) -> Self {
        Self(now.saturating_add(delay))
    }

    pub(crate) fn reached(self, now: Duration) -> bool {
        now >= self.0
    }
}

impl Hash for Due {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}
