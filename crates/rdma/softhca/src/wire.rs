//! The link protocol between two devices.
//!
//! A link is a reliable stream of frames between two processes; all queue pairs of the two share
//! it. A frame is a header of [`HEADER`] bytes, little-endian, and `length` bytes of payload.
//!
//! ```text
//!  0        1        2        3        4                 8                12                16
//!  ├────────┼────────┼────────┼────────┼─────────────────┼─────────────────┼─────────────────┤
//!  │ opcode │ flags  │syndrome│   0    │     dst_qpn     │     src_qpn     │     length      │
//!  │                msn                │                 va                │        ...
//!  32                36                40                44               48
//!  │      rkey       │       imm       │     offset      │      total      │
//! ```
//!
//! `dst_qpn` and `rkey` are real handles of the receiving device, `src_qpn` is the virtual QPN of
//! the sender's queue pair; a DATAGRAM names its receiver by the virtual QPN too, and has its Q_Key in `rkey`, its hop limit in `offset`,
//! and service level, traffic class and flow label in `total`: it is in no segments. `msn`
//! numbers the messages (send work requests) of a queue pair; it
//! starts at the PSN of the connection. A message is cut in segments of at most [`MAX_SEGMENT`] bytes;
//! `offset` and `total` say where a segment belongs.
//!
//! In a ring on one host a whole short SEND without immediate data, or an ACK, has a [`Brief`] header instead, if its numbers
//! fit: with 8 bytes of payload it is half a cache line.
//!
//! ```text
//! lower                          higher
//!   │ HELLO ─────────▶ ◀───────── HELLO │   identity, version, epoch, incarnation
//!   │ TRANSLATE* ────▶ ◀──── TRANSLATE* │   handles whose real value differs from the virtual one
//!   │ READY ─────────▶ ◀───────── READY │   requests may follow
//!   │ RESYNC(msn) ────────────────────▶ │   for each queue pair that was interrupted
//!   │ ◀─────────────── RESYNC_ACK(msn) │   the message expected next: the rest is sent again
//!   │ BARRIER(imm) ───────────────────▶ │   for a new incarnation of a queue pair: until the answer arrives it sends nothing,
//!   │ ◀────────────── BARRIER_ACK(imm) │   and drops messages, which may be for its previous incarnation
//!   │ SEND, WRITE, READ, atomics ─────▶ │   a SEND may invalidate the memory window of `rkey`
//!   │ SELECT_SRQ(imm) ────────────────▶ │   XRC: before the first message, and when the target SRQ changes
//!   │ ◀── ACK(msn), NAK, READ_RESPONSE, │   an ACK says that all messages before `msn` are executed;
//!   │     ATOMIC_RESPONSE               │   a SEND that goes the same way may say it too
//!   │ TRANSLATE(generation) ──────────▶ │   handles made while the link is up
//!   │ ◀── TRANSLATE_ACK(generation)     │   later frames use them
//!   │ MAP_REQUEST(rkey) ──────────────▶ │   on one host: asks for a direct mapping of this memory
//!   │ ◀── EXPORT(rkey, range, rights) ─ │   grants it; the descriptor is passed beside the link
//!   │ DATAGRAM(msn) ──────────────────▶ │   numbered across all queue pairs of the link; a new link continues the numbers
//!   │ ◀────────────── DATAGRAM_ACK(msn) │   those before `msn` are taken. Sent first on every link, and within every DATAGRAM
//!   │ GOODBYE ────────────────────────▶ │   the sender will be moved; the link closes
//! ```
//!
//! Compatibility: [`VERSION`] must be equal at both ends. It is raised with every change of this file, or of a ring,
//! that changes the bytes, or the side that writes them.

use fabric::{Epoch, FabricId, ProcessId, Vid};
use verbs::{HandleKind, Translation};

use crate::limits::MTU;

/// Raised when bytes change their meaning.
pub const VERSION: u16 = 10;

/// Bytes of a header.
pub const HEADER: usize = 48;

/// The same in words of 64 bits.
pub const HEADER_WORDS: usize = HEADER / 8;

/// The most payload bytes of a message in one frame.
pub const MAX_SEGMENT: u32 = 256 * 1024;

