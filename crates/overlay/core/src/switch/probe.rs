//! Loop probes: a node sends them to its LANs, and to instances that send many broadcasts; a probe that returns reveals a loop.
//!
//! ```text
//!  0                14        18     20     22      30
//!  │ to all, 0x88b5 │ "thlp"  │ node │ port │ nonce │       all big-endian
//! ```
//!
//! The nonce is the port's own, derived from one that the node has drawn at its start: two overlays on one LAN may use the same numbers for
//! nodes. A station on the LAN can record a probe and replay it, as it can build a real loop; only a port
//! on that LAN is blocked in either case.

use super::PortId;
use super::resolution::frame;
use crate::ethernet::Front;
use crate::mac::Mac;
use crate::topology::NodeId;

/// The ethertype that IEEE 802 gave for experiments.
const ETHERTYPE: u16 = 0x88b5;

/// Of all that use it, ours begin so: "transhume loop probe".
const MAGIC: &[u8; 4] = b"thlp";

/// Which node's LAN port a frame left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Probe {
    pub node: NodeId,
    pub port: PortId,
    pub nonce: u64,
}

impl Probe {
    pub fn encode(&self) -> Vec<u8> {
        let [node, port] = [self.node.0, self.port.0].map(u16::to_be_bytes);
        own_frame(self.node, &[MAGIC, &node, &port, &self.nonce.to_be_bytes()])
    }

    /// The probe that a frame is. It may have got a VLAN tag, or padding.
    #[inline]
    pub fn of(front: &Front, frame: &[u8]) -> Option<Self> {
        let (&[a, b, c, d, nonce @ ..], _) = content(MAGIC, front, frame)?.split_first_chunk::<12>()?;
        let (node, port) = (NodeId(u16::from_be_bytes([a, b])), PortId(u16::from_be_bytes([c, d])));
        Some(Self { node, port, nonce: u64::from_be_bytes(nonce) })
    }
}

/// A frame of the nodes' own, from `node`, to all. Its first part begins with the mark of its kind.
pub(super) fn own_frame(node: NodeId, parts: &[&[u8]]) -> Vec<u8> {
    let [high, low] = node.0.to_be_bytes();
    // The source MAC of probes; no instance gets it.
    let source = Mac([0x02, 0x74, 0x72, 0xff, high, low]);
    frame(Mac::BROADCAST, source, ETHERTYPE, parts)
}

/// The content of a frame between nodes behind `magic`; `None` if the frame is not one, or of another kind.
#[inline]
pub(super) fn content<'a>(magic: &[u8; 4], front: &Front, frame: &'a [u8]) -> Option<&'a [u8]> {
    if front.ethertype != ETHERTYPE {
        return None;
    }
    frame.get(front.payload..)?.strip_prefix(magic)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_survive_their_encoding() {
        let probe = Probe { node: NodeId(0x0102), port: PortId(3), nonce: 0x0405_0607_0809_0a0b };
        let mut frame = probe.encode();
        assert_eq!(Probe::of(&Front::of(&frame).unwrap(), &frame), Some(probe));
        assert!(
            (14..frame.len())
                .all(|length| Probe::of(&Front::of(&frame).unwrap(), &frame[..length]).is_none())
        );
        frame.resize(60, 0);
        frame.splice(12..12, [0x81, 0, 0, 7]);
        assert_eq!(Probe::of(&Front::of(&frame).unwrap(), &frame), Some(probe));
        frame[18] = b'x';
        assert_eq!(Probe::of(&Front::of(&frame).unwrap(), &frame), None);
    }
}
