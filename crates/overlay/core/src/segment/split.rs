//! Splits a segment into frames that fit the tunnel.

use super::edit::{Edit, Part, tcp};
use super::layout::{Ip, Layout, LayoutError, Transport};
use super::vnet::{VnetError, VnetHeader, gso};

/// Bytes of headers that all pieces of a segment have together: a few bytes cause only little work. The longest
/// segment at Linux's least MSS, of 48 bytes with 12 of timestamps, takes half of it.
pub const MOST_HEADERS: usize = 256 * 1024;

/// Why a segment cannot be split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SplitError {
    /// Its [`VnetHeader`] is not good.
    #[error(transparent)]
    Vnet(#[from] VnetError),
    /// Its headers are not good.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// It does not match its `gso_type`.
    #[error("gso_type {0} does not match the protocols of the frame")]
    Type(u8),
    /// The checksum is not that of the frame's TCP or UDP header.
    #[error("there is no checksum at byte {start} + {offset}")]
    Checksum {
        /// `csum_start`
        start: u16,
        /// `csum_offset`
        offset: u16,
    },
    /// Its pieces would have too many headers.
    #[error("{pieces} pieces with {header} bytes of headers each exceed {MOST_HEADERS} bytes in total")]
    Pieces {
        /// How many there would be.
        pieces: usize,
        /// Bytes of headers of each.
        header: usize,
    },
}

/// The plan for splitting a frame. A frame that is not a segment has one piece, itself.
#[derive(Clone)]
pub struct Plan {
    vnet: VnetHeader,
    pieces: usize,
    /// Bytes of headers of each piece.
    header: usize,
    /// Bytes of payload in all of them, and in each but the last one.
    payload: usize,
    size: usize,
    edit: Option<Edit>,
    /// CWR is for the first piece only.
    ecn: bool,
}

impl Plan {
    /// The plan for `frame`, which came with `vnet`.
    ///
    /// # Errors
    /// If `vnet` is invalid, or the segment is not TCP or UDP over IP as claimed. A segment's length is the
    /// frame's, regardless of its IP header.
    pub fn of(vnet: &VnetHeader, frame: &[u8]) -> Result<Self, SplitError> {
        vnet.validate(frame.len())?;
        if vnet.is_segment() {
            return Self::of_segment(vnet, frame);
        }
        let (header, payload) = (0, frame.len());
        Ok(Self { vnet: *vnet, pieces: 1, header, payload, size: payload, edit: None, ecn: false })
    }

    fn of_segment(vnet: &VnetHeader, frame: &[u8]) -> Result<Self, SplitError> {
        let layout = Layout::of(frame)?;
        check(vnet, &layout)?;
        let (header, size) = (layout.payload_at, usize::from(vnet.gso_size));
        let payload = frame.len() - header;
        // A segment without payload is a frame, too.
        let pieces = payload.div_ceil(size).max(1);
        if pieces * header > MOST_HEADERS {
            return Err(SplitError::Pieces { pieces, header });
        }
        Ok(Self {
            vnet: VnetHeader::partial(vnet.csum_start, vnet.csum_offset),
            pieces,
            header,
            payload,
            size,
            edit: Some(Edit::of(frame, layout)),
            ecn: vnet.gso_type & gso::ECN != 0,
        })
    }

    /// How many pieces there are, at least 1.
    #[must_use]
    pub fn pieces(&self) -> usize {
        self.pieces
    }

    /// Bytes of all pieces together.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.pieces * self.header + self.payload
    }

    /// The header of each piece.
    #[must_use]
    pub fn piece_vnet(&self) -> VnetHeader {
        self.vnet
    }

    /// Bytes of piece `index`. The first has the most.
    ///
    /// # Panics
    /// If `index` is out of range.
    #[must_use]
    pub fn piece_length(&self, index: usize) -> usize {
        self.header + self.part(index).length
    }

    /// Writes piece `index` of `frame` to the front of `into`, and returns its length.
    ///
    /// # Panics
    /// If `index` is out of range, if `into` has no room for it, or if `frame` is not the plan's.
    pub fn write_piece(&self, index: usize, frame: &[u8], into: &mut [u8]) -> usize {
        let part = self.part(index);
        let (header, rest) = into.split_at_mut(self.header);
        header.copy_from_slice(&frame[..self.header]);
        let from = self.header + part.offset;
        rest[..part.length].copy_from_slice(&frame[from..from + part.length]);
        if let Some(edit) = &self.edit {
            edit.write(header, part);
            self.write_flags(edit, header, index);
        }
        self.header + part.length
    }

    /// FIN and PSH are of the last piece, CWR of the first.
    fn write_flags(&self, edit: &Edit, header: &mut [u8], index: usize) {
        let Some(at) = edit.flags_at() else { return };
        if index + 1 < self.pieces {
            header[at] &= !tcp::ENDS;
        }
        if index > 0 && self.ecn {
            header[at] &= !tcp::CWR;
        }
    }

    fn part(&self, index: usize) -> Part {
        assert!(index < self.pieces, "piece {index} of {}", self.pieces);
        let offset = self.size * index;
        Part { index, offset, length: self.size.min(self.payload - offset) }
    }
}

/// Checks that a frame with this layout is the segment that `vnet` speaks of.
fn check(vnet: &VnetHeader, layout: &Layout) -> Result<(), SplitError> {
    let is_so = match vnet.gso_type & !gso::ECN {
        gso::TCPV4 => (layout.ip, layout.transport) == (Ip::V4, Transport::Tcp),
        gso::TCPV6 => (layout.ip, layout.transport) == (Ip::V6, Transport::Tcp),
        _ => layout.transport == Transport::Udp,
    };
    if !is_so {
        return Err(SplitError::Type(vnet.gso_type));
    }
    let (start, offset) = (vnet.csum_start, vnet.csum_offset);
    if usize::from(start) != layout.transport_at || offset != layout.transport.checksum_offset() {
        return Err(SplitError::Checksum { start, offset });
    }
    Ok(())
}
