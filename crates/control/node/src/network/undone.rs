//! The coordinator's orders that are not carried out yet.

use rpc::net::ToNode;

/// The limit of orders that wait for an installation.
const MOST_UNDONE: usize = 4096;

/// A failed installation, and all orders after it.
#[derive(Default)]
pub struct Undone(Vec<ToNode>);

impl Undone {
    /// Adds an order. Of orders that replace each other, only the last counts. Returns false if there is no room.
    pub fn push(&mut self, order: ToNode) -> bool {
        if let ToNode::Install { overlay, .. } = &order {
            self.begin_anew(*overlay);
            self.0.insert(0, order);
            return true;
        }
        let says_all = matches!(order, ToNode::Devices { .. } | ToNode::Use { .. });
        let is_same =
            |before: &&mut ToNode| std::mem::discriminant(*before) == std::mem::discriminant(&order);
        // It stays at the first one's position: orders in between concern devices that exist by then.
        if let Some(before) = self.0.iter_mut().find(is_same).filter(|_| says_all) {
            *before = order;
            return true;
        }
        let has_room = self.0.len() < MOST_UNDONE;
        if has_room {
            self.0.push(order);
        }
        has_room
    }

    /// A new installation replaces the failed one. The coordinator does not repeat orders about devices and stations, unless the
    /// installation is another overlay's.
    fn begin_anew(&mut self, overlay: u64) {
        match self.0.first() {
            Some(ToNode::Install { overlay: before, .. }) if *before == overlay => {
                self.0.retain(|order| !matches!(order, ToNode::Install { .. } | ToNode::Use { .. }));
            }
            _ => self.0.clear(),
        }
    }

    /// The orders, the oldest first.
    pub fn orders(&mut self) -> &mut Vec<ToNode> {
        &mut self.0
    }
}

#[cfg(test)]
mod tests {
    use fabric::Epoch;
    use overlay::Mac;
    use overlay::topology::{NodeId, Topology, Version};

    use super::*;

    fn install(overlay: u64, version: u32) -> ToNode {
        let topology = Topology::mesh(Version(version), &[NodeId(1)]).unwrap();
        ToNode::Install { overlay, topology, plain: vec![], hosts: vec![] }
    }

    fn withdraw(number: u64) -> ToNode {
        ToNode::Withdraw { mac: Mac([2, 0, 0, 0, 0, 1]), epoch: Epoch(number) }
    }

    fn devices(moving: u8) -> ToNode {
        ToNode::Devices { devices: vec![], moving: vec![Mac([2, 0, 0, 0, 0, moving])] }
    }

    fn use_version(version: u32) -> ToNode {
        ToNode::Use { version: Version(version) }
    }

    #[test]
    fn orders_that_replace_each_other_are_kept_once_at_the_first_position() {
        let mut undone = Undone::default();
        let said =
            [install(1, 1), devices(1), withdraw(1), use_version(1), devices(2), withdraw(2), use_version(2)];
        assert!(said.into_iter().all(|order| undone.push(order)));
        assert_eq!(undone.0, [install(1, 1), devices(2), withdraw(1), use_version(2), withdraw(2)]);
        assert!(undone.push(install(1, 2)));
        assert_eq!(
            undone.0,
            [install(1, 2), devices(2), withdraw(1), withdraw(2)],
            "only versions are repeated"
        );
        assert!(undone.push(install(2, 1)));
        assert_eq!(undone.0, [install(2, 1)], "for another overlay, all orders are repeated");
    }

    #[test]
    fn orders_that_wait_for_an_installation_are_limited() {
        let mut undone = Undone::default();
        assert!(undone.push(install(1, 1)) && undone.push(devices(1)));
        let taken = (0..10 * MOST_UNDONE as u64).filter(|number| undone.push(withdraw(*number))).count();
        assert!(taken == MOST_UNDONE - 2 && undone.0.len() == MOST_UNDONE);
        assert!(undone.push(devices(2)), "that takes no room");
        assert!(undone.push(install(1, 2)));
    }
}
