//! The protocol between node and pager: packets with a header of 32 bytes. Pages follow the header of some messages.

use std::io;

pub use engine_api::Fetched;

use crate::memory::PAGE;

/// The length of a header.
const HEADER: usize = 32;

/// The number of pages that one message can carry: a packet has no room for more.
pub const MAX_PAGES: u64 = 15;

/// A message. A message sent in the wrong direction is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// To the pager: the process will lack these pages.
    Owe {
        /// Its PID in the instance.
        pid: u32,
        /// The address of the first page.
        address: u64,
        /// The number of pages.
        pages: u64,
    },
    /// To the pager: the instance's first process. Its descriptor comes with the message.
    Root,
    /// To the pager: a node answers requests from now on. The pager must repeat unanswered requests.
    Serve,
    /// To the pager: pages with their contents at the source, which follow.
    Pages {
        /// Their process, by its PID in the instance when it was stopped.
        pid: u32,
        /// The address of the first page at that time.
        address: u64,
        /// The number of pages, at most [`MAX_PAGES`].
        pages: u64,
    },
    /// To the pager: the node has recorded durably that no page is missing.
    Dismiss,
    /// To the node: a request for pages.
    Want {
        /// As in `Pages`.
        pid: u32,
        /// As in `Pages`.
        address: u64,
        /// As in `Pages`.
        pages: u64,
        /// Whether no thread waits for them yet (prefetch).
        ahead: bool,
    },
    /// To the node: the progress, in bytes.
    Progress(Fetched),
    /// To the node: no page is missing any more.
    Whole(Fetched),
}

impl Message {
    /// Encodes the header of the message; pages follow a [`Message::Pages`].
    #[must_use]
    pub fn encode(self) -> [u8; HEADER] {
        let (kind, numbers) = match self {
            Self::Owe { pid, address, pages } => (1, [u64::from(pid), address, pages]),
            Self::Root => (2, [0; 3]),
            Self::Serve => (3, [0; 3]),
            Self::Pages { pid, address, pages } => (4, [u64::from(pid), address, pages]),
            Self::Dismiss => (5, [0; 3]),
            Self::Want { pid, address, pages, ahead: false } => (6, [u64::from(pid), address, pages]),
            Self::Want { pid, address, pages, ahead: true } => (9, [u64::from(pid), address, pages]),
            Self::Progress(fetched) => (7, numbers(fetched)),
            Self::Whole(fetched) => (8, numbers(fetched)),
        };
        let mut header = [0; HEADER];
        let words = [kind, numbers[0], numbers[1], numbers[2]];
        for (bytes, word) in header.chunks_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        header
    }

    /// Parses `packet`: a message, and its pages.
    ///
    /// # Errors
    /// If it is not a message, or exceeds the limits.
    pub fn decode(packet: &[u8]) -> io::Result<(Self, &[u8])> {
        let (header, data) = packet.split_first_chunk().ok_or_else(not_understood)?;
        let message = Self::of_header(header).filter(|message| message.data() == data.len());
        Ok((message.ok_or_else(not_understood)?, data))
    }

    fn of_header(header: &[u8; HEADER]) -> Option<Self> {
        let word = |at: usize| u64::from_le_bytes(*header[at..].first_chunk().unwrap_or(&[0; 8]));
        let (kind, first, address, pages) = (word(0), word(8), word(16), word(24));
        let fetched = Fetched { demanded: first, pushed: address, left: pages };
        let is_range =
            address.is_multiple_of(PAGE as u64) && pages > 0 && address.checked_add(pages << 12).is_some();
        let pid = u32::try_from(first).ok().filter(|_| is_range && pages < 1 << 52);
        let few = pid.filter(|_| pages <= MAX_PAGES);
        Some(match (kind, pid, few) {
            (1, Some(pid), _) => Self::Owe { pid, address, pages },
            (2, ..) => Self::Root,
            (3, ..) => Self::Serve,
            (4, _, Some(pid)) => Self::Pages { pid, address, pages },
            (5, ..) => Self::Dismiss,
            (6 | 9, _, Some(pid)) => Self::Want { pid, address, pages, ahead: word(0) == 9 },
            (7, ..) => Self::Progress(fetched),
            (8, ..) => Self::Whole(fetched),
            _ => return None,
        })
    }

    /// The number of bytes that follow the header.
    fn data(self) -> usize {
        match self {
            Self::Pages { pages, .. } => pages as usize * PAGE,
            _ => 0,
        }
    }
}

fn not_understood() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a message between node and pager is invalid")
}

fn numbers(fetched: Fetched) -> [u64; 3] {
    [fetched.demanded, fetched.pushed, fetched.left]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_encoding_and_decoding() {
        let (pid, address, pages) = (7, 0x7000, MAX_PAGES);
        let fetched = Fetched { demanded: 1, pushed: 2, left: 3 };
        for message in [
            Message::Owe { pid, address, pages: 1 << 30 },
            Message::Root,
            Message::Serve,
            Message::Pages { pid, address, pages },
            Message::Dismiss,
            Message::Want { pid, address, pages, ahead: false },
            Message::Want { pid, address, pages, ahead: true },
            Message::Progress(fetched),
            Message::Whole(fetched),
        ] {
            let packet = [&message.encode()[..], &vec![1; message.data()]].concat();
            assert!(packet.len() <= fabric::attach::MAX_MESSAGE);
            let (understood, data) = Message::decode(&packet).unwrap();
            assert_eq!((understood, data.len()), (message, message.data()));
        }
    }

    #[test]
    fn messages_beyond_the_limits_are_refused() {
        let (pid, address) = (7, 0x7000);
        for message in [
            Message::Pages { pid, address, pages: MAX_PAGES + 1 },
            Message::Pages { pid, address, pages: 0 },
            Message::Want { pid, address: address + 1, pages: 1, ahead: true },
            Message::Owe { pid, address, pages: 1 << 52 },
            Message::Owe { pid, address: u64::MAX - 0xfff, pages: 1 },
        ] {
            let packet = [&message.encode()[..], &vec![1; message.data()]].concat();
            assert!(Message::decode(&packet).is_err(), "{message:?}");
        }
        let cut = Message::Pages { pid, address, pages: 2 }.encode();
        assert!(Message::decode(&[&cut[..], &[1; PAGE]].concat()).is_err());
        assert!(Message::decode(&[255; HEADER]).is_err() && Message::decode(&[2, 0]).is_err());
    }
}
