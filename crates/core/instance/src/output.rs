//! The last part of a command's output.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use fabric::attach::OutputStream;
use serde::{Deserialize, Serialize};

/// A piece of a command's output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunk {
    /// The stream that it was written to.
    pub stream: OutputStream,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// A reader that follows a command's output. Each has its own number, from 1 on.
pub type Follower = u64;

/// The placeholder for the first follower until it comes.
const EXPECTED: Follower = 0;

/// The range of positions of one run of the node that keeps the output. A crash loses an unknown number of chunks, so positions
/// continue at the next multiple.
const LIFE: u64 = 1 << 40;

/// A follower's position.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Place {
    /// The first chunk that it has not received.
    next: u64,
    /// The time of its last call. When another broker takes the output over, that time.
    #[serde(skip, default = "Instant::now")]
    heard: Instant,
}

/// The last part of a command's output, up to [`Output::LIMIT`] bytes. Chunks are numbered from the command's start,
/// so that a reader can continue at its position, also on another host. Chunks that a follower has not received are
/// kept for it: the command waits instead (back-pressure).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Carried")]
pub struct Output {
    chunks: VecDeque<Chunk>,
    dropped: u64,
    size: usize,
    followers: BTreeMap<Follower, Place>,
}

/// [`Output`] as received from another host.
#[derive(Deserialize)]
struct Carried {
    chunks: VecDeque<Chunk>,
    dropped: u64,
    _size: usize,
    followers: BTreeMap<Follower, Place>,
}

impl From<Carried> for Output {
    /// Computes the size instead of trusting the sender.
    fn from(Carried { chunks, dropped, followers, .. }: Carried) -> Self {
        let size = chunks.iter().map(|chunk| chunk.bytes.len()).sum();
        // No command writes so much that this limit matters.
        Self { chunks, dropped: dropped.min(u64::MAX / 2), size, followers }
    }
}

impl Output {
    /// The most bytes that are kept, except those in flight when a follower begins to lag.
    pub const LIMIT: usize = 1024 * 1024;

    /// How long a silent follower makes the command wait.
    pub const PATIENCE: Duration = Duration::from_secs(40);

    /// The multiple of the limit that is kept for a lagging follower: it covers output in flight when the follower begins to lag,
    /// and output that arrives until the first process has received `Suspend`.
    const MOST: usize = 4;

    /// The empty output after a crash of the node that kept it, with the position at which it continues.
    #[must_use]
    pub fn after_death(&self) -> Self {
        Self { dropped: (self.end() / LIFE + 1) * LIFE, ..Self::default() }
    }

    /// Whether a crash of a node has lost an unknown number of chunks between two positions.
    #[must_use]
    pub fn died_between(from: u64, to: u64) -> bool {
        from / LIFE != to / LIFE
    }

    /// Adds `chunk`, and drops the oldest ones beyond the limit. Chunks that a follower has not received are dropped
    /// only beyond [`Self::MOST`] times the limit.
    pub fn push(&mut self, chunk: Chunk) {
        self.size += chunk.bytes.len();
        self.chunks.push_back(chunk);
        while self.exceeds(1) && (self.oldest_is_had() || self.exceeds(Self::MOST)) {
            let Some(oldest) = self.chunks.pop_front() else { return };
            self.size -= oldest.bytes.len();
            self.dropped += 1;
        }
    }

    /// Whether the command may write more: not while that would drop a chunk that a follower has not received.
    pub fn has_room(&mut self, now: Instant) -> bool {
        self.followers.retain(|_, place| now.saturating_duration_since(place.heard) < Self::PATIENCE);
        self.size < Self::LIMIT && self.chunks.len() < Self::LIMIT / 16 || self.oldest_is_had()
    }

    /// Announces a follower that will read from the start.
    pub fn expect_follower(&mut self, now: Instant) {
        self.followers.insert(EXPECTED, Place { next: 0, heard: now });
    }

    /// Records that `follower` has received everything before position `next`.
    pub fn follow(&mut self, follower: Follower, next: u64, now: Instant) {
        self.followers.remove(&EXPECTED);
        self.followers.insert(follower, Place { next, heard: now });
    }

    /// Removes `follower`.
    pub fn unfollow(&mut self, follower: Follower) {
        self.followers.remove(&follower);
    }

    fn exceeds(&self, limits: usize) -> bool {
        self.size > limits * Self::LIMIT || self.chunks.len() > limits * Self::LIMIT / 16
    }

