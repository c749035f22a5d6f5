//! The nodes with which this one has sessions.
//!
//! Keys are agreed on again from time to time, and the two nodes do not change over at one moment:
//!
//! ```text
//!   expected ─── the peer seals with it ───▶ present ─── another takes its place ───▶ former ─── GRACE ───▶ forgotten
//!   only opens                               opens and seals                          only opens
//! ```

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use overlay::topology::NodeId;

use crate::peer::{Peer, PeerState, Totals};

/// How long a replaced session is still accepted: datagrams sealed with it may still be in flight.
const GRACE: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Default)]
pub(crate) struct Peers {
    index: RwLock<Index>,
}

#[derive(Default)]
struct Index {
    by_node: HashMap<NodeId, Sessions>,
    by_session: HashMap<u32, Arc<Peer>>,
}

/// The sessions with one node.
struct Sessions {
    present: Arc<Peer>,
    /// And until when it is listened to.
    former: Option<(Arc<Peer>, Duration)>,
    expected: Option<Arc<Peer>>,
    /// The traffic of sessions that are forgotten.
    ended: Totals,
}

impl Sessions {
    /// Takes the former one out, if that `is_over`.
    fn end_former(&mut self, is_over: impl FnOnce(&mut (Arc<Peer>, Duration)) -> bool) -> Option<Arc<Peer>> {
        let (peer, _) = self.former.take_if(is_over)?;
        self.ended.add(peer.totals());
        Some(peer)
    }
}

impl Peers {
    pub fn of_node(&self, node: NodeId) -> Option<Arc<Peer>> {
        self.read().by_node.get(&node).map(|sessions| sessions.present.clone())
    }

    pub fn of_session(&self, session: u32) -> Option<Arc<Peer>> {
        self.read().by_session.get(&session).cloned()
    }

    /// How it stands with `node`.
    pub fn state(&self, node: NodeId) -> Option<PeerState> {
        let index = self.read();
        let Sessions { present, former, ended, .. } = index.by_node.get(&node)?;
        let mut totals = *ended;
        totals.add(present.totals());
        former.iter().for_each(|(peer, _)| totals.add(peer.totals()));
        Some(present.state(totals))
    }

    /// The present session with each node.
    pub fn all(&self) -> Vec<Arc<Peer>> {
        self.read().by_node.values().map(|sessions| sessions.present.clone()).collect()
    }

    /// All sessions that are listened to.
    pub fn sessions(&self) -> Vec<Arc<Peer>> {
        self.read().by_session.values().cloned().collect()
    }

    /// Adds `peer`. Its session is its node's present one from now on.
    pub fn insert(&self, peer: Peer, now: Duration) {
        let peer = Arc::new(peer);
        let mut index = self.write();
        index.listen(&peer);
        index.change_over(peer, now);
    }

    /// Adds `peer`. Its session becomes its node's present one with the first opened datagram; at once if there
    /// is no other.
    pub fn expect(&self, peer: Peer, now: Duration) {
        let peer = Arc::new(peer);
        let mut index = self.write();
        index.listen(&peer);
        let Some(sessions) = index.by_node.get_mut(&peer.node) else { return index.change_over(peer, now) };
        peer.is_expected.store(true, Ordering::Relaxed);
        let before = sessions.expected.replace(peer);
        index.forget(before);
    }

    /// Something was opened of `peer`, which was expected.
    pub fn heard(&self, peer: &Arc<Peer>, now: Duration) {
        let mut index = self.write();
        let sessions = index.by_node.get(&peer.node);
        let expected = sessions.and_then(|sessions| sessions.expected.as_ref());
        if expected.is_some_and(|expected| Arc::ptr_eq(expected, peer)) {
            index.change_over(peer.clone(), now);
        }
    }

    /// Forgets sessions that were replaced long ago.
    pub fn forget_former(&self, now: Duration) {
        let mut index = self.write();
        let is_over = |former: &mut (_, Duration)| former.1 <= now;
        let sessions = index.by_node.values_mut();
        let over: Vec<_> = sessions.filter_map(|sessions| sessions.end_former(is_over)).collect();
        over.into_iter().for_each(|peer| index.forget(Some(peer)));
    }

    pub fn remove(&self, node: NodeId) {
        let mut index = self.write();
        let Some(Sessions { present, former, expected, .. }) = index.by_node.remove(&node) else { return };
        let others = [former.map(|(peer, _)| peer), expected, Some(present)];
        others.into_iter().for_each(|peer| index.forget(peer));
    }

    fn read(&self) -> RwLockReadGuard<'_, Index> {
        self.index.read().expect("no thread panics while it holds the lock")
    }

    fn write(&self) -> RwLockWriteGuard<'_, Index> {
        self.index.write().expect("no thread panics while it holds the lock")
    }
}

