//! The plan of the overlay: its hosts and links.

use std::collections::{BTreeMap, BTreeSet};

use api::{Failure, NetLaid, Shape};
use moves::HostName;
use overlay::topology::{Link, MAX_NODES, NodeId, Topology, Version};
use serde::{Deserialize, Serialize};

/// The default cost of a link.
const LEAST_COST: u32 = 1;

/// Number of remembered host numbers; beyond it, only hosts with devices or instances of their own are remembered.
pub const MOST_NUMBERS: usize = 2 * MAX_NODES;

/// The hosts of a link, in ascending order.
type Ends = (HostName, HostName);

/// The properties of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    pub cost: u32,
    /// Datagrams are not encrypted.
    pub plain: bool,
}

/// The wanted topology. Every change makes a new version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Identifies the overlay. Nodes that know another overlay, of a coordinator whose store was lost, start over.
    overlay: u64,
    version: u32,
    members: BTreeSet<HostName>,
    /// Numbers of all hosts, including former ones: a host that returns keeps its number.
    numbers: BTreeMap<HostName, NodeId>,
    /// New hosts are linked to this one.
    center: Option<HostName>,
    links: BTreeMap<Ends, Terms>,
    /// The last assigned number.
    last_node: u16,
}

/// The plan of a new overlay with `center` as its only host.
pub fn first_star(center: &HostName) -> Result<Plan, Failure> {
    Plan::random()?.lay(Shape::Star, Some(center), &[center.clone()].into(), false)
}

impl Plan {
    /// Whether no topology was ever laid.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// An empty plan of the overlay with this id.
    pub fn new(overlay: u64) -> Self {
        Self { overlay, ..Self::default() }
    }

    /// An empty plan with a random overlay id.
    ///
    /// # Errors
    /// If the kernel has no random bytes.
    pub fn random() -> Result<Self, Failure> {
        let overlay = getrandom::u64();
        overlay.map(Self::new).map_err(|error| {
            Failure::new(format!("cannot get random bytes from the kernel: {error}"), "try again")
        })
    }

    pub fn overlay(&self) -> u64 {
        self.overlay
    }

    pub fn version(&self) -> Version {
        Version(self.version)
    }

    pub fn center(&self) -> Option<&HostName> {
        self.center.as_ref()
    }

    pub fn is_member(&self, host: &HostName) -> bool {
        self.members.contains(host)
    }

    pub fn members(&self) -> impl Iterator<Item = &HostName> {
        self.members.iter()
    }

    /// The number of a current or former host.
    pub fn number(&self, host: &HostName) -> Option<NodeId> {
        self.numbers.get(host).copied()
    }

    /// The names of hosts by their numbers.
    pub fn names(&self) -> Vec<(NodeId, HostName)> {
        self.members.iter().filter_map(|host| Some((self.number(host)?, host.clone()))).collect()
    }

    /// The links with their properties.
    pub fn links(&self) -> impl Iterator<Item = (&Ends, Terms)> {
        self.links.iter().map(|(ends, terms)| (ends, *terms))
    }

    /// The links whose datagrams are not encrypted; the lower number comes first.
    pub fn plain_links(&self) -> Vec<(NodeId, NodeId)> {
        let plain = self.links.iter().filter(|(_, terms)| terms.plain);
        let ends = plain.filter_map(|((a, b), _)| Some((self.number(a)?, self.number(b)?)));
        ends.map(|(a, b)| (a.min(b), a.max(b))).collect()
    }

    /// The topology that nodes install.
    pub fn topology(&self) -> Result<Topology, Failure> {
        let node = |host: &HostName| self.number(host);
        let link =
            |((a, b), terms): (&Ends, &Terms)| Some(Link { a: node(a)?, b: node(b)?, cost: terms.cost });
        let links = self.links.iter().filter_map(link).collect();
        let topology = Topology::new(self.version(), self.members.iter().filter_map(node).collect(), links);
        topology.map_err(|error| Failure::new(error.to_string(), "lay it out again: `transhume net layout`"))
    }

