//! A stream of bytes over messages that may be lost, as both ends of a session keep it, without IO.
//!
//! Each piece says where it belongs. What the other end has not had is kept, up to [`WINDOW`] bytes, and sent again after
//! messages may have been lost; what comes twice is dropped, and so is what comes too early.

use std::collections::VecDeque;

/// The most bytes on their way in one direction.
pub const WINDOW: usize = 256 * 1024;

/// After so many bytes the sender hears that it has room again.
const WORD: u64 = WINDOW as u64 / 4;

/// The end that sends.
#[derive(Debug, Default)]
pub struct Sending {
    /// How much the other end has had.
    taken: u64,
    /// What comes after that.
    kept: VecDeque<u8>,
    /// Up to where it has been sent since messages were lost last.
    sent: u64,
}

impl Sending {
    /// How many more bytes can be kept.
    #[must_use]
    pub fn room(&self) -> usize {
        WINDOW.saturating_sub(self.kept.len())
    }

    /// The stream goes on with `bytes`. What there is no room for is kept too, and waits.
    pub fn push(&mut self, bytes: &[u8]) {
        self.kept.extend(bytes);
    }

    /// How long the stream is so far.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.taken + self.kept.len() as u64
    }

    /// Whether nothing is left to be sent.
    #[must_use]
    pub fn is_sent(&self) -> bool {
        self.sent == self.length()
    }

    /// What is to be sent next, at most `most` bytes, and its offset.
    pub fn next(&mut self, most: usize) -> Option<(u64, Vec<u8>)> {
        let (offset, skip) = (self.sent, (self.sent - self.taken) as usize);
        let most = most.min(WINDOW.saturating_sub(skip));
        if most == 0 || self.is_sent() {
            return None;
        }
        let piece: Vec<u8> = self.kept.range(skip..).take(most).copied().collect();
        self.sent += piece.len() as u64;
        Some((offset, piece))
    }

    /// The other end has had everything up to `up_to`. What cannot be is not believed.
    pub fn confirm(&mut self, up_to: u64) {
        if (self.taken..=self.length()).contains(&up_to) {
            self.kept.drain(..(up_to - self.taken) as usize);
            self.taken = up_to;
            self.sent = self.sent.max(up_to);
        }
    }

    /// Up to where the other end has had everything.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Messages may have been lost: all that the other end is not known to have is sent again.
    pub fn rewind(&mut self) {
        self.sent = self.taken;
    }
}

/// The end that receives.
#[derive(Debug, Default)]
pub struct Receiving {
    arrived: u64,
    taken: u64,
    /// Up to where the sender has been told that it was taken.
    told: u64,
}

