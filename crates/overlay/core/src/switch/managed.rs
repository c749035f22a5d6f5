//! Places of managed MACs, as set by the coordinator.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use fabric::Epoch;
use foldhash::fast::RandomState;
use serde::{Deserialize, Serialize};

use super::resolution::Station;
use super::{Place, PortId};
use crate::mac::Mac;
use crate::topology::NodeId;

/// The most addresses of one MAC.
pub const MAX_ADDRESSES: usize = 64;

/// The place of an instance's MAC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The MAC, in all VLANs.
    pub mac: Mac,
    /// The node.
    pub node: NodeId,
    /// The node's port; only that node has to know, and not even it if the MAC was prepared there.
    pub port: Option<PortId>,
    /// Counts the moves of the MAC. The higher epoch wins.
    pub epoch: Epoch,
    /// Addresses that the instance has, at most [`MAX_ADDRESSES`].
    pub addresses: Vec<IpAddr>,
}

/// The entry of a managed MAC. Fields that each frame needs are apart, so that many MACs fit into the cache.
#[derive(Clone, Debug)]
pub(super) struct Managed {
    /// `None` when the instance has ended.
    pub home: Option<Place>,
    past: Box<Past>,
}

#[derive(Clone, Debug)]
struct Past {
    epoch: Epoch,
    addresses: Vec<IpAddr>,
    since: Duration,
    /// Its previous place, and until when frames from there are accepted.
    former: Option<(NodeId, Duration)>,
    /// Until when this node, the former place of the MAC, sends on late frames for it.
    forwards_until: Duration,
    /// Until when other nodes may send on to here the frames that they received for the MAC.
    follows_until: Duration,
    /// True if it has announced itself as an IPv6 router.
    is_router: bool,
}

impl Managed {
    /// How often the MAC has moved.
    pub fn epoch(&self) -> Epoch {
        self.past.epoch
    }

    /// The addresses of the instance.
    pub fn addresses(&self) -> &[IpAddr] {
        &self.past.addresses
    }

    /// The facts about it that are announced to others; its MAC is `mac`.
    pub fn station(&self, mac: Mac) -> Station {
        Station { mac, is_router: self.past.is_router }
    }

    /// When this was learned.
    pub fn since(&self) -> Duration {
        self.past.since
    }

    /// Whether the MAC may send by the way of `node`, another one than this.
    #[inline]
    pub fn sends_from(&self, node: NodeId, now: Duration) -> bool {
        self.home == Some(Place::Node(node))
            || self.past.former.is_some_and(|(former, until)| former == node && now < until)
    }

    /// Whether this node sends on frames for the MAC.
    pub fn is_forwarded(&self, now: Duration) -> bool {
        now < self.past.forwards_until
    }

    /// Whether other nodes may send on the frames that they received for the MAC: it has moved lately, or was
    /// about to.
    pub fn is_followed(&self, now: Duration) -> bool {
        now < self.past.follows_until
    }

    /// Whether other nodes surely know the MAC's place: it never moved, or not lately.
    pub fn is_settled(&self, now: Duration, grace: Duration) -> bool {
        self.past.epoch == Epoch::default() || now >= self.past.since + grace
    }
}

/// Managed MACs.
pub(super) struct ManagedMacs {
    me: NodeId,
    grace: Duration,
    table: HashMap<Mac, Managed, RandomState>,
    /// The owner of an address. With two claims it has none that we would answer for.
    owners: HashMap<IpAddr, Owners, RandomState>,
}

#[derive(Debug, Default)]
struct Owners {
    macs: Vec<Mac>,
    /// Whether another MAC was the last that claimed the address.
    is_disputed: bool,
}

impl ManagedMacs {
    pub fn new(me: NodeId, grace: Duration) -> Self {
        Self { me, grace, table: HashMap::default(), owners: HashMap::default() }
    }

    /// The entry of `mac`, unless its instance has ended.
    #[inline]
    pub fn get(&self, mac: Mac) -> Option<&Managed> {
        self.table.get(&mac).filter(|managed| managed.home.is_some())
    }

    /// Whether `epoch` is higher than all that is known of `mac`, also if its instance has ended.
    pub fn is_newer(&self, mac: Mac, epoch: Epoch) -> bool {
        self.table.get(&mac).is_none_or(|managed| managed.past.epoch < epoch)
    }

    /// The highest epoch of `mac` that is known, also if its instance has ended.
    pub fn epoch_of(&self, mac: Mac) -> Option<Epoch> {
        self.table.get(&mac).map(Managed::epoch)
    }

