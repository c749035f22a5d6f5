//! Lanes: the sealing and opening of datagrams.
//!
//! On a trusted link nothing is sealed, but all else holds: session numbers, counters, replay
//! protection. A session is either sealed or plain, and accepts no datagram of the other kind.
//!
//! A *lane* is the stream of datagrams from one worker of a node to the other node. It has its own keys and counters, so that workers share
//! nothing. The sender decides when keys change, but only after a confirmation that a datagram of the present generation has
//! arrived: the receiver keeps only the next key ready, so that a forged generation costs nothing.
//!
//! ```text
//!  Sealing   generation g ─── confirmed, and so many blocks or so long ───▶ g + 1 ──▶ … ──▶ exhausted: a new session is due
//!  Opening   [ g - 1 │ g │ g + 1 ]  ─── first datagram of g + 1 ───▶  [ g │ g + 1 │ g + 2 ]
//! ```

use std::time::Duration;

use super::header::{HEADER, Header, Protection};
pub use super::keys::TAG;
use super::keys::{Direction, Key, Root};
use super::replay::ReplayWindow;

/// Bytes that sealing a datagram adds.
pub const OVERHEAD: usize = HEADER + TAG;

/// Bytes that a datagram has more than its content.
#[must_use]
pub fn overhead(protection: Protection) -> usize {
    match protection {
        Protection::Sealed => OVERHEAD,
        Protection::Plain => HEADER,
    }
}

/// When keys change.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Blocks of 16 bytes that are sealed with one key.
    pub blocks: u64,
    /// After which time a key that the receiver has is changed.
    pub age: Duration,
}

impl Default for Limits {
    /// This bound leaves an attacker an advantage of 2⁻⁵⁷ at most (RFC 9001, appendix B.1.1): 2²⁸ packets of 2⁷ blocks.
    fn default() -> Self {
        Self { blocks: 1 << 35, age: Duration::from_secs(600) }
    }
}

/// All keys are used up: the nodes have to connect again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("all keys of the session are used up")]
pub struct Exhausted;

/// The sender's side of a lane.
pub struct Sealing {
    root: Root,
    direction: Direction,
    limits: Limits,
    /// Of the next datagram.
    header: Header,
    key: Key,
    /// The number of datagrams sealed with former keys.
    former: u64,
    /// The number that may still be sealed with this key.
    blocks: u64,
    since: Duration,
    /// The receiver has the key.
    confirmed: bool,
}

impl Sealing {
    /// Seals the datagrams of worker `lane` in `direction`. `session`: the receiver's number.
    #[must_use]
    pub fn new(
        root: &Root,
        direction: Direction,
        lane: u8,
        session: u32,
        limits: Limits,
        now: Duration,
    ) -> Self {
        let header = Header { protection: root.protection(), lane, generation: 0, session, counter: 0 };
        let key = root.key(direction, lane, 0);
        let (root, blocks) = (root.clone(), limits.blocks);
        Self { root, direction, limits, header, key, former: 0, blocks, since: now, confirmed: false }
    }

    /// Seals the bytes between the first [`HEADER`] and the last [`TAG`] of `datagram`, and fills these in. On a plain lane
    /// there is no tag, and nothing is sealed.
    ///
    /// # Errors
    /// If the key is used up, and there is no next one, or the receiver has not confirmed this one.
    ///
    /// # Panics
    /// If `datagram` has no room for header and tag.
    #[inline]
    pub fn seal(&mut self, datagram: &mut [u8], now: Duration) -> Result<(), Exhausted> {
        let blocks = datagram.len().div_ceil(TAG) as u64;
        let is_old = now.saturating_sub(self.since) >= self.limits.age;
        let may_change = self.confirmed && self.header.generation < u16::MAX;
        if self.has_keys() && (blocks > self.blocks || (is_old && may_change)) {
            self.change_key(now)?;
        }
        self.blocks = self.blocks.saturating_sub(blocks);
        let (front, rest) = datagram.split_at_mut(HEADER);
        front.copy_from_slice(&self.header.encode());
        self.key.seal(self.header.counter, front, rest);
        self.header.counter += 1;
        Ok(())
    }

