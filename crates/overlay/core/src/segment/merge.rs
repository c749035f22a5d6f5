//! Merges frames into a segment.
//!
//! ```text
//!            push: a mergeable frame        ┌─── push: the next piece, of full size, without FIN and PSH
//!  ┌───────┐ ─────────────────▶ ┌──────┐ ◀─┘
//!  │ empty │                    │ open │ ────┐ push: the next piece, and the last
//!  └───────┘ ◀───── take ────── └──────┘     ▼
//!    │   ▲                              ┌────────┐
//!    │   └───────────── take ────────── │ closed │
//!    └───── push: all else ───────────▶ └────────┘
//! ```
//!
//! Any other push is refused: the caller takes the segment first.
//!
//! A frame is the next piece if its header is, byte for byte, the one that splitting would produce. So the rules of
//! Linux's GRO hold (same addresses, VLAN, TTL, ports, acknowledgement, window, options; sequence and identification in
//! order; the IPv4 checksum right), and the other side can restore the original frames.

use arrayvec::ArrayVec;

use super::edit::{Edit, Part, tcp};
use super::layout::{Ip, LONGEST, Layout, Transport};
use super::vnet::{VnetHeader, gso};

/// Pieces of a merged segment.
pub const MOST_PIECES: usize = 64;

/// Bytes of headers of a merged segment. Frames with more of them, which have long IPv6 extensions, pass alone.
pub const MOST_HEADER: usize = 512;

/// A frame, or several merged into a segment: the parts to write to a TAP, in this order.
#[derive(Debug)]
pub struct Segment<'m, 'a> {
    /// The header before it.
    pub vnet: VnetHeader,
    /// Its headers; of a frame that passes alone, all of it.
    pub header: &'m [u8],
    /// Its payload, piece by piece.
    pub payloads: &'m [&'a [u8]],
}

/// Merges frames that come one after the other.
pub struct Merger<'a> {
    /// The first frame of the segment under construction.
    first: Option<(VnetHeader, &'a [u8])>,
    /// How that goes on.
    run: Option<Run>,
    /// A copy of the first frame's header, to be edited.
    header: [u8; MOST_HEADER],
    payloads: ArrayVec<&'a [u8], MOST_PIECES>,
}

/// The required fields of the next piece.
struct Run {
    edit: Edit,
    /// Bytes of payload in the first piece, and in all so far. Nothing follows a piece without any.
    size: usize,
    payload: usize,
    open: bool,
    /// TCP's flags in the first piece; in the second one without FIN and PSH, so that nothing goes on with a first one
    /// that has these; FIN and PSH in the last one. UDP's are 0.
    first: u8,
    second: Option<u8>,
    last: u8,
}

impl Default for Merger<'_> {
    fn default() -> Self {
        Self { first: None, run: None, header: [0; MOST_HEADER], payloads: ArrayVec::new() }
    }
}

impl<'a> Merger<'a> {
    /// Takes `frame`, which came with `vnet`, and returns true; or returns false if it does not continue the segment
    /// under construction: the caller then takes that segment first, after which any frame is accepted.
    #[must_use]
    pub fn push(&mut self, vnet: VnetHeader, frame: &'a [u8]) -> bool {
        match self.first {
            None => {
                self.begin(vnet, frame);
                true
            }
            Some((first, _)) => first == vnet && self.append(frame),
        }
    }

    /// Ends the segment under construction; `None` if there is none.
    pub fn take(&mut self) -> Option<Segment<'_, 'a>> {
        let (vnet, frame) = self.first.take()?;
        match self.run.take() {
            Some(run) if self.payloads.len() > 1 => Some(self.merged(vnet, &run)),
            _ => Some(Segment { vnet, header: frame, payloads: &[] }),
        }
    }

    fn begin(&mut self, vnet: VnetHeader, frame: &'a [u8]) {
        self.first = Some((vnet, frame));
        self.payloads.clear();
        self.run = Run::of(&vnet, frame, &mut self.header);
        if let Some(run) = &self.run {
            self.payloads.push(&frame[run.edit.layout.payload_at..]);
        }
    }

