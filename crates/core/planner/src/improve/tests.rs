use moves::placement::{Demand, Placement};

use super::*;
use crate::{Amounts, Host, Instance, Need, Talk};

const GIB: u64 = 1 << 30;

const NAMES: [&str; 8] = ["i1", "i2", "i3", "i4", "i5", "i6", "i7", "i8"];

fn vid(lid: usize) -> Vid {
    Vid::new(lid as u16).unwrap()
}

/// Hosts with 4 processors and 16 GiB, and instances of 1 GiB.
struct World {
    hosts: Vec<HostName>,
    on: Vec<usize>,
    placements: Vec<Placement>,
    loads: Loads,
}

impl World {
    /// Instances on the hosts of these numbers; each uses so many thousandths of a processor.
    fn new(hosts: usize, on: &[usize], cpu: u64) -> Self {
        let hosts: Vec<_> = (0..hosts).map(|number| HostName::new(&format!("h{number}")).unwrap()).collect();
        let need = Need { amounts: Amounts { cpu, memory: GIB }, copied: GIB, pinned: None };
        let loads = Loads {
            rooms: hosts.iter().map(|host| (host.clone(), Amounts { cpu: 4000, memory: 16 * GIB })).collect(),
            needs: (1..=on.len()).map(|lid| (vid(lid), need.clone())).collect(),
            talks: Vec::new(),
        };
        Self { hosts, on: on.to_vec(), placements: vec![Placement::default(); on.len()], loads }
    }

    fn talk(mut self, one: usize, other: usize, rate: u64) -> Self {
        self.loads.talks.push(Talk { one: vid(one), other: vid(other), rate });
        self
    }

    fn view(&self) -> View<'_> {
        let up = Host { is_up: true, runs_instances: true, ..Host::default() };
        let instances = self.on.iter().zip(&self.placements).enumerate().map(|(index, (on, placement))| {
            (
                vid(index + 1),
                Instance { name: NAMES[index], host: &self.hosts[*on], moves_to: None, placement },
            )
        });
        let hosts = self.hosts.iter().map(|host| (host.clone(), up)).collect();
        View { hosts, instances: instances.collect(), ..View::default() }
    }

    fn improve(&self, aim: &Aim, bounds: Bounds) -> Result<Improvement, Refusal> {
        let improvement = improve(&self.view(), &self.loads, aim, &Bounds { steps: 100_000, ..bounds })?;
        self.check_each_instant(&improvement);
        Ok(improvement)
    }

    /// During each wave, an instance that moves needs its memory at both hosts.
    fn check_each_instant(&self, improvement: &Improvement) {
        let mut at: Vec<usize> = self.on.clone();
        for wave in &improvement.waves {
            let mut used = vec![0; self.hosts.len()];
            let index = |host| self.hosts.iter().position(|other| other == host).unwrap();
            let memory = |item: usize| self.loads.needs[&vid(item + 1)].amounts.memory;
            at.iter().enumerate().for_each(|(item, host)| used[*host] += memory(item));
            for step in wave {
                let item = usize::from(step.vid.lid()) - 1;
                assert_eq!(at[item], index(&step.from));
                used[index(&step.to)] += memory(item);
                at[item] = index(&step.to);
            }
            for (host, used) in self.hosts.iter().zip(used) {
                assert!(used <= self.loads.rooms[host].memory, "{host} has no room for {wave:?}");
            }
        }
    }
}

#[test]
fn instances_that_talk_come_together_by_the_cheaper_move() {
    let mut world = World::new(2, &[0, 1], 500).talk(1, 2, 100 << 20);
    world.loads.needs.get_mut(&vid(1)).unwrap().copied = 8 * GIB;
    let found = world.improve(&Aim::Traffic, Bounds::default()).unwrap();
    assert_eq!(found.before.traffic, 100 << 20);
    assert_eq!((found.after().traffic, found.waves.len()), (0, 1));
    assert_eq!((found.waves[0][0].vid, &found.waves[0][0].to), (vid(2), &world.hosts[0]));
    let mut done = world;
    done.on = vec![0, 0];
    let again = done.improve(&Aim::Traffic, Bounds::default()).unwrap();
    assert_eq!(again.waves, Vec::<Vec<Step>>::new(), "nothing moves a second time");
}

#[test]
fn no_move_is_made_that_does_not_pay_within_the_horizon() {
    let world = World::new(2, &[0, 1], 500).talk(1, 2, 1 << 20);
    let within = |horizon| world.improve(&Aim::Traffic, Bounds { horizon, ..Bounds::default() }).unwrap();
    assert_eq!(within(600).waves.len(), 0, "600 MiB are saved, and 1 GiB is copied");
    assert_eq!(within(6000).waves.len(), 1);
}