    /// The present generation, and the number of datagrams sealed with its key.
    #[must_use]
    pub fn sealed(&self) -> (u16, u64) {
        (self.header.generation, self.header.counter)
    }

    /// How many datagrams were sealed, with all keys.
    #[must_use]
    pub fn total_sealed(&self) -> u64 {
        self.former + self.header.counter
    }

    /// True if datagrams were sealed with a key that the receiver has not confirmed.
    #[must_use]
    pub fn is_unconfirmed(&self) -> bool {
        self.has_keys() && !self.confirmed && self.header.counter > 0
    }

    fn has_keys(&self) -> bool {
        self.header.protection == Protection::Sealed
    }

    /// The receiver confirms a datagram of `generation`.
    pub fn confirm(&mut self, generation: u16) {
        self.confirmed |= generation == self.header.generation;
    }

    #[cold]
    fn change_key(&mut self, now: Duration) -> Result<(), Exhausted> {
        let next = self.header.generation.checked_add(1);
        let generation = next.filter(|_| self.confirmed).ok_or(Exhausted)?;
        self.former += self.header.counter;
        self.header = Header { generation, counter: 0, ..self.header };
        self.key = self.root.key(self.direction, self.header.lane, generation);
        (self.blocks, self.since, self.confirmed) = (self.limits.blocks, now, false);
        Ok(())
    }
}

/// Why a datagram is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It is shorter than a header and a tag.
    #[error("the datagram is too short")]
    Short,
    /// It is sealed and its session is not, or the other way round.
    #[error("the datagram's protection differs from its session's")]
    Protection,
    /// Its key is unknown: it is too old, or forged.
    #[error("the datagram's key is unknown")]
    UnknownKey,
    /// It has been taken already, or is too old for that to be known.
    #[error("the datagram is a replay, or too old")]
    Replayed,
    /// It is forged or damaged.
    #[error("the datagram is forged or damaged")]
    Forged,
}

/// A key, and the record of the counters received under it.
struct Generation {
    number: u16,
    key: Key,
    window: ReplayWindow,
}

/// The receiver's side of a lane.
pub struct Opening {
    root: Root,
    direction: Direction,
    lane: u8,
    previous: Option<Generation>,
    current: Generation,
    /// `None` after the last one, and where nothing is sealed: there is one generation only.
    next: Option<Generation>,
    opened: u64,
    /// The counts of generations that are not kept any more.
    ended: u64,
}

/// The receiving end of a lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiveCounts {
    /// Datagrams that were opened.
    pub opened: u64,
    /// The missing ones that were sealed before the newest one of each generation: they are lost, or late.
    pub missing: u64,
}

impl Opening {
    /// Opens the datagrams of worker `lane` of the peer in `direction`.
    #[must_use]
    pub fn new(root: &Root, direction: Direction, lane: u8) -> Self {
        let generation = |number| Generation::new(root, direction, lane, number);
        let has_keys = root.protection() == Protection::Sealed;
        let (current, next) = (generation(0), has_keys.then(|| generation(1)));
        Self { root: root.clone(), direction, lane, previous: None, current, next, opened: 0, ended: 0 }
    }

