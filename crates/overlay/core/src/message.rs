//! The contents of a datagram, sealed or plain.
//!
//! ```text
//!  0      1       2            4             6              16                26
//!  │  1   │ flags │ csum_start │ csum_offset │ label (10)   │ frame …
//!  │  2   │ flags │ csum_start │ csum_offset │ label (10)   │ part (10)       │ bytes of a frame …
//!  │  3   │   0   │   length   │ zeroes up to `length` bytes of datagram       a probe
//!  │  4   │ lane  │   length   │ generation  │                                 its answer
//!  │  5   │ received (8) │ lost (8) │ stamp (8) │                              a report
//!  │  6   │ stamp (8) │                                                        its echo
//! ```
//!
//! Little-endian. `flags`, `csum_start` and `csum_offset` are the fields of a [`VnetHeader`]; a device's segment is
//! split before it travels.

use crate::parts::Part;
use crate::segment::vnet::VnetHeader;
use crate::switch::Label;

/// Bytes before a frame.
pub const FRONT: usize = 6 + Label::LENGTH;

/// Bytes before a part of a frame.
pub const PART_FRONT: usize = FRONT + Part::LENGTH;

/// The least bytes of a probe.
pub const PROBE: usize = 4;

/// Bytes of an answer.
pub const ANSWER_LENGTH: usize = 6;

/// Bytes of a report.
pub const REPORT_LENGTH: usize = 33;

/// The most bytes per second that a report can say: 10 Tbit/s, which no way carries.
const MOST_RATE: u64 = 10_000_000_000_000 / 8;

/// Bytes of an echo.
pub const ECHO_LENGTH: usize = 9;

const FRAME: u8 = 1;
const PART: u8 = 2;
const ASK: u8 = 3;
const ANSWER: u8 = 4;
const REPORT: u8 = 5;
const ECHO: u8 = 6;

/// A message from one node to another in a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// A frame, and the offload work that is still to be done for it.
    Frame(Envelope, &'a [u8]),
    /// A part of one.
    Part(Envelope, Part, &'a [u8]),
    /// Asks whether a datagram of this length arrives.
    Probe(u16),
    /// It has.
    Answer(Answer),
    /// Counts of received datagrams, with a stamp for the echo.
    Report(Report),
    /// The stamp of a report.
    Echo(u64),
}

/// Received datagrams that the peer has sealed in a session. Higher numbers are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Datagrams that were opened.
    pub received: u64,
    /// The missing ones that were sealed before the newest one of these.
    pub lost: u64,
    /// The stamp that the echo returns.
    pub stamp: u64,
    /// Bytes per second as measured by [`PathRate`](crate::path_rate::PathRate); 0 if unknown. More than 10 Tbit/s is refused.
    pub rate: u64,
}

/// A probe has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Bytes of its datagram.
    pub length: u16,
    /// On which lane it came.
    pub lane: u8,
    /// The generation of its keys.
    pub generation: u16,
}

/// How a frame travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// Which way.
    pub label: Label,
    /// The offload work that is still to be done for it; never a segment.
    pub vnet: VnetHeader,
}

/// The datagram is not a valid message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the datagram is not a valid message")]
pub struct InvalidMessage;

impl Envelope {
    /// The header before a frame.
    #[must_use]
    #[inline]
    pub fn front(&self) -> [u8; FRONT] {
        self.encode(FRAME)
    }

    /// The header before `part` of a frame.
    #[must_use]
    pub fn part_front(&self, part: &Part) -> [u8; PART_FRONT] {
        let mut bytes = [0; PART_FRONT];
        bytes[..FRONT].copy_from_slice(&self.encode(PART));
        bytes[FRONT..].copy_from_slice(&part.encode());
        bytes
    }

    fn encode(&self, kind: u8) -> [u8; FRONT] {
        let mut bytes = [0; FRONT];
        bytes[0] = kind;
        bytes[1] = self.vnet.flags;
        bytes[2..4].copy_from_slice(&self.vnet.csum_start.to_le_bytes());
        bytes[4..6].copy_from_slice(&self.vnet.csum_offset.to_le_bytes());
        bytes[6..].copy_from_slice(&self.label.encode());
        bytes
    }

    fn decode(content: &[u8]) -> Result<(Self, &[u8]), InvalidMessage> {
        let [_, flags, s0, s1, o0, o1, label @ ..] = content else { return Err(InvalidMessage) };
        let (label, rest) = Label::decode(label).map_err(|_| InvalidMessage)?;
        let csum_start = u16::from_le_bytes([*s0, *s1]);
        let csum_offset = u16::from_le_bytes([*o0, *o1]);
        let vnet = VnetHeader { flags: *flags, csum_start, csum_offset, ..VnetHeader::default() };
        Ok((Self { label, vnet }, rest))
    }
}