/// The most payload bytes of a frame that carries no message.
pub const MAX_CONTROL: u32 = 8 * 1024 - HEADER as u32;

/// Translations in one frame.
pub const MAX_TRANSLATIONS: usize = 512;

/// The highest number of a message. No sender reaches it, so there is always a next one.
pub const MAX_MSN: u64 = u64::MAX >> 1;

/// The largest hop limit.
const MAX_HOPS: u32 = u8::MAX as u32;

/// Bytes of a brief header beside its tag.
pub const BRIEF: usize = 16;

/// The most payload bytes behind a brief header.
pub const MAX_BRIEF: u32 = 1024;

/// The highest number of a message in a brief header. At 20 million a second that is half a year.
const MAX_BRIEF_MSN: u64 = (1 << 48) - 1;

/// Bytes of a multicast group's GID.
pub const GROUP_ID: u32 = 16;

const MAGIC: u32 = u32::from_le_bytes(*b"thrm");
const HELLO_LENGTH: usize = 32;
const TRANSLATION_LENGTH: usize = 12;
const EXPORT_LENGTH: usize = 32;

macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident { $($(#[$about:meta])* $variant:ident = $number:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum $name { $($(#[$about])* $variant = $number,)* }

        impl $name {
            /// The opcode of `number`.
            #[must_use]
            pub fn from_wire(number: u8) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

numbered! {
    /// The kind of a frame.
    Opcode {
        /// First frame of a link, with a [`Hello`].
        Hello = 1,
        /// [`Translation`]s; `msn` is their generation.
        Translate = 2,
        /// End of the greeting.
        Ready = 3,
        /// Last frame of a link.
        Goodbye = 4,
        /// Translations up to generation `msn` are in use.
        TranslateAck = 5,
        /// Asks for a direct mapping of the region of `rkey`, which the sender's application calls `imm`.
        MapRequest = 8,
        /// Answers with an [`Export`]; `imm` as asked, `va` names its first byte.
        Export = 9,
        /// A datagram.
        Datagram = 20,
        /// A datagram with immediate data.
        DatagramImm = 21,
        /// All datagrams before `msn` are taken.
        DatagramAck = 22,
        /// Asks which message is expected.
        Resync = 16,
        /// Answers that it is `msn`.
        ResyncAck = 17,
        /// The queue pair has a new incarnation, and asks for a BARRIER_ACK with the same `imm`.
        Barrier = 18,
        /// Answers that all frames sent before the BARRIER was read have been sent.
        BarrierAck = 19,
        /// SEND
        Send = 32,
        /// SEND with immediate data
        SendImm = 33,
        /// RDMA WRITE
        Write = 34,
        /// RDMA WRITE with immediate data
        WriteImm = 35,
        /// RDMA READ request of `total` bytes
        Read = 36,
        /// Compare and swap; the payload is both operands
        CompareSwap = 37,
        /// Fetch and add; the payload is the summand and 0
        FetchAdd = 38,
        /// SEND that also invalidates the memory window of `rkey`
        SendInvalidate = 48,
        /// The messages that follow are for shared receive queue `imm` of an XRC target.
        SelectSrq = 49,
        /// All messages before `msn` are executed.
        Ack = 64,
        /// `msn` was not executed, because of `syndrome`.
        Nak = 65,
        /// A segment of the answer to READ `msn`
        ReadResponse = 66,
        /// The value that the memory held; in `va`
        AtomicResponse = 67,
    }
}

numbered! {
    /// Why a message was not executed.
    Syndrome {
        /// No receive is posted; `imm` is the timer code to wait for.
        ReceiverNotReady = 1,
        /// No queue pair is ready to receive this.
        NotReady = 2,
        /// A handle was named that the sender's table has wrong; the table has been sent since.
        StaleHandle = 3,
        /// Malformed, too long, or more READs than agreed.
        InvalidRequest = 4,
        /// Key, range or right is wrong.
        RemoteAccess = 5,
        /// The responder's own receive is broken.
        RemoteOperation = 6,
    }
}

/// Bits of [`Header::flags`].
pub mod flag {
    /// Raise a solicited event.
    pub const SOLICITED: u8 = 1;
    /// This request has left before, at least in part, and may have been executed.
    pub const RETRANSMITTED: u8 = 2;
    /// This SEND also acknowledges, in `va`, all messages before that one.
    pub const ACKNOWLEDGES: u8 = 4;
    /// This DATAGRAM has a global route.
    pub const ROUTED: u8 = 8;
    /// This DATAGRAM is for the receivers of a multicast group. Its payload begins with the group's GID.
    pub const GROUP: u8 = 16;
    /// This SEND asks for an immediate acknowledgement.
    pub const ASKS_FOR_ACK: u8 = 32;
    /// Bits that mean something.
    pub const ALL: u8 = SOLICITED | RETRANSMITTED | ACKNOWLEDGES | ROUTED | GROUP | ASKS_FOR_ACK;
}

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The kind of the frame.
    pub opcode: Opcode,
    /// See [`flag`].
    pub flags: u8,
    /// Why not, in a NAK.
    pub syndrome: Option<Syndrome>,
    /// The destination.
    pub dst_qpn: u32,
    /// The source.
    pub src_qpn: u32,
    /// Bytes of payload that follow.
    pub length: u32,
    /// Which message.
    pub msn: u64,
    /// Where in remote memory, for the first byte of the message.
    pub va: u64,
    /// Key of that memory.
    pub rkey: u32,
    /// Immediate data.
    pub imm: u32,
    /// Bytes of the message before this segment.
    pub offset: u32,
    /// Bytes of the message.
    pub total: u32,
}

/// A header as a chunk of a ring has it.
///
/// ```text
///  tag:    8 bits   what it is, and flags      words:  32 bits  src_qpn
///         32 bits   dst_qpn                            48 bits  msn
///                                                      48 bits  what a SEND acknowledges, or 0
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Brief {
    /// The tag of its chunk, never 0.
    pub tag: u64,
    /// The type of the chunk.
    pub words: [u64; BRIEF / 8],
}

impl Brief {
    /// A SEND, with its flags.
    const SEND: u8 = 0x80;
    /// An ACK.
    const ACK: u8 = 0xc0;
}

impl Header {
    /// A header with nothing but its opcode.
    #[must_use]
    pub fn new(opcode: Opcode) -> Self {
        Self {
            opcode,
            flags: 0,
            syndrome: None,
            dst_qpn: 0,
            src_qpn: 0,
            length: 0,
            msn: 0,
            va: 0,
            rkey: 0,
            imm: 0,
            offset: 0,
            total: 0,
        }
    }

    /// The header's bytes.
    #[must_use]
    #[inline]
    pub fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        for (place, word) in bytes.as_chunks_mut().0.iter_mut().zip(self.words()) {
            *place = word.to_ne_bytes();
        }
        bytes
    }

    /// The header's bytes as words of memory: many small copies would take as long as all else that is done to a
    /// short message.
    #[must_use]
    #[inline(always)]
    pub fn words(&self) -> [u64; HEADER_WORDS] {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let syndrome = self.syndrome.map_or(0, |syndrome| syndrome as u8);
        let kind = u32::from_le_bytes([self.opcode as u8, self.flags, syndrome, 0]);
        [
            pair(kind, self.dst_qpn),
            pair(self.src_qpn, self.length),
            self.msn,
            self.va,
            pair(self.rkey, self.imm),
            pair(self.offset, self.total),
        ]
        .map(u64::to_le)
    }

    /// The header in `words`, if it is a whole SEND's or an acknowledgement's, as most are; then [`Self::decode`] finds the same.
    /// `None` for all others, good and bad.
    #[must_use]
    #[inline(always)]
    pub fn plain(words: [u64; HEADER_WORDS]) -> Option<Self> {
        const SEND: u8 = Opcode::Send as u8;
        const SEND_IMM: u8 = Opcode::SendImm as u8;
        const ACK: u8 = Opcode::Ack as u8;
        let [first, second, msn, va, fifth, sixth] = words.map(u64::from_le);
        let halves = |word: u64| (word as u32, (word >> 32) as u32);
        let ((kind, dst_qpn), (src_qpn, length)) = (halves(first), halves(second));
        let ((rkey, imm), (offset, total)) = (halves(fifth), halves(sixth));
        let [number, flags, syndrome, reserved] = kind.to_le_bytes();
        let (opcode, may_acknowledge) = match number {
            SEND => (Opcode::Send, true),
            SEND_IMM => (Opcode::SendImm, true),
            ACK => (Opcode::Ack, false),
            _ => return None,
        };
        let of_sends = flag::SOLICITED | flag::ACKNOWLEDGES | flag::ASKS_FOR_ACK;
        let known = if may_acknowledge { of_sends } else { 0 };
        let is_whole =
            offset == 0 && length == total && length <= if may_acknowledge { MAX_SEGMENT } else { 0 };
        let is_plain = flags & !known == 0 && syndrome == 0 && reserved == 0 && msn <= MAX_MSN && is_whole;
        let syndrome = None;
        is_plain.then_some(Self {
            opcode,
            flags,
            syndrome,
            dst_qpn,
            src_qpn,
            length,
            msn,
            va,
            rkey,
            imm,
            offset,
            total,
        })
    }

    /// The header in `bytes`.
    ///
    /// # Errors
    /// If a field cannot be, or contradicts another.
    #[inline]
    pub fn decode(bytes: &[u8; HEADER]) -> Result<Self, Malformed> {
        let header = Self {
            opcode: Opcode::from_wire(bytes[0]).ok_or(Malformed("unknown opcode"))?,
            flags: bytes[1],
            syndrome: Syndrome::from_wire(bytes[2]),
            dst_qpn: u32_at(bytes, 4),
            src_qpn: u32_at(bytes, 8),
            length: u32_at(bytes, 12),
            msn: u64_at(bytes, 16),
            va: u64_at(bytes, 24),
            rkey: u32_at(bytes, 32),
            imm: u32_at(bytes, 36),
            offset: u32_at(bytes, 40),
            total: u32_at(bytes, 44),
        };
        if bytes[3] != 0 || bytes[1] & !flag::ALL != 0 || (bytes[2] != 0) != header.syndrome.is_some() {
            return Err(Malformed("reserved bits are set"));
        }
        if header.msn > MAX_MSN {
            return Err(Malformed("a message number out of range"));
        }
        if bytes[1] & flag::ACKNOWLEDGES != 0 && !header.is_send() {
            return Err(Malformed("a piggybacked acknowledgement on a frame other than SEND"));
        }
        header.check_lengths()?;
        Ok(header)
    }

    /// Whether a SEND without immediate data, or an ACK, may be [`Self::brief`]: its number is `msn`, and
    /// `acknowledged` the message that it acknowledges, if any.
    #[must_use]
    #[inline]
    pub fn fits_brief(msn: u64, acknowledged: u64) -> bool {
        msn.max(acknowledged) <= MAX_BRIEF_MSN
    }

    /// The brief form of a SEND's or an ACK's header, for which [`Self::fits_brief`] is true.
    #[must_use]
    #[inline(always)]
    pub fn brief(&self) -> Brief {
        let kind = if self.opcode == Opcode::Ack { Brief::ACK } else { Brief::SEND | self.flags };
        let acknowledged = if self.flags & flag::ACKNOWLEDGES != 0 { self.va } else { 0 };
        let tag = u64::from(kind) | u64::from(self.dst_qpn) << 8;
        let words = [u64::from(self.src_qpn) | self.msn << 32, (self.msn >> 32) | acknowledged << 16];
        Brief { tag, words: words.map(u64::to_le) }
    }

    /// The header that is `brief`, before `length` bytes of payload.
    ///
    /// # Errors
    /// If the kind has no such header.
    #[inline(always)]
    pub fn of_brief(brief: Brief, length: usize) -> Result<Self, Malformed> {
        const FLAGS: u8 = flag::SOLICITED | flag::ACKNOWLEDGES | flag::ASKS_FOR_ACK;
        let [first, second] = brief.words.map(u64::from_le);
        let kind = brief.tag as u8;
        let (opcode, flags, longest) = match kind {
            Brief::ACK => (Opcode::Ack, 0, 0),
            _ => (Opcode::Send, kind & !Brief::SEND, MAX_BRIEF),
        };
        let is_known = kind & Brief::SEND != 0 && flags & !FLAGS == 0 && brief.tag >> 40 == 0;
        let length = u32::try_from(length).ok().filter(|length| is_known && *length <= longest);
        let Some(length) = length else { return Err(Malformed("unknown brief header")) };
        Ok(Self {
            flags,
            dst_qpn: (brief.tag >> 8) as u32,
            src_qpn: first as u32,
            length,
            total: length,
            msn: first >> 32 | (second & 0xffff) << 32,
            va: second >> 16,
            ..Self::new(opcode)
        })
    }

    /// True for requests, which a responder executes.
    #[must_use]
    pub fn is_request(&self) -> bool {
        use Opcode::{CompareSwap, FetchAdd, Read, Write, WriteImm};
        self.is_send() || matches!(self.opcode, Write | WriteImm | Read | CompareSwap | FetchAdd)
    }

    /// True for segments of messages with the application's bytes.
    #[must_use]
    #[inline]
    pub fn is_segment(&self) -> bool {
        self.is_request() && self.opcode != Opcode::Read || self.opcode == Opcode::ReadResponse
    }

    /// True for frames that go into a posted receive.
    #[must_use]
    #[inline]
    pub fn is_send(&self) -> bool {
        matches!(self.opcode, Opcode::Send | Opcode::SendImm | Opcode::SendInvalidate)
    }

    /// True for the last segment of a message.
    #[must_use]
    pub fn is_last(&self) -> bool {
        self.offset + self.length == self.total
    }

    fn check_lengths(&self) -> Result<(), Malformed> {
        use Opcode::{
            Ack, AtomicResponse, Barrier, BarrierAck, CompareSwap, Datagram, DatagramAck, DatagramImm,
            Export, FetchAdd, Goodbye, Hello, MapRequest, Nak, Read, ReadResponse, Ready, Resync, ResyncAck,
            SelectSrq, Send, SendImm, SendInvalidate, Translate, TranslateAck, Write, WriteImm,
        };
        let fits = match self.opcode {
            Send | SendImm | SendInvalidate | Write | WriteImm | ReadResponse => {
                let end = self.offset.checked_add(self.length);
                let progresses = self.length > 0 || self.total == 0;
                self.length <= MAX_SEGMENT && end.is_some_and(|end| end <= self.total) && progresses
            }
            CompareSwap | FetchAdd => self.length == 16 && self.offset == 0 && self.total == 16,
            Read => self.length == 0 && self.offset == 0,
            Datagram | DatagramImm => {
                let before = if self.flags & flag::GROUP != 0 { GROUP_ID } else { 0 };
                let data = self.length.checked_sub(before);
                data.is_some_and(|data| data <= MTU) && self.offset <= MAX_HOPS
            }
            Hello | Translate => self.length <= MAX_CONTROL,
            Export => self.length as usize == EXPORT_LENGTH,
            MapRequest | Ready | Goodbye | TranslateAck | DatagramAck | Resync | ResyncAck | Barrier
            | BarrierAck | SelectSrq | Ack | AtomicResponse => self.length == 0,
            Nak => self.length == 0 && self.syndrome.is_some(),
        };
        if fits { Ok(()) } else { Err(Malformed("lengths contradict each other")) }
    }
}

/// A frame that no device of this version sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

/// The payload of the first frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The sender.
    pub process: ProcessId,
    /// Its fabric.
    pub fabric: FabricId,
    /// How often it has moved.
    pub epoch: Epoch,
    /// Tells it from others with the same identity, earlier or later.
    pub incarnation: u64,
}

impl Hello {
    /// The payload's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HELLO_LENGTH] {
        let mut bytes = [0; HELLO_LENGTH];
        bytes[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.process.vid.lid().to_le_bytes());
        bytes[8] = self.process.index;
        bytes[12..16].copy_from_slice(&self.fabric.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.epoch.0.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.incarnation.to_le_bytes());
        bytes
    }

    /// The hello in `bytes`.
    ///
    /// # Errors
    /// If it is none, or of another version.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let bytes: &[u8; HELLO_LENGTH] = bytes.try_into().map_err(|_| Malformed("HELLO of wrong length"))?;
        if u32_at(bytes, 0) != MAGIC {
            return Err(Malformed("wrong magic number in HELLO: the peer is not a transhume device"));
        }
        if u16::from_le_bytes([bytes[4], bytes[5]]) != VERSION {
            return Err(Malformed("the peer's library speaks another version of the link protocol"));
        }
        let lid = u16::from_le_bytes([bytes[6], bytes[7]]);
        let vid = Vid::new(lid).ok_or(Malformed("HELLO without a VID"))?;
        let process = ProcessId { vid, index: bytes[8] };
        let (fabric, epoch) = (FabricId(u32_at(bytes, 12)), Epoch(u64_at(bytes, 16)));
        Ok(Self { process, fabric, epoch, incarnation: u64_at(bytes, 24) })
    }
}