    /// Opens `datagram`, which has the header `header`, in place.
    ///
    /// # Errors
    /// If it is not accepted. The state is then unchanged, but `datagram` may hold anything.
    #[inline]
    pub fn open<'a>(&mut self, header: &Header, datagram: &'a mut [u8]) -> Result<&'a mut [u8], Refused> {
        let protection = self.root.protection();
        if header.protection != protection {
            return Err(Refused::Protection);
        }
        if datagram.len() < overhead(protection) {
            return Err(Refused::Short);
        }
        let (front, rest) = datagram.split_at_mut(HEADER);
        let generation = self.generation(header.generation).ok_or(Refused::UnknownKey)?;
        if !generation.window.is_fresh(header.counter) {
            return Err(Refused::Replayed);
        }
        let opened = generation.key.open(header.counter, front, rest).ok_or(Refused::Forged)?;
        generation.window.mark(header.counter);
        self.opened += 1;
        if header.generation > self.current.number {
            self.turn_over();
        }
        Ok(opened)
    }

    /// The counts of received datagrams.
    #[must_use]
    pub fn heard(&self) -> ReceiveCounts {
        let known = [self.previous.as_ref(), Some(&self.current), self.next.as_ref()];
        let reached = known.into_iter().flatten().map(|generation| generation.window.reached());
        // A forged counter is in no window: the reached counter was sealed. A peer may count as it likes.
        let sealed = reached.fold(self.ended, u64::saturating_add);
        ReceiveCounts { opened: self.opened, missing: sealed.saturating_sub(self.opened) }
    }

    /// The newest generation of an accepted datagram.
    #[must_use]
    pub fn newest(&self) -> u16 {
        self.current.number
    }

    #[inline]
    fn generation(&mut self, number: u16) -> Option<&mut Generation> {
        if self.current.number == number {
            return Some(&mut self.current);
        }
        let others = self.previous.iter_mut().chain(&mut self.next);
        others.into_iter().find(|generation| generation.number == number)
    }

    /// The sender has begun the next generation.
    #[cold]
    fn turn_over(&mut self) {
        let Some(next) = self.next.take() else { return };
        self.next = next
            .number
            .checked_add(1)
            .map(|number| Generation::new(&self.root, self.direction, self.lane, number));
        let forgotten = self.previous.replace(std::mem::replace(&mut self.current, next));
        self.ended += forgotten.map_or(0, |generation| generation.window.reached());
    }
}

