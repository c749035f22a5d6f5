use moves::placement::Placement;
use planner::{Host, Instance, Need, Talk};

use super::*;
use crate::{Goal, Leaving, Usage};

const MIB: u64 = 1 << 20;
const HOLD: Duration = Duration::from_secs(60);
const STEP: Duration = Duration::from_secs(10);

fn vid(lid: usize) -> Vid {
    Vid::new(lid as u16).unwrap()
}

/// Hosts with 4 processors and 16 GiB, instances of 1 GiB, and the loop. Plans are carried out between two steps.
struct World {
    hosts: Vec<HostName>,
    on: Vec<usize>,
    cpu: Vec<u64>,
    talks: Vec<Talk>,
    leaving: BTreeMap<HostName, Leaving>,
    placement: Placement,
    /// Thousandths of time in which programs wait for a processor, by host.
    pressure: Vec<u64>,
    controller: Controller,
    now: Duration,
    /// Whether plans are carried out.
    carries_out: bool,
}

fn settings() -> Settings {
    Settings { hold: HOLD, cool_down: 10 * HOLD, ..Settings::default() }
}

impl World {
    fn new(hosts: usize, on: &[usize], settings: Settings) -> Self {
        Self {
            hosts: (0..hosts).map(|number| HostName::new(&format!("h{number}")).unwrap()).collect(),
            on: on.to_vec(),
            cpu: vec![100; on.len()],
            talks: Vec::new(),
            leaving: BTreeMap::new(),
            placement: Placement::default(),
            pressure: vec![0; hosts],
            controller: Controller::new(settings, Memory::default(), 20_000),
            now: Duration::ZERO,
            carries_out: true,
        }
    }

    fn talk(&mut self, one: usize, other: usize, rate: u64) {
        self.talks.push(Talk { one: vid(one), other: vid(other), rate });
    }

    /// One step later. Returns what is decided.
    fn step(&mut self) -> Vec<Decision> {
        self.now += STEP;
        let up = Host { is_up: true, runs_instances: true, ..Host::default() };
        let room = Amounts { cpu: 4000, memory: 16 << 30 };
        let instance = |index: usize| {
            let (host, placement) = (&self.hosts[self.on[index]], &self.placement);
            (vid(index + 1), Instance { name: "job", host, moves_to: None, placement })
        };
        let need = |index: usize| {
            let amounts = Amounts { cpu: self.cpu[index], memory: 1 << 30 };
            (vid(index + 1), Need { amounts, copied: 1 << 30, pinned: None })
        };
        let busy = |host: usize| {
            let here = self.on.iter().zip(&self.cpu).filter(|(on, _)| **on == host);
            Usage {
                busy: here.map(|(_, cpu)| cpu).sum::<u64>() * 1000 / 4000,
                cpu_pressure: self.pressure[host],
                memory_pressure: 0,
            }
        };
        let hosts = || self.hosts.iter().cloned();
        let seen = Observation {
            view: View {
                hosts: hosts().map(|host| (host, up)).collect(),
                instances: (0..self.on.len()).map(instance).collect(),
                ..View::default()
            },
            loads: Loads {
                rooms: hosts().map(|host| (host, room)).collect(),
                needs: (0..self.on.len()).map(need).collect(),
                talks: self.talks.clone(),
            },
            usage: hosts().enumerate().map(|(index, host)| (host, busy(index))).collect(),
            leaving: self.leaving.clone(),
            is_applying: false,
        };
        let decisions = self.controller.step(self.now, &seen);
        drop(seen);
        for decision in &decisions {
            if let (Decision::Apply { waves, .. }, true) = (decision, self.carries_out) {
                waves.iter().flatten().for_each(|step| self.carry_out(step));
            }
        }
        decisions
    }

    fn carry_out(&mut self, step: &Step) {
        let to = self.hosts.iter().position(|host| *host == step.to).unwrap();
        self.on[usize::from(step.vid.lid()) - 1] = to;
    }

    /// All that is decided in so many steps.
    fn run(&mut self, steps: usize) -> Vec<Decision> {
        (0..steps).flat_map(|_| self.step()).collect()
    }

    fn moves(&mut self, steps: usize) -> usize {
        moves(&self.run(steps))
    }

