//! The nodes, the links between them, and the routes of frames.
//!
//! A topology is data from the coordinator. All nodes compute the same routes from it: for each node one
//! tree of shortest paths that ends in it; of two equal paths the one by the neighbour with the lower number is
//! taken. Unicast frames go up the tree of their destination; broadcasts go down the tree of their ingress
//! node. Distances shrink with every hop up and grow with every hop down, so no frame loops.

mod routes;

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

pub use routes::Routes;

/// The most nodes of a topology.
pub const MAX_NODES: usize = 4096;

/// The most links of a topology: the number in a mesh of 362 nodes.
pub const MAX_LINKS: usize = 64 * 1024;

/// The cost of a link that was laid out by one of the usual plans.
const PLAIN_COST: u32 = 1;

/// A node of the overlay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NodeId(pub u16);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The version of a topology. The content of a version never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Version(pub u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Two nodes that send to each other directly. It has no direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// One node.
    pub a: NodeId,
    /// The other.
    pub b: NodeId,
    /// The cost of a frame's hop over it, in any unit; not 0.
    pub cost: u32,
}

/// Nodes and links of one version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct Topology {
    version: Version,
    /// In ascending order.
    nodes: Vec<NodeId>,
    links: Vec<Link>,
}

/// An unchecked topology.
#[derive(Deserialize)]
struct Unchecked {
    version: Version,
    nodes: Vec<NodeId>,
    links: Vec<Link>,
}

impl TryFrom<Unchecked> for Topology {
    type Error = InvalidTopology;

    fn try_from(read: Unchecked) -> Result<Self, InvalidTopology> {
        Self::new(read.version, read.nodes, read.links)
    }
}

/// The fault of a topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTopology {
    /// More than [`MAX_NODES`].
    #[error("{0} nodes exceed the limit of a topology, {MAX_NODES}")]
    TooManyNodes(usize),
    /// More than [`MAX_LINKS`].
    #[error("{0} links exceed the limit of a topology, {MAX_LINKS}")]
    TooManyLinks(usize),
    /// A node is listed twice.
    #[error("node {0} is listed twice")]
    DoubleNode(NodeId),
    /// A node is used that is not listed.
    #[error("node {0} is not in the topology")]
    UnknownNode(NodeId),
    /// A link has the same node at both ends.
    #[error("a link joins node {0} to itself")]
    SelfLink(NodeId),
    /// Two links join the same nodes.
    #[error("two links join nodes {0} and {1}")]
    DoubleLink(NodeId, NodeId),
    /// A link costs nothing.
    #[error("the link between nodes {0} and {1} has cost 0; the minimum is 1")]
    ZeroCost(NodeId, NodeId),
}

