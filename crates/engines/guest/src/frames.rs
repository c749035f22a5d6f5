//! Frames: messages in a stream of bytes that may begin, or break off, in the middle of one.
//!
//! A port outlives the relay at its other end. So the bytes of a new relay can follow half a frame of the one before. Each frame begins
//! with a magic number, at which a reader finds the next one again, and has a checksum: the bytes behind half a frame would else pass
//! for its other half.

use fabric::attach::MAX_MESSAGE;
use serde::Serialize;
use serde::de::DeserializeOwned;
use xxhash_rust::xxh3::xxh3_64;

use crate::wire::MAX_FRAME;

const MAGIC: [u8; 4] = [0xf5, b'T', b'r', 0xfa];

/// Magic number, length, and checksum of the message.
const HEADER: usize = 16;

/// The frame of `message`.
///
/// # Panics
/// If the message is longer than [`MAX_FRAME`]: the packets in it have at most [`MAX_MESSAGE`] bytes.
#[must_use]
pub fn encode(message: &impl Serialize) -> Vec<u8> {
    const { assert!(MAX_MESSAGE < MAX_FRAME / 2 + 1) };
    let body = postcard::to_stdvec(message).expect("messages hold nothing that postcard cannot encode");
    assert!(body.len() <= MAX_FRAME, "a message of {} bytes", body.len());
    let length = u32::try_from(body.len()).expect("at most MAX_FRAME");
    [&MAGIC[..], &length.to_le_bytes(), &xxh3_64(&body).to_le_bytes(), &body].concat()
}

/// The most frames in a row that are refused. A torn frame makes a reader refuse those that begin by chance within the bytes behind it;
/// each costs a checksum over up to [`MAX_FRAME`] bytes, so a hostile writer could make it work all the time.
const MAX_REFUSED: u32 = 1024;

/// Cuts messages from the bytes of a port.
#[derive(Debug, Default)]
pub struct Frames {
    bytes: Vec<u8>,
    /// The beginning of `bytes` that has been taken or dropped.
    done: usize,
    /// The frames that have been refused since the last message.
    refused: u32,
}

impl Frames {
    /// Adds bytes that have arrived.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.done);
        self.done = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Whether a part of a frame has arrived. If the rest does not follow soon, [`Self::skip`] it.
    #[must_use]
    pub fn is_within(&self) -> bool {
        !self.rest().is_empty()
    }

    /// Whether the writer sends so much that is no frame that it is not worth reading any more.
    #[must_use]
    pub fn is_noise(&self) -> bool {
        self.refused > MAX_REFUSED
    }

    fn rest(&self) -> &[u8] {
        &self.bytes[self.done..]
    }

    /// The next message that can be decoded; everything before is dropped. There is none any more once it [is noise](Self::is_noise).
    pub fn take<M: DeserializeOwned>(&mut self) -> Option<M> {
        while !self.is_noise() {
            self.seek();
            let header = self.rest().first_chunk::<HEADER>()?;
            let (length, checksum) = parse(header);
            let message = match length {
                0..=MAX_FRAME => decode(self.rest().get(HEADER..HEADER + length)?, checksum),
                _ => None,
            };
            if message.is_some() {
                self.done += HEADER + length;
                // Not zero: each refusal may cost a checksum of a whole frame.
                self.refused = self.refused.saturating_sub(1);
                return message;
            }
            // A frame may begin within what follows a torn one.
            self.refused += 1;
            self.skip();
        }
        None
    }

    /// Gives up the frame that has begun: the next one is searched behind its magic number.
    pub fn skip(&mut self) {
        self.done += self.rest().len().min(MAGIC.len());
    }

    /// Drops what comes before the next magic number, or the beginning of one.
    fn seek(&mut self) {
        let rest = self.rest();
        let begins = |at: usize| {
            let rest = &rest[at..];
            rest.len() < MAGIC.len() && MAGIC.starts_with(rest) || rest.starts_with(&MAGIC)
        };
        self.done += (0..rest.len()).find(|at| begins(*at)).unwrap_or(rest.len());
    }
}

/// The message of a whole frame with this body.
fn decode<M: DeserializeOwned>(body: &[u8], checksum: u64) -> Option<M> {
    if xxh3_64(body) != checksum {
        return None;
    }
    match postcard::take_from_bytes(body) {
        Ok((message, [])) => Some(message),
        _ => None,
    }
}

/// Length and checksum.
fn parse(header: &[u8; HEADER]) -> (usize, u64) {
    let (_, rest) = header.split_at(MAGIC.len());
    let (length, checksum) = rest.split_at(size_of::<u32>());
    let length = u32::from_le_bytes(length.try_into().expect("four bytes"));
    (length as usize, u64::from_le_bytes(checksum.try_into().expect("eight bytes")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::ToHost;

    fn message(length: usize) -> ToHost {
        ToHost::Message { connection: 7, bytes: (0..length).map(|at| at as u8).collect() }
    }

    fn all(frames: &mut Frames) -> Vec<ToHost> {
        std::iter::from_fn(|| frames.take()).collect()
    }

    #[test]
    fn messages_arrive_whole_however_their_bytes_are_cut() {
        let sent: Vec<ToHost> = [0, 1, 300, MAX_MESSAGE].map(message).into();
        let bytes: Vec<u8> = sent.iter().flat_map(encode).collect();
        for size in [1, 7, 4096, bytes.len()] {
            let (mut frames, mut found) = (Frames::default(), Vec::new());
            for part in bytes.chunks(size) {
                frames.push(part);
                found.extend(all(&mut frames));
            }
            assert!(found == sent && !frames.is_within(), "{size}");
        }
    }

    /// At any byte, and whatever its length said.
    #[test]
    fn a_torn_frame_hides_no_later_one() {
        let (torn, whole) = (encode(&message(100)), message(5));
        for length in 0..torn.len() {
            let mut frames = Frames::default();
            frames.push(&torn[..length]);
            frames.push(&encode(&whole));
            let mut found = all(&mut frames);
            while frames.is_within() {
                frames.skip();
                found.extend(all(&mut frames));
            }
            assert_eq!(found.last(), Some(&whole), "{length}");
        }
    }

    #[test]
    fn messages_between_false_headers_do_not_hide_them() {
        let header = [&MAGIC[..], &(200_u32).to_le_bytes(), &[0; 8]].concat();
        let (mut frames, mut found) = (Frames::default(), 0);
        for _ in 0..100 {
            frames.push(&[header.repeat(100), encode(&message(1))].concat());
            found += all(&mut frames).len();
        }
        assert!(frames.is_noise() && (1..50).contains(&found), "{found}");
    }

    /// Each of these headers asks for a checksum over all bytes behind it.
    #[test]
    fn a_writer_of_endless_false_headers_is_given_up() {
        let header = [&MAGIC[..], &(60_000_u32).to_le_bytes(), &[0; 8]].concat();
        let mut frames = Frames::default();
        for _ in 0..100 {
            frames.push(&header.repeat(4096));
            assert_eq!(all(&mut frames), []);
        }
        assert!(frames.is_noise() && frames.refused == MAX_REFUSED + 1);
        frames.push(&encode(&message(1)));
        assert_eq!(all(&mut frames), []);
    }

    #[test]
    fn noise_is_dropped() {
        let mut frames = Frames::default();
        let noise: Vec<u8> = (0..10_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        frames.push(&noise);
        assert_eq!(all(&mut frames), []);
        frames.push(&[&MAGIC[..], &u32::MAX.to_le_bytes(), &encode(&message(1))].concat());
        assert_eq!(all(&mut frames), [message(1)]);
    }
}