impl Index {
    fn listen(&mut self, peer: &Arc<Peer>) {
        self.by_session.insert(peer.session, peer.clone());
    }

    /// Forgets `peer`, unless its number belongs to another session by now.
    fn forget(&mut self, peer: Option<Arc<Peer>>) {
        let Some(peer) = peer else { return };
        if self.by_session.get(&peer.session).is_some_and(|known| Arc::ptr_eq(known, &peer)) {
            self.by_session.remove(&peer.session);
        }
    }

    /// Makes `peer` its node's present one.
    fn change_over(&mut self, peer: Arc<Peer>, now: Duration) {
        peer.is_expected.store(false, Ordering::Relaxed);
        let node = peer.node;
        let Some(sessions) = self.by_node.get_mut(&node) else {
            let ended = Totals::default();
            self.by_node.insert(node, Sessions { present: peer, former: None, expected: None, ended });
            return;
        };
        peer.follow(&sessions.present, now);
        let expected = sessions.expected.take().filter(|expected| !Arc::ptr_eq(expected, &peer));
        let over = sessions.end_former(|_| true);
        let before = std::mem::replace(&mut sessions.present, peer);
        sessions.former = Some((before, now + GRACE));
        self.forget(over);
        self.forget(expected);
    }
}

#[cfg(test)]
mod tests {
    use overlay::message::Report;
    use overlay::tunnel::header::Header;
    use overlay::tunnel::keys::Direction;
    use overlay::tunnel::lane::Limits;

    use super::*;
    use crate::carrier::{Carrier, Source};
    use crate::peer::{Agreement, Path};

    const NODE: NodeId = NodeId(2);
    const NOW: Duration = Duration::from_secs(100);
    const LONGEST: usize = 1472;

    /// One at this port, to which the device sends datagrams of so many bytes.
    fn peer_with((port, longest): (u16, usize), session: u32) -> Peer {
        let direction = Direction::FromDialer;
        let limits = Limits::default();
        let agreed = Agreement { secret: [session as u8; 32], direction, own: session, theirs: 0, limits };
        let path = Path { address: ([10, 0, 0, 1], port).into(), longest, fallback: None };
        Peer::new(NODE, path, agreed, NOW)
    }

    fn peer_at(port: u16, session: u32) -> Peer {
        peer_with((port, LONGEST), session)
    }

    fn peer(session: u32) -> Peer {
        peer_at(7474, session)
    }

    /// Which sessions are listened to, and which is the present one.
    fn known(peers: &Peers) -> (Vec<u32>, Option<u32>) {
        let sessions = (0..10).filter(|session| peers.of_session(*session).is_some());
        (sessions.collect(), peers.of_node(NODE).map(|peer| peer.session))
    }

    #[test]
    fn a_replaced_session_is_accepted_for_a_while() {
        let peers = Peers::default();
        peers.insert(peer(1), NOW);
        peers.insert(peer(2), NOW);
        assert_eq!(known(&peers), (vec![1, 2], Some(2)));
        peers.forget_former(NOW + GRACE - Duration::from_millis(1));
        assert_eq!(known(&peers), (vec![1, 2], Some(2)));
        peers.forget_former(NOW + GRACE);
        assert_eq!(known(&peers), (vec![2], Some(2)));
    }

    #[test]
    fn a_replaced_session_does_not_change_the_peers_address() {
        let peers = Peers::default();
        peers.insert(peer(1), NOW);
        peers.insert(peer(2), NOW);
        let (direction, limits) = (Direction::FromListener, Limits::default());
        let agreed = Agreement { secret: [1; 32], direction, own: 0, theirs: 1, limits };
        let path = Path { address: ([10, 0, 0, 2], 7474).into(), longest: LONGEST, fallback: None };
        let other = Peer::new(NodeId(1), path, agreed, NOW);
        let mut datagram = vec![7; other.overhead + 60];
        other.sealing(0).seal(&mut datagram, NOW).unwrap();
        let header = Header::decode(&datagram).unwrap();
        let former = peers.of_session(header.session).unwrap();
        assert!(former.open(&header, &mut datagram, Source::Udp(([10, 0, 0, 9], 99).into())).is_ok());
        assert_eq!(peers.of_node(NODE).unwrap().address(), ([10, 0, 0, 1], 7474).into());
    }

    #[test]
    fn only_the_two_newest_sessions_are_kept() {
        let peers = Peers::default();
        (1..9).for_each(|session| peers.insert(peer(session), NOW));
        assert_eq!(known(&peers), (vec![7, 8], Some(8)));
    }

