use moves::placement::Demand;

use super::*;
use crate::{Host, Instance, Loads, Need, Resource, Talk};

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

/// An instance that demands so many processors.
fn demanding(cpus: u64) -> Placement {
    let demand = Demand { cpu_milli: Some(cpus * 1000), ..Demand::default() };
    Placement { demand, ..Placement::default() }
}

/// An instance of the application `db` that shares its host with its like.
fn companion() -> Placement {
    Placement { affinity: BTreeSet::from(["app".to_owned()]), anti_affinity: BTreeSet::new(), ..database() }
}

/// Hosts of so many processors and GiB.
fn sized(view: &mut View<'_>, sizes: &[(u64, u64)]) {
    for (host, (cpus, memory)) in view.hosts.values_mut().zip(sizes) {
        host.capacity = Some(Amounts { cpu: cpus * 1000, memory: memory << 30 });
    }
}

fn free() -> Placement {
    Placement::default()
}

fn new(placement: &Placement) -> New<'_> {
    New { name: "new", placement, needed: Amounts::default(), network: NetworkKind::Bridge }
}

fn start(view: &View<'_>, instances: &[New<'_>], among: &[&str]) -> Result<Vec<String>, Refusal> {
    let hosts = hosts(among);
    let planned = plan(view, &Loads::default(), &Goal::Start { instances, hosts: &hosts })?;
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
    let planned = plan(view, &Loads::default(), &Goal::Spread { instances: &instances, hosts: &hosts })?;
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
    let planned =
        plan(view, &Loads::default(), &Goal::Evacuate { from: &from, to: &to, instances: &instances, most })?;
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

#[test]
fn demands_fill_no_host_beyond_its_capacity() {
    let world = World::new(2).with(1, 1, None, demanding(3));
    let mut view = world.view();
    sized(&mut view, &[(4, 8), (2, 8)]);
    let (one, two) = (demanding(1), demanding(2));
    let placed = start(&view, &[new(&two), new(&one)], &[]).unwrap();
    assert_eq!(placed, ["h2", "h1"], "h1 has a processor left");
    let no_room = Refusal::NoRoom {
        host: host("h1"),
        resource: Resource::Processors,
        demanded: 2000,
        free: 1000,
        has: 4000,
    };
    assert_eq!(start(&view, &[new(&two)], &["h1"]), Err(no_room));
    assert_eq!(
        start(&view, &[new(&one); 4], &[]).unwrap_err().to_string(),
        "host h1 has 0 of 4000 left, and 1000 are demanded (Processors)"
    );
}

#[test]
fn a_demand_that_no_host_can_meet_names_the_largest_host() {
    let world = World::new(3);
    let mut view = world.view();
    sized(&mut view, &[(2, 8), (8, 4), (4, 16)]);
    let refused = |placement: &Placement| start(&view, &[new(placement)], &[]).unwrap_err();
    let too_large = |resource, demanded, largest, has| Refusal::TooLarge { resource, demanded, largest, has };
    assert_eq!(refused(&demanding(9)), too_large(Resource::Processors, 9000, host("h2"), 8000));
    let demand = Demand { memory: Some(17 << 30), ..Demand::default() };
    let memory = Placement { demand, ..Placement::default() };
    assert_eq!(refused(&memory), too_large(Resource::Memory, 17 << 30, host("h3"), 16 << 30));
    view.hosts.entry(host("h1")).and_modify(|host| host.capacity = None);
    assert_eq!(start(&view, &[new(&demanding(9))], &[]).unwrap(), ["h1"], "its size is not known yet");
}

#[test]
fn affinity_keeps_instances_together_and_names_what_excludes_that() {
    let world = World::new(3).with(1, 2, None, database()).with(2, 3, None, free());
    let (mut view, companion) = (world.view(), companion());
    // `i1` keeps itself apart from its like.
    let contradiction =
        Refusal::Contradiction { other: "i1".into(), together: "app=db".into(), apart: "app=db".into() };
    assert_eq!(start(&view, &[new(&companion)], &[]), Err(contradiction));
    let tolerant = Placement { anti_affinity: BTreeSet::new(), ..database() };
    view.instances.get_mut(&vid(1)).unwrap().placement = &tolerant;
    assert_eq!(start(&view, &[new(&companion), new(&tolerant)], &[]).unwrap(), ["h2", "h2"]);
    let refusal = start(&view, &[new(&companion)], &["h1"]).unwrap_err();
    assert!(
        matches!(&refusal, Refusal::KeptTogether { other, there, .. } if other == "i1" && *there == host("h2"))
    );
    sized(&mut view, &[(4, 8); 3]);
    let large = Placement { demand: demanding(5).demand, ..companion.clone() };
    let refusal = start(&view, &[new(&large)], &["h1", "h2"]).unwrap_err();
    assert!(matches!(refusal, Refusal::TooLarge { .. }), "{refusal:?}");
    view.instances.remove(&vid(1));
    assert_eq!(start(&view, &[new(&companion); 3], &[]).unwrap(), ["h1"; 3], "new ones stay together too");
}

#[test]
fn instances_that_are_kept_together_leave_a_host_for_the_same_one() {
    let world =
        World::new(3).with(1, 1, None, companion()).with(2, 1, None, companion()).with(3, 1, None, free());
    let view = world.view();
    let at = |which, to: &str| (which, to.to_owned());
    let moved = evacuate(&view, &[(1, &[]), (2, &[]), (3, &[])], 3).unwrap();
    assert_eq!(moved, [at(0, "h2"), at(1, "h2"), at(2, "h3")]);
    assert_eq!(view.check_move(vid(1), &host("h3")), Ok(()), "the others follow it");
    let mut begun = view.clone();
    begun.planned.insert(vid(1), host("h3"));
    assert!(matches!(begun.check_move(vid(2), &host("h2")), Err(Refusal::KeptTogether { .. })));
}

#[test]
fn new_instances_go_where_they_demand_bandwidth_or_a_latency() {
    let world = World::new(3).with(1, 3, None, free()).with(2, 3, None, free());
    let view = world.view();
    let to = |name: &str, amount| BTreeMap::from([(name.to_owned(), amount)]);
    let fast = Demand { bandwidth_to: to("i1", 10 << 20), ..Demand::default() };
    let slow = Demand { bandwidth_to: to("i1", 10 << 10), ..Demand::default() };
    let near = Demand { latency_to: to("i2", 100), ..Demand::default() };
    let placed = |demand| start(&view, &[new(&Placement { demand, ..Placement::default() })], &[]).unwrap();
    assert_eq!(placed(fast), ["h3"]);
    assert_eq!(placed(slow), ["h1"], "a full host is worse than a little traffic");
    assert_eq!(placed(near), ["h3"]);
}

#[test]
fn instances_leave_for_the_host_of_those_that_they_talk_to() {
    let world = World::new(3).with(1, 1, None, free()).with(2, 3, None, free()).with(3, 3, None, free());
    let view = world.view();
    let talks = vec![Talk { one: vid(1), other: vid(2), rate: 10 << 20 }];
    let ranked = |loads: &Loads| -> Vec<String> {
        let ranked = destinations(&view, loads, vid(1), &BTreeSet::new());
        ranked.into_iter().map(|(host, allowed)| format!("{host} {}", allowed.is_ok())).collect()
    };
    assert_eq!(ranked(&Loads { talks: talks.clone(), ..Loads::default() }), ["h3 true", "h2 true"]);
    assert_eq!(ranked(&Loads::default()), ["h2 true", "h3 true"]);
    // But not onto a host that would be overloaded.
    let busy = Need { amounts: Amounts { cpu: 1800, memory: 0 }, ..Need::default() };
    let rooms = view.hosts.keys().map(|host| (host.clone(), Amounts { cpu: 2000, memory: 1 << 30 }));
    let loads =
        Loads { talks, rooms: rooms.collect(), needs: [1, 2].map(|lid| (vid(lid), busy.clone())).into() };
    assert_eq!(ranked(&loads), ["h2 true", "h3 true"]);
}