    /// Whether anything is known of `mac`.
    pub fn knows(&self, mac: Mac) -> bool {
        self.table.contains_key(&mac)
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Applies an update of the coordinator, if it is new: `home` is `None` for an instance that has ended.
    pub fn push(&mut self, entry: &Entry, home: Option<Place>, now: Duration) -> bool {
        if !self.is_newer(entry.mac, entry.epoch) {
            return false;
        }
        let mut past = Past {
            epoch: entry.epoch,
            addresses: entry.addresses.clone(),
            since: now,
            former: None,
            forwards_until: Duration::ZERO,
            follows_until: now + self.follows(),
            is_router: false,
        };
        if let Some(old) = self.table.remove(&entry.mac) {
            self.inherit(&mut past, &old, home, now + self.grace);
            self.disown(entry.mac, &old.past.addresses);
        }
        self.own(entry.mac, &past.addresses);
        self.table.insert(entry.mac, Managed { home, past: Box::new(past) });
        true
    }

    /// How long a frame forwarded after a MAC may be in flight: others learn later than this node that it has moved, and forward for the grace time.
    fn follows(&self) -> Duration {
        self.grace * 2
    }

    /// A move of `mac` from here is rolled back: the frames that its destination kept may come back.
    pub fn stays(&mut self, mac: Mac, now: Duration) {
        let until = now + self.follows();
        if let Some(managed) = self.table.get_mut(&mac) {
            managed.past.follows_until = until;
        }
    }

    /// Where the MAC was, stays known until `until`. A router that moves is one afterwards; one that has ended is none.
    fn inherit(&self, past: &mut Past, old: &Managed, home: Option<Place>, until: Duration) {
        let (before, after) = (old.home.map(|home| self.node(home)), home.map(|home| self.node(home)));
        let left = before.filter(|_| before != after).map(|node| (node, until));
        let is_left = left.is_some_and(|(node, _)| node == self.me);
        past.former = left.or(old.past.former);
        past.forwards_until = if is_left { until } else { old.past.forwards_until };
        past.is_router = old.past.is_router && home.is_some();
    }

    fn node(&self, place: Place) -> NodeId {
        match place {
            Place::Port(_) => self.me,
            Place::Node(node) => node,
        }
    }

    fn own(&mut self, mac: Mac, addresses: &[IpAddr]) {
        for address in addresses {
            let owners = self.owners.entry(*address).or_default();
            if !owners.macs.contains(&mac) {
                owners.macs.push(mac);
            }
        }
    }

    fn disown(&mut self, mac: Mac, addresses: &[IpAddr]) {
        for address in addresses {
            if let Some(owners) = self.owners.get_mut(address) {
                owners.macs.retain(|owner| *owner != mac);
                if owners.macs.is_empty() {
                    self.owners.remove(address);
                }
            }
        }
    }

    /// The one MAC that has `address`, unless another one has claimed it since.
    pub fn owner(&self, address: IpAddr) -> Option<(Mac, &Managed)> {
        let owners = self.owners.get(&address).filter(|owners| !owners.is_disputed)?;
        match owners.macs.as_slice() {
            [mac] => Some((*mac, self.get(*mac)?)),
            _ => None,
        }
    }

    /// True if `address` is managed, and was last claimed by a MAC that is not its owner.
    pub fn is_disputed(&self, address: IpAddr) -> bool {
        self.owners.get(&address).is_some_and(|owners| owners.is_disputed)
    }

    /// A station claims that `mac` has `address`.
    pub fn learn_claim(&mut self, address: IpAddr, mac: Mac) {
        if let Some(owners) = self.owners.get_mut(&address) {
            owners.is_disputed = !owners.macs.contains(&mac);
        }
    }

    /// A station claims that `mac` is an IPv6 router with `address`. Claims in the name of another station are ignored.
    pub fn learn_router(&mut self, address: Ipv6Addr, mac: Mac) {
        let owners = self.owners.get(&IpAddr::V6(address));
        let is_others = owners.is_some_and(|owners| !owners.macs.contains(&mac));
        let managed = self.table.get_mut(&mac).filter(|managed| managed.home.is_some() && !is_others);
        if let Some(managed) = managed {
            managed.past.is_router = true;
        }
    }

    /// Forgets instances that ended more than `age` ago: no late message speaks of them any more.
    pub fn sweep(&mut self, age: Duration, now: Duration) {
        self.table.retain(|_, managed| managed.home.is_some() || now < managed.past.since + age);
    }

    pub fn iter(&self) -> impl Iterator<Item = (Mac, Place, &Managed)> {
        self.table.iter().filter_map(|(mac, managed)| Some((*mac, managed.home?, managed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const ME: NodeId = NodeId(1);
    const OTHER: NodeId = NodeId(2);
    const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);

    fn entry(epoch: u64, address: u8) -> Entry {
        let addresses = vec![IpAddr::from([10, 0, 0, address])];
        Entry { mac: MAC, node: OTHER, port: None, epoch: Epoch(epoch), addresses }
    }

    fn macs() -> ManagedMacs {
        ManagedMacs::new(ME, SECOND * 5)
    }

    #[test]
    fn the_higher_epoch_wins_in_any_order() {
        let pushes = [
            (entry(1, 1), Some(Place::Port(PortId(1)))),
            (entry(2, 2), Some(Place::Node(OTHER))),
            (entry(3, 3), Some(Place::Node(NodeId(3)))),
        ];
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let mut macs = macs();
            for at in order.into_iter().chain(order) {
                macs.push(&pushes[at].0, pushes[at].1, SECOND);
            }
            assert_eq!(macs.get(MAC).unwrap().home, Some(Place::Node(NodeId(3))));
            assert_eq!(macs.owner(IpAddr::from([10, 0, 0, 3])).unwrap().0, MAC);
            assert!(macs.owner(IpAddr::from([10, 0, 0, 1])).is_none());
        }
    }

    #[test]
    fn late_frames_are_accepted_and_forwarded_for_the_grace_time() {
        let mut macs = macs();
        macs.push(&entry(1, 1), Some(Place::Port(PortId(1))), SECOND);
        macs.push(&entry(2, 1), Some(Place::Node(OTHER)), SECOND * 10);
        let managed = macs.get(MAC).unwrap();
        assert!(managed.sends_from(ME, SECOND * 14) && !managed.sends_from(ME, SECOND * 15));
        assert!(managed.sends_from(OTHER, SECOND * 100) && !managed.sends_from(NodeId(3), SECOND * 10));
        assert!(managed.is_forwarded(SECOND * 14) && !managed.is_forwarded(SECOND * 15));
        macs.push(&entry(3, 1), Some(Place::Node(NodeId(3))), SECOND * 12);
        let managed = macs.get(MAC).unwrap();
        assert!(managed.is_forwarded(SECOND * 14) && managed.sends_from(OTHER, SECOND * 14));
        assert!(!managed.is_settled(SECOND * 16, SECOND * 5) && managed.is_settled(SECOND * 17, SECOND * 5));
    }

    #[test]
    fn an_address_with_two_claims_is_not_answered() {
        let mut macs = macs();
        let other = Mac([2, 0, 0, 0, 0, 2]);
        macs.push(&entry(1, 1), Some(Place::Node(OTHER)), SECOND);
        macs.push(&Entry { mac: other, ..entry(1, 1) }, Some(Place::Node(OTHER)), SECOND);
        assert!(macs.owner(IpAddr::from([10, 0, 0, 1])).is_none());
        macs.push(&Entry { mac: other, ..entry(2, 2) }, Some(Place::Node(OTHER)), SECOND);
        assert_eq!(macs.owner(IpAddr::from([10, 0, 0, 1])).unwrap().0, MAC);
    }

    #[test]
    fn the_last_claim_owns_an_address() {
        let mut macs = macs();
        let (other, address) = (Mac([2, 0, 0, 0, 0, 2]), IpAddr::from([10, 0, 0, 1]));
        macs.learn_claim(address, other);
        macs.push(&entry(1, 1), Some(Place::Node(OTHER)), SECOND);
        assert_eq!(macs.owner(address).unwrap().0, MAC);
        macs.learn_claim(address, other);
        assert!(macs.owner(address).is_none() && macs.is_disputed(address));
        macs.learn_claim(address, MAC);
        assert!(macs.owner(address).is_some() && !macs.is_disputed(address));
        macs.learn_claim(address, other);
        macs.push(&entry(2, 1), Some(Place::Node(OTHER)), SECOND);
        assert!(macs.owner(address).is_some(), "the coordinator's last word counts");
    }

    #[test]
    fn a_router_stays_one_through_moves_until_it_ends() {
        let mut macs = macs();
        let (other, own, others) =
            (Mac([2, 0, 0, 0, 0, 2]), "fe80::1".parse().unwrap(), "fe80::2".parse().unwrap());
        let addressed = |mac, address| Entry { mac, addresses: vec![IpAddr::V6(address)], ..entry(1, 1) };
        macs.learn_router(own, MAC);
        macs.push(&addressed(MAC, own), Some(Place::Node(OTHER)), SECOND);
        macs.push(&addressed(other, others), Some(Place::Node(OTHER)), SECOND);
        let is_router = |macs: &ManagedMacs, mac| macs.get(mac).unwrap().station(mac).is_router;
        macs.learn_router(others, MAC);
        assert!(!is_router(&macs, MAC), "in the name of another one, or before it was managed");
        macs.learn_router(own, MAC);
        macs.learn_router("fe80::3".parse().unwrap(), other);
        assert!(is_router(&macs, MAC) && is_router(&macs, other));
        macs.push(&entry(2, 1), Some(Place::Port(PortId(1))), SECOND);
        assert!(is_router(&macs, MAC));
        macs.push(&entry(3, 1), None, SECOND);
        macs.learn_router(own, MAC);
        macs.push(&entry(4, 1), Some(Place::Node(OTHER)), SECOND);
        assert!(!is_router(&macs, MAC), "another one has its MAC");
    }

    #[test]
    fn ended_instances_do_not_come_back_by_late_messages() {
        let mut macs = macs();
        macs.push(&entry(1, 1), Some(Place::Node(OTHER)), SECOND);
        assert!(macs.push(&entry(2, 1), None, SECOND));
        assert!(macs.get(MAC).is_none() && macs.owner(IpAddr::from([10, 0, 0, 1])).is_none());
        assert!(!macs.push(&entry(1, 1), Some(Place::Node(OTHER)), SECOND));
        macs.sweep(SECOND * 9, SECOND * 9);
        assert_eq!(macs.len(), 1);
        macs.sweep(SECOND * 9, SECOND * 10);
        assert_eq!(macs.len(), 0);
    }
}
