use std::collections::VecDeque;

use fabric::attach::OutputStream;
use serde::{Deserialize, Serialize};

/// A piece of what a command has written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunk {
    /// Where the command wrote it.
    pub stream: OutputStream,
    /// What it wrote.
    pub bytes: Vec<u8>,
}

/// The last part of what a command has written, up to [`Output::LIMIT`] bytes. Chunks are counted from the
/// command's start, so that a reader can go on where it was, also on another host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    chunks: VecDeque<Chunk>,
    dropped: u64,
    size: usize,
}

impl Output {
    /// The most bytes that are kept.
    pub const LIMIT: usize = 1024 * 1024;

    /// Keeps `chunk`, and forgets the oldest ones that are too much then.
    pub fn push(&mut self, chunk: Chunk) {
        self.size += chunk.bytes.len();
        self.chunks.push_back(chunk);
        while self.size > Self::LIMIT || self.chunks.len() > Self::LIMIT / 16 {
            let Some(oldest) = self.chunks.pop_front() else { return };
            self.size -= oldest.bytes.len();
            self.dropped += 1;
        }
    }

    /// The position after the last chunk.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.dropped + self.chunks.len() as u64
    }

    /// Chunks from position `from` on, or from the oldest that is kept, at least one if there is any, and else
    /// at most `limit` bytes; and the position after them.
    #[must_use]
    pub fn read(&self, from: u64, limit: usize) -> (Vec<Chunk>, u64) {
        let skip = usize::try_from(from.saturating_sub(self.dropped)).unwrap_or(usize::MAX);
        let mut found: Vec<Chunk> = Vec::new();
        let mut size = 0;
        for chunk in self.chunks.iter().skip(skip) {
            size += chunk.bytes.len();
            if size > limit && !found.is_empty() {
                break;
            }
            found.push(chunk.clone());
        }
        let next = from.clamp(self.dropped, self.end()) + found.len() as u64;
        (found, next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(bytes: &[u8]) -> Chunk {
        Chunk { stream: OutputStream::Stdout, bytes: bytes.to_vec() }
    }

    #[test]
    fn a_reader_goes_on_where_it_was() {
        let mut output = Output::default();
        output.push(chunk(b"one"));
        let (first, next) = output.read(0, 100);
        assert_eq!((first, next), (vec![chunk(b"one")], 1));
        output.push(chunk(b"two"));
        assert_eq!(output.read(next, 100), (vec![chunk(b"two")], 2));
        assert_eq!(output.read(2, 100), (vec![], 2));
    }

    #[test]
    fn a_read_is_limited_but_never_stuck() {
        let mut output = Output::default();
        output.push(chunk(&[1; 50]));
        output.push(chunk(&[2; 50]));
        assert_eq!(output.read(0, 10).1, 1);
        assert_eq!(output.read(1, 100).1, 2);
    }

    #[test]
    fn the_oldest_output_is_forgotten_first() {
        let mut output = Output::default();
        for _ in 0..200 {
            output.push(chunk(&[0; 16 * 1024]));
        }
        let (found, next) = output.read(0, usize::MAX);
        assert_eq!(found.len() * 16 * 1024, Output::LIMIT);
        assert_eq!(next, 200);
    }
}