    fn why(&self) -> &str {
        &self.controller.status().why
    }
}

fn moves(decisions: &[Decision]) -> usize {
    let count = |decision: &Decision| match decision {
        Decision::Apply { waves, .. } => waves.iter().flatten().count(),
        _ => 0,
    };
    decisions.iter().map(count).sum()
}

fn effects(decisions: &[Decision]) -> Vec<bool> {
    let kept = |decision: &Decision| match decision {
        Decision::Measured(effect) => Some(effect.is_kept()),
        _ => None,
    };
    decisions.iter().filter_map(kept).collect()
}

#[test]
fn two_that_talk_come_together_once_and_the_promise_is_kept() {
    let mut world = World::new(2, &[0, 1], settings());
    world.talk(1, 2, 100 * MIB);
    assert_eq!(world.moves(6), 0, "it has not lasted: {}", world.why());
    let decided = world.run(30);
    assert_eq!((moves(&decided), effects(&decided)), (1, vec![true]));
    assert_eq!(world.moves(1000), 0);
    assert_eq!(world.why(), "no load is too high");
}

#[test]
fn traffic_that_pauses_within_the_hold_time_moves_nothing() {
    let mut world = World::new(2, &[0, 1], settings());
    for _ in 0..100 {
        world.talk(1, 2, 100 * MIB);
        assert_eq!(world.moves(4), 0);
        world.talks.clear();
        assert_eq!(world.moves(2), 0);
    }
}

#[test]
fn no_instance_moves_within_its_cool_down_or_back_within_the_hour() {
    let mut world = World::new(2, &[0, 0, 1, 1], settings());
    let (mut moved, mut at) = (BTreeMap::<Vid, Vec<(Duration, HostName)>>::new(), 0);
    // The pairs exchange their partners every 20 minutes.
    for round in 0..30 {
        world.talks.clear();
        let partners = if round % 2 == 0 { [(1, 3), (2, 4)] } else { [(1, 4), (2, 3)] };
        partners.iter().for_each(|(one, other)| world.talk(*one, *other, 100 * MIB));
        for _ in 0..120 {
            let decided = world.step();
            at += moves(&decided);
            for decision in &decided {
                let Decision::Apply { waves, .. } = decision else { continue };
                for step in waves.iter().flatten() {
                    let its = moved.entry(step.vid).or_default();
                    let is_free = |(when, _): &(Duration, HostName)| world.now - *when >= 10 * HOLD;
                    assert!(its.iter().all(is_free), "{step:?}: {its:?}");
                    let is_back = its
                        .iter()
                        .any(|(when, from)| *from == step.to && world.now - *when < crate::history::HOUR);
                    assert!(!is_back, "{step:?}: {its:?}");
                    its.push((world.now, step.from.clone()));
                }
            }
        }
    }
    assert!(at > 2, "something moves at all");
}

#[test]
fn an_overloaded_host_is_relieved_and_a_full_cluster_says_that_no_move_pays() {
    let mut world = World::new(2, &[0, 0, 0, 0, 1], settings());
    world.cpu = vec![1000; 5];
    let decided = world.run(60);
    assert!(moves(&decided) > 0 && effects(&decided) == [true], "{decided:?}");
    let used = |host| world.on.iter().filter(|on| **on == host).count();
    assert!(used(0) <= 3 && used(1) <= 3, "{:?}", world.on);
    let mut full = World::new(2, &[0, 0, 0, 0, 1, 1, 1, 1], settings());
    full.cpu = vec![1000; 8];
    assert_eq!(full.moves(100), 0);
    assert!(full.why().starts_with("no move pays"), "{}", full.why());
}

#[test]
fn the_budget_limits_the_moves_of_each_hour() {
    let bounds = Settings { budget: 2, cool_down: Duration::ZERO, ..settings() };
    let mut world = World::new(2, &[0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1], bounds);
    world.cpu = vec![1; 12];
    (1..=6).for_each(|one| world.talk(one, one + 6, 100 * MIB));
    let mut hours = Vec::new();
    for _ in 0..5 {
        hours.push(world.moves(360));
    }
    assert!(hours.iter().all(|moves| *moves <= 2), "{hours:?}");
    assert_eq!(hours.iter().sum::<usize>(), 6, "{hours:?}");
}

