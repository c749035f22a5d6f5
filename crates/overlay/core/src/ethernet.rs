//! The header of an Ethernet frame.
//!
//! ```text
//!  0             6            12                        14
//!  │ destination │   source   │ [0x8100|0x88a8 │ tag]… │ ethertype │ payload …
//! ```

use crate::mac::Mac;

/// Bytes of a header without tags.
pub const HEADER: usize = 14;

/// Bytes of a VLAN tag.
pub const TAG: usize = 4;

/// The number of a frame's tags that are read: a customer's in a provider's. Further tags are payload.
const MOST_TAGS: usize = 2;

/// IEEE 802 numbers of a frame's payload.
pub mod ethertype {
    /// IPv4
    pub const IPV4: u16 = 0x0800;
    /// The Address Resolution Protocol
    pub const ARP: u16 = 0x0806;
    /// Reverse ARP
    pub const RARP: u16 = 0x8035;
    /// A customer's VLAN tag
    pub const VLAN: u16 = 0x8100;
    /// IPv6
    pub const IPV6: u16 = 0x86dd;
    /// A provider's VLAN tag
    pub const PROVIDER_VLAN: u16 = 0x88a8;
}

/// The front of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Front {
    /// The destination.
    pub destination: Mac,
    /// The source address that the frame claims.
    pub source: Mac,
    /// The outermost tag's VLAN; 0 without a tag, or with one that only has a priority.
    pub vlan: u16,
    /// The ethertype of the payload, behind all tags.
    pub ethertype: u16,
    /// Where that begins.
    pub payload: usize,
}

impl Front {
    /// The front of `frame`; `None` if it is too short to have one.
    #[must_use]
    pub fn of(frame: &[u8]) -> Option<Self> {
        let (destination, rest) = frame.split_first_chunk()?;
        let (source, _) = rest.split_first_chunk()?;
        let word = |at: usize| frame.get(at..at + 2).map(|word| u16::from_be_bytes([word[0], word[1]]));
        let (mut at, mut vlan) = (HEADER - 2, 0);
        let mut ethertype = word(at)?;
        for tag in 0..MOST_TAGS {
            if !matches!(ethertype, ethertype::VLAN | ethertype::PROVIDER_VLAN) {
                break;
            }
            if tag == 0 {
                vlan = word(at + 2)? & 0x0fff;
            }
            at += TAG;
            ethertype = word(at)?;
        }
        Some(Self { destination: Mac(*destination), source: Mac(*source), vlan, ethertype, payload: at + 2 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNTAGGED: [u8; 16] = [1, 2, 3, 4, 5, 6, 2, 2, 3, 4, 5, 6, 0x08, 0x00, 0x45, 0x00];

    fn tagged(tags: &[(u16, u16)]) -> Vec<u8> {
        let mut frame = UNTAGGED.to_vec();
        for (kind, tag) in tags.iter().rev() {
            let [a, b] = kind.to_be_bytes();
            let [c, d] = tag.to_be_bytes();
            frame.splice(12..12, [a, b, c, d]);
        }
        frame
    }

    #[test]
    fn ethertypes_behind_vlan_tags_are_found() {
        let plain = Front::of(&UNTAGGED).unwrap();
        assert_eq!(plain.destination, Mac([1, 2, 3, 4, 5, 6]));
        assert_eq!(plain.source, Mac([2, 2, 3, 4, 5, 6]));
        assert_eq!((plain.vlan, plain.ethertype, plain.payload), (0, ethertype::IPV4, 14));
        let one = Front::of(&tagged(&[(ethertype::VLAN, 0xe00a)])).unwrap();
        assert_eq!((one.vlan, one.ethertype, one.payload), (10, ethertype::IPV4, 18));
        let two = Front::of(&tagged(&[(ethertype::PROVIDER_VLAN, 7), (ethertype::VLAN, 8)])).unwrap();
        assert_eq!((two.vlan, two.ethertype, two.payload), (7, ethertype::IPV4, 22));
    }

    #[test]
    fn short_frames_have_none() {
        let frame = tagged(&[(ethertype::VLAN, 10)]);
        assert!((0..18).all(|length| Front::of(&frame[..length]).is_none()));
        assert!(Front::of(&frame[..18]).is_some());
    }
}
