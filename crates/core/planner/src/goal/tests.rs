use super::*;
use crate::{Host, Instance};

fn host(name: &str) -> HostName {
    HostName::new(name).unwrap()
}

fn hosts(names: &[&str]) -> Vec<HostName> {
    names.iter().map(|name| host(name)).collect()
}

fn vid(lid: u16) -> Vid {
    Vid::new(lid).unwrap()
}

/// An instance that is kept apart from its like.
fn database() -> Placement {
    let labels = BTreeMap::from([("app".to_owned(), "db".to_owned())]);
    Placement { labels, anti_affinity: BTreeSet::from(["app".to_owned()]), ..Placement::default() }
}

/// The data that a view borrows.
struct World {
    hosts: Vec<HostName>,
    instances: Vec<(u16, String, usize, Option<usize>, Placement)>,
}

impl World {
    fn new(hosts: u16) -> Self {
        let hosts = (1..=hosts).map(|number| host(&format!("h{number}"))).collect();
        Self { hosts, instances: Vec::new() }
    }

    /// An instance with this number on the host of that number, which moves to another one.
    fn with(mut self, lid: u16, on: usize, to: Option<usize>, placement: Placement) -> Self {
        self.instances.push((lid, format!("i{lid}"), on - 1, to.map(|to| to - 1), placement));
        self
    }

    fn view(&self) -> View<'_> {
        let up = Host { is_up: true, runs_instances: true, ..Host::default() };
        let instances = self.instances.iter().map(|(lid, name, on, to, placement)| {
            let moves_to = to.map(|to| &self.hosts[to]);
            (vid(*lid), Instance { name, host: &self.hosts[*on], moves_to, placement })
        });
        let hosts = self.hosts.iter().map(|host| (host.clone(), up));
        View { hosts: hosts.collect(), instances: instances.collect(), planned: BTreeMap::new() }
    }
}

fn free() -> Placement {
    Placement::default()
}

fn new(placement: &Placement) -> New<'_> {
    New { name: "new", placement, network: NetworkKind::Bridge }
}

fn start(view: &View<'_>, instances: &[New<'_>], among: &[&str]) -> Result<Vec<String>, Refusal> {
    let hosts = hosts(among);
    let planned = plan(view, &Goal::Start { instances, hosts: &hosts })?;
    Ok(planned.into_iter().map(|of| of.to.to_string()).collect())
}

#[test]
fn new_instances_fill_the_emptiest_hosts_and_equal_ones_by_name() {
    let world = World::new(3).with(1, 1, None, free());
    let free = free();
    assert_eq!(start(&world.view(), &[new(&free); 4], &[]).unwrap(), ["h2", "h3", "h1", "h2"]);
    assert_eq!(start(&world.view(), &[new(&free)], &["h1"]).unwrap(), ["h1"]);
}

#[test]
fn new_instances_that_are_kept_apart_start_on_different_hosts_or_not_at_all() {
    let world = World::new(2).with(1, 2, None, database());
    let database = database();
    assert_eq!(start(&world.view(), &[new(&database)], &[]).unwrap(), ["h1"]);
    let refusal = start(&world.view(), &[new(&database); 2], &[]).unwrap_err();
    assert!(matches!(&refusal, Refusal::KeptApart { other, .. } if other == "new"), "{refusal:?}");
}

#[test]
fn hosts_that_are_down_drained_or_without_instances_are_refused_with_that_reason() {
    let (world, free) = (World::new(4), free());
    let mut view = world.view();
    let mut change = |name: &str, to: Host| assert!(view.hosts.insert(host(name), to).is_some());
    let up = Host { is_up: true, runs_instances: true, ..Host::default() };
    change("h1", Host { is_drained: true, ..up });
    change("h2", Host { is_up: false, ..up });
    change("h3", Host { runs_instances: false, ..up });
    let refused = |name| start(&view, &[new(&free)], &[name]).unwrap_err();
    assert_eq!(refused("h1"), Refusal::Drained(host("h1")));
    assert_eq!(refused("h2"), Refusal::NotConnected(host("h2")));
    assert_eq!(refused("h3"), Refusal::RunsNoInstances(host("h3")));
    assert_eq!(refused("h9"), Refusal::NotConnected(host("h9")));
    assert_eq!(start(&view, &[new(&free)], &[]).unwrap(), ["h4"]);
    view.hosts.remove(&host("h4"));
    assert_eq!(start(&view, &[new(&free)], &[]).unwrap_err(), Refusal::NoUsableHost);
}