#[test]
fn plans_that_do_not_help_stop_the_loop_and_a_restart_does_not_forget_it() {
    let mut world = World::new(2, &[0, 1, 0, 1], Settings { cool_down: Duration::ZERO, ..settings() });
    world.carries_out = false;
    world.talk(1, 2, 100 * MIB);
    let decided = world.run(200);
    assert_eq!(effects(&decided), [false; 3]);
    assert!(matches!(decided.last(), Some(Decision::Stopped { .. })), "{decided:?}");
    assert!(world.why().contains("has stopped itself"), "{}", world.why());
    let memory = world.controller.memory();
    world.controller = Controller::new(settings(), memory, 20_000);
    assert_eq!(world.moves(200), 0);
}

#[test]
fn moves_whose_reason_has_gone_have_gained_nothing() {
    let mut world = World::new(2, &[0, 1], settings());
    world.talk(1, 2, 100 * MIB);
    while world.moves(1) == 0 {}
    world.talks.clear();
    assert_eq!(effects(&world.run(20)), [false]);
}

#[test]
fn an_instance_whose_move_has_failed_stays_for_a_while() {
    let mut world = World::new(2, &[0, 1], Settings { cool_down: Duration::ZERO, ..settings() });
    world.carries_out = false;
    world.talk(1, 2, 100 * MIB);
    while world.moves(1) == 0 {}
    world.controller.note_failure(vid(1));
    world.controller.note_failure(vid(2));
    assert_eq!(world.moves(59), 0, "{}", world.why());
    assert!(world.moves(60) > 0, "{}", world.why());
}

#[test]
fn hosts_that_ask_are_emptied_some_at_a_time_and_nothing_is_planned_onto_them() {
    let mut world = World::new(4, &[0, 1, 2, 3], Settings { at_once: 2, ..settings() });
    let asks = |is_draining| Leaving { reason: "maintenance".into(), is_draining };
    world.leaving = world.hosts[..3].iter().map(|host| (host.clone(), asks(false))).collect();
    let begun = world.step();
    let drain =
        |host: usize| Decision::Drain { host: world.hosts[host].clone(), reason: "maintenance".into() };
    assert_eq!(begun, [drain(0), drain(1)]);
    for host in [0, 1] {
        world.leaving.insert(world.hosts[host].clone(), asks(true));
    }
    assert_eq!(world.step(), []);
    assert_eq!(world.why(), "hosts are being emptied");
    for host in [0, 1] {
        world.leaving.insert(world.hosts[host].clone(), asks(false));
        world.on[host] = 3;
    }
    let third = Decision::Drain { host: world.hosts[2].clone(), reason: "maintenance".into() };
    assert_eq!(world.step(), [third]);
    world.on[2] = 3;
    world.cpu = vec![1000; 4];
    world.controller.settings.cool_down = Duration::ZERO;
    assert_eq!(world.moves(100), 0, "the only usable host is overloaded: {}", world.why());
}

#[test]
fn balance_spreads_what_is_used_unevenly() {
    let mut world = World::new(4, &[0; 8], Settings { goal: Goal::Balance, ..settings() });
    world.cpu = vec![400; 8];
    let decided = world.run(100);
    assert!(moves(&decided) >= 6 && effects(&decided) == [true], "{decided:?}");
    assert_eq!(world.moves(500), 0);
}

#[test]
fn a_host_under_pressure_is_relieved_but_not_if_all_are_under_pressure() {
    let mut world = World::new(2, &[0, 0], settings());
    world.cpu = vec![1000; 2];
    world.pressure = vec![600, 0];
    let decided = world.run(7);
    assert_eq!(moves(&decided), 1, "{}", world.why());
    assert_eq!(effects(&world.run(7)), [false], "the pressure is as high as before");
    let mut all = World::new(2, &[0, 1], settings());
    all.pressure = vec![600; 2];
    assert_eq!(all.moves(30), 0, "{}", all.why());
    all.talk(1, 2, 100 * MIB);
    let decided = all.run(30);
    assert_eq!((moves(&decided), effects(&decided)), (1, vec![true]), "{}", all.why());
}