    /// Lays a topology of `shape` over exactly these `hosts`. The center is the given one, else the present one, else the first.
    pub fn lay(
        &self,
        shape: Shape,
        center: Option<&HostName>,
        hosts: &BTreeSet<HostName>,
        plain: bool,
    ) -> Result<Self, Failure> {
        let present = self.center.as_ref().filter(|center| hosts.contains(*center));
        let Some(center) = center.or(present).or_else(|| hosts.first()).cloned() else {
            return Err(Failure::new(
                "no host is connected to the coordinator",
                "start a node on each host of the overlay",
            ));
        };
        let mut plan = Self { center: Some(center.clone()), links: BTreeMap::new(), ..self.next() };
        plan.members.retain(|host| hosts.contains(host));
        for host in hosts {
            plan.enter(host)?;
        }
        let nodes: Vec<NodeId> = plan.names().into_iter().map(|(node, _)| node).collect();
        let laid = match shape {
            Shape::Star => Topology::star(plan.version(), plan.numbers[&center], &nodes),
            Shape::Mesh => Topology::mesh(plan.version(), &nodes),
            Shape::Hypercube => Topology::hypercube(plan.version(), &nodes),
        };
        let laid = laid
            .map_err(|error| Failure::new(error.to_string(), "lay a star, which needs the fewest links"))?;
        let names: BTreeMap<NodeId, HostName> = plan.names().into_iter().collect();
        let terms = |cost| Terms { cost, plain };
        let link = |link: &Link| (ends(&names[&link.a], &names[&link.b]), terms(link.cost));
        plan.links = laid.links().iter().map(link).collect();
        Ok(plan)
    }

    /// Adds a host with a link to the center.
    pub fn join(&self, host: &HostName) -> Result<Self, Failure> {
        let mut plan = self.next();
        plan.enter(host)?;
        if let Some(center) = plan.center.clone().filter(|center| center != host) {
            plan.links.insert(ends(&center, host), Terms { cost: LEAST_COST, plain: false });
        }
        Ok(plan)
    }

    /// Removes a host. Hosts that would be cut off are linked to the center; if the center leaves, another host replaces it.
    pub fn leave(&self, host: &HostName) -> Self {
        let mut plan = self.next();
        plan.members.remove(host);
        // If the host returns, it gets a new number.
        plan.numbers.remove(host);
        plan.links.retain(|(a, b), _| a != host && b != host);
        plan.center = plan.center.filter(|center| center != host).or_else(|| plan.members.first().cloned());
        if let Some(center) = plan.center.clone() {
            while let Some(lost) = plan.not_reached_from(&center) {
                plan.links.insert(ends(&center, &lost), Terms { cost: LEAST_COST, plain: false });
            }
        }
        plan
    }

    fn not_reached_from(&self, start: &HostName) -> Option<HostName> {
        let reached = self.reached_from(start);
        self.members.iter().find(|host| !reached.contains(host)).cloned()
    }

    /// Links two hosts, or changes the properties of their link.
    pub fn add_link(&self, a: &HostName, b: &HostName, terms: Terms) -> Result<Self, Failure> {
        self.check_members([a, b])?;
        if a == b {
            return Err(Failure::new(
                format!("a link needs two different hosts, but both are {a}"),
                "pass two different hosts",
            ));
        }
        let mut plan = self.next();
        plan.links.insert(ends(a, b), terms);
        Ok(plan)
    }