impl Topology {
    /// A topology of these nodes and links. Not all nodes need be reachable from all others.
    ///
    /// # Errors
    /// If the lists are too long or contradict themselves.
    pub fn new(version: Version, mut nodes: Vec<NodeId>, links: Vec<Link>) -> Result<Self, InvalidTopology> {
        if nodes.len() > MAX_NODES {
            return Err(InvalidTopology::TooManyNodes(nodes.len()));
        }
        if links.len() > MAX_LINKS {
            return Err(InvalidTopology::TooManyLinks(links.len()));
        }
        nodes.sort_unstable();
        if let Some(pair) = nodes.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(InvalidTopology::DoubleNode(pair[0]));
        }
        let topology = Self { version, nodes, links };
        topology.check_links()?;
        Ok(topology)
    }

    fn check_links(&self) -> Result<(), InvalidTopology> {
        let mut seen = BTreeSet::new();
        for &Link { a, b, cost } in &self.links {
            if let Some(node) = [a, b].into_iter().find(|node| self.nodes.binary_search(node).is_err()) {
                return Err(InvalidTopology::UnknownNode(node));
            }
            if a == b {
                return Err(InvalidTopology::SelfLink(a));
            }
            if cost == 0 {
                return Err(InvalidTopology::ZeroCost(a, b));
            }
            if !seen.insert((a.min(b), a.max(b))) {
                return Err(InvalidTopology::DoubleLink(a.min(b), a.max(b)));
            }
        }
        Ok(())
    }

    /// All `nodes` linked to `center`, which is one of them.
    ///
    /// # Errors
    /// As of [`Topology::new`].
    pub fn star(version: Version, center: NodeId, nodes: &[NodeId]) -> Result<Self, InvalidTopology> {
        let others = nodes.iter().filter(|node| **node != center);
        let links = others.map(|node| plain(center, *node)).collect();
        if !nodes.contains(&center) {
            return Err(InvalidTopology::UnknownNode(center));
        }
        Self::new(version, nodes.to_vec(), links)
    }

    /// All `nodes` linked to all others.
    ///
    /// # Errors
    /// As of [`Topology::new`].
    pub fn mesh(version: Version, nodes: &[NodeId]) -> Result<Self, InvalidTopology> {
        let number = nodes.len().saturating_mul(nodes.len().saturating_sub(1)) / 2;
        if number > MAX_LINKS {
            return Err(InvalidTopology::TooManyLinks(number));
        }
        let behind = |at: usize| nodes.iter().skip(at + 1);
        let links = nodes.iter().enumerate().flat_map(|(at, a)| behind(at).map(|b| plain(*a, *b))).collect();
        Self::new(version, nodes.to_vec(), links)
    }

    /// The `nodes` as corners of a hypercube, in the order given. Where their number is not a power of two, the
    /// last corners are missing; the rest is still connected.
    ///
    /// # Errors
    /// As of [`Topology::new`].
    pub fn hypercube(version: Version, nodes: &[NodeId]) -> Result<Self, InvalidTopology> {
        if nodes.len() > MAX_NODES {
            return Err(InvalidTopology::TooManyNodes(nodes.len()));
        }
        let dimensions = nodes.len().next_power_of_two().trailing_zeros();
        let mut links = Vec::new();
        for (corner, a) in nodes.iter().enumerate() {
            let across = (0..dimensions).map(|dimension| corner ^ 1 << dimension);
            let higher = across.filter(|other| *other > corner);
            links.extend(higher.filter_map(|other| nodes.get(other)).map(|b| plain(*a, *b)));
        }
        Self::new(version, nodes.to_vec(), links)
    }

    /// Which version it is.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// The nodes, in ascending order.
    #[must_use]
    pub fn nodes(&self) -> &[NodeId] {
        &self.nodes
    }

    /// The links, as they were given.
    #[must_use]
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// The ways that frames take at the node `me`. With thousands of nodes this takes up to some seconds: it is not
    /// for a thread that forwards.
    ///
    /// # Errors
    /// [`InvalidTopology::UnknownNode`] if `me` is not in the topology.
    pub fn routes(&self, me: NodeId) -> Result<Routes, InvalidTopology> {
        Routes::new(self, me).ok_or(InvalidTopology::UnknownNode(me))
    }
}

fn plain(a: NodeId, b: NodeId) -> Link {
    Link { a, b, cost: PLAIN_COST }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(count: u16) -> Vec<NodeId> {
        (0..count).map(NodeId).collect()
    }

    fn link(a: u16, b: u16, cost: u32) -> Link {
        Link { a: NodeId(a), b: NodeId(b), cost }
    }

    fn new(nodes: &[u16], links: &[Link]) -> Result<Topology, InvalidTopology> {
        Topology::new(Version(1), nodes.iter().copied().map(NodeId).collect(), links.to_vec())
    }

    #[test]
    fn contradictions_are_refused_by_name() {
        use InvalidTopology::*;
        let (one, two) = (NodeId(1), NodeId(2));
        assert_eq!(new(&[1, 2, 1], &[]), Err(DoubleNode(one)));
        assert_eq!(new(&[1], &[link(1, 2, 1)]), Err(UnknownNode(two)));
        assert_eq!(new(&[1, 2], &[link(1, 1, 1)]), Err(SelfLink(one)));
        assert_eq!(new(&[1, 2], &[link(1, 2, 1), link(2, 1, 3)]), Err(DoubleLink(one, two)));
        assert_eq!(new(&[1, 2], &[link(2, 1, 0)]), Err(ZeroCost(two, one)));
        assert_eq!(Topology::new(Version(1), nodes(4097), vec![]), Err(TooManyNodes(4097)));
        assert!(matches!(Topology::mesh(Version(1), &nodes(4096)), Err(TooManyLinks(_))));
        assert_eq!(Topology::star(Version(1), two, &[one]), Err(UnknownNode(two)));
        assert_eq!(new(&[1], &[]).unwrap().routes(two).unwrap_err(), UnknownNode(two));
    }

    #[test]
    fn the_usual_plans_have_the_usual_links() {
        let count = |topology: Result<Topology, InvalidTopology>| topology.unwrap().links().len();
        assert_eq!(count(Topology::star(Version(1), NodeId(3), &nodes(8))), 7);
        assert_eq!(count(Topology::mesh(Version(1), &nodes(8))), 28);
        assert_eq!(count(Topology::mesh(Version(1), &[])), 0);
        assert_eq!(count(Topology::hypercube(Version(1), &nodes(8))), 12);
        assert_eq!(count(Topology::hypercube(Version(1), &nodes(1))), 0);
        assert_eq!(count(Topology::hypercube(Version(1), &nodes(6))), 7);
    }
}
