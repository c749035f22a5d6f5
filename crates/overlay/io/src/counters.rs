//! Counters of dropped datagrams and frames.

use std::sync::atomic::{AtomicU64, Ordering};

use overlay::tunnel::lane::Refused;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// Why something went nowhere.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Counter { $($(#[$doc])* $name,)* }

        impl Counter {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// How it is called.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

counters! {
    /// A datagram of another program, or of no session.
    Stranger = "stranger",
    /// A datagram that is sealed though its session is not, or the other way round.
    WrongProtection = "wrong-protection",
    /// A datagram from elsewhere than its node: of a session that is not sealed, or over another session's connection.
    WrongAddress = "wrong-address",
    /// A datagram with a key that is too old or too new.
    UnknownKey = "unknown-key",
    /// A datagram that came before.
    Replayed = "replayed",
    /// A forged or damaged datagram.
    Forged = "forged",
    /// A datagram without a valid message.
    Malformed = "malformed",
    /// A segment that a port's device has not taken, and which was cut.
    SegmentRefused = "segment-refused",
    /// A frame from a port that contradicts its header.
    Unsplittable = "unsplittable",
    /// A frame for a node without a session.
    NoPeer = "no-peer",
    /// A frame for which the path is too narrow.
    TooLong = "too-long",
    /// A frame for which no key was left.
    Exhausted = "keys-exhausted",
    /// A frame that the kernel refused, for which it has no room, or to a node that it cannot reach.
    NotSent = "not-sent",
    /// A port without a device.
    PortGone = "port-gone",
    /// A frame that a port did not take, which may be down.
    NotWritten = "not-written",
}

impl From<Refused> for Counter {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Short => Self::Stranger,
            Refused::Protection => Self::WrongProtection,
            Refused::UnknownKey => Self::UnknownKey,
            Refused::Replayed => Self::Replayed,
            Refused::Forged => Self::Forged,
        }
    }
}

/// How often each.
#[derive(Default)]
pub(crate) struct Counters([AtomicU64; Counter::ALL.len()]);

impl Counters {
    pub fn count(&self, counter: Counter) {
        self.0[counter as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub fn add(&self, counter: Counter, more: u64) {
        self.0[counter as usize].fetch_add(more, Ordering::Relaxed);
    }

    pub fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize].load(Ordering::Relaxed)
    }
}
