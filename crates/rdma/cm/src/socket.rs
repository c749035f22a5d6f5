//! The protocol of sockets over connections (`rdma/rsocket.h`), with checks of the peer's messages.
//!
//! Each side has as many receives as slots. A SEND carries a control word: its kind, and the number of returned credits.
//!
//! ```text
//!            SENDs of data that the peer may make: granted
//!   granted ─ data ─▶ arrived ─ read by the program ─▶ owed ─ returned by a word ─▶ granted
//! ```
//!
//! The three always add up to [`MAX_CREDITS`], and so do the peer's. A peer that violates this is ignored from
//! then on: it can only harm its own connection.

use std::collections::VecDeque;
use std::net::{Ipv6Addr, SocketAddr};

/// Slots each way.
pub const SLOTS: usize = 64;
/// Those of them that data may use.
pub const MAX_CREDITS: usize = 48;
/// Their size.
pub const SLOT: usize = 16 * 1024;

/// The parameters that both sides must share, passed when they connect: "rsk" and a version, slots for data, their size in KiB.
pub static AGREEMENT: [u8; 6] = [b'r', b's', b'k', 1, MAX_CREDITS as u8, (SLOT / 1024) as u8];

/// The most mappings of a peer that are remembered.
pub const MAX_MAPPINGS: usize = 1024;

/// The position of the kind in a word; credits are below.
const KIND_AT: u32 = 28;
const CREDITS: u32 = (1 << KIND_AT) - 1;

/// True if a peer that has passed `private` when it connected is a socket as well.
#[must_use]
pub fn agrees(private: &[u8]) -> bool {
    private.starts_with(&AGREEMENT)
}

/// The kind of a SEND.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Bytes for the program.
    Data,
    /// Nothing but credits.
    Credits,
    /// No more data comes.
    End,
    /// Memory may be written to, or must not be any more.
    Mapping,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Data, Self::Credits, Self::End, Self::Mapping];

    fn of(word: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u32 == word >> KIND_AT)
    }
}

/// A part of the peer's memory that one may write to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Where it begins, as programs count.
    pub offset: u64,
    /// Nothing of it may be written to any more if this is 0.
    pub length: u64,
    /// Where it begins, for the device.
    pub address: u64,
    /// Its key.
    pub key: u32,
}

/// Bytes of a mapping in a message.
pub const MAPPING: usize = 28;

impl Mapping {
    /// As it is sent.
    #[must_use]
    pub fn to_bytes(self) -> [u8; MAPPING] {
        let mut bytes = [0; MAPPING];
        bytes[..8].copy_from_slice(&self.offset.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.length.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.address.to_be_bytes());
        bytes[24..].copy_from_slice(&self.key.to_be_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u64::from_be_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let key = u32::from_be_bytes(bytes.get(24..MAPPING)?.try_into().ok()?);
        Some(Self { offset: word(0)?, length: word(8)?, address: word(16)?, key })
    }

    /// The mapping at `offset`: an address of the peer's, and the number of bytes from there.
    fn from(&self, offset: u64) -> Option<(u64, u64)> {
        let skipped = offset.checked_sub(self.offset)?;
        let left = self.length.checked_sub(skipped).filter(|left| *left > 0)?;
        // The peer names any address; one that is none fails the WRITE.
        Some((self.address.wrapping_add(skipped), left))
    }
}

/// The peer has done what no socket does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation;

/// What to do with a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// It holds data that the program has not read yet.
    Kept,
    /// It is to be posted again.
    Done,
}

/// Data that the program has not read yet.
#[derive(Debug)]
struct Arrived {
    slot: usize,
    from: usize,
    to: usize,
}

/// One side of a connection, without the memory of its slots.
#[derive(Debug)]
pub struct Dialogue {
    /// SENDs of data that the peer has receives for.
    credits: usize,
    /// SENDs of data that the peer may make yet.
    granted: usize,
    /// Receives for which the peer has not got its credits back.
    owed: usize,
    arrived: VecDeque<Arrived>,
    ended: bool,
    violated: bool,
    mappings: Vec<Mapping>,
}

impl Default for Dialogue {
    fn default() -> Self {
        Self {
            credits: MAX_CREDITS,
            granted: MAX_CREDITS,
            owed: 0,
            arrived: VecDeque::new(),
            ended: false,
            violated: false,
            mappings: Vec::new(),
        }
    }
}

impl Dialogue {
    /// A SEND of `length` bytes has arrived in `slot`, whose memory is `bytes`; without a word if it had none, or was not a SEND.
    ///
    /// # Errors
    /// If it violates the protocol, now and for all later messages.
    pub fn received(
        &mut self,
        slot: usize,
        length: usize,
        word: Option<u32>,
        bytes: &[u8],
    ) -> Result<Slot, Violation> {
        let said = word.filter(|_| !self.violated).ok_or(Violation);
        let done = said.and_then(|word| self.said(slot, word, bytes.get(..length).ok_or(Violation)?));
        self.violated |= done.is_err();
        done
    }

