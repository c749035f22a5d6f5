//! Carries out the coordinator's orders for the overlay one after the other, since later orders refer to earlier ones.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use fabric::{Epoch, network};
use overlay::Mac;
use overlay::switch::{Entry, MacState, Origin, Switch};
use rpc::Outbox;
use rpc::net::{FromNode, Question, ToNode};
use rpc::wire::{self, reason};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use super::Joined;
use crate::node::Node;

/// How often to retry a failed installation, and to recreate missing devices.
const AGAIN: Duration = Duration::from_secs(2);

/// The limit of orders that wait for an installation.
const MOST_UNDONE: usize = 4096;

/// A failed installation, and all orders after it.
#[derive(Default)]
struct Undone(Vec<ToNode>);

impl Undone {
    /// Adds an order. Of orders that replace each other, only the last counts. Returns false if there is no room.
    fn push(&mut self, order: ToNode) -> bool {
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
}

/// An order or question of the coordinator.
pub enum Order {
    /// An order without an answer.
    Do(ToNode),
    /// A question, which must be answered.
    Ask { number: u64, question: Question, outbox: Outbox<wire::FromNode> },
}

/// The queue of the coordinator's orders.
pub struct Orders(pub(super) mpsc::UnboundedReceiver<Order>);

impl Node {
    /// Queues an order of the coordinator.
    pub fn take_order(&self, order: ToNode) {
        // This fails when the node ends.
        let _ = self.network.orders.send(Order::Do(order));
    }

    /// Queues a question of the coordinator.
    pub fn take_question(self: &Arc<Self>, number: u64, question: Question, outbox: Outbox<wire::FromNode>) {
        if question.is_about_the_present() {
            let node = self.clone();
            tokio::spawn(async move { node.answer_question(number, question, &outbox).await });
        } else {
            let _ = self.network.orders.send(Order::Ask { number, question, outbox });
        }
    }

    async fn answer_question(&self, number: u64, question: Question, outbox: &Outbox<wire::FromNode>) {
        let answer = self.answer_about_network(question).await;
        // After a lost connection, the coordinator repeats its question if it still needs the answer.
        let _ = outbox.send(&wire::FromNode::Answer { number, answer });
    }

    /// Carries out the coordinator's orders, for ever.
    pub async fn follow_orders(self: Arc<Self>, mut orders: Orders) {
        let mut again = interval(AGAIN);
        again.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut undone = Undone::default();
        loop {
            tokio::select! {
                order = orders.0.recv() => match order {
                    None => return,
                    Some(Order::Ask { number, question, outbox }) => {
                        self.answer_question(number, question, &outbox).await;
                    }
                    Some(Order::Do(order)) => {
                        let may_help = matches!(order, ToNode::Install { .. });
                        if !undone.push(order) {
                            // After a reconnect, the coordinator repeats all orders.
                            tracing::warn!("too many orders wait for a topology that could not be installed");
                            undone.0.clear();
                            self.network.renewal.notify_one();
                        }
                        // The failed installation is repeated later.
                        if may_help || undone.0.len() == 1 {
                            self.carry_out_all(&mut undone.0).await;
                        }
                    }
                },
                _ = again.tick() => {
                    self.carry_out_all(&mut undone.0).await;
                    if let Some(joined) = &mut *self.network.lock().await {
                        joined.devices.mend().await;
                    }
                }
            }
            self.look_after_own_device().await;
        }
    }

    /// Carries out `orders` and removes them; if their topology cannot be installed, they stay.
    async fn carry_out_all(self: &Arc<Self>, orders: &mut Vec<ToNode>) {
        if let Some(ToNode::Install { overlay, topology, plain, hosts }) = orders.first() {
            let (version, plain) = (topology.version(), plain.iter().copied().collect());
            let hosts = hosts.iter().cloned().collect();
            if let Err(error) = self.install(*overlay, topology.clone(), plain, hosts).await {
                tracing::warn!("topology {version} is not installed: {error}");
                self.network.own.fail(&error.to_string());
                let remedy = "the node tries again; see its log for details";
                let failed = FromNode::NotInstalled { version, reason: reason(&error.to_string(), remedy) };
                return self.uplink.send(&wire::FromNode::Net(failed));
            }
        }
        for order in orders.drain(..) {
            self.carry_out(order).await;
        }
    }

    /// Carries out orders other than installations.
    async fn carry_out(self: &Arc<Self>, order: ToNode) {
        match order {
            ToNode::Install { .. } => {}
            ToNode::Use { version } => {
                if let Err(error) = self.use_version(version).await {
                    tracing::warn!("topology {version} cannot be used: {error}");
                }
            }
            ToNode::NotPlugged { reason } => self.network.own.fail(&reason),
            order => {
                if let Some(joined) = &mut *self.network.lock().await {
                    joined.obey(order).await;
                }
            }
        }
    }
}

impl Joined {
    /// Carries out orders about devices and stations.
    pub(super) async fn obey(&mut self, order: ToNode) {
        match order {
            ToNode::Install { .. } | ToNode::Use { .. } | ToNode::NotPlugged { .. } => {}
            ToNode::Devices { devices, moving } => {
                self.moving = moving.into_iter().collect();
                // Orders about stations start from the beginning.
                self.told.clear();
                self.devices.set(devices, &self.moving).await;
            }
            ToNode::Stations { entries, all_until } => self.hear_of_stations(entries, all_until),
            ToNode::Station(entry) => self.note(entry),
            ToNode::Withdraw { mac, epoch } => {
                self.plane.command(|switch, now, _| switch.withdraw(mac, epoch, now));
            }
        }
    }

    fn hear_of_stations(&mut self, entries: Vec<Entry>, all_until: Option<Epoch>) {
        self.told.extend(entries);
        let Some(until) = all_until else { return };
        let told = std::mem::take(&mut self.told);
        let mut present: HashSet<_> = told.iter().map(|entry| entry.mac).collect();
        // Instances may have started since the list was made.
        present.extend(self.nics.macs());
        self.plane.command(|switch, now, _| {
            switch.withdraw_others(&present, until, now);
            withdraw_instances(switch, &present, now);
        });
        told.into_iter().for_each(|entry| self.note(entry));
        self.devices.end_moves(&self.moving);
    }

    fn note(&self, entry: Entry) {
        let mac = entry.mac;
        // An instance that has not started here yet gets its device at its start.
        let is_expected = entry.node == self.me && network::is_an_instances(mac.0);
        if self.nics.hear(&entry) || is_expected {
            return;
        }
        if let Err(refused) = self.devices.commit(entry) {
            tracing::warn!("recording the location of {mac} failed: {refused}");
        }
    }
}

/// Treats instances that are not `present` as ended. Their epochs are separate from those of devices.
fn withdraw_instances(switch: &mut Switch, present: &HashSet<Mac>, now: Duration) {
    for MacState { mac, origin, .. } in switch.macs(now) {
        if let Origin::Managed { epoch, .. } = origin
            && network::is_an_instances(mac.0)
            && !present.contains(&mac)
        {
            switch.withdraw(mac, epoch.next(), now);
        }
    }
}

#[cfg(test)]
mod tests {
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