impl Receiving {
    /// What is new in a piece of the stream; nothing past [`WINDOW`] bytes that are not taken.
    pub fn accept<'a>(&mut self, offset: u64, piece: &'a [u8]) -> &'a [u8] {
        let Some(known) = self.arrived.checked_sub(offset) else { return &[] };
        let known = usize::try_from(known).unwrap_or(usize::MAX).min(piece.len());
        let waiting = (self.arrived - self.taken) as usize;
        let new = &piece[known..];
        let new = &new[..new.len().min(WINDOW - waiting)];
        self.arrived += new.len() as u64;
        new
    }

    /// How much has arrived.
    #[must_use]
    pub fn arrived(&self) -> u64 {
        self.arrived
    }

    /// How much of that has been taken.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// `count` bytes more of what has arrived are taken.
    pub fn take(&mut self, count: usize) {
        self.taken = self.arrived.min(self.taken + count as u64);
    }

    /// Up to where all is taken, if it is time to tell the sender.
    pub fn word(&mut self) -> Option<u64> {
        (self.taken - self.told >= WORD).then(|| self.tell())
    }

    /// The same at once.
    pub fn tell(&mut self) -> u64 {
        self.told = self.taken;
        self.taken
    }

    /// Messages may have been lost, and with them what the sender was told.
    pub fn tell_again(&mut self) {
        self.told = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_sent_once_until_messages_are_lost() {
        let mut sending = Sending::default();
        sending.push(b"abcdef");
        assert_eq!(sending.next(4), Some((0, b"abcd".to_vec())));
        assert_eq!(sending.next(4), Some((4, b"ef".to_vec())));
        assert_eq!((sending.next(4), sending.is_sent()), (None, true));
        sending.confirm(3);
        sending.rewind();
        assert_eq!(sending.next(9), Some((3, b"def".to_vec())));
        assert_eq!(sending.length(), 6);
    }

    #[test]
    fn what_the_other_end_cannot_have_is_not_believed() {
        let mut sending = Sending::default();
        sending.push(b"abc");
        sending.confirm(4);
        assert_eq!(sending.next(9), Some((0, b"abc".to_vec())));
        sending.confirm(2);
        sending.confirm(1);
        sending.rewind();
        assert_eq!(sending.next(9), Some((2, b"c".to_vec())));
    }

    #[test]
    fn one_that_is_taken_before_it_is_sent_again_is_not_sent_again() {
        let mut sending = Sending::default();
        sending.push(b"abc");
        sending.next(9);
        sending.rewind();
        sending.confirm(3);
        assert_eq!(sending.next(9), None);
    }

    #[test]
    fn what_comes_twice_or_too_early_is_dropped() {
        let mut receiving = Receiving::default();
        assert_eq!(receiving.accept(0, b"abc"), b"abc");
        assert_eq!(receiving.accept(0, b"abc"), b"");
        assert_eq!(receiving.accept(1, b"bcde"), b"de");
        assert_eq!(receiving.accept(6, b"g"), b"");
        assert_eq!(receiving.accept(5, b"f"), b"f");
        assert_eq!(receiving.arrived(), 6);
    }

    #[test]
    fn no_more_than_a_window_is_on_its_way() {
        let mut sending = Sending::default();
        sending.push(&vec![1; sending.room()]);
        assert_eq!((sending.room(), sending.length()), (0, WINDOW as u64));
        let mut receiving = Receiving::default();
        let (_, piece) = sending.next(WINDOW).unwrap();
        assert_eq!(receiving.accept(0, &piece).len(), WINDOW);
        assert_eq!(receiving.accept(WINDOW as u64, b"more"), b"");
        receiving.take(2);
        assert_eq!(receiving.accept(WINDOW as u64, b"more"), b"mo");
    }

    #[test]
    fn what_there_is_no_room_for_waits() {
        let mut sending = Sending::default();
        sending.push(&[1; WINDOW - 1]);
        sending.push(b"abc");
        assert_eq!((sending.room(), sending.length()), (0, WINDOW as u64 + 2));
        assert_eq!(sending.next(2 * WINDOW).map(|(_, piece)| piece.len()), Some(WINDOW));
        assert_eq!(sending.next(9), None);
        sending.confirm(1);
        assert_eq!(sending.next(9), Some((WINDOW as u64, b"b".to_vec())));
        assert_eq!((sending.next(9), sending.is_sent()), (None, false));
    }

    #[test]
    fn the_sender_hears_in_time_that_there_is_room() {
        let mut receiving = Receiving::default();
        receiving.accept(0, &[0; WINDOW]);
        receiving.take(WORD as usize - 1);
        assert_eq!(receiving.word(), None);
        receiving.take(1);
        assert_eq!((receiving.word(), receiving.word()), (Some(WORD), None));
        receiving.tell_again();
        assert_eq!((receiving.word(), receiving.word()), (Some(WORD), None));
    }

    /// Messages are lost at any place, and both ends go on.
    #[test]
    fn every_byte_arrives_once_and_in_order() {
        const LENGTH: usize = 3 * WINDOW;
        let byte = |at: usize| (at % 251) as u8;
        let (mut sending, mut receiving, mut arrived) =
            (Sending::default(), Receiving::default(), Vec::new());
        let (mut made, mut round) = (0, 0_u32);
        while arrived.len() < LENGTH {
            round += 1;
            assert!(round < 10_000, "it goes on");
            while sending.room() > 0 && made < LENGTH {
                sending.push(&[byte(made)]);
                made += 1;
            }
            let piece = sending.next(1000 + round as usize % 77);
            let is_lost = round % 5 == 0;
            if let Some((offset, piece)) = piece.filter(|_| !is_lost) {
                let new = receiving.accept(offset, &piece);
                arrived.extend_from_slice(new);
                let count = new.len();
                receiving.take(count);
            }
            if round % 7 == 0 || sending.is_sent() {
                sending.confirm(receiving.tell());
                sending.rewind();
            }
        }
        assert!(arrived.iter().enumerate().all(|(at, found)| *found == byte(at)));
    }
}