    fn said(&mut self, slot: usize, word: u32, bytes: &[u8]) -> Result<Slot, Violation> {
        let kind = Kind::of(word).ok_or(Violation)?;
        let credits = self.credits + (word & CREDITS) as usize;
        if credits > MAX_CREDITS {
            return Err(Violation);
        }
        let becomes = match kind {
            Kind::Data if bytes.is_empty() || bytes.len() > SLOT || self.ended => return Err(Violation),
            Kind::Data => {
                self.granted = self.granted.checked_sub(1).ok_or(Violation)?;
                self.arrived.push_back(Arrived { slot, from: 0, to: bytes.len() });
                Slot::Kept
            }
            Kind::Mapping => {
                self.learn(bytes)?;
                Slot::Done
            }
            Kind::Credits | Kind::End if !bytes.is_empty() => return Err(Violation),
            Kind::End if self.ended => return Err(Violation),
            Kind::Credits | Kind::End => {
                self.ended |= kind == Kind::End;
                Slot::Done
            }
        };
        // Of what breaks the rules nothing is believed.
        self.credits = credits;
        Ok(becomes)
    }

    fn learn(&mut self, bytes: &[u8]) -> Result<(), Violation> {
        if bytes.len() != MAPPING {
            return Err(Violation);
        }
        let mapping = Mapping::from_bytes(bytes).ok_or(Violation)?;
        self.mappings.retain(|known| known.offset != mapping.offset);
        if mapping.length > 0 && self.mappings.len() < MAX_MAPPINGS {
            self.mappings.push(mapping);
        }
        Ok(())
    }

    /// Whether [`Self::read`] would find data.
    #[must_use]
    pub fn has_data(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// True if the peer sends no more data.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// True if the peer has violated the protocol. Data before the violation can be read.
    #[must_use]
    pub fn is_violated(&self) -> bool {
        self.violated
    }

    /// Takes the available data from the slots, which are `memory`, at most as much as fits; leaves it there if it `peeks`. Adds
    /// to `freed` the receives to post again, which are counted by [`Self::owe`].
    pub fn read(&mut self, memory: &[u8], into: &mut [u8], peeks: bool, freed: &mut Vec<usize>) -> usize {
        let mut done = 0;
        let mut at = 0;
        while done < into.len()
            && let Some(arrived) = self.arrived.get_mut(at)
        {
            let count = (arrived.to - arrived.from).min(into.len() - done);
            let start = arrived.slot * SLOT + arrived.from;
            into[done..done + count].copy_from_slice(&memory[start..start + count]);
            done += count;
            if peeks {
                at += 1;
                continue;
            }
            arrived.from += count;
            if arrived.from == arrived.to {
                freed.push(arrived.slot);
                self.arrived.pop_front();
            }
        }
        done
    }

    /// A receive that held data is there again; whether it is time to tell the peer.
    pub fn owe(&mut self) -> bool {
        self.owed += 1;
        self.owed >= MAX_CREDITS / 2
    }

    /// Whether the peer has a receive for data.
    #[must_use]
    pub fn may_send(&self) -> bool {
        self.credits > 0
    }

    /// The word of a SEND, which grants what is owed. Data takes a credit.
    pub fn word(&mut self, kind: Kind) -> u32 {
        if kind == Kind::Data {
            self.credits = self.credits.saturating_sub(1);
        }
        let owed = std::mem::take(&mut self.owed);
        self.granted += owed;
        (kind as u32) << KIND_AT | (owed as u32 & CREDITS)
    }

    /// The latest mapping at `offset`: an address of the peer's, the number of bytes from there, and their key.
    #[must_use]
    pub fn place(&self, offset: u64) -> Option<(u64, u64, u32)> {
        self.mappings.iter().rev().find_map(|mapping| {
            let (address, left) = mapping.from(offset)?;
            Some((address, left, mapping.key))
        })
    }
}

/// Bytes before the data of a datagram: version, family, port and address of where it comes from.
pub const HEADER: usize = 20;
const VERSION: u8 = 1;

/// The header of a datagram from there.
#[must_use]
pub fn header(from: SocketAddr) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    let (family, address) = match from {
        SocketAddr::V4(from) => (4, from.ip().to_ipv6_mapped()),
        SocketAddr::V6(from) => (6, *from.ip()),
    };
    bytes[..2].copy_from_slice(&[VERSION, family]);
    bytes[2..4].copy_from_slice(&from.port().to_be_bytes());
    bytes[4..].copy_from_slice(&address.octets());
    bytes
}