    #[test]
    fn a_session_that_is_expected_is_used_when_the_peer_does() {
        let peers = Peers::default();
        peers.expect(peer(1), NOW);
        assert_eq!(known(&peers), (vec![1], Some(1)), "no other session exists");
        peers.expect(peer(2), NOW);
        peers.expect(peer(3), NOW);
        assert_eq!(known(&peers), (vec![1, 3], Some(1)), "one is expected");
        let expected = peers.of_session(3).unwrap();
        assert!(expected.is_expected.load(Ordering::Relaxed));
        peers.heard(&expected, NOW);
        assert_eq!(known(&peers), (vec![1, 3], Some(3)));
        assert!(!expected.is_expected.load(Ordering::Relaxed));
        peers.forget_former(NOW + GRACE);
        assert_eq!(known(&peers), (vec![3], Some(3)));
    }

    #[test]
    fn an_earlier_expected_session_is_not_used() {
        let peers = Peers::default();
        peers.insert(peer(1), NOW);
        peers.expect(peer(2), NOW);
        let expected = peers.of_session(2).unwrap();
        peers.insert(peer(3), NOW);
        assert_eq!(known(&peers), (vec![1, 3], Some(3)));
        peers.heard(&expected, NOW);
        assert_eq!(known(&peers), (vec![1, 3], Some(3)));
    }

    #[test]
    fn a_number_that_is_used_again_is_the_newest_sessions() {
        let peers = Peers::default();
        peers.insert(peer(1), NOW);
        peers.insert(peer(1), NOW);
        peers.forget_former(NOW + GRACE);
        assert!(Arc::ptr_eq(&peers.of_session(1).unwrap(), &peers.of_node(NODE).unwrap()));
    }

    #[test]
    fn a_node_is_forgotten_with_all_its_sessions() {
        let peers = Peers::default();
        peers.insert(peer(1), NOW);
        peers.insert(peer(2), NOW);
        peers.expect(peer(3), NOW);
        peers.remove(NODE);
        assert_eq!(known(&peers), (vec![], None));
    }

    #[test]
    fn counts_of_all_sessions_are_added_up() {
        let peers = Peers::default();
        for (session, time) in [(1, 0), (2, 0), (3, 0), (4, 9), (5, 9)] {
            let now = NOW + Duration::from_secs(time);
            peers.insert(peer(session), now);
            let (present, sent) = (peers.of_node(NODE).unwrap(), 100 + session);
            for number in 0..sent {
                let mut datagram = vec![0; present.overhead];
                present.sealing(number as u8).seal(&mut datagram, now).unwrap();
            }
            let report = |received| Report { received, lost: u64::from(session), stamp: 0, rate: 0 };
            assert!(present.reported(&report(101)).is_err(), "no more was sealed in this session");
            present.reported(&report(100)).unwrap();
            peers.forget_former(now);
        }
        let state = peers.state(NODE).unwrap();
        assert_eq!((state.sent, state.lost), (515, 15));
        assert_eq!(peers.state(NodeId(7)), None);
    }

    #[test]
    fn path_knowledge_carries_over_to_the_next_session() {
        let peers = Peers::default();
        peers.insert(peer(1), NOW);
        let present = || peers.of_node(NODE).unwrap();
        let is_alive = || present().watch(|liveness| liveness.is_alive());
        present().search(|mtu| mtu.arrived(1400, NOW));
        present().watch(|liveness| liveness.answered(NOW));
        peers.insert(peer(2), NOW);
        assert!(present().arrives(Carrier::Udp) == 1400 && is_alive());
        let later = NOW + GRACE * 10;
        // It answers nothing any more, until there are new keys.
        let mut asked = NOW;
        while is_alive() {
            asked += GRACE / 50;
            present().watch(|liveness| liveness.next_question(false, asked));
        }
        peers.insert(peer(4), later);
        assert!(present().watch(|liveness| liveness.next_question(true, later)));
        present().watch(|liveness| liveness.answered(later));
        assert!(is_alive());
        peers.insert(peer_at(7475, 3), NOW);
        assert!(present().arrives(Carrier::Udp) < 1400 && !is_alive(), "that is another path");
    }

    #[test]
    fn a_wider_device_does_not_make_a_new_path() {
        const WIDER: usize = 8972;
        let peers = Peers::default();
        peers.insert(peer(1), NOW);
        let present = || peers.of_node(NODE).unwrap();
        let later = NOW + Duration::from_secs(60);
        present().search(|mtu| {
            mtu.next_probe(later, || WIDER);
            mtu.arrived(WIDER, later);
        });
        peers.insert(peer_with((7474, WIDER), 2), later);
        assert_eq!(present().arrives(Carrier::Udp), WIDER);
    }
}