impl Generation {
    fn new(root: &Root, direction: Direction, lane: u8, number: u16) -> Self {
        Self { number, key: root.key(direction, lane, number), window: ReplayWindow::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(5);
    const LIMITS: Limits = Limits { blocks: 64, age: Duration::from_secs(600) };

    fn lane(limits: Limits) -> (Sealing, Opening) {
        let root = Root::new(&[7; 32]);
        let sealing = Sealing::new(&root, Direction::FromDialer, 2, 77, limits, NOW);
        (sealing, Opening::new(&root, Direction::FromDialer, 2))
    }

    fn seal(sealing: &mut Sealing, content: &[u8], now: Duration) -> Result<Vec<u8>, Exhausted> {
        let mut datagram = [&[0; HEADER], content, &[0; TAG]].concat();
        sealing.seal(&mut datagram, now).map(|()| datagram)
    }

    fn open(opening: &mut Opening, datagram: &[u8]) -> Result<Vec<u8>, Refused> {
        let header = Header::decode(datagram).ok_or(Refused::Short)?;
        opening.open(&header, &mut datagram.to_vec()).map(|content| content.to_vec())
    }

    #[test]
    fn a_sealed_datagram_is_opened_once() {
        let (mut sealing, mut opening) = lane(LIMITS);
        for content in [&b""[..], b"a frame", &[9; 100]] {
            let datagram = seal(&mut sealing, content, NOW).unwrap();
            assert_eq!(datagram.len(), content.len() + OVERHEAD);
            let header = Header::decode(&datagram).unwrap();
            assert_eq!((header.lane, header.session), (2, 77));
            assert_eq!(open(&mut opening, &datagram).as_deref(), Ok(content));
            assert_eq!(open(&mut opening, &datagram), Err(Refused::Replayed));
        }
    }

    fn plain_lane() -> (Sealing, Opening) {
        // Neither time nor blocks change a missing window.
        let limits = Limits { blocks: 0, age: Duration::ZERO };
        let sealing = Sealing::new(&Root::plain(), Direction::FromDialer, 2, 77, limits, NOW);
        (sealing, Opening::new(&Root::plain(), Direction::FromDialer, 2))
    }

    #[test]
    fn a_plain_datagram_is_accepted_once() {
        let (mut sealing, mut opening) = plain_lane();
        for (counter, content) in [&b""[..], b"a frame", &[9; 100]].iter().enumerate() {
            let mut datagram = [&[0; HEADER], *content].concat();
            assert_eq!(datagram.len(), content.len() + overhead(Protection::Plain));
            sealing.seal(&mut datagram, NOW).unwrap();
            assert!(datagram.ends_with(content));
            let header = Header::decode(&datagram).unwrap();
            assert_eq!((header.session, header.generation, header.counter), (77, 0, counter as u64));
            assert_eq!(open(&mut opening, &datagram).as_deref(), Ok(*content));
            assert_eq!(open(&mut opening, &datagram), Err(Refused::Replayed));
            let next = Header { generation: 1, counter: 9, ..header };
            assert_eq!(open(&mut opening, &next.encode()), Err(Refused::UnknownKey));
        }
        assert!(!sealing.is_unconfirmed());
        assert_eq!(opening.heard(), ReceiveCounts { opened: 3, missing: 0 });
    }

    #[test]
    fn plain_and_sealed_datagrams_are_never_confused() {
        let (mut sealing, mut opening) = lane(LIMITS);
        let (mut plain_sealing, mut plain_opening) = plain_lane();
        let sealed = seal(&mut sealing, b"a frame", NOW).unwrap();
        let mut plain = [&[0; HEADER][..], &[5; 60]].concat();
        plain_sealing.seal(&mut plain, NOW).unwrap();
        assert_eq!(open(&mut opening, &plain), Err(Refused::Protection));
        assert_eq!(open(&mut plain_opening, &sealed), Err(Refused::Protection));
        let relabelled = Header { protection: Protection::Sealed, ..Header::decode(&plain).unwrap() };
        plain[..HEADER].copy_from_slice(&relabelled.encode());
        assert_eq!(open(&mut opening, &plain), Err(Refused::Forged));
        assert_eq!(open(&mut opening, &sealed).as_deref(), Ok(&b"a frame"[..]), "nothing has changed");
    }

    #[test]
    fn every_bit_counts() {
        let (mut sealing, mut opening) = lane(LIMITS);
        let datagram = seal(&mut sealing, b"a frame", NOW).unwrap();
        for bit in 0..datagram.len() * 8 {
            let mut damaged = datagram.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(open(&mut opening, &damaged).is_err(), "bit {bit}");
        }
        for length in 0..datagram.len() {
            assert!(open(&mut opening, &datagram[..length]).is_err(), "{length} bytes");
        }
        assert!(open(&mut opening, &datagram).is_ok(), "a forgery has changed nothing");
    }

    #[test]
    fn lanes_and_directions_have_keys_of_their_own() {
        let root = Root::new(&[7; 32]);
        let datagram = seal(&mut lane(LIMITS).0, b"a frame", NOW).unwrap();
        let others = [(Direction::FromListener, 2), (Direction::FromDialer, 3)];
        for (direction, lane) in others {
            assert_eq!(open(&mut Opening::new(&root, direction, lane), &datagram), Err(Refused::Forged));
        }
        let other_root = Root::new(&[8; 32]);
        let mut stranger = Opening::new(&other_root, Direction::FromDialer, 2);
        assert_eq!(open(&mut stranger, &datagram), Err(Refused::Forged));
    }

    #[test]
    fn keys_change_and_datagrams_overtake_each_other() {
        let (mut sealing, mut opening) = lane(LIMITS);
        let mut datagrams = Vec::new();
        for number in 0..100_u8 {
            datagrams.push(seal(&mut sealing, &[number; 32], NOW).unwrap());
            sealing.confirm(sealing.sealed().0);
        }
        assert!(sealing.sealed().0 > 4, "64 blocks are 16 datagrams");
        for pair in datagrams.chunks(2) {
            for datagram in pair.iter().rev() {
                assert!(open(&mut opening, datagram).is_ok());
            }
        }
        assert_eq!(open(&mut opening, &datagrams[0]), Err(Refused::UnknownKey));
        assert_eq!(opening.newest(), sealing.sealed().0);
    }

    #[test]
    fn an_old_key_is_changed() {
        let (mut sealing, mut opening) = lane(Limits::default());
        let first = seal(&mut sealing, b"first", NOW).unwrap();
        let later = NOW + Limits::default().age;
        let unheard = seal(&mut sealing, b"unheard", later).unwrap();
        assert_eq!(sealing.sealed(), (0, 2), "the receiver may know of nothing yet");
        sealing.confirm(0);
        let second = seal(&mut sealing, b"second", later).unwrap();
        assert_eq!(sealing.sealed(), (1, 1));
        for (datagram, content) in [(second, &b"second"[..]), (first, b"first"), (unheard, b"unheard")] {
            assert_eq!(open(&mut opening, &datagram).as_deref(), Ok(content));
        }
    }

    #[test]
    fn a_key_is_never_used_for_longer_than_it_may() {
        let (mut sealing, _) = lane(LIMITS);
        let sealed = (0..100).take_while(|_| seal(&mut sealing, &[0; 32], NOW).is_ok()).count();
        assert_eq!(sealed, 16, "the first one is not confirmed");
        sealing.confirm(0);
        sealing.header.generation = u16::MAX;
        assert!(seal(&mut sealing, b"", NOW).is_err(), "there is no next one");
    }

    #[test]
    fn the_last_generation_opens() {
        let (mut sealing, mut opening) = lane(LIMITS);
        let last = |number| Generation::new(&opening.root, opening.direction, opening.lane, number);
        let (current, next) = (last(u16::MAX - 1), last(u16::MAX));
        (opening.current, opening.next) = (current, Some(next));
        sealing.header.generation = u16::MAX - 1;
        sealing.confirm(u16::MAX - 1);
        sealing.blocks = 0;
        let datagram = seal(&mut sealing, b"last", NOW).unwrap();
        assert_eq!(open(&mut opening, &datagram).as_deref(), Ok(&b"last"[..]));
        assert!(opening.next.is_none() && opening.newest() == u16::MAX);
    }

    #[test]
    fn gaps_count_as_missing() {
        let (mut sealing, mut opening) = lane(Limits::default());
        let mut heard = Vec::new();
        for number in 0..1000 {
            let datagram = seal(&mut sealing, b"", NOW).unwrap();
            if number % 10 != 3 {
                open(&mut opening, &datagram).unwrap();
                assert!(open(&mut opening, &datagram).is_err(), "a duplicate is received once");
            }
            heard.push(opening.heard());
        }
        assert_eq!(heard[3], ReceiveCounts { opened: 3, missing: 0 }, "nothing has come since");
        assert_eq!(heard[4], ReceiveCounts { opened: 4, missing: 1 });
        assert_eq!(heard[999], ReceiveCounts { opened: 900, missing: 100 });
    }

    #[test]
    fn late_datagrams_stop_counting_as_missing() {
        let (mut sealing, mut opening) = lane(Limits::default());
        let reach = super::super::replay::REACH as usize;
        let datagrams: Vec<_> = (0..3 * reach).map(|_| seal(&mut sealing, b"", NOW).unwrap()).collect();
        for late in datagrams.chunks(reach) {
            late.iter().rev().for_each(|datagram| drop(open(&mut opening, datagram).unwrap()));
            assert_eq!(opening.heard().missing, 0);
        }
        assert_eq!(opening.heard().opened, 3 * reach as u64);
    }

    #[test]
    fn counts_span_generations_and_start_again_with_a_session() {
        let (mut sealing, mut opening) = lane(LIMITS);
        let mut lost = 0;
        for number in 0..190 {
            let before = sealing.sealed().0;
            let datagram = seal(&mut sealing, &[0; 32], NOW).unwrap();
            let is_first = number == 0 || sealing.sealed().0 > before;
            // A loss at the end of a generation cannot be noticed.
            if number % 7 == 3 && !is_first && sealing.sealed().1 < 16 {
                lost += 1;
            } else {
                open(&mut opening, &datagram).unwrap();
                sealing.confirm(sealing.sealed().0);
            }
        }
        assert!(sealing.sealed().0 > 9 && lost > 20);
        assert_eq!(opening.heard(), ReceiveCounts { opened: 190 - lost, missing: lost });
        assert_eq!(sealing.total_sealed(), 190);
        let (mut sealing, mut opening) = lane(LIMITS);
        open(&mut opening, &seal(&mut sealing, b"", NOW).unwrap()).unwrap();
        assert_eq!(opening.heard(), ReceiveCounts { opened: 1, missing: 0 });
    }
}