/// The payload of an EXPORT frame: the exported range of a memfd, and its rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Export {
    /// The name under which the memory is handed over.
    pub memory: u64,
    /// Where the exported range starts in it.
    pub offset: u64,
    /// Bytes of the exported range.
    pub length: u64,
    /// Bits of [`crate::Access`].
    pub rights: u32,
    /// The gate's count under which it is open.
    pub count: u32,
}

impl Export {
    /// The payload's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; EXPORT_LENGTH] {
        let mut bytes = [0; EXPORT_LENGTH];
        bytes[0..8].copy_from_slice(&self.memory.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.offset.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.length.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.rights.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.count.to_le_bytes());
        bytes
    }

    /// The export in `bytes`.
    ///
    /// # Errors
    /// If they are too few or too many.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let bytes: &[u8; EXPORT_LENGTH] =
            bytes.try_into().map_err(|_| Malformed("EXPORT of wrong length"))?;
        Ok(Self {
            memory: u64_at(bytes, 0),
            offset: u64_at(bytes, 8),
            length: u64_at(bytes, 16),
            rights: u32_at(bytes, 24),
            count: u32_at(bytes, 28),
        })
    }
}

/// Appends the payload of a TRANSLATE frame to `bytes`.
pub fn encode_translations(lines: &[Translation], bytes: &mut Vec<u8>) {
    for line in lines {
        let kind: u32 = match line.kind {
            HandleKind::QueuePair => 0,
            HandleKind::MemoryKey => 1,
            HandleKind::SharedReceiveQueue => 2,
        };
        bytes.extend_from_slice(&kind.to_le_bytes());
        bytes.extend_from_slice(&line.virtual_handle.to_le_bytes());
        bytes.extend_from_slice(&line.real.to_le_bytes());
    }
}

