//! The header of a datagram, in clear, authenticated by the tag behind it if there is one.
//!
//! ```text
//!  0        1        2                 4                 8                                 16
//!  ├────────┼────────┼─────────────────┼─────────────────┼─────────────────────────────────┤
//!  │  kind  │  lane  │   generation    │     session     │             counter             │ sealed … │ tag │
//! ```
//!
//! Little-endian. `kind` says whether the rest is sealed; a plain datagram has no tag. `session` is a number chosen by the receiver; with `lane`
//! it selects the keys, and `generation` one of these. `counter` is the nonce: it never repeats within a generation.

/// Bytes of a header.
pub const HEADER: usize = 16;

/// The first byte of our datagrams, in this version. No single bit error turns one into the other.
const SEALED: u8 = 0xa1;
const PLAIN: u8 = 0xa2;

/// How datagrams are protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Encrypted: only the two nodes can read or make them.
    Sealed,
    /// Plain: for links that are trusted.
    Plain,
}

/// The header of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The kind of the rest.
    pub protection: Protection,
    /// Which of the sender's workers has sent it.
    pub lane: u8,
    /// Counts the changes of keys.
    pub generation: u16,
    /// The receiver's number for the session.
    pub session: u32,
    /// Counts the datagrams of a generation.
    pub counter: u64,
}

impl Header {
    /// The header's bytes.
    #[must_use]
    #[inline]
    pub fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[0] = match self.protection {
            Protection::Sealed => SEALED,
            Protection::Plain => PLAIN,
        };
        bytes[1] = self.lane;
        bytes[2..4].copy_from_slice(&self.generation.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.session.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.counter.to_le_bytes());
        bytes
    }

    /// The header in front of `datagram`; `None` if it is none of ours.
    #[must_use]
    #[inline]
    pub fn decode(datagram: &[u8]) -> Option<Self> {
        let [kind, lane, g0, g1, s0, s1, s2, s3, counter @ ..] = datagram.first_chunk::<HEADER>()?;
        let protection = match *kind {
            SEALED => Protection::Sealed,
            PLAIN => Protection::Plain,
            _ => return None,
        };
        Some(Self {
            protection,
            lane: *lane,
            generation: u16::from_le_bytes([*g0, *g1]),
            session: u32::from_le_bytes([*s0, *s1, *s2, *s3]),
            counter: u64::from_le_bytes(*counter),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(protection: Protection) -> Header {
        Header { protection, lane: 3, generation: 0x1234, session: 0xdead_beef, counter: u64::MAX - 5 }
    }

    #[test]
    fn headers_survive_their_encoding() {
        for protection in [Protection::Sealed, Protection::Plain] {
            assert_eq!(Header::decode(&header(protection).encode()), Some(header(protection)));
        }
    }

    #[test]
    fn other_datagrams_have_none() {
        let mut bytes = header(Protection::Sealed).encode();
        assert_eq!(Header::decode(&bytes[..HEADER - 1]), None);
        let kinds = (0..=u8::MAX).filter(|kind| {
            bytes[0] = *kind;
            Header::decode(&bytes).is_some()
        });
        assert_eq!(kinds.count(), 2);
    }
}
