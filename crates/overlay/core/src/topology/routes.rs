//! The routes of one version, as one node sees them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{Link, NodeId, Topology, Version};

/// Bits of a word of [`Routes::children`].
const WORD: usize = u64::BITS as usize;

/// Farther than every node that can be reached.
const UNREACHABLE: u64 = u64::MAX;

/// Where a node sends frames for others. In each tree of the topology the node has at most one parent, and children.
#[derive(Clone, Debug)]
pub struct Routes {
    version: Version,
    me: NodeId,
    /// In ascending order, and so are `neighbours`.
    nodes: Vec<NodeId>,
    neighbours: Vec<NodeId>,
    /// For each of `nodes`: this node's parent in its tree.
    parents: Vec<Option<NodeId>>,
    /// For each of `nodes`: a bit for each of `neighbours` that is this node's child in its tree. So the center of a
    /// star with 4,096 nodes needs 2 MiB, where lists would take 32.
    children: Vec<u64>,
    /// For each of `nodes`, in the same way: each of `neighbours` that lies on a shortest way from it to here.
    bringers: Vec<u64>,
}

impl Routes {
    /// `None` if `me` is not in the topology.
    pub(super) fn new(topology: &Topology, me: NodeId) -> Option<Self> {
        let nodes = topology.nodes.clone();
        let at = nodes.binary_search(&me).ok()?;
        let graph = Graph::new(&nodes, &topology.links);
        let neighbours: Vec<_> = graph.links[at].iter().map(|(other, _)| nodes[*other]).collect();
        let mut parents = Vec::with_capacity(nodes.len());
        let (mut children, mut bringers) = (Vec::new(), Vec::new());
        for root in 0..nodes.len() {
            let distances = graph.distances(root);
            parents.push(graph.parent(&distances, at).map(|parent| nodes[parent]));
            children.extend(bits(&graph.links[at], |(other, _)| graph.parent(&distances, other) == Some(at)));
            bringers.extend(bits(&graph.links[at], |(other, cost)| {
                distances[at] != UNREACHABLE && through(&distances, other, cost) == Some(distances[at])
            }));
        }
        Some(Self { version: topology.version, me, nodes, neighbours, parents, children, bringers })
    }

    /// Which topology they are of.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// The node that they belong to.
    #[must_use]
    pub fn me(&self) -> NodeId {
        self.me
    }

    /// Whether `node` is in the topology.
    #[must_use]
    pub fn contains(&self, node: NodeId) -> bool {
        self.nodes.binary_search(&node).is_ok()
    }

    /// The neighbour that gets the frames for the node `to`: the parent in the tree of `to`. `None` for this node
    /// itself, and for one that cannot be reached.
    #[must_use]
    pub fn next_hop(&self, to: NodeId) -> Option<NodeId> {
        let at = self.nodes.binary_search(&to).ok()?;
        *self.parents.get(at)?
    }

    /// The neighbours that get frames for everyone that came in at `ingress`.
    pub fn children(&self, ingress: NodeId) -> impl Iterator<Item = NodeId> {
        let bits = self.bits_of(&self.children, ingress);
        let all = self.neighbours.iter().take(bits.len() * WORD);
        all.enumerate().filter(|(at, _)| is_set(bits, *at)).map(|(_, neighbour)| *neighbour)
    }

    /// Whether a frame for one node that came in at `ingress` may come from `neighbour`: it lies on a shortest way from
    /// there to here.
    #[must_use]
    pub fn brings(&self, neighbour: NodeId, ingress: NodeId) -> bool {
        let bits = self.bits_of(&self.bringers, ingress);
        self.neighbours.binary_search(&neighbour).is_ok_and(|at| !bits.is_empty() && is_set(bits, at))
    }

    /// That part of `all` which is of `node`; empty if it is not in the topology.
    fn bits_of<'a>(&self, all: &'a [u64], node: NodeId) -> &'a [u64] {
        let words = self.neighbours.len().div_ceil(WORD);
        let at = self.nodes.binary_search(&node).map_or(0..0, |at| at * words..(at + 1) * words);
        all.get(at).unwrap_or_default()
    }

    /// The most links on the way of one frame that a label can count: nodes that are more than 255 links away are
    /// not reached.
    #[must_use]
    pub fn most_hops(&self) -> u8 {
        u8::try_from(self.nodes.len().saturating_sub(1)).unwrap_or(u8::MAX)
    }
}

/// A bit for each of `links`, set where `is_so`.
fn bits(links: &[(usize, u32)], is_so: impl Fn((usize, u32)) -> bool) -> impl Iterator<Item = u64> {
    links.chunks(WORD).map(move |word| {
        word.iter().enumerate().fold(0, |bits, (bit, link)| bits | u64::from(is_so(*link)) << bit)
    })
}

fn is_set(bits: &[u64], at: usize) -> bool {
    bits[at / WORD] >> (at % WORD) & 1 != 0
}

/// How far the root of `distances` is by the way of `other`, to which a link has this cost.
fn through(distances: &[u64], other: usize, cost: u32) -> Option<u64> {
    distances[other].checked_add(u64::from(cost))
}

/// Nodes by their place in the sorted list, with their links in ascending order of the other end.
struct Graph {
    links: Vec<Vec<(usize, u32)>>,
}

impl Graph {
    fn new(nodes: &[NodeId], all: &[Link]) -> Self {
        let place = |node| nodes.partition_point(|other| *other < node);
        let mut links = vec![Vec::new(); nodes.len()];
        for link in all {
            let (a, b) = (place(link.a), place(link.b));
            links[a].push((b, link.cost));
            links[b].push((a, link.cost));
        }
        links.iter_mut().for_each(|links| links.sort_unstable());
        Self { links }
    }