    fn oldest_is_had(&self) -> bool {
        self.followers.values().all(|place| place.next > self.dropped)
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
    use fabric::attach;

    use super::*;

    fn chunk(bytes: &[u8]) -> Chunk {
        Chunk { stream: OutputStream::Stdout, bytes: bytes.to_vec() }
    }

    #[test]
    fn a_reader_continues_at_its_position() {
        let mut output = Output::default();
        output.push(chunk(b"one"));
        let (first, next) = output.read(0, 100);
        assert_eq!((first, next), (vec![chunk(b"one")], 1));
        output.push(chunk(b"two"));
        assert_eq!(output.read(next, 100), (vec![chunk(b"two")], 2));
        assert_eq!(output.read(2, 100), (vec![], 2));
    }

    #[test]
    fn a_reader_notices_a_crash_of_the_node() {
        let mut output = Output::default();
        output.push(chunk(b"one"));
        let mut output = output.after_death();
        assert!(Output::died_between(1, output.end()) && !Output::died_between(0, 1));
        assert_eq!(output.read(1, 100), (vec![], output.end()));
        output.push(chunk(b"later"));
        assert_eq!(output.read(1, 100), (vec![chunk(b"later")], output.end()));
        assert!(Output::died_between(output.end(), output.after_death().end()));
    }

    #[test]
    fn a_read_returns_at_least_one_chunk() {
        let mut output = Output::default();
        output.push(chunk(&[1; 50]));
        output.push(chunk(&[2; 50]));
        assert_eq!(output.read(0, 10).1, 1);
        assert_eq!(output.read(1, 100).1, 2);
    }

    #[test]
    fn the_oldest_output_is_dropped_first() {
        let mut output = Output::default();
        for _ in 0..200 {
            output.push(chunk(&[0; 16 * 1024]));
        }
        let (found, next) = output.read(0, usize::MAX);
        assert_eq!(found.len() * 16 * 1024, Output::LIMIT);
        assert_eq!(next, 200);
    }

    #[test]
    fn the_size_from_another_host_is_not_trusted() {
        let mut said = Output::default();
        said.push(chunk(b"text"));
        (said.size, said.dropped) = (usize::MAX, u64::MAX);
        let mut output: Output = attach::decode(&attach::encode(&said)).unwrap();
        output.push(chunk(b"more"));
        assert_eq!(output.size, 8);
        assert_eq!(output.read(0, 100).0, [chunk(b"text"), chunk(b"more")]);
    }

    fn full() -> Output {
        let mut output = Output::default();
        output.follow(1, 0, Instant::now());
        while output.has_room(Instant::now()) {
            output.push(chunk(&[0; 16 * 1024]));
        }
        output
    }

    #[test]
    fn output_is_kept_until_a_lagging_follower_has_received_it() {
        let mut output = full();
        assert_eq!(output.read(0, usize::MAX).0.len() * 16 * 1024, Output::LIMIT);
        output.push(chunk(b"on its way"));
        assert_eq!((output.read(0, usize::MAX).0.len() as u64, output.dropped), (output.end(), 0));
        output.follow(1, 1, Instant::now());
        assert!(output.has_room(Instant::now()));
        output.push(chunk(&[0; 16 * 1024]));
        assert!(!output.has_room(Instant::now()));
        assert_eq!(output.dropped, 1);
    }

    #[test]
    fn the_command_does_not_wait_for_a_removed_silent_or_missing_follower() {
        let now = Instant::now();
        let mut output = full();
        output.unfollow(1);
        assert!(output.has_room(now));
        output.follow(2, 0, now);
        assert!(!output.has_room(now));
        assert!(output.has_room(now + Output::PATIENCE));
        output.expect_follower(now);
        assert!(!output.has_room(now));
        assert!(output.has_room(now + Output::PATIENCE));
    }

    #[test]
    fn the_placeholder_ends_when_the_expected_follower_comes() {
        let mut output = full();
        output.expect_follower(Instant::now());
        output.follow(1, 1, Instant::now());
        assert!(output.has_room(Instant::now()));
    }

    #[test]
    fn output_kept_for_a_follower_is_limited() {
        let mut output = full();
        for _ in 0..2000 {
            output.push(chunk(&[0; 16 * 1024]));
        }
        assert_eq!(output.size, Output::MOST * Output::LIMIT);
    }
}