    fn append(&mut self, frame: &'a [u8]) -> bool {
        let Some(run) = &mut self.run else { return false };
        let Some((header, payload)) = frame.split_at_checked(run.edit.layout.payload_at) else {
            return false;
        };
        let index = self.payloads.len();
        let goes_on = index < MOST_PIECES && run.append(header, payload.len(), index, &mut self.header);
        if goes_on {
            self.payloads.push(payload);
        }
        goes_on
    }

    fn merged(&mut self, vnet: VnetHeader, run: &Run) -> Segment<'_, 'a> {
        let layout = run.edit.layout;
        let header = &mut self.header[..layout.payload_at];
        run.edit.write(header, Part { index: 0, offset: 0, length: run.payload });
        if let Some(at) = run.edit.flags_at() {
            header[at] = run.first | run.last;
        }
        let vnet = VnetHeader {
            gso_type: run.gso_type(),
            // The one is at most `MOST_HEADER`, the other at most IP's maximum.
            hdr_len: layout.payload_at as u16,
            gso_size: run.size as u16,
            ..vnet
        };
        Segment { vnet, header, payloads: &self.payloads }
    }
}

impl Run {
    /// The fields of the piece after `frame`; `None` if none may follow. Its header is copied into `copy`.
    fn of(vnet: &VnetHeader, frame: &[u8], copy: &mut [u8; MOST_HEADER]) -> Option<Self> {
        let layout = Layout::of(frame).ok()?;
        let (header, payload) = frame.split_at(layout.payload_at);
        let copy = copy.get_mut(..header.len())?;
        if *vnet != VnetHeader::partial(layout.transport_at as u16, layout.transport.checksum_offset()) {
            return None;
        }
        let size = payload.len();
        let edit = Edit::of(frame, layout);
        let first = flags(&edit, header);
        copy.copy_from_slice(header);
        edit.write(copy, Part { index: 0, offset: 0, length: size });
        // Lengths and checksums are correct, so that nothing is lost with them.
        let can_be_followed = copy == header && first & (tcp::SYN | tcp::RST | tcp::URG) == 0;
        let run = Self { edit, size, payload: size, open: true, first, second: None, last: 0 };
        can_be_followed.then_some(run)
    }

    /// Goes on with a piece of this header and `length` bytes of payload, if it is the next one, `index`.
    /// `copy` has the first one's header.
    fn append(&mut self, header: &[u8], length: usize, index: usize, copy: &mut [u8]) -> bool {
        let copy = &mut copy[..header.len()];
        let flags = flags(&self.edit, header);
        if !self.has_room(length) || !self.goes_on_with(flags) {
            return false;
        }
        self.edit.write(copy, Part { index, offset: self.payload, length });
        if let Some(at) = self.edit.flags_at() {
            copy[at] = flags;
        }
        if copy != header {
            return false;
        }
        self.payload += length;
        self.open = length == self.size && flags & tcp::ENDS == 0;
        self.second.get_or_insert(flags & !tcp::ENDS);
        self.last = flags & tcp::ENDS;
        true
    }

    fn has_room(&self, length: usize) -> bool {
        let layout = &self.edit.layout;
        let datagram = layout.payload_at - layout.ip_at + self.payload + length;
        self.open && (1..=self.size).contains(&length) && datagram <= LONGEST
    }

    /// Flags are the same as in the piece before, but for FIN and PSH in the last piece, and CWR if it is the first
    /// one's only.
    fn goes_on_with(&self, flags: u8) -> bool {
        let flags = flags & !tcp::ENDS;
        match self.second {
            Some(second) => flags == second,
            None => flags == self.first || flags == self.first & !tcp::CWR,
        }
    }

    fn gso_type(&self) -> u8 {
        let ecn = if self.second.is_some_and(|second| second != self.first) { gso::ECN } else { 0 };
        match (self.edit.layout.transport, self.edit.layout.ip) {
            (Transport::Tcp, Ip::V4) => gso::TCPV4 | ecn,
            (Transport::Tcp, Ip::V6) => gso::TCPV6 | ecn,
            (Transport::Udp, _) => gso::UDP_L4,
        }
    }
}

/// TCP's flags in `header`. UDP has none: they are always the same.
fn flags(edit: &Edit, header: &[u8]) -> u8 {
    edit.flags_at().map_or(0, |at| header[at])
}