/// The translations in the payload `bytes`.
///
/// # Errors
/// If it is not whole lines of known kinds.
pub fn decode_translations(
    bytes: &[u8],
) -> Result<impl Iterator<Item = Result<Translation, Malformed>>, Malformed> {
    let (lines, rest) = bytes.as_chunks::<TRANSLATION_LENGTH>();
    if !rest.is_empty() {
        return Err(Malformed("TRANSLATE of wrong length"));
    }
    Ok(lines.iter().map(|line| {
        let kind = match u32_at(line, 0) {
            0 => HandleKind::QueuePair,
            1 => HandleKind::MemoryKey,
            2 => HandleKind::SharedReceiveQueue,
            _ => return Err(Malformed("TRANSLATE of an unknown kind of handle")),
        };
        Ok(Translation { kind, virtual_handle: u32_at(line, 4), real: u32_at(line, 8) })
    }))
}

fn u32_at<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at<const N: usize>(bytes: &[u8; N], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_survive_their_encoding() {
        let header = Header {
            flags: flag::SOLICITED,
            dst_qpn: 0x10001,
            src_qpn: 0x20002,
            length: 5,
            msn: MAX_MSN,
            va: 0x1234_5678_9abc_def0,
            rkey: 7,
            imm: 8,
            offset: 10,
            total: 15,
            ..Header::new(Opcode::WriteImm)
        };
        assert_eq!(Header::decode(&header.encode()), Ok(header));
    }

    /// Words of a header that is plain but for one byte.
    fn words_with(at: usize, byte: u8, header: &Header) -> ([u64; HEADER_WORDS], [u8; HEADER]) {
        let mut bytes = header.encode();
        bytes[at] = byte;
        let (words, _) = bytes.as_chunks();
        (std::array::from_fn(|word| u64::from_ne_bytes(words[word])), bytes)
    }

    #[test]
    fn the_plain_check_agrees_with_full_decoding() {
        let send = Header {
            dst_qpn: 1,
            src_qpn: 2,
            length: 3,
            total: 3,
            msn: 4,
            va: 5,
            imm: 6,
            ..Header::new(Opcode::Send)
        };
        let solicited = Header { flags: flag::SOLICITED | flag::ACKNOWLEDGES, ..send };
        let plain = [
            send,
            solicited,
            Header { opcode: Opcode::SendImm, ..send },
            Header { length: 0, total: 0, ..send },
            Header { length: 0, total: 0, opcode: Opcode::Ack, ..send },
        ];
        for header in plain {
            assert_eq!(Header::plain(header.words()), Some(header));
            for (at, byte) in (0..HEADER).flat_map(|at| (0..=u8::MAX).map(move |byte| (at, byte))) {
                let (words, bytes) = words_with(at, byte, &header);
                if let Some(found) = Header::plain(words) {
                    assert_eq!(Header::decode(&bytes), Ok(found));
                }
            }
        }
        for other in [Header { total: 4, ..send }, Header { opcode: Opcode::SendInvalidate, ..send }] {
            assert_eq!(Header::plain(other.words()), None);
        }
    }

    #[test]
    fn brief_headers_decode_to_the_full_header() {
        let send = Header { dst_qpn: u32::MAX, src_qpn: 2, length: 3, total: 3, ..Header::new(Opcode::Send) };
        let flags = flag::SOLICITED | flag::ACKNOWLEDGES | flag::ASKS_FOR_ACK;
        for header in [
            send,
            Header { msn: MAX_BRIEF_MSN, flags, va: MAX_BRIEF_MSN, ..send },
            Header { msn: 1 << 40, flags: flag::ACKNOWLEDGES, va: 5, length: 0, total: 0, ..send },
            Header { msn: 1 << 33, dst_qpn: 7, src_qpn: u32::MAX, ..Header::new(Opcode::Ack) },
        ] {
            assert!(Header::fits_brief(header.msn, header.va));
            assert_eq!(Header::of_brief(header.brief(), header.length as usize), Ok(header));
        }
        assert!(!Header::fits_brief(MAX_BRIEF_MSN + 1, 0) && !Header::fits_brief(0, MAX_BRIEF_MSN + 1));
        assert!(Header::of_brief(send.brief(), MAX_BRIEF as usize + 1).is_err());
        assert!(Header::of_brief(Header::new(Opcode::Ack).brief(), 1).is_err());
        for tag in [0, 0x40, 0x82, 0xc1, 1 << 40 | 0x80] {
            assert!(Header::of_brief(Brief { tag, words: [0; 2] }, 0).is_err(), "{tag:x}");
        }
    }

    #[test]
    fn contradictions_are_refused() {
        let segment = Header { length: 5, offset: u32::MAX, total: 4, ..Header::new(Opcode::Send) };
        assert!(Header::decode(&segment.encode()).is_err());
        let huge = Header { length: MAX_SEGMENT + 1, total: u32::MAX, ..Header::new(Opcode::Write) };
        assert!(Header::decode(&huge.encode()).is_err());
        let endless = Header { length: 0, total: 4, ..Header::new(Opcode::Write) };
        assert!(Header::decode(&endless.encode()).is_err());
        assert!(Header::decode(&Header::new(Opcode::Nak).encode()).is_err());
        let last = Header { msn: MAX_MSN + 1, ..Header::new(Opcode::Ready) };
        assert!(Header::decode(&last.encode()).is_err());
        assert!(Header::decode(&[0xff; HEADER]).is_err());
    }

    #[test]
    fn hello_and_translations_survive_their_encoding() {
        let process = ProcessId { vid: Vid::new(9).unwrap(), index: 3 };
        let hello = Hello { process, fabric: FabricId(4), epoch: Epoch(1 << 40), incarnation: 1 << 50 };
        assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
        let line = Translation { kind: HandleKind::MemoryKey, virtual_handle: 1, real: 2 };
        let mut bytes = Vec::new();
        encode_translations(&[line], &mut bytes);
        assert_eq!(decode_translations(&bytes).unwrap().next(), Some(Ok(line)));
        bytes.pop();
        assert!(decode_translations(&bytes).is_err());
    }
}
