//! The rollout of a topology: each node installs it, and when all have installed it, all switch to it.
//!
//! A disconnected node is waited for during [`PATIENCE`], because it may still forward frames. A node that
//! has not installed the topology by then loses frames until it reconnects.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ::moves::HostName;
use ::moves::journal::{Instance, Record};
use overlay::topology::Version;
use rpc::net::ToNode;
use store::{Store, StoreError};

use super::nics;
use super::orders::{self, Order};
use super::plan::Plan;
use crate::core::{Base, Feature, Recorded};

/// How long the rollout waits for nodes.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// The plan and the progress of its rollout.
#[derive(Debug, Default)]
pub struct Rollout {
    plan: Plan,
    connected: BTreeSet<HostName>,
    /// Nodes that have not installed the plan. If this is empty, the plan is in use.
    awaited: BTreeSet<HostName>,
    /// Nodes that could not install the plan, with the reason. They try again.
    failed: BTreeMap<HostName, String>,
}

impl Feature for Rollout {
    fn recorded(&mut self, recorded: &Recorded<'_>, base: &Base) {
        match recorded.record {
            Record::InstanceAdded { instance, .. } => self.announce(instance, base),
            Record::MovesCommitted { ids } => {
                let image = base.snapshot();
                let moved = ids.iter().filter_map(|id| image.instances.get(&image.moves.get(id)?.vid));
                moved.for_each(|instance| self.announce(instance, base));
            }
            Record::InstanceEnded { .. } => {
                let withdrawn = recorded.removed.instance.as_ref().and_then(nics::withdrawal);
                orders::send(base, withdrawn.map(|what| self.to_members(what)));
            }
            _ => {}
        }
    }

    fn disconnected(&mut self, host: &HostName) {
        self.connected.remove(host);
        self.failed.remove(host);
    }
}

impl Rollout {
    /// Starts with the stored plan. Nodes get their orders when they connect.
    pub fn load(store: &Store) -> Result<Self, StoreError> {
        let mut rollout = Self::default();
        rollout.begin(store.network::<Plan>()?.unwrap_or_default());
        Ok(rollout)
    }

    /// Announces the location of `instance` to all nodes, if it is on the overlay.
    fn announce(&self, instance: &Instance, base: &Base) {
        let entry = nics::entry(&self.plan, instance);
        orders::send(base, entry.map(|entry| self.to_members(ToNode::Station(entry))));
    }

    fn to_members(&self, what: ToNode) -> Order {
        Order { to: self.plan.members().cloned().collect(), what }
    }

    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The nodes that have not installed the plan and are waited for.
    pub fn awaited(&self) -> impl Iterator<Item = &HostName> {
        self.awaited.iter()
    }

    /// The nodes that could not install the plan, with the reason.
    pub fn failed(&self) -> &BTreeMap<HostName, String> {
        &self.failed
    }

    /// Begins the rollout of a new plan. [`Self::time_is_up`] is due after [`PATIENCE`].
    pub fn begin(&mut self, plan: Plan) -> Option<Order> {
        self.awaited = plan.members().cloned().collect();
        self.failed.clear();
        self.plan = plan;
        self.install(self.present())
    }

    /// The members that are connected.
    fn present(&self) -> Vec<HostName> {
        self.connected.iter().filter(|host| self.plan.is_member(host)).cloned().collect()
    }

    /// Handles a `host` that has connected and has no topology.
    pub fn connected(&mut self, host: &HostName) -> Option<Order> {
        self.connected.insert(host.clone());
        if self.plan.is_member(host) { self.install(vec![host.clone()]) } else { None }
    }

    /// Handles the failure of `host` to install `version`; the rollout no longer waits for it.
    pub fn not_installed(&mut self, host: &HostName, version: Version, reason: String) -> Option<Order> {
        if version != self.plan.version() || !self.plan.is_member(host) {
            return None;
        }
        self.failed.insert(host.clone(), reason);
        self.awaited.remove(host);
        self.awaited.is_empty().then(|| self.use_it(self.present()))
    }

    /// Handles the installation of `version` on `host`.
    pub fn installed(&mut self, host: &HostName, version: Version) -> Option<Order> {
        if version != self.plan.version() {
            return None;
        }
        self.failed.remove(host);
        if self.awaited.is_empty() {
            return Some(self.use_it(vec![host.clone()]));
        }
        self.awaited.remove(host);
        self.awaited.is_empty().then(|| self.use_it(self.present()))
    }

