//! The label before every frame between nodes.
//!
//! ```text
//!  0      1      2         4         6                   10
//!  │ kind │ hops │ ingress │ to node │ topology version  │ frame …       all big-endian
//! ```
//!
//! kind is 0 for a frame to a node, 1 for a frame that a node has forwarded after a moved MAC, and 2
//! for a broadcast, where "to node" is 0. hops is not 0.

use crate::topology::{NodeId, Version};

/// The destination of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// A node.
    Node(NodeId),
    /// The node to which a MAC has moved, from the one that it left. This happens to a frame once.
    Forwarded(NodeId),
    /// All nodes, down the tree of the ingress node.
    Everyone,
}

/// How a frame travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    /// With which topology's routes, all the way.
    pub version: Version,
    /// Where the frame came in from a port.
    pub ingress: NodeId,
    /// The destination.
    pub to: Destination,
    /// How many links it may take, this one included; never 0.
    pub hops: u8,
}

/// Bytes that are not a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed label before a frame")]
pub struct InvalidLabel;

impl Label {
    /// Bytes of an encoded label.
    pub const LENGTH: usize = 10;

    /// The label's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LENGTH] {
        let (kind, node) = match self.to {
            Destination::Node(node) => (0, node.0),
            Destination::Forwarded(node) => (1, node.0),
            Destination::Everyone => (2, 0),
        };
        let mut bytes = [0; Self::LENGTH];
        bytes[0] = kind;
        bytes[1] = self.hops;
        bytes[2..4].copy_from_slice(&self.ingress.0.to_be_bytes());
        bytes[4..6].copy_from_slice(&node.to_be_bytes());
        bytes[6..].copy_from_slice(&self.version.0.to_be_bytes());
        bytes
    }

    /// The label at the front of `bytes`, and the frame behind it.
    ///
    /// # Errors
    /// If there are too few bytes, or they contradict each other.
    pub fn decode(bytes: &[u8]) -> Result<(Self, &[u8]), InvalidLabel> {
        let (&[kind, hops, a, b, c, d, v0, v1, v2, v3], frame) =
            bytes.split_first_chunk::<{ Self::LENGTH }>().ok_or(InvalidLabel)?;
        let node = NodeId(u16::from_be_bytes([c, d]));
        let to = match (kind, node.0) {
            (0, _) => Destination::Node(node),
            (1, _) => Destination::Forwarded(node),
            (2, 0) => Destination::Everyone,
            _ => return Err(InvalidLabel),
        };
        let ingress = NodeId(u16::from_be_bytes([a, b]));
        let version = Version(u32::from_be_bytes([v0, v1, v2, v3]));
        if hops == 0 { Err(InvalidLabel) } else { Ok((Self { version, ingress, to, hops }, frame)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(to: Destination) -> Label {
        Label { version: Version(0x0102_0304), ingress: NodeId(0x0506), to, hops: 7 }
    }

    #[test]
    fn labels_survive_the_way() {
        let node = NodeId(0x0809);
        for to in [Destination::Node(node), Destination::Forwarded(node), Destination::Everyone] {
            let mut bytes = label(to).encode().to_vec();
            bytes.extend(b"frame");
            assert_eq!(Label::decode(&bytes), Ok((label(to), &b"frame"[..])));
        }
        assert_eq!(label(Destination::Node(node)).encode(), [0, 7, 5, 6, 8, 9, 1, 2, 3, 4]);
    }

    #[test]
    fn contradictions_are_refused() {
        let good = label(Destination::Everyone).encode();
        let with = |at: usize, byte: u8| {
            let mut bytes = good;
            bytes[at] = byte;
            Label::decode(&bytes).map(|_| ())
        };
        assert_eq!(with(0, 3), Err(InvalidLabel));
        assert_eq!(with(1, 0), Err(InvalidLabel));
        assert_eq!(with(4, 1), Err(InvalidLabel));
        assert_eq!(with(5, 1), Err(InvalidLabel));
        assert!((0..good.len()).all(|length| Label::decode(&good[..length]).is_err()));
    }
}