    /// How far each node is from `root`.
    fn distances(&self, root: usize) -> Vec<u64> {
        let mut distances = vec![UNREACHABLE; self.links.len()];
        distances[root] = 0;
        let mut front = BinaryHeap::from([Reverse((0, root))]);
        while let Some(Reverse((distance, node))) = front.pop() {
            if distance > distances[node] {
                continue;
            }
            for &(other, cost) in &self.links[node] {
                let through = distance + u64::from(cost);
                if through < distances[other] {
                    distances[other] = through;
                    front.push(Reverse((through, other)));
                }
            }
        }
        distances
    }

    /// The lowest neighbour of `node` that lies on a shortest path from it to the root of `distances`.
    fn parent(&self, distances: &[u64], node: usize) -> Option<usize> {
        let mut links = self.links[node].iter();
        let is_shortest =
            |(other, cost): &&(usize, u32)| through(distances, *other, *cost) == Some(distances[node]);
        links.find(is_shortest).map(|(other, _)| *other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_routes(topology: &Topology) -> Vec<Routes> {
        topology.nodes().iter().map(|node| topology.routes(*node).unwrap()).collect()
    }

    /// Ten graphs of some nodes with links and costs at random, not all connected.
    fn some_topologies() -> impl Iterator<Item = Topology> {
        let mut random = fastrand::Rng::with_seed(7);
        (0..10).map(move |_| {
            let count = random.u16(1..80);
            let nodes: Vec<_> = (0..count).map(|node| NodeId(node * 3)).collect();
            let density = random.f32() * 0.2;
            let pairs = (0..count).flat_map(|a| (0..a).map(move |b| (a, b)));
            let links = pairs.filter_map(|(a, b)| {
                let (a, b) = (NodeId(a * 3), NodeId(b * 3));
                (random.f32() < density).then(|| Link { a, b, cost: random.u32(1..4) })
            });
            let links = links.collect();
            Topology::new(Version(1), nodes, links).unwrap()
        })
    }

    #[test]
    fn every_way_to_a_node_ends_there() {
        for topology in some_topologies() {
            let routes = all_routes(&topology);
            let at = |node: NodeId| &routes[usize::from(node.0 / 3)];
            for (from, to) in routes.iter().flat_map(|a| routes.iter().map(|b| (a.me(), b.me()))) {
                let mut way = std::iter::successors(Some(from), |node| at(*node).next_hop(to));
                let reached = way.by_ref().take(routes.len()).last();
                assert_eq!(way.next(), None, "{from} to {to} goes round");
                assert!(reached == Some(to) || at(from).next_hop(to).is_none());
                assert_eq!(at(from).next_hop(to).is_none(), from == to || at(to).next_hop(from).is_none());
            }
        }
    }

    #[test]
    fn children_are_the_nodes_with_this_parent() {
        for topology in some_topologies() {
            let routes = all_routes(&topology);
            for (ingress, me) in routes.iter().flat_map(|a| routes.iter().map(move |b| (a.me(), b))) {
                let children: Vec<_> = me.children(ingress).collect();
                let expected = routes.iter().filter(|other| other.next_hop(ingress) == Some(me.me()));
                assert_eq!(children, expected.map(Routes::me).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn unicast_frames_are_accepted_only_from_valid_neighbours() {
        for topology in some_topologies() {
            let routes = all_routes(&topology);
            let at = |node: NodeId| &routes[usize::from(node.0 / 3)];
            for (ingress, to) in routes.iter().flat_map(|a| routes.iter().map(|b| (a.me(), b.me()))) {
                let mut node = ingress;
                while let Some(next) = at(node).next_hop(to) {
                    assert!(at(next).brings(node, ingress), "{ingress} to {to} by {node}");
                    node = next;
                }
            }
        }
        let links = [1, 3, 4].map(|other| Link { a: NodeId(2), b: NodeId(other), cost: 1 }).to_vec();
        let star = Topology::new(Version(1), (1..=5).map(NodeId).collect(), links).unwrap();
        let [center, leaf] = [2, 1].map(|node| star.routes(NodeId(node)).unwrap());
        let brought = |routes: &Routes, neighbour: u16| {
            (0..=6).filter(|ingress| routes.brings(NodeId(neighbour), NodeId(*ingress))).collect::<Vec<_>>()
        };
        assert_eq!((brought(&center, 3), brought(&center, 5)), (vec![3], vec![]));
        assert_eq!((brought(&leaf, 2), brought(&leaf, 3)), (vec![2, 3, 4], vec![]));
    }

    #[test]
    fn cheap_detours_are_taken_and_the_lower_of_equals() {
        let link = |a, b, cost| Link { a: NodeId(a), b: NodeId(b), cost };
        let links = vec![link(1, 4, 9), link(1, 2, 1), link(2, 4, 1), link(1, 3, 1), link(3, 4, 1)];
        let nodes = (1..=5).map(NodeId).collect();
        let routes = Topology::new(Version(1), nodes, links).unwrap().routes(NodeId(1)).unwrap();
        assert_eq!(routes.next_hop(NodeId(4)), Some(NodeId(2)));
        assert_eq!(routes.next_hop(NodeId(1)), None);
        assert_eq!(routes.next_hop(NodeId(5)), None);
        assert_eq!(routes.next_hop(NodeId(6)), None);
        assert_eq!(routes.children(NodeId(1)).collect::<Vec<_>>(), [NodeId(2), NodeId(3)]);
        assert_eq!(routes.children(NodeId(6)).count(), 0);
    }
}