    /// Removes a link, unless that cuts hosts off.
    pub fn remove_link(&self, a: &HostName, b: &HostName) -> Result<Self, Failure> {
        self.check_members([a, b])?;
        let mut plan = self.next();
        if plan.links.remove(&ends(a, b)).is_none() {
            return Err(Failure::new(
                format!("there is no link between {a} and {b}"),
                "`transhume net links` lists the links",
            ));
        }
        let reached = plan.reached_from(a);
        if !reached.contains(b) {
            let lost: Vec<_> =
                plan.members().filter(|host| !reached.contains(host)).map(HostName::as_str).collect();
            return Err(Failure::new(
                format!("without this link, {a} cannot reach {}", lost.join(", ")),
                "add another link first: `transhume net link add`",
            ));
        }
        Ok(plan)
    }

    /// The difference from the plan `before`.
    pub fn changed_since(&self, before: &Self) -> NetLaid {
        let (mut added, mut changed) = (0, 0);
        for (ends, terms) in &self.links {
            match before.links.get(ends) {
                None => added += 1,
                Some(other) => changed += usize::from(other != terms),
            }
        }
        NetLaid {
            version: self.version,
            center: self.center.as_ref().map(HostName::to_string),
            hosts: self.members.len(),
            links: self.links.len(),
            links_added: added,
            links_changed: changed,
            links_removed: before.links.keys().filter(|ends| !self.links.contains_key(*ends)).count(),
        }
    }

    fn next(&self) -> Self {
        Self { version: self.version + 1, ..self.clone() }
    }

    fn enter(&mut self, host: &HostName) -> Result<(), Failure> {
        if self.is_member(host) {
            return Ok(());
        }
        if self.members.len() >= MAX_NODES {
            return Err(Failure::new(
                format!("the overlay is full: it has {MAX_NODES} hosts"),
                "lay it out again without the hosts that are down: `transhume net layout`",
            ));
        }
        if !self.numbers.contains_key(host) {
            let number = self.free_number()?;
            self.numbers.insert(host.clone(), number);
        }
        self.members.insert(host.clone());
        Ok(())
    }

    /// Drops the numbers of former hosts if too many are remembered, except hosts for which `are_known` holds because nodes still refer
    /// to them. A host whose number was dropped gets a new one when it returns.
    pub fn forget_numbers(mut self, are_known: impl Fn(&HostName) -> bool) -> Self {
        if self.numbers.len() > MOST_NUMBERS {
            let members = &self.members;
            self.numbers.retain(|host, _| members.contains(host) || are_known(host));
        }
        self
    }

    /// A number that no host has, or had recently: frames for the former host may still be in flight.
    fn free_number(&mut self) -> Result<NodeId, Failure> {
        let mut is_taken = vec![false; usize::from(u16::MAX) + 1];
        self.numbers.values().for_each(|node| is_taken[usize::from(node.0)] = true);
        let behind = self.last_node.checked_add(1).unwrap_or(1);
        let free = (behind..=u16::MAX).chain(1..behind).find(|node| !is_taken[usize::from(*node)]);
        let none = || {
            let remedy = "detach the devices of hosts that do not return: `transhume net detach`";
            Failure::new("no number is free for another host", remedy)
        };
        self.last_node = free.ok_or_else(none)?;
        Ok(NodeId(self.last_node))
    }

    fn check_members(&self, hosts: [&HostName; 2]) -> Result<(), Failure> {
        let stranger = hosts.into_iter().find(|host| !self.is_member(host));
        stranger.map_or(Ok(()), |host| Err(not_joined(host)))
    }

    fn reached_from<'a>(&'a self, start: &'a HostName) -> BTreeSet<&'a HostName> {
        let mut neighbours: BTreeMap<&HostName, Vec<&HostName>> = BTreeMap::new();
        for (a, b) in self.links.keys() {
            neighbours.entry(a).or_default().push(b);
            neighbours.entry(b).or_default().push(a);
        }
        let (mut reached, mut open) = (BTreeSet::from([start]), vec![start]);
        while let Some(at) = open.pop() {
            let next = neighbours.get(at).into_iter().flatten();
            open.extend(next.filter(|other| reached.insert(other)));
        }
        reached
    }
}

