//! The protocol between node and pager: packets with a header of 32 bytes, which pages follow where the header says so.

use std::io;

pub use engine_api::Fetched;

use crate::memory::PAGE;

/// The length of a header.
const HEADER: usize = 32;

/// The most pages in one message: a packet holds no more.
pub const MAX_PAGES: u64 = 15;

/// A message. A message sent in the wrong direction is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// To the pager: the process will lack these pages.
    Owe {
        /// Its PID in the instance.
        pid: u32,
        /// Where.
        address: u64,
        /// How many.
        pages: u64,
    },
    /// To the pager: the instance's first process, of which a descriptor comes with this.
    Root,
    /// To the pager: from now on it gets what it asks for. What it has asked before is to be asked again.
    Serve,
    /// To the pager: pages as they were at the source. They follow.
    Pages {
        /// Whose, by its PID when it was stopped.
        pid: u32,
        /// Where they were.
        address: u64,
        /// How many: at most [`MAX_PAGES`].
        pages: u64,
    },
    /// To the pager: it is written down that nothing is missing.
    Dismiss,
    /// To the node: these pages are wanted.
    Want {
        /// As in `Pages`.
        pid: u32,
        /// As in `Pages`.
        address: u64,
        /// As in `Pages`.
        pages: u64,
        /// Whether nobody waits for them yet.
        ahead: bool,
    },
    /// To the node: how far it is, in bytes.
    Progress(Fetched),
    /// To the node: nothing is missing any more.
    Whole(Fetched),
}

impl Message {
    /// The header of the message; pages follow a [`Message::Pages`].
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

    /// The message in `packet`, and its pages.
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

    /// How many bytes follow the header.
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
    fn what_is_said_is_understood() {
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
    fn more_than_may_be_said_is_refused() {
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
