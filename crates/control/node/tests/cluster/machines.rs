//! Virtual machines move as other instances do, with an engine that knows nothing of them but how to carry them.

use std::sync::atomic::Ordering;

use api::{Boot, Event, Outcome, Phase, Request, RunRequest, State, Vm};
use fabric::Epoch;

use super::library::{Library, assert_linked};
use super::{Cluster, is_nowhere, move_up_to, outcome, run_request};

/// The memory of a machine, in bytes.
const MEMORY: u64 = 2 << 20;

impl Cluster {
    /// Starts a virtual machine with a process that uses verbs.
    fn run_machine(&self, name: &str, host: &str) -> Library {
        let boot = Boot { kernel: "/boot/vmlinuz".into(), initrd: None, append: String::new() };
        let (boot, disks) = (Some(boot), Vec::new());
        let vm = Vm {
            cpus: 1,
            memory_bytes: MEMORY,
            machine: None,
            cpu_model: None,
            accelerator: None,
            boot,
            disks,
            vnc: false,
            seed: None,
        };
        let request = RunRequest { command: Vec::new(), vm: Some(vm), ..run_request(name, host) };
        match self.ask(&Request::Run(request.into())) {
            Event::Started(instance) => assert_eq!(instance.state, State::Running),
            other => panic!("not started: {other:?}"),
        }
        Library::attach(self.world.network(name))
    }
}

#[test]
fn a_virtual_machine_moves_with_its_memory_and_its_links() {
    let cluster = Cluster::start();
    let mut a = cluster.run_machine("a", "h1");
    let b = cluster.run_library("b", "h2");
    assert_linked(&a, &b);
    for (round, (from, to)) in [(0, 2), (2, 1), (1, 0)].into_iter().enumerate() {
        cluster.machines[from].write("a", 4096 * round, 7 + round as u8);
        let report = cluster.move_to("a", ["h1", "h2", "h3"][to]);
        assert_eq!(report.outcome, Outcome::Moved);
        assert_eq!(a.comes_back(), Epoch(round as u64 + 1));
        // The disk once, and the memory in four rounds, of which one is in the blackout.
        let sent = report.engine.precopied_bytes;
        assert!((3 * MEMORY + (1 << 20)..4 * MEMORY + (1 << 20)).contains(&sent), "{sent}");
        assert!(report.engine.image_bytes > sent + MEMORY, "{:?}", report.engine);
        for write in 0..=round {
            assert_eq!(cluster.machines[to].read("a", 4096 * write), Some(7 + write as u8));
        }
        assert_linked(&a, &b);
        cluster.wait_until("destroying", |cluster| !cluster.machines[from].has("a"));
    }
}

#[test]
fn a_virtual_machine_that_cannot_be_restored_runs_on_at_its_source() {
    let cluster = Cluster::start();
    let mut a = cluster.run_machine("a", "h1");
    cluster.machines[0].write("a", 9, 9);
    cluster.machines[2].fail_restore.store(true, Ordering::SeqCst);
    let report = cluster.move_to("a", "h3");
    let Outcome::RolledBack(why) = &report.outcome else { panic!("{report:?}") };
    assert_eq!(why.message, "its machine could not be started on host h3 (the test says so)");
    assert_eq!(why.remedy, "move it again");
    assert_eq!(a.comes_back(), Epoch(0));
    assert_eq!(cluster.machines[0].read("a", 9), Some(9));
    cluster.wait_until("aborting", |cluster| !cluster.machines[2].has("a"));
    assert_eq!(cluster.move_to("a", "h3").outcome, Outcome::Moved);
    assert_eq!(a.comes_back(), Epoch(1));
    assert_eq!(cluster.machines[2].read("a", 9), Some(9));
}

#[test]
fn a_virtual_machine_whose_destination_is_killed_runs_on_at_its_source() {
    let mut cluster = Cluster::start();
    let mut a = cluster.run_machine("a", "h1");
    cluster.machines[0].write("a", 9, 9);
    let machines = cluster.machines[1].clone();
    let gate = machines.gate.lock().unwrap();
    let events = move_up_to(&cluster, "a", "h2", Phase::Precopy);
    cluster.wait_until("the first round", |cluster| cluster.machines[1].has("a"));
    cluster.stop_node(1);
    drop(gate);
    cluster.start_node(1);
    assert!(matches!(outcome(events), Outcome::RolledBack(_)));
    assert_eq!(cluster.machines[0].read("a", 9), Some(9));
    cluster.wait_until("aborting", |cluster| !cluster.machines[1].has("a"));
    assert_eq!(cluster.move_to("a", "h2").outcome, Outcome::Moved);
    assert_eq!(a.comes_back(), Epoch(1));
    assert_eq!(cluster.machines[1].read("a", 9), Some(9));
}

#[test]
fn a_cancelled_move_ends_the_channels_of_a_virtual_machine() {
    let cluster = Cluster::start();
    let _a = cluster.run_machine("a", "h1");
    let gate = cluster.machines[1].gate.lock().unwrap();
    let events = move_up_to(&cluster, "a", "h2", Phase::Precopy);
    assert_eq!(cluster.ask(&Request::Kill { name: "a".into(), grace_s: None }), Event::Done);
    assert!(matches!(outcome(events), Outcome::Ended(_)));
    drop(gate);
    cluster.wait_until("removal", |cluster| {
        is_nowhere(cluster, "a") && cluster.machines.iter().all(|machines| !machines.has("a"))
    });
}
