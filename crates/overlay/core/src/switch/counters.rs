//! Counters of frames, by outcome.

use serde::Serialize;

use super::Verdict;

/// Why a frame was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Reason {
    /// It is too short, its source is no station, or it goes to a group where one station is meant.
    Malformed,
    /// It came from, or was for, a port that there is not.
    NoPort,
    /// It came from, or was for, a port that is blocked because of a loop.
    Blocked,
    /// It came from a port with an instance that does not run here yet.
    Muted,
    /// It came from a port with an instance that is moving away, or was for such a port and could not be
    /// kept.
    Paused,
    /// Too much was kept already for a MAC that is on its way.
    KeptFull,
    /// Its source MAC belongs to an instance elsewhere, or a station sent a message that only nodes send.
    Spoofed,
    /// It went round, or a port brought a frame of this node.
    Loop,
    /// It is for a MAC on the port that it came from.
    SamePort,
    /// It is for a bridge's own ears, as spanning-tree and pause frames are (IEEE 802.1Q, table 8-1).
    LinkLocal,
    /// More is sent to unknown MACs from where it came than may be.
    UnknownLimit,
    /// More is sent to all or to groups from where it came than may be.
    BroadcastLimit,
    /// It is stamped with a topology that is not known, or not any more.
    UnknownVersion,
    /// It is a broadcast, and came from another neighbour than the tree allows.
    ReversePath,
    /// No way leads to its destination node.
    Unreachable,
    /// It is for a MAC that is not here any more, or not yet.
    Stale,
}

impl Reason {
    /// All of them.
    pub const ALL: [Self; 16] = [
        Self::Malformed,
        Self::NoPort,
        Self::Blocked,
        Self::Muted,
        Self::Paused,
        Self::KeptFull,
        Self::Spoofed,
        Self::Loop,
        Self::SamePort,
        Self::LinkLocal,
        Self::UnknownLimit,
        Self::BroadcastLimit,
        Self::UnknownVersion,
        Self::ReversePath,
        Self::Unreachable,
        Self::Stale,
    ];

    /// How it is called.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::NoPort => "no-port",
            Self::Blocked => "blocked",
            Self::Muted => "muted",
            Self::Paused => "paused",
            Self::KeptFull => "kept-full",
            Self::Spoofed => "spoofed",
            Self::Loop => "loop",
            Self::SamePort => "same-port",
            Self::LinkLocal => "link-local",
            Self::UnknownLimit => "unknown-limit",
            Self::BroadcastLimit => "broadcast-limit",
            Self::UnknownVersion => "unknown-version",
            Self::ReversePath => "reverse-path",
            Self::Unreachable => "unreachable",
            Self::Stale => "stale",
        }
    }
}

/// Frames by their fate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Went to one place.
    pub forwarded: u64,
    /// Went to many.
    pub flooded: u64,
    /// Kept for a MAC that is on its way.
    pub held: u64,
    /// Answered on behalf of a managed MAC.
    pub answered: u64,
    /// MACs that were forgotten for others because the table was full.
    pub displaced: u64,
    /// MACs that could not be learned because the table was full.
    pub not_learned: u64,
    /// Changes of a learned MAC's place that were not followed, for there were too many.
    pub flaps: u64,
    dropped: [u64; Reason::ALL.len()],
}

impl Counters {
    /// How many frames were dropped for `reason`.
    #[must_use]
    pub fn dropped(&self, reason: Reason) -> u64 {
        self.dropped.get(reason as usize).copied().unwrap_or_default()
    }

    #[inline]
    pub(super) fn count(&mut self, verdict: &Verdict) {
        match verdict {
            Verdict::Forwarded => self.forwarded += 1,
            Verdict::Flooded => self.flooded += 1,
            Verdict::Held => self.held += 1,
            Verdict::Answered(_) => self.answered += 1,
            Verdict::Dropped(reason) => self.drop(*reason),
        }
    }

    #[inline]
    pub(super) fn drop(&mut self, reason: Reason) {
        if let Some(count) = self.dropped.get_mut(reason as usize) {
            *count += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_a_counter_of_its_own() {
        let mut counters = Counters::default();
        for (at, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, at);
            counters.count(&Verdict::Dropped(reason));
            assert_eq!(
                Reason::ALL.iter().map(|reason| counters.dropped(*reason)).sum::<u64>(),
                at as u64 + 1
            );
        }
    }
}
