//! Counts of what processes exchange by RDMA: bytes of payload, and messages.

use serde::{Deserialize, Serialize};

/// Payload that went one way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// Its bytes.
    pub bytes: u64,
    /// Its messages: each SEND, WRITE, READ, atomic or datagram is one.
    pub messages: u64,
}

impl Volume {
    /// Counts a message of `bytes`.
    #[inline(always)]
    pub fn count(&mut self, bytes: u32) {
        self.count_part(bytes, true);
    }

    /// Counts a part of a message, which counts itself with its last part.
    #[inline(always)]
    pub fn count_part(&mut self, bytes: u32, is_last: bool) {
        self.bytes = self.bytes.wrapping_add(u64::from(bytes));
        self.messages = self.messages.wrapping_add(u64::from(is_last));
    }

    /// Adds `other`. Counts of others may have any value.
    pub fn add(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.messages = self.messages.saturating_add(other.messages);
    }

    /// What has been added since `before`; everything if the counts have begun anew.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        let grown = |now: u64, before: u64| now.checked_sub(before);
        match (grown(self.bytes, before.bytes), grown(self.messages, before.messages)) {
            (Some(bytes), Some(messages)) => Self { bytes, messages },
            _ => self,
        }
    }
}

/// Payload that a process has exchanged with another instance, as far as this process counts it: the one that sends does, and
/// the one that copies it out of the other's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Sent to the other instance, or copied into its memory.
    pub sent: Volume,
    /// Copied from its memory.
    pub fetched: Volume,
}

impl Traffic {
    /// Adds `other`.
    pub fn add(&mut self, other: Self) {
        self.sent.add(other.sent);
        self.fetched.add(other.fetched);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_that_began_anew_are_all_new() {
        let before = Volume { bytes: 10, messages: 2 };
        let now = Volume { bytes: 25, messages: 3 };
        assert_eq!(now.since(before), Volume { bytes: 15, messages: 1 });
        assert_eq!(before.since(now), before);
    }

    #[test]
    fn absurd_counts_do_not_overflow() {
        let mut volume = Volume { bytes: u64::MAX, messages: 1 };
        volume.add(Volume { bytes: 1, messages: u64::MAX });
        assert_eq!(volume, Volume { bytes: u64::MAX, messages: u64::MAX });
    }
}
