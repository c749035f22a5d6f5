//! How all nodes come to use one topology at a time: each installs it, and when all have, all use it.
//!
//! A node that is away is waited for as long as [`PATIENCE`]: it may forward frames while the coordinator does not
//! hear it. Whoever has not installed it by then loses frames until it is back.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use moves::HostName;
use overlay::topology::Version;
use rpc::net::ToNode;

use super::plan::Plan;

/// How long nodes are waited for.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// What is to be said to nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    pub to: Vec<HostName>,
    pub what: ToNode,
}

/// The plan, and who has it.
#[derive(Debug, Default)]
pub struct Rollout {
    plan: Plan,
    connected: BTreeSet<HostName>,
    /// Who has not installed it. Empty: it is in use.
    awaited: BTreeSet<HostName>,
    /// Who could not, and why. They try again.
    failed: BTreeMap<HostName, String>,
}

impl Rollout {
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Who has not installed the plan, and is waited for.
    pub fn awaited(&self) -> impl Iterator<Item = &HostName> {
        self.awaited.iter()
    }

    /// Who could not install the plan, and why.
    pub fn failed(&self) -> &BTreeMap<HostName, String> {
        &self.failed
    }

    /// Begins with a new plan. [`Self::time_is_up`] is due after [`PATIENCE`].
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

    /// `host` is there from now on, and knows nothing.
    pub fn connected(&mut self, host: &HostName) -> Option<Order> {
        self.connected.insert(host.clone());
        if self.plan.is_member(host) { self.install(vec![host.clone()]) } else { None }
    }

    pub fn disconnected(&mut self, host: &HostName) {
        self.connected.remove(host);
        self.failed.remove(host);
    }

    /// `host` cannot install `version`, for which the others do not wait.
    pub fn not_installed(&mut self, host: &HostName, version: Version, reason: String) -> Option<Order> {
        if version != self.plan.version() || !self.plan.is_member(host) {
            return None;
        }
        self.failed.insert(host.clone(), reason);
        self.awaited.remove(host);
        self.awaited.is_empty().then(|| self.use_it(self.present()))
    }

    /// `host` has installed `version`.
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

    /// Whoever has not installed `version` is waited for no more.
    pub fn time_is_up(&mut self, version: Version) -> Option<Order> {
        if version != self.plan.version() || self.awaited.is_empty() {
            return None;
        }
        self.awaited.clear();
        Some(self.use_it(self.present()))
    }

    fn install(&self, to: Vec<HostName>) -> Option<Order> {
        // A plan was checked before it was noted.
        let topology = self.plan.topology().ok()?;
        let (overlay, plain, hosts) = (self.plan.overlay(), self.plan.plain_links(), self.plan.names());
        Some(Order { to, what: ToNode::Install { overlay, topology, plain, hosts } })
    }

    /// A node that has not installed it refuses, and is told again when it has.
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
    fn it_is_used_when_all_have_it() {
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
    fn who_cannot_is_not_waited_for_and_known_until_it_can() {
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
    fn who_is_away_is_waited_for_but_not_for_ever() {
        let mut rollout = begun();
        rollout.disconnected(&host("b"));
        assert!(rollout.installed(&host("a"), Version(1)).is_none());
        assert_eq!(said(rollout.time_is_up(Version(1))), ["a uses 1"]);
        assert_eq!(said(rollout.connected(&host("b"))), ["b installs 1"]);
        assert_eq!(said(rollout.installed(&host("b"), Version(1))), ["b uses 1"]);
    }
}