#[test]
fn an_instance_on_the_overlay_goes_to_a_fuller_host_that_is_on_it() {
    let (world, free) = (World::new(2).with(1, 1, None, free()), free());
    let mut view = world.view();
    let on_overlay = New { network: NetworkKind::Overlay, ..new(&free) };
    let refusal = start(&view, &[on_overlay], &[]).unwrap_err();
    assert_eq!(refusal, Refusal::NotOnOverlay(host("h2")));
    view.hosts.entry(host("h1")).and_modify(|host| host.is_on_overlay = true);
    assert_eq!(start(&view, &[on_overlay], &[]).unwrap(), ["h1"]);
}

fn spread(view: &View<'_>, lids: &[u16], among: &[&str]) -> Result<Vec<(usize, String)>, Refusal> {
    let (instances, hosts): (Vec<_>, _) = (lids.iter().map(|lid| vid(*lid)).collect(), hosts(among));
    let planned = plan(view, &Goal::Spread { instances: &instances, hosts: &hosts })?;
    Ok(planned.into_iter().map(|of| (of.which, of.to.to_string())).collect())
}

#[test]
fn a_group_spreads_its_members_first_and_present_ones_stay() {
    let world = World::new(3).with(1, 1, None, free()).with(2, 1, None, free()).with(3, 3, None, free());
    // Other instances fill h2.
    let world = world.with(7, 2, None, free()).with(8, 2, None, free());
    let view = world.view();
    let expected = [(0, "h2".to_owned()), (1, "h3".to_owned())];
    assert_eq!(spread(&view, &[1, 2, 3], &["h2", "h3"]).unwrap(), expected);
    assert_eq!(spread(&view, &[3], &["h3"]).unwrap(), []);
    assert_eq!(spread(&view, &[1], &[]).unwrap_err(), Refusal::NoDestination);
}

#[test]
fn members_that_are_kept_apart_need_as_many_hosts() {
    let world = World::new(3).with(1, 1, None, database()).with(2, 2, None, database());
    let refusal = spread(&world.view(), &[1, 2], &["h3"]).unwrap_err();
    assert!(matches!(&refusal, Refusal::KeptApart { host, .. } if *host == self::host("h3")), "{refusal:?}");
}

fn evacuate(
    view: &View<'_>,
    leaving: &[(u16, &[&str])],
    most: usize,
) -> Result<Vec<(usize, String)>, Refusal> {
    let avoid: Vec<BTreeSet<_>> =
        leaving.iter().map(|(_, avoid)| hosts(avoid).into_iter().collect()).collect();
    let instances: Vec<_> =
        leaving.iter().zip(&avoid).map(|((lid, _), avoid)| Leaving { vid: vid(*lid), avoid }).collect();
    let (from, to) = (host("h1"), BTreeSet::new());
    let planned = plan(view, &Goal::Evacuate { from: &from, to: &to, instances: &instances, most })?;
    Ok(planned.into_iter().map(|of| (of.which, of.to.to_string())).collect())
}

#[test]
fn a_host_is_evacuated_to_the_emptiest_hosts_except_failed_ones() {
    let world = World::new(3).with(1, 1, None, free()).with(2, 1, None, free()).with(3, 1, Some(2), free());
    let view = world.view();
    let at = |which, to: &str| (which, to.to_owned());
    assert_eq!(evacuate(&view, &[(1, &[]), (2, &[])], 2).unwrap(), [at(0, "h3"), at(1, "h2")]);
    assert_eq!(evacuate(&view, &[(1, &[]), (2, &[])], 1).unwrap(), [at(0, "h3")]);
    assert_eq!(evacuate(&view, &[(1, &["h3"]), (2, &["h2", "h3"])], 2).unwrap(), [at(0, "h2")]);
    assert_eq!(evacuate(&view, &[(1, &["h2", "h3"])], 1).unwrap_err(), Refusal::NowhereToGo(host("h1")));
}

#[test]
fn a_moving_instance_holds_both_places_and_a_planned_one_only_its_new_place() {
    let world = World::new(3).with(1, 1, Some(2), database()).with(2, 1, None, database());
    let mut view = world.view();
    let refused = |view: &View<'_>| ["h1", "h2", "h3"].map(|to| view.check_move(vid(2), &host(to)).is_err());
    assert_eq!(refused(&view), [true, true, false]);
    view.planned.insert(vid(1), host("h3"));
    assert_eq!(refused(&view), [false, false, true]);
}

#[test]
fn a_thousand_hosts_are_planned_at_once() {
    let world = (1..=2000).fold(World::new(1000), |world, lid| world.with(lid, 1, None, free()));
    let lids: Vec<_> = (1..=400).collect();
    let names: Vec<_> = (2..=1000).map(|number| format!("h{number}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let planned = spread(&world.view(), &lids, &names).unwrap();
    let to: BTreeSet<_> = planned.iter().map(|(_, to)| to).collect();
    assert_eq!((planned.len(), to.len()), (400, 400));
}
