//! CRIU is killed where it stops in a dump. The instance runs on with all that it had.

use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};

use engines::{Error, InstanceSpec, Watch};

use crate::lab::{self, Host, Lab, Node, Output, relocate, workload};

/// With the tree seized, and with its images complete.
const STOPS: u32 = 2;
/// How often it is killed at each.
const ROUNDS: u32 = 3;

/// Suspends an instance and kills its CRIU at that stop.
fn suspend_and_kill(host: &Host, spec: &InstanceSpec, stop: u32) {
    let network = host.network_of(&spec.name);
    let stops = AtomicU32::new(0);
    let kill_there = || {
        if stops.fetch_add(1, Ordering::Relaxed) == stop {
            lab::kill_criu(&network);
        }
        false
    };
    let watch = Watch { cancelled: &kill_there, ..Watch::QUIET };
    let refused = host.call(|engine| engine.suspend(&spec.name, &watch)).unwrap_err();
    assert!(matches!(refused, Error::Criu { .. }), "{refused}");
}

/// Nothing of CRIU's is left in the process that runs the workload.
fn assert_clean(pid: i32, descriptors: usize) {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    assert!(!maps.contains("CRIU"), "{maps}");
    assert_eq!(fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count(), descriptors);
}

/// The instance runs, and neither lost anything nor was interrupted.
fn assert_runs_on(node: &mut Node, output: &mut Output) {
    let before = output.lines();
    node.read(output, |output| output.lines() > before + 10);
    output.assert_counts();
}

#[test]
fn threads_in_waits_do_not_notice_that_criu_is_killed_where_it_stops() {
    let lab = Lab::new();
    let (a, b) = (lab.host("a"), lab.host("b"));
    let server = workload("echo", 31, &["serve", "10.77.0.31:700"]);
    let client = workload("crowd", 32, &["crowd", "10.77.0.31:700"]);
    let (mut serving, mut heard) = (b.start(&server), Output::default());
    serving.read(&mut heard, |output| output.lines() > 0);
    let (mut node, mut output) = (a.start(&client), Output::default());
    node.read(&mut output, |output| output.lines() > 20);

    let process = lab::process_of(&client, &a.network_of(&client.name));
    let descriptors = fs::read_dir(format!("/proc/{process}/fd")).unwrap().count();
    for round in 0..ROUNDS * STOPS {
        node.suspend(&mut output);
        suspend_and_kill(&a, &client, round % STOPS);
        node = Node::accept(&a.listen(&client.name));
        assert_runs_on(&mut node, &mut output);
        assert_clean(process, descriptors);
    }
    node = relocate(node, &client, &a, &b, &mut output);
    assert_runs_on(&mut node, &mut output);
}