#[test]
fn traffic_does_not_overload_a_host() {
    let mut world = World::new(3, &[0, 0, 0, 1, 1, 1], 1000);
    for (one, other) in [(1, 4), (2, 5), (3, 6), (1, 5), (2, 6)] {
        world = world.talk(one, other, 50 << 20);
    }
    let found = world.improve(&Aim::Traffic, Bounds::default()).unwrap();
    assert!(found.after().traffic < found.before.traffic, "{found:?}");
    assert_eq!(found.after().overload, 0);
}

#[test]
fn load_is_spread_evenly_and_only_as_far_as_moves_are_allowed() {
    let world = World::new(4, &[0; 8], 500);
    let found = world.improve(&Aim::Balance, Bounds::default()).unwrap();
    assert_eq!((found.before.spread, found.after().spread), (1000, 0));
    let few = world.improve(&Aim::Balance, Bounds { moves: 2, ..Bounds::default() }).unwrap();
    let moves = few.waves.iter().flatten().count();
    assert!((1..=2).contains(&moves) && few.after().spread < 1000, "{few:?}");
}

#[test]
fn a_host_of_which_nothing_is_known_takes_nobody() {
    let mut world = World::new(2, &[0; 8], 500);
    world.loads.rooms.remove(&world.hosts[1]);
    let view = world.view();
    let found = improve(&view, &world.loads, &Aim::Balance, &Bounds::default()).unwrap();
    assert_eq!(found.waves.len(), 0);
    world.loads.rooms.clear();
    let found = improve(&world.view(), &world.loads, &Aim::Balance, &Bounds::default()).unwrap();
    assert!(found.waves.iter().flatten().count() > 0, "without any figures, processors are counted");
}

#[test]
fn few_hosts_are_used_but_none_is_overloaded() {
    let world = World::new(4, &[0, 1, 2, 3], 1500);
    let found = world.improve(&Aim::Consolidate, Bounds::default()).unwrap();
    assert_eq!((found.before.hosts, found.after().hosts, found.after().overload), (4, 2, 0));
}

#[test]
fn a_host_is_emptied_whatever_that_costs() {
    let world = World::new(3, &[0, 0, 1], 100).talk(1, 2, 100 << 20);
    let aim = Aim::Evacuate(world.hosts[0].clone());
    let found = world.improve(&aim, Bounds::default()).unwrap();
    assert!(found.waves.iter().flatten().all(|step| step.to != world.hosts[0]));
    assert_eq!((found.waves.iter().flatten().count(), found.after().traffic), (2, 0), "they stay together");
    let mut narrow = World::new(2, &[0, 1], 100);
    narrow.loads.needs.get_mut(&vid(1)).unwrap().amounts.memory = 16 * GIB;
    let refused = narrow.improve(&Aim::Evacuate(narrow.hosts[0].clone()), Bounds::default());
    assert_eq!(refused, Err(Refusal::NowhereToGo(narrow.hosts[0].clone())));
    let alone = World::new(1, &[0], 100);
    let refused = alone.improve(&Aim::Evacuate(alone.hosts[0].clone()), Bounds::default());
    assert_eq!(refused, Err(Refusal::NowhereToGo(alone.hosts[0].clone())));
}

#[test]
fn pinned_instances_and_those_kept_apart_stay_where_they_must() {
    let mut world = World::new(2, &[0, 1], 100).talk(1, 2, 100 << 20);
    for lid in [1, 2] {
        world.loads.needs.get_mut(&vid(lid)).unwrap().pinned = Some("its user has pinned it".into());
    }
    let found = world.improve(&Aim::Traffic, Bounds::default()).unwrap();
    assert_eq!((found.waves.len(), found.pinned.len()), (0, 2));
    let mut world = World::new(2, &[0, 1], 100).talk(1, 2, 100 << 20);
    for placement in &mut world.placements {
        placement.labels.insert("app".into(), "db".into());
    }
    world.placements[0].anti_affinity.insert("app".into());
    assert_eq!(world.improve(&Aim::Traffic, Bounds::default()).unwrap().waves.len(), 0);
}

#[test]
fn two_large_instances_change_places_through_a_third_host() {
    let mut world = World::new(3, &[0, 1, 0, 1], 100).talk(1, 4, 100 << 20).talk(2, 3, 100 << 20);
    for lid in 1..=4 {
        world.loads.needs.get_mut(&vid(lid)).unwrap().amounts.memory = 8 * GIB;
    }
    let small = Amounts { cpu: 4000, memory: 8 * GIB };
    world.loads.rooms.insert(world.hosts[2].clone(), small);
    let found = world.improve(&Aim::Traffic, Bounds::default()).unwrap();
    assert_eq!((found.after().traffic, found.stuck.len()), (0, 0), "{found:?}");
    let all = found.waves.iter().flatten().count();
    for moves in 1..all {
        let few = world.improve(&Aim::Traffic, Bounds { moves, ..Bounds::default() }).unwrap();
        let mut last = BTreeMap::new();
        last.extend(few.waves.iter().flatten().map(|step| (step.vid, step.is_detour)));
        assert!(last.values().all(|is_detour| !is_detour), "an instance is left on the third host: {few:?}");
    }
}

