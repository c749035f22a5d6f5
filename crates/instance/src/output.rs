//! The last part of what a command has written.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

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

/// Who reads along with a command. Each has a number of its own, from 1 on.
pub type Follower = u64;

/// Stands for the first follower until it comes.
const EXPECTED: Follower = 0;

/// Positions of one life of the node that keeps the output. How many pieces are gone with it when it dies is not known:
/// they are counted on from the next multiple.
const LIFE: u64 = 1 << 40;

/// How far a follower has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Place {
    /// The first chunk that it has not had.
    next: u64,
    /// When it was heard of last. Where the output is taken over, that is then.
    #[serde(skip, default = "Instant::now")]
    heard: Instant,
}

/// The last part of what a command has written, up to [`Output::LIMIT`] bytes. Chunks are counted from the
/// command's start, so that a reader can go on where it was, also on another host. What a follower has not had is
/// kept for it: the command waits instead.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Carried")]
pub struct Output {
    chunks: VecDeque<Chunk>,
    dropped: u64,
    size: usize,
    followers: BTreeMap<Follower, Place>,
}

/// [`Output`] as another host says it is.
#[derive(Deserialize)]
struct Carried {
    chunks: VecDeque<Chunk>,
    dropped: u64,
    _size: usize,
    followers: BTreeMap<Follower, Place>,
}

impl From<Carried> for Output {
    /// What is counted here is not taken from others.
    fn from(Carried { chunks, dropped, followers, .. }: Carried) -> Self {
        let size = chunks.iter().map(|chunk| chunk.bytes.len()).sum();
        // No command writes so much that this changes anything.
        Self { chunks, dropped: dropped.min(u64::MAX / 2), size, followers }
    }
}

impl Output {
    /// The most bytes that are kept, but for what is on its way already when a follower lags.
    pub const LIMIT: usize = 1024 * 1024;

    /// How long a follower that does not ask for more makes the command wait.
    pub const PATIENCE: Duration = Duration::from_secs(40);

    /// How many times the limit is kept where a follower lags: what is on its way when it begins to, and what comes until
    /// an instance's first process has heard that it is being suspended.
    const MOST: usize = 4;

    /// What is left of it when the node dies that keeps it: where positions go on.
    #[must_use]
    pub fn after_death(&self) -> Self {
        Self { dropped: (self.end() / LIFE + 1) * LIFE, ..Self::default() }
    }

    /// Whether pieces between two positions are gone with a node, nobody knows how many.
    #[must_use]
    pub fn died_between(from: u64, to: u64) -> bool {
        from / LIFE != to / LIFE
    }

    /// Keeps `chunk`, and forgets the oldest ones that are too much then. What a follower has not had is forgotten
    /// only past [`Self::MOST`] times the limit.
    pub fn push(&mut self, chunk: Chunk) {
        self.size += chunk.bytes.len();
        self.chunks.push_back(chunk);
        while self.exceeds(1) && (self.oldest_is_had() || self.exceeds(Self::MOST)) {
            let Some(oldest) = self.chunks.pop_front() else { return };
            self.size -= oldest.bytes.len();
            self.dropped += 1;
        }
    }

    /// Whether the command may write more: not while the oldest chunk would have to go that a follower has not had.
    pub fn has_room(&mut self, now: Instant) -> bool {
        self.followers.retain(|_, place| now.saturating_duration_since(place.heard) < Self::PATIENCE);
        self.size < Self::LIMIT && self.chunks.len() < Self::LIMIT / 16 || self.oldest_is_had()
    }

    /// A follower will come, and read from the begin on.
    pub fn expect_follower(&mut self, now: Instant) {
        self.followers.insert(EXPECTED, Place { next: 0, heard: now });
    }

    /// `follower` has had everything before position `next`.
    pub fn follow(&mut self, follower: Follower, next: u64, now: Instant) {
        self.followers.remove(&EXPECTED);
        self.followers.insert(follower, Place { next, heard: now });
    }

    /// `follower` reads no more.
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
    fn a_reader_learns_that_the_node_has_died() {
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

    #[test]
    fn what_another_host_says_of_its_size_is_not_believed() {
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
    fn what_a_follower_has_not_had_is_kept() {
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
    fn a_follower_that_is_gone_or_silent_or_does_not_come_is_not_waited_for() {
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
    fn the_follower_that_was_expected_lags_no_more_when_it_has_come() {
        let mut output = full();
        output.expect_follower(Instant::now());
        output.follow(1, 1, Instant::now());
        assert!(output.has_room(Instant::now()));
    }

    #[test]
    fn what_is_kept_for_a_follower_has_a_limit() {
        let mut output = full();
        for _ in 0..2000 {
            output.push(chunk(&[0; 16 * 1024]));
        }
        assert_eq!(output.size, Output::MOST * Output::LIMIT);
    }
}
