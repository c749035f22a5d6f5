//! A reliable byte stream over messages that may be lost: the two ends of a session's stream, without IO.
//!
//! Each piece has its offset. The sender keeps unacknowledged bytes, up to [`WINDOW`], and retransmits them after a loss of
//! messages. The receiver drops duplicates and pieces after a gap.

use std::collections::VecDeque;

/// The most bytes in flight in one direction.
pub const WINDOW: usize = 256 * 1024;

/// The receiver acknowledges at least each time that it has consumed this many bytes.
const WORD: u64 = WINDOW as u64 / 4;

/// The sending end.
#[derive(Debug, Default)]
pub struct Sending {
    /// The bytes that the other end has acknowledged.
    taken: u64,
    /// The bytes after that.
    kept: VecDeque<u8>,
    /// The position up to which bytes have been sent since the last loss.
    sent: u64,
}

impl Sending {
    /// The number of bytes that fit into the window.
    #[must_use]
    pub fn room(&self) -> usize {
        WINDOW.saturating_sub(self.kept.len())
    }

    /// Appends `bytes` to the stream. Bytes beyond the window are kept too, and wait.
    pub fn push(&mut self, bytes: &[u8]) {
        self.kept.extend(bytes);
    }

    /// The length of the stream so far.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.taken + self.kept.len() as u64
    }

    /// Whether all bytes are acknowledged.
    #[must_use]
    pub fn is_sent(&self) -> bool {
        self.sent == self.length()
    }

    /// The next bytes to send, at most `most`, and their offset.
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

    /// Records an acknowledgement up to `up_to`. An impossible one is ignored.
    pub fn confirm(&mut self, up_to: u64) {
        if (self.taken..=self.length()).contains(&up_to) {
            self.kept.drain(..(up_to - self.taken) as usize);
            self.taken = up_to;
            self.sent = self.sent.max(up_to);
        }
    }

    /// The position up to which the other end has acknowledged.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Prepares to retransmit all unacknowledged bytes, since messages may have been lost.
    pub fn rewind(&mut self) {
        self.sent = self.taken;
    }
}

/// The receiving end.
#[derive(Debug, Default)]
pub struct Receiving {
    arrived: u64,
    taken: u64,
    /// The last acknowledgement that was sent.
    told: u64,
}

impl Receiving {
    /// The receiving end of a stream whose first `position` bytes were consumed elsewhere.
    #[must_use]
    pub fn at(position: u64) -> Self {
        Self { arrived: position, taken: position, told: position }
    }

    /// The new bytes in a piece of the stream, up to [`WINDOW`] unconsumed bytes.
    pub fn accept<'a>(&mut self, offset: u64, piece: &'a [u8]) -> &'a [u8] {
        let Some(known) = self.arrived.checked_sub(offset) else { return &[] };
        let known = usize::try_from(known).unwrap_or(usize::MAX).min(piece.len());
        let waiting = (self.arrived - self.taken) as usize;
        let new = &piece[known..];
        let new = &new[..new.len().min(WINDOW - waiting)];
        self.arrived += new.len() as u64;
        new
    }

    /// The number of bytes that have arrived.
    #[must_use]
    pub fn arrived(&self) -> u64 {
        self.arrived
    }

    /// The number of bytes that have been consumed.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Consumes `count` more bytes of those that have arrived.
    pub fn take(&mut self, count: usize) {
        self.taken = self.arrived.min(self.taken + count as u64);
    }

    /// The position to acknowledge, if an acknowledgement is due.
    pub fn word(&mut self) -> Option<u64> {
        (self.taken - self.told >= WORD).then(|| self.tell())
    }

    /// The position to acknowledge now.
    pub fn tell(&mut self) -> u64 {
        self.told = self.taken;
        self.taken
    }

    /// Prepares to repeat the last acknowledgement, since messages may have been lost.
    pub fn tell_again(&mut self) {
        self.told = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_retransmitted_only_after_a_loss() {
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
    fn an_impossible_acknowledgement_is_ignored() {
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
    fn a_piece_acknowledged_before_its_retransmission_is_not_sent_again() {
        let mut sending = Sending::default();
        sending.push(b"abc");
        sending.next(9);
        sending.rewind();
        sending.confirm(3);
        assert_eq!(sending.next(9), None);
    }

    #[test]
    fn duplicates_and_pieces_after_a_gap_are_dropped() {
        let mut receiving = Receiving::default();
        assert_eq!(receiving.accept(0, b"abc"), b"abc");
        assert_eq!(receiving.accept(0, b"abc"), b"");
        assert_eq!(receiving.accept(1, b"bcde"), b"de");
        assert_eq!(receiving.accept(6, b"g"), b"");
        assert_eq!(receiving.accept(5, b"f"), b"f");
        assert_eq!(receiving.arrived(), 6);
    }

    #[test]
    fn at_most_a_window_is_in_flight() {
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
    fn bytes_beyond_the_window_wait() {
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
    fn acknowledgements_arrive_before_the_window_is_full() {
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
