//! Messages on the kernel's path: frames handed over by the programs to the plane, and words between planes.
//!
//! ```text
//!  0             6        12       14                       18
//!  │ destination │ source │ 0x88b6 │ session, or node       │ a frame; or a word, and zeroes
//! ```
//!
//! A plane sends such a frame to a node. There it is handed over in another one, with the session by which it came. A word is a
//! byte, and the length of the question in two bytes.

use std::io::{self, IoSlice};

use overlay::segment::vnet::{self, VnetHeader, flag};
use overlay::topology::NodeId;

use crate::tap::Tap;

/// `TYPE_PLANE` of the programs.
const TYPE: [u8; 2] = [0x88, 0xb6];

/// Bytes before a handed over frame, or a word.
const FRONT: usize = 18;

/// The least bytes of a frame on a wire.
const LEAST: usize = 60;

/// No station's, as the coordinator gives them out.
const ENDS: [u8; 12] = [2, 0x74, 0x72, 0xff, 0xff, 0xfe, 2, 0x74, 0x72, 0xff, 0xff, 0xff];

/// Words between planes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// Does a frame of so many bytes arrive, as this one has?
    Question(u16),
    /// It does.
    Answer(u16),
}

/// A handed over frame or word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandedOver<'a> {
    /// The session by which it came.
    pub session: u32,
    /// Its session or port.
    pub what: What<'a>,
}

/// Its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What<'a> {
    /// A word of the other plane.
    Said(Word),
    /// A frame, and its pending offload work.
    Frame(VnetHeader, &'a [u8]),
}

impl<'a> HandedOver<'a> {
    /// Decodes the bytes that were read; `None` if they are not from the programs.
    pub fn decode(read: &'a [u8]) -> Option<Self> {
        let (header, read) = read.split_first_chunk::<{ vnet::LENGTH }>()?;
        let (session, frame) = split(read)?;
        let what = match split(frame) {
            Some((_, said)) => What::Said(Word::decode(said)?),
            None => What::Frame(without_front(VnetHeader::decode(header))?, frame),
        };
        Some(Self { session, what })
    }
}

/// The number at the front of a frame to or from a plane, and the bytes behind it.
fn split(frame: &[u8]) -> Option<(u32, &[u8])> {
    let (front, rest) = frame.split_first_chunk::<FRONT>()?;
    let [.., t0, t1, a, b, c, d] = *front;
    ([t0, t1] == TYPE).then(|| (u32::from_be_bytes([a, b, c, d]), rest))
}

/// The header of a frame that stood behind a front.
fn without_front(vnet: VnetHeader) -> Option<VnetHeader> {
    if vnet.flags & flag::NEEDS_CSUM == 0 {
        return Some(vnet);
    }
    let csum_start = vnet.csum_start.checked_sub(FRONT as u16)?;
    Some(VnetHeader { csum_start, hdr_len: vnet.hdr_len.saturating_sub(FRONT as u16), ..vnet })
}

impl Word {
    fn encode(self) -> [u8; 3] {
        let (byte, length) = match self {
            Self::Question(length) => (0, length),
            Self::Answer(length) => (1, length),
        };
        let [high, low] = length.to_be_bytes();
        [byte, high, low]
    }

    fn decode(said: &[u8]) -> Option<Self> {
        let [byte, high, low] = *said.first_chunk()?;
        let length = u16::from_be_bytes([high, low]);
        match byte {
            0 => Some(Self::Question(length)),
            1 => Some(Self::Answer(length)),
            _ => None,
        }
    }

    /// Bytes of the frame that carries it.
    fn length(self) -> usize {
        match self {
            Self::Question(length) => LEAST.max(length.into()),
            Self::Answer(_) => LEAST,
        }
    }
}

/// Says `word` to `node`.
pub fn write(plane: &Tap, node: NodeId, word: Word) -> io::Result<()> {
    let front = [&ENDS[..], &TYPE, &u32::from(node.0).to_be_bytes()].concat();
    let mut said = word.encode().to_vec();
    said.resize(word.length() - FRONT, 0);
    plane.write(&[IoSlice::new(&VnetHeader::default().encode()), IoSlice::new(&front), IoSlice::new(&said)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handed_over(vnet: VnetHeader, session: u32, frame: &[u8]) -> Vec<u8> {
        [&vnet.encode()[..], &[0; 12], &TYPE, &session.to_be_bytes(), frame].concat()
    }

    #[test]
    fn handed_over_frames_survive_their_encoding() {
        let vnet = VnetHeader { hdr_len: 84, gso_size: 1000, gso_type: 1, ..VnetHeader::partial(52, 16) };
        let read = handed_over(vnet, 7, &[3; 100]);
        let before = VnetHeader { hdr_len: 66, csum_start: 34, ..vnet };
        let what = What::Frame(before, &[3; 100]);
        assert_eq!(HandedOver::decode(&read), Some(HandedOver { session: 7, what }));
        let short = handed_over(VnetHeader::partial(17, 16), 7, &[3; 100]);
        assert_eq!(HandedOver::decode(&short), None, "a checksum in the front");
    }

    #[test]
    fn words_are_told_from_frames() {
        for word in [Word::Question(1400), Word::Answer(60)] {
            let said = handed_over(VnetHeader::default(), 2, &word.encode());
            let read = handed_over(VnetHeader::default(), 9, &said[vnet::LENGTH..]);
            assert_eq!(HandedOver::decode(&read), Some(HandedOver { session: 9, what: What::Said(word) }));
        }
        for unknown in [&[2, 0, 60][..], &[0, 0]] {
            let said = handed_over(VnetHeader::default(), 2, unknown);
            assert_eq!(
                HandedOver::decode(&handed_over(VnetHeader::default(), 9, &said[vnet::LENGTH..])),
                None
            );
        }
    }

    #[test]
    fn frames_of_the_host_itself_are_left_alone() {
        let router_solicitation = [&[0; vnet::LENGTH + 12][..], &[0x86, 0xdd], &[0x60; 60]].concat();
        assert_eq!(HandedOver::decode(&router_solicitation), None);
        assert!((0..vnet::LENGTH + FRONT).all(|length| HandedOver::decode(&vec![0; length]).is_none()));
    }
}
