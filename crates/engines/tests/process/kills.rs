//! CRIU is killed at any moment of a dump. The instance runs on with all that it had.

use std::fs;
use std::hint::spin_loop;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use engines::{Error, InstanceSpec, Phase, Watch};

use crate::lab::{self, Host, Lab, Node, Output, relocate, workload};

/// Kills in a run; `TRANSHUME_TEST_KILLS` asks for more.
const KILLS: u32 = 36;
/// How long after the link is cut the last one comes: later than a dump's end.
const SPAN: Duration = Duration::from_millis(40);
/// A whole move follows after so many.
const MOVE_AFTER: u32 = 12;

fn kills() -> u32 {
    std::env::var("TRANSHUME_TEST_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(KILLS)
}

/// The moments, spread evenly also if they end early.
fn moments() -> impl Iterator<Item = Duration> {
    let golden = 0.618_033_988_75;
    (0..kills()).map(move |number| SPAN.mul_f64((f64::from(number) * golden).fract()))
}

/// Suspends an instance and kills its CRIU at that moment. Whether the dump was done by then.
fn suspend_and_kill(host: &Host, spec: &InstanceSpec, moment: Duration) -> bool {
    host.call(|engine| engine.arm(&spec.name)).unwrap();
    let criu = lab::criu_of(&host.network_of(&spec.name)).expect("an armed CRIU");
    let (cut, is_cut) = mpsc::sync_channel(1);
    let killer = thread::spawn(move || {
        let end = is_cut.recv().unwrap_or_else(|_| Instant::now()) + moment;
        while Instant::now() < end {
            spin_loop();
        }
        criu.kill();
    });
    let progress = move |phase: &Phase| {
        if phase.name == "cut" {
            cut.send(Instant::now()).unwrap();
        }
    };
    let watch = Watch { progress: &progress, ..Watch::QUIET };
    let suspended = host.call(|engine| engine.suspend(&spec.name, &watch));
    killer.join().unwrap();
    match suspended {
        Ok(_) => true,
        Err(Error::Criu { .. }) => false,
        Err(other) => panic!("{moment:?}: {other}"),
    }
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
fn a_criu_that_is_killed_at_any_moment_of_a_dump_lets_the_instance_run_on() {
    let lab = Lab::new();
    let hosts = [lab.host("a"), lab.host("b")];
    let server = workload("echo", 31, &["serve", "10.77.0.31:700"]);
    let client = workload("crowd", 32, &["crowd", "10.77.0.31:700"]);
    let (mut serving, mut heard) = (hosts[1].start(&server), Output::default());
    serving.read(&mut heard, |output| output.lines() > 0);
    let (mut node, mut output) = (hosts[0].start(&client), Output::default());
    node.read(&mut output, |output| output.lines() > 20);

    let process = lab::process_of(&client, &hosts[0].network_of(&client.name));
    let descriptors = fs::read_dir(format!("/proc/{process}/fd")).unwrap().count();
    let (mut at, mut undone) = (0, 0);
    for (number, moment) in (1..).zip(moments()) {
        node.suspend(&mut output);
        if suspend_and_kill(&hosts[at], &client, moment) {
            hosts[at].call(|engine| engine.resume(&client.name)).unwrap();
        } else {
            undone += 1;
        }
        node = Node::accept(&hosts[at].listen(&client.name));
        assert_runs_on(&mut node, &mut output);
        assert_clean(lab::process_of(&client, &hosts[at].network_of(&client.name)), descriptors);
        if number % MOVE_AFTER == 0 {
            node = relocate(node, &client, &hosts[at], &hosts[1 - at], &mut output);
            at = 1 - at;
            assert_runs_on(&mut node, &mut output);
        }
    }
    println!("{undone} of {} dumps undone", kills());
    assert!(undone > kills() / 3);
}
