//! The header that a TAP device with `IFF_VNET_HDR` puts before each frame: `struct virtio_net_hdr`, little-endian.
//!
//! ```text
//!  0       1          2         4          6            8             10
//!  │ flags │ gso_type │ hdr_len │ gso_size │ csum_start │ csum_offset │ frame …
//! ```

/// Bytes of a header.
pub const LENGTH: usize = 10;

/// Bits of `flags`.
pub mod flag {
    /// The checksum that begins at `csum_start` is partial.
    pub const NEEDS_CSUM: u8 = 1;
    /// The checksum was found to be right.
    pub const DATA_VALID: u8 = 2;
}

/// Values of `gso_type`.
pub mod gso {
    /// A frame as it is.
    pub const NONE: u8 = 0;
    /// TCP over IPv4
    pub const TCPV4: u8 = 1;
    /// UDP with IP fragments as pieces. Kernels since 4.14 never send this; it is refused.
    pub const UDP: u8 = 3;
    /// TCP over IPv6
    pub const TCPV6: u8 = 4;
    /// UDP with datagrams as pieces
    pub const UDP_L4: u8 = 5;
    /// A bit beside the value: CWR is for the first piece only.
    pub const ECN: u8 = 0x80;
}

/// How a frame must be split, and where its checksum must be completed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VnetHeader {
    /// Of [`flag`].
    pub flags: u8,
    /// One of [`gso`], perhaps with [`gso::ECN`].
    pub gso_type: u8,
    /// Bytes of headers, as the sender believes: a hint that nothing may be built on.
    pub hdr_len: u16,
    /// Bytes of payload in each piece but the last one.
    pub gso_size: u16,
    /// From where on the checksum is computed, in bytes of the frame.
    pub csum_start: u16,
    /// Where the checksum is, in bytes from there.
    pub csum_offset: u16,
}

/// Why a header is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VnetError {
    /// Of these flags some are unknown.
    #[error("unknown flags in {0:#04x}")]
    Flags(u8),
    /// The type of segment is unknown.
    #[error("unknown gso_type {0:#04x}")]
    Type(u8),
    /// [`gso::UDP`]
    #[error("segments of IP fragments (UFO) are not supported")]
    FragmentationOffload,
    /// A segment without [`flag::NEEDS_CSUM`].
    #[error("a segment's checksum must be partial")]
    ChecksumNotPartial,
    /// A segment with pieces of no bytes.
    #[error("a segment's gso_size must not be 0")]
    NoSize,
    /// The checksum is not in the frame.
    #[error("the checksum at byte {at} is outside a frame of {length} bytes")]
    ChecksumOutside {
        /// Where it would be.
        at: usize,
        /// Bytes of the frame.
        length: usize,
    },
}

impl VnetHeader {
    /// The header of a frame with a partial checksum that is not a segment.
    #[must_use]
    pub fn partial(csum_start: u16, csum_offset: u16) -> Self {
        Self { flags: flag::NEEDS_CSUM, csum_start, csum_offset, ..Self::default() }
    }