    /// Stops waiting for nodes that have not installed `version`.
    pub fn time_is_up(&mut self, version: Version) -> Option<Order> {
        if version != self.plan.version() || self.awaited.is_empty() {
            return None;
        }
        self.awaited.clear();
        Some(self.use_it(self.present()))
    }

    fn install(&self, to: Vec<HostName>) -> Option<Order> {
        // The plan was validated before it was stored.
        let topology = self.plan.topology().ok()?;
        let (overlay, plain, hosts) = (self.plan.overlay(), self.plan.plain_links(), self.plan.names());
        Some(Order { to, what: ToNode::Install { overlay, topology, plain, hosts } })
    }

    /// A node that has not installed it refuses the order, and gets it again after the installation.
    fn use_it(&self, to: Vec<HostName>) -> Order {
        Order { to, what: ToNode::Use { version: self.plan.version() } }
    }
}

#[cfg(test)]
mod tests {
    use api::Shape;

    use super::*;

    fn host(name: &str) -> HostName {
        HostName::new(name).unwrap()
    }

    fn plan() -> Plan {
        Plan::default().lay(Shape::Star, None, &BTreeSet::from([host("a"), host("b")]), false).unwrap()
    }

    fn said(order: Option<Order>) -> Vec<String> {
        let Some(Order { to, what }) = order else { return Vec::new() };
        let what = match what {
            ToNode::Install { topology, .. } => format!("installs {}", topology.version()),
            ToNode::Use { version } => format!("uses {version}"),
            other => panic!("{other:?}"),
        };
        to.iter().map(|host| format!("{host} {what}")).collect()
    }

    fn begun() -> Rollout {
        let mut rollout = Rollout::default();
        assert_eq!(rollout.connected(&host("a")), None);
        assert_eq!(rollout.connected(&host("b")), None);
        assert_eq!(said(rollout.begin(plan())), ["a installs 1", "b installs 1"]);
        rollout
    }

    #[test]
    fn a_topology_is_used_once_all_hosts_have_it() {
        let mut rollout = begun();
        assert!(rollout.installed(&host("a"), Version(1)).is_none());
        assert_eq!(said(rollout.installed(&host("b"), Version(1))), ["a uses 1", "b uses 1"]);
    }

    #[test]
    fn a_later_plan_takes_the_place_of_one_that_is_not_yet_in_use() {
        let mut rollout = begun();
        rollout.installed(&host("a"), Version(1));
        let next = rollout.plan().join(&host("c")).unwrap();
        assert_eq!(said(rollout.begin(next)), ["a installs 2", "b installs 2"]);
        assert!(rollout.installed(&host("b"), Version(1)).is_none(), "that was the one before");
        assert!(rollout.time_is_up(Version(1)).is_none());
        assert_eq!(said(rollout.connected(&host("c"))), ["c installs 2"]);
        for name in ["a", "b"] {
            assert!(rollout.installed(&host(name), Version(2)).is_none());
        }
        assert_eq!(said(rollout.installed(&host("c"), Version(2))), ["a uses 2", "b uses 2", "c uses 2"]);
    }

    #[test]
    fn a_rollout_does_not_wait_for_a_failed_host_and_lists_it() {
        let (mut rollout, b) = (begun(), host("b"));
        assert!(rollout.installed(&host("a"), Version(1)).is_none());
        let orders = rollout.not_installed(&b, Version(1), "no room".into());
        assert_eq!(said(orders), ["a uses 1", "b uses 1"]);
        assert_eq!(rollout.failed()[&b], "no room");
        assert!(rollout.not_installed(&b, Version(0), "an old one".into()).is_none());
        assert_eq!(said(rollout.installed(&b, Version(1))), ["b uses 1"]);
        assert!(rollout.failed().is_empty());
    }

    #[test]
    fn a_rollout_waits_for_a_disconnected_host_until_a_timeout() {
        let mut rollout = begun();
        rollout.disconnected(&host("b"));
        assert!(rollout.installed(&host("a"), Version(1)).is_none());
        assert_eq!(said(rollout.time_is_up(Version(1))), ["a uses 1"]);
        assert_eq!(said(rollout.connected(&host("b"))), ["b installs 1"]);
        assert_eq!(said(rollout.installed(&host("b"), Version(1))), ["b uses 1"]);
    }
}