impl<'a> Message<'a> {
    /// Decodes the message in `content`.
    ///
    /// # Errors
    /// If it is not a valid message.
    #[inline]
    pub fn decode(content: &'a [u8]) -> Result<Self, InvalidMessage> {
        match content {
            [FRAME, ..] => {
                let (envelope, frame) = Envelope::decode(content)?;
                envelope.vnet.validate(frame.len()).map_err(|_| InvalidMessage)?;
                Ok(Self::Frame(envelope, frame))
            }
            [PART, ..] => {
                let (envelope, rest) = Envelope::decode(content)?;
                let (part, rest) = rest.split_first_chunk().ok_or(InvalidMessage)?;
                let part = Part::decode(part).map_err(|_| InvalidMessage)?;
                envelope.vnet.validate(part.total as usize).map_err(|_| InvalidMessage)?;
                Ok(Self::Part(envelope, part, rest))
            }
            [ASK, 0, low, high, ..] => Ok(Self::Probe(u16::from_le_bytes([*low, *high]))),
            [ANSWER, lane, l0, l1, g0, g1] => Ok(Self::Answer(Answer {
                length: u16::from_le_bytes([*l0, *l1]),
                lane: *lane,
                generation: u16::from_le_bytes([*g0, *g1]),
            })),
            [REPORT, rest @ ..] if content.len() == REPORT_LENGTH => {
                let (numbers, _) = rest.as_chunks();
                let [received, lost, stamp, rate] = [0, 1, 2, 3].map(|at| u64::from_le_bytes(numbers[at]));
                if rate > MOST_RATE {
                    return Err(InvalidMessage);
                }
                Ok(Self::Report(Report { received, lost, stamp, rate }))
            }
            [ECHO, stamp @ ..] => {
                let stamp = stamp.try_into().map_err(|_| InvalidMessage)?;
                Ok(Self::Echo(u64::from_le_bytes(stamp)))
            }
            _ => Err(InvalidMessage),
        }
    }

    /// Asks whether a datagram of `length` bytes arrives: it has to be filled up with zeroes.
    #[must_use]
    pub fn probe(length: u16) -> [u8; PROBE] {
        let [low, high] = length.to_le_bytes();
        [ASK, 0, low, high]
    }

    /// Sends back the stamp of a report.
    #[must_use]
    pub fn echo(stamp: u64) -> [u8; ECHO_LENGTH] {
        let mut bytes = [ECHO; ECHO_LENGTH];
        bytes[1..].copy_from_slice(&stamp.to_le_bytes());
        bytes
    }
}

impl Answer {
    /// The answer's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; ANSWER_LENGTH] {
        let ([l0, l1], [g0, g1]) = (self.length.to_le_bytes(), self.generation.to_le_bytes());
        [ANSWER, self.lane, l0, l1, g0, g1]
    }
}

impl Report {
    /// The report's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; REPORT_LENGTH] {
        let mut bytes = [REPORT; REPORT_LENGTH];
        let numbers = [self.received, self.lost, self.stamp, self.rate].map(u64::to_le_bytes);
        bytes[1..].copy_from_slice(numbers.as_flattened());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::switch::Destination;
    use crate::topology::{NodeId, Version};

    fn envelope() -> Envelope {
        let label =
            Label { version: Version(7), ingress: NodeId(1), to: Destination::Node(NodeId(2)), hops: 3 };
        Envelope { label, vnet: VnetHeader::partial(34, 16) }
    }

    #[test]
    fn frames_survive_their_encoding() {
        let frame = [5; 60];
        let said = [&envelope().front()[..], &frame].concat();
        assert_eq!(Message::decode(&said), Ok(Message::Frame(envelope(), &frame)));
    }

    #[test]
    fn parts_survive_their_encoding() {
        let part = Part { frame: 9, total: 3000, index: 1, count: 3 };
        let said = [&envelope().part_front(&part)[..], &[5; 1000]].concat();
        assert_eq!(Message::decode(&said), Ok(Message::Part(envelope(), part, &[5; 1000])));
    }

    #[test]
    fn probes_may_have_trailing_bytes_and_answers_may_not() {
        let longer = |said: &[u8]| [said, &[0; 9]].concat();
        assert_eq!(Message::decode(&Message::probe(1472)), Ok(Message::Probe(1472)));
        assert_eq!(Message::decode(&longer(&Message::probe(1472))), Ok(Message::Probe(1472)));
        let answer = Answer { length: 1472, lane: 3, generation: 0x1234 };
        assert_eq!(Message::decode(&answer.encode()), Ok(Message::Answer(answer)));
        assert_eq!(Message::decode(&longer(&answer.encode())), Err(InvalidMessage));
    }

    #[test]
    fn reports_and_echoes_have_one_length() {
        let report = Report { received: 1 << 60, lost: 3, stamp: u64::MAX - 1, rate: 1 << 40 };
        assert_eq!(Message::decode(&report.encode()), Ok(Message::Report(report)));
        assert_eq!(Message::decode(&Message::echo(1 << 50 | 7)), Ok(Message::Echo(1 << 50 | 7)));
        for said in [&report.encode()[..], &Message::echo(9)] {
            assert_eq!(Message::decode(&said[..said.len() - 1]), Err(InvalidMessage));
            assert_eq!(Message::decode(&[said, &[0]].concat()), Err(InvalidMessage));
        }
    }

    #[test]
    fn a_report_of_an_impossible_rate_is_refused() {
        let with = |rate| Report { received: 1, lost: 0, stamp: 1, rate };
        assert_eq!(Message::decode(&with(MOST_RATE).encode()), Ok(Message::Report(with(MOST_RATE))));
        for rate in [MOST_RATE + 1, u64::MAX] {
            assert_eq!(Message::decode(&with(rate).encode()), Err(InvalidMessage));
        }
    }

    #[test]
    fn unknown_messages_are_refused() {
        let part = Part { frame: 9, total: 3000, index: 1, count: 3 };
        for said in [&envelope().front()[..], &envelope().part_front(&part)] {
            assert!((0..said.len()).all(|length| Message::decode(&said[..length]).is_err()));
        }
        let short = [&envelope().front()[..], &[5; 51]].concat();
        assert_eq!(Message::decode(&short), Err(InvalidMessage), "the checksum is outside");
        assert_eq!(Message::decode(&[0; 60]), Err(InvalidMessage));
        assert_eq!(Message::decode(&[7; 60]), Err(InvalidMessage));
        assert_eq!(Message::decode(&[ASK, 1, 0, 0]), Err(InvalidMessage));
    }
}