/// Labels that keep instances together.
fn tied() -> Placement {
    let labels = BTreeMap::from([("app".to_owned(), "db".to_owned())]);
    Placement { labels, affinity: BTreeSet::from(["app".to_owned()]), ..Placement::default() }
}

#[test]
fn instances_that_are_kept_together_move_together_or_not_at_all() {
    let mut world = World::new(2, &[0, 0, 1], 100).talk(1, 3, 100 << 20);
    world.loads.needs.get_mut(&vid(3)).unwrap().copied = 100 * GIB;
    (world.placements[0], world.placements[1]) = (tied(), tied());
    let found = world.improve(&Aim::Traffic, Bounds::default()).unwrap();
    let moved = |found: &Improvement| {
        found.waves.iter().map(|wave| wave.iter().map(|step| step.vid).collect()).collect::<Vec<Vec<_>>>()
    };
    assert_eq!(moved(&found), [[vid(1), vid(2)]]);
    let one = world.improve(&Aim::Traffic, Bounds { moves: 1, ..Bounds::default() }).unwrap();
    assert_eq!(moved(&one).len(), 0, "one of both does not move alone");
    world.loads.needs.get_mut(&vid(3)).unwrap().copied = GIB;
    world.loads.needs.get_mut(&vid(2)).unwrap().pinned = Some("its user has pinned it".into());
    let pinned = world.improve(&Aim::Traffic, Bounds::default()).unwrap();
    assert_eq!(moved(&pinned), [[vid(3)]]);
    assert!(pinned.pinned[0].1.contains("together with `i2`"), "{pinned:?}");
}

#[test]
fn instances_that_should_be_together_are_brought_together_by_the_cheaper_move() {
    let mut world = World::new(3, &[0, 1, 0], 100);
    (world.placements[0], world.placements[1]) = (tied(), tied());
    world.loads.needs.get_mut(&vid(2)).unwrap().copied = 8 * GIB;
    let found = world.improve(&Aim::Traffic, Bounds::default()).unwrap();
    let steps: Vec<_> = found.waves.iter().flatten().collect();
    assert_eq!((steps.len(), steps[0].vid, &steps[0].to), (1, vid(1), &world.hosts[1]));
}

#[test]
fn demands_count_before_anything_is_measured() {
    let mut world = World::new(2, &[0, 1, 1], 0);
    let demand = Demand {
        bandwidth_to: BTreeMap::from([("i1".to_owned(), 100 << 20), ("gone".to_owned(), 1)]),
        ..Demand::default()
    };
    world.placements[1].demand = demand;
    let found = world.improve(&Aim::Traffic, Bounds::default()).unwrap();
    assert_eq!((found.before.traffic, found.after().traffic), (100 << 20, 0));
    // A host is not promised to more than it has.
    for lid in [1, 2] {
        world.placements[lid - 1].demand.cpu_milli = Some(3000);
    }
    let mut view = world.view();
    view.hosts.values_mut().for_each(|host| host.capacity = Some(Amounts { cpu: 4000, memory: 16 * GIB }));
    let full = improve(&view, &world.loads, &Aim::Traffic, &Bounds { steps: 10_000, ..Bounds::default() });
    assert_eq!(full.unwrap().waves.len(), 0);
}

#[test]
fn a_latency_that_is_demanded_brings_instances_together_or_is_reported() {
    let mut world = World::new(2, &[0, 1], 100);
    world.placements[0].demand.latency_to.insert("i2".into(), 100);
    let found = world.improve(&Aim::Traffic, Bounds::default()).unwrap();
    assert_eq!((found.waves.len(), found.far.len()), (1, 0));
    for lid in [1, 2] {
        world.loads.needs.get_mut(&vid(lid)).unwrap().pinned = Some("its user has pinned it".into());
    }
    let found = world.improve(&Aim::Traffic, Bounds::default()).unwrap();
    assert_eq!(found.far, [Far { one: vid(1), other: vid(2), within_us: 100 }]);
}

#[test]
fn no_instance_comes_to_a_host_to_which_one_that_is_kept_apart_moves() {
    let mut world = World::new(2, &[0, 1, 0], 100).talk(1, 2, 100 << 20);
    let labels = tied().labels;
    let apart =
        Placement { labels, anti_affinity: BTreeSet::from(["app".to_owned()]), ..Placement::default() };
    (world.placements[0], world.placements[2]) = (apart.clone(), apart);
    world.loads.needs.get_mut(&vid(2)).unwrap().pinned = Some("its user has pinned it".into());
    world.on = vec![0, 1, 0];
    let mut view = world.view();
    let to = &world.hosts[1];
    view.instances.get_mut(&vid(3)).unwrap().moves_to = Some(to);
    let found = improve(&view, &world.loads, &Aim::Traffic, &Bounds { steps: 10_000, ..Bounds::default() });
    assert_eq!(found.unwrap().waves.len(), 0);
}