    /// The header with these bytes. Whether it can be is for [`Self::validate`] to say.
    #[must_use]
    pub fn decode(bytes: &[u8; LENGTH]) -> Self {
        let [flags, gso_type, a, b, c, d, e, f, g, h] = *bytes;
        Self {
            flags,
            gso_type,
            hdr_len: u16::from_le_bytes([a, b]),
            gso_size: u16::from_le_bytes([c, d]),
            csum_start: u16::from_le_bytes([e, f]),
            csum_offset: u16::from_le_bytes([g, h]),
        }
    }

    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; LENGTH] {
        let [a, b] = self.hdr_len.to_le_bytes();
        let [c, d] = self.gso_size.to_le_bytes();
        let [e, f] = self.csum_start.to_le_bytes();
        let [g, h] = self.csum_offset.to_le_bytes();
        [self.flags, self.gso_type, a, b, c, d, e, f, g, h]
    }

    /// True if the frame is a segment.
    #[must_use]
    pub fn is_segment(&self) -> bool {
        self.gso_type != gso::NONE
    }

    /// True for a UDP frame with a partial checksum, and so for a piece of a UDP segment.
    #[must_use]
    pub fn is_udp(&self) -> bool {
        self.needs_checksum() && self.csum_offset == super::checksum::UDP_OFFSET
    }

    /// True if the frame's checksum is partial.
    #[must_use]
    pub fn needs_checksum(&self) -> bool {
        self.flags & flag::NEEDS_CSUM != 0
    }

    /// Checks it against a frame of `length` bytes.
    ///
    /// # Errors
    /// If some bit of it is unknown or it contradicts itself, or if the checksum is outside of the frame.
    pub fn validate(&self, length: usize) -> Result<(), VnetError> {
        if self.flags & !(flag::NEEDS_CSUM | flag::DATA_VALID) != 0 {
            return Err(VnetError::Flags(self.flags));
        }
        if self.is_segment() {
            self.validate_segment()?;
        }
        let at = usize::from(self.csum_start) + usize::from(self.csum_offset);
        if self.needs_checksum() && at + 2 > length {
            return Err(VnetError::ChecksumOutside { at, length });
        }
        Ok(())
    }

    fn validate_segment(&self) -> Result<(), VnetError> {
        const TCPV4_ECN: u8 = gso::TCPV4 | gso::ECN;
        const TCPV6_ECN: u8 = gso::TCPV6 | gso::ECN;
        match self.gso_type {
            gso::TCPV4 | TCPV4_ECN | gso::TCPV6 | TCPV6_ECN | gso::UDP_L4 => {}
            gso::UDP => return Err(VnetError::FragmentationOffload),
            other => return Err(VnetError::Type(other)),
        }
        if !self.needs_checksum() {
            return Err(VnetError::ChecksumNotPartial);
        }
        if self.gso_size == 0 { Err(VnetError::NoSize) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TCP: VnetHeader = VnetHeader {
        flags: flag::NEEDS_CSUM,
        gso_type: gso::TCPV4,
        hdr_len: 54,
        gso_size: 1448,
        csum_start: 34,
        csum_offset: 16,
    };

    #[test]
    fn its_bytes_are_the_kernels() {
        let bytes = [1, 1, 54, 0, 0xa8, 0x05, 34, 0, 16, 0];
        assert_eq!(TCP.encode(), bytes);
        assert_eq!(VnetHeader::decode(&bytes), TCP);
    }

    #[test]
    fn types_are_known_or_refused() {
        let known = [0x00, 0x01, 0x04, 0x05, 0x81, 0x84];
        for gso_type in 0..=u8::MAX {
            let expected = match gso_type {
                3 => Err(VnetError::FragmentationOffload),
                known_type if known.contains(&known_type) => Ok(()),
                other => Err(VnetError::Type(other)),
            };
            assert_eq!(VnetHeader { gso_type, ..TCP }.validate(100), expected);
        }
    }

    #[test]
    fn flags_are_known_or_refused() {
        for flags in 0..=u8::MAX {
            let expected = if flags < 4 { Ok(()) } else { Err(VnetError::Flags(flags)) };
            assert_eq!(VnetHeader { flags, gso_type: gso::NONE, ..TCP }.validate(100), expected);
        }
    }

    #[test]
    fn segments_have_a_size_and_a_partial_checksum() {
        assert_eq!(VnetHeader { gso_size: 0, ..TCP }.validate(100), Err(VnetError::NoSize));
        let valid = VnetHeader { flags: flag::DATA_VALID, ..TCP };
        assert_eq!(valid.validate(100), Err(VnetError::ChecksumNotPartial));
    }

    #[test]
    fn the_checksum_is_in_the_frame() {
        assert_eq!(TCP.validate(52), Ok(()));
        assert_eq!(TCP.validate(51), Err(VnetError::ChecksumOutside { at: 50, length: 51 }));
        let far = VnetHeader::partial(u16::MAX, u16::MAX);
        assert_eq!(far.validate(70_000), Err(VnetError::ChecksumOutside { at: 131_070, length: 70_000 }));
        assert_eq!(VnetHeader { flags: 0, ..far }.validate(0), Ok(()));
    }
}