/// The source address in a datagram's header, and its data.
#[must_use]
pub fn parse(message: &[u8]) -> Option<(SocketAddr, &[u8])> {
    let (header, data) = message.split_first_chunk::<HEADER>()?;
    let [version, family, high, low, address @ ..] = header;
    let address = Ipv6Addr::from(*address);
    let address = match family {
        4 => address.to_ipv4_mapped()?.into(),
        6 => address.into(),
        _ => return None,
    };
    (*version == VERSION).then_some((SocketAddr::new(address, u16::from_be_bytes([*high, *low])), data))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATA: u32 = (Kind::Data as u32) << KIND_AT;
    const END: u32 = (Kind::End as u32) << KIND_AT;
    const MAPS: u32 = (Kind::Mapping as u32) << KIND_AT;

    #[test]
    fn invalid_messages_end_the_dialogue() {
        let bytes = vec![0; SLOT + 1];
        let cases = [
            ("no word", None, 1),
            ("a credit that was not taken", Some(DATA | 1), 1),
            ("the most credits", Some(DATA | CREDITS), 1),
            ("no data", Some(DATA), 0),
            ("more than a slot", Some(DATA), SLOT + 1),
            ("more than there is", Some(DATA), usize::MAX),
            ("an end with data", Some(END), 1),
            ("a short mapping", Some(MAPS), MAPPING - 1),
            ("a long mapping", Some(MAPS), MAPPING + 1),
            ("no kind", Some(4 << KIND_AT), 0),
        ];
        for (what, word, length) in cases {
            let mut dialogue = Dialogue::default();
            assert_eq!(dialogue.received(0, length, word, &bytes), Err(Violation), "{what}");
            assert!(dialogue.is_violated() && !dialogue.has_data(), "{what}");
            assert_eq!(dialogue.received(0, 1, Some(DATA), &bytes), Err(Violation), "after {what}");
        }
    }

    #[test]
    fn nothing_but_credits_and_mappings_comes_after_the_end() {
        for (word, length) in [(DATA, 1), (END, 0)] {
            let mut dialogue = Dialogue::default();
            assert_eq!(dialogue.received(0, 0, Some(END), &[]), Ok(Slot::Done));
            assert_eq!(dialogue.received(0, MAPPING, Some(MAPS), &[0; MAPPING]), Ok(Slot::Done));
            assert_eq!(dialogue.received(0, length, Some(word), &[0]), Err(Violation));
        }
    }

    #[test]
    fn data_beyond_the_credits_is_refused() {
        let memory = vec![7; SLOTS * SLOT];
        let mut dialogue = Dialogue::default();
        for slot in 0..MAX_CREDITS {
            assert_eq!(dialogue.received(slot, 1, Some(DATA), &[7]), Ok(Slot::Kept));
        }
        let mut freed = Vec::new();
        assert_eq!(dialogue.read(&memory, &mut [0; 2], false, &mut freed), 2);
        assert_eq!(freed, [0, 1]);
        dialogue.owe();
        assert_eq!(dialogue.word(Kind::Credits), (Kind::Credits as u32) << KIND_AT | 1);
        assert_eq!(dialogue.received(0, 1, Some(DATA), &[7]), Ok(Slot::Kept));
        assert_eq!(dialogue.received(1, 1, Some(DATA), &[7]), Err(Violation));
    }

    #[test]
    fn messages_that_violate_the_protocol_change_no_state() {
        let mut dialogue = Dialogue::default();
        for _ in 0..MAX_CREDITS {
            dialogue.word(Kind::Data);
        }
        assert_eq!(dialogue.received(0, 1, Some(END | 1), &[0]), Err(Violation));
        assert!(!dialogue.may_send() && !dialogue.has_ended());
    }

    #[test]
    fn mappings_survive_their_encoding() {
        let mapping = Mapping { offset: 1 << 40, length: 5, address: u64::MAX, key: 7 };
        assert_eq!(Mapping::from_bytes(&mapping.to_bytes()), Some(mapping));
        assert_eq!(mapping.from((1 << 40) + 4), Some((3, 1)));
        assert_eq!(mapping.from((1 << 40) + 5), None);
        assert_eq!(mapping.from((1 << 40) - 1), None);
        assert_eq!(Mapping::from_bytes(&[0; MAPPING - 1]), None);
    }

    #[test]
    fn addresses_survive_their_encoding() {
        for text in ["10.1.2.3:80", "[fe80::1]:7", "0.0.0.0:0"] {
            let from: SocketAddr = text.parse().unwrap();
            let message = [&header(from)[..], b"data"].concat();
            assert_eq!(parse(&message), Some((from, &b"data"[..])));
        }
    }

    #[test]
    fn malformed_messages_are_dropped() {
        let good = header("10.1.2.3:80".parse().unwrap());
        assert!(parse(&good[..HEADER - 1]).is_none());
        for (at, value) in [(0, 2), (1, 5), (4, 1)] {
            let mut bad = good;
            bad[at] = value;
            assert!(parse(&bad).is_none(), "{at}");
        }
    }
}