/// The failure for a host that is not part of the overlay.
pub fn not_joined(host: &HostName) -> Failure {
    Failure::new(
        format!("{host} is not part of the overlay"),
        "add all connected hosts with `transhume net layout`",
    )
}

fn ends(a: &HostName, b: &HostName) -> Ends {
    if a < b { (a.clone(), b.clone()) } else { (b.clone(), a.clone()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str) -> HostName {
        HostName::new(name).unwrap()
    }

    fn hosts(names: &[&str]) -> BTreeSet<HostName> {
        names.iter().map(|name| host(name)).collect()
    }

    fn links(plan: &Plan) -> Vec<String> {
        plan.links().map(|((a, b), Terms { cost, .. })| format!("{a}-{b}:{cost}")).collect()
    }

    fn costs(cost: u32) -> Terms {
        Terms { cost, plain: false }
    }

    fn star(names: &[&str]) -> Plan {
        Plan::default().lay(Shape::Star, None, &hosts(names), false).unwrap()
    }

    #[test]
    fn shapes_have_their_links() {
        let four = hosts(&["a", "b", "c", "d"]);
        let lay = |shape, center: Option<&str>| {
            let plan = Plan::default().lay(shape, center.map(host).as_ref(), &four, false).unwrap();
            assert_eq!(plan.topology().unwrap().version(), Version(1));
            links(&plan)
        };
        assert_eq!(lay(Shape::Star, None), ["a-b:1", "a-c:1", "a-d:1"]);
        assert_eq!(lay(Shape::Star, Some("c")), ["a-c:1", "b-c:1", "c-d:1"]);
        assert_eq!(lay(Shape::Mesh, None).len(), 6);
        assert_eq!(lay(Shape::Hypercube, None), ["a-b:1", "a-c:1", "b-d:1", "c-d:1"]);
        assert!(Plan::default().lay(Shape::Star, None, &hosts(&[]), false).is_err());
    }

    #[test]
    fn a_later_host_is_linked_to_the_center_and_keeps_its_own_number() {
        let plan = star(&["b", "c"]).join(&host("a")).unwrap();
        assert_eq!((plan.version(), links(&plan)), (Version(2), vec!["a-b:1".into(), "b-c:1".into()]));
        // Without c, and then with d: d does not get the number of c.
        let numbers = |plan: &Plan| plan.names();
        let c = numbers(&plan).into_iter().find(|(_, name)| *name == host("c")).unwrap().0;
        let plan = plan.lay(Shape::Star, None, &hosts(&["a", "b"]), false).unwrap().join(&host("d")).unwrap();
        assert!(numbers(&plan).iter().all(|(node, _)| *node != c), "{plan:?}");
        assert_eq!(plan.center(), Some(&host("b")));
        // When c returns, it has its old number.
        let plan = plan.join(&host("c")).unwrap();
        assert!(numbers(&plan).contains(&(c, host("c"))), "{plan:?}");
    }

    #[test]
    fn a_returning_host_gets_a_new_number_and_a_leaving_one_disconnects_no_other() {
        // d is linked to c, and c to a; then the center leaves as well.
        let plan = star(&["a", "b", "c"]).join(&host("d")).unwrap();
        let plan = plan.add_link(&host("c"), &host("d"), costs(2)).unwrap();
        let plan = plan.remove_link(&host("a"), &host("d")).unwrap();
        let had = plan.number(&host("c")).unwrap();
        let plan = plan.leave(&host("c"));
        assert_eq!(links(&plan), ["a-b:1", "a-d:1"]);
        assert!(!plan.is_member(&host("c")) && plan.number(&host("c")).is_none());
        let back = plan.join(&host("c")).unwrap();
        assert!(back.number(&host("c")).is_some_and(|number| number != had));
        let plan = plan.leave(&host("a"));
        assert_eq!((plan.center(), links(&plan)), (Some(&host("b")), vec!["b-d:1".into()]));
        let plan = plan.leave(&host("b")).leave(&host("d"));
        assert!(plan.is_empty() && plan.center().is_none() && plan.topology().is_ok());
    }

    #[test]
    fn plain_links_are_listed_one_by_one() {
        let plan = Plan::default().lay(Shape::Star, None, &hosts(&["b", "c"]), true).unwrap();
        let plan = plan.join(&host("a")).unwrap();
        let node = |name| plan.number(&host(name)).unwrap();
        assert_eq!(plan.plain_links(), [(node("b"), node("c"))]);
        let terms = Terms { cost: 1, plain: true };
        let plan = plan.add_link(&host("a"), &host("b"), terms).unwrap();
        assert_eq!(plan.plain_links(), [(node("b"), node("a")), (node("b"), node("c"))]);
    }

    #[test]
    fn numbers_of_hosts_that_left_are_remembered_with_a_limit() {
        let mut plan = star(&["a", "b"]);
        for number in 0..MOST_NUMBERS - 2 {
            plan.enter(&host(&format!("n{number}"))).unwrap();
            plan.members.retain(|host| host.as_str().len() == 1);
        }
        let plan = plan.forget_numbers(|_| false);
        assert_eq!(plan.numbers.len(), MOST_NUMBERS);
        let plan = plan.join(&host("c")).unwrap().forget_numbers(|known| *known == host("n7"));
        let left: Vec<_> = plan.numbers.iter().map(|(host, node)| (host.as_str(), node.0)).collect();
        assert_eq!(left, [("a", 1), ("b", 2), ("c", MOST_NUMBERS as u16 + 1), ("n7", 10)]);
    }

    #[test]
    fn numbers_end() {
        let mut plan = star(&["a"]);
        plan.numbers =
            (1..=u16::MAX - 1).map(|number| (host(&format!("n{number}")), NodeId(number))).collect();
        assert_eq!(plan.enter(&host("b")), Ok(()));
        assert_eq!(plan.number(&host("b")), Some(NodeId(u16::MAX)));
        assert!(plan.enter(&host("c")).unwrap_err().message.contains("no number"));
    }

    #[test]
    fn a_link_that_holds_hosts_together_stays() {
        let (a, b, c) = (host("a"), host("b"), host("c"));
        let plan = star(&["a", "b", "c"]);
        let failure = plan.remove_link(&a, &c).unwrap_err();
        assert!(failure.message.contains("cannot reach c"), "{failure:?}");
        let plan = plan.add_link(&c, &b, costs(3)).unwrap();
        assert_eq!(links(&plan), ["a-b:1", "a-c:1", "b-c:3"]);
        let plan = plan.remove_link(&c, &a).unwrap();
        assert_eq!(links(&plan), ["a-b:1", "b-c:3"]);
        assert!(plan.remove_link(&a, &c).unwrap_err().message.contains("no link"));
    }

    #[test]
    fn a_change_counts_its_changes() {
        let before = star(&["a", "b", "c"]);
        let plan = before.lay(Shape::Mesh, Some(&host("b")), &hosts(&["a", "b", "d"]), false).unwrap();
        let plan = plan.add_link(&host("a"), &host("b"), costs(3)).unwrap();
        let expected = NetLaid {
            version: 3,
            center: Some("b".into()),
            hosts: 3,
            links: 3,
            links_added: 2,
            links_changed: 1,
            links_removed: 1,
        };
        assert_eq!(plan.changed_since(&before), expected);
    }

    #[test]
    fn only_members_are_linked_and_not_to_themselves() {
        let plan = star(&["a", "b"]);
        assert!(
            plan.add_link(&host("a"), &host("x"), costs(1))
                .unwrap_err()
                .message
                .contains("x is not part of the overlay")
        );
        assert!(plan.add_link(&host("a"), &host("a"), costs(1)).is_err());
        let free = plan.add_link(&host("a"), &host("b"), costs(0)).unwrap();
        assert!(free.topology().is_err(), "a link costs at least 1");
    }
}
