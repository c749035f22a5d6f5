//! A state directory without room, at each point of a move at which something is to be noted.

use engine_criu::{Error, State, Watch};
use instance::InstanceSpec;

use crate::faults::{runs, suspended};
use crate::lab::{self, Host, Lab, Node, Output, TinyDisk, relocate, workload};

/// A host whose records are on a small disk.
fn host_on(lab: &Lab, name: &str, disk: &TinyDisk) -> Host {
    lab.host_with(name, |config| config.state = disk.path().join("state"))
}

/// An instance that counts on `host`.
fn counting(spec: &InstanceSpec, host: &Host) -> (Node, Output) {
    let (mut node, mut output) = (host.start(spec), Output::default());
    node.read(&mut output, |output| output.lines() > 20);
    (node, output)
}

fn states(host: &Host) -> Vec<State> {
    let found = host.call(|engine| engine.recover()).unwrap();
    found.iter().map(|found| found.state).collect()
}

#[test]
fn a_held_instance_stays_held_until_its_record_can_be_written() {
    let lab = Lab::new();
    let disk = lab.tiny_disk("tiny");
    let (a, b) = (lab.host("a"), host_on(&lab, "b", &disk));
    let spec = workload("patient", 40, &["count", "1000040"]);
    let mut output = suspended(&spec, &a, &b);
    b.call(|engine| engine.restore(&spec.name, &Watch::QUIET)).unwrap();
    let copies = lab::copies(&spec, &a.network_of(&spec.name));
    disk.fill();
    for _ in 0..2 {
        let refused = b.call(|engine| engine.release(&spec.name, &Watch::QUIET)).unwrap_err();
        assert!(matches!(refused, Error::Io { .. }), "{refused}");
        b.call(|engine| engine.restore(&spec.name, &Watch::QUIET)).unwrap();
        assert_eq!(lab::copies(&spec, &a.network_of(&spec.name)), copies);
    }
    disk.make_room();
    let listener = b.listen(&spec.name);
    b.call(|engine| engine.release(&spec.name, &Watch::QUIET)).unwrap();
    let node = runs(listener, &mut output);
    a.call(|engine| engine.destroy(&spec.name)).unwrap();
    relocate(node, &spec, &b, &a, &mut output);
}

#[test]
fn an_instance_runs_when_the_disk_fills_during_its_release() {
    let lab = Lab::new();
    let disk = lab.tiny_disk("tiny");
    let (a, mut b) = (lab.host("a"), host_on(&lab, "b", &disk));
    let spec = workload("noted", 41, &["count", "1000041"]);
    let mut output = suspended(&spec, &a, &b);
    b.call(|engine| engine.restore(&spec.name, &Watch::QUIET)).unwrap();
    let fill_there = |phase: &engine_criu::Phase| {
        if phase.name == "complete" {
            disk.fill();
        }
    };
    let watch = Watch { progress: &fill_there, ..Watch::QUIET };
    let listener = b.listen(&spec.name);
    b.call(|engine| engine.release(&spec.name, &watch)).unwrap();
    runs(listener, &mut output);
    lab::end_all(&b.network_of(&spec.name));
    b.restart();
    assert_eq!(states(&b), [State::Ended], "it is not restored a second time");
}

#[test]
fn a_stopped_instance_resumes_on_a_full_disk() {
    let lab = Lab::new();
    let disk = lab.tiny_disk("tiny");
    let mut a = host_on(&lab, "a", &disk);
    let spec = workload("onward", 42, &["count", "1000042"]);
    let (node, mut output) = counting(&spec, &a);
    node.suspend(&mut output);
    a.call(|engine| engine.suspend(&spec.name, None, &Watch::QUIET)).unwrap();
    disk.fill();
    let listener = a.listen(&spec.name);
    for _ in 0..2 {
        a.call(|engine| engine.resume(&spec.name)).unwrap();
    }
    let _node = runs(listener, &mut output);
    a.restart();
    assert_eq!(states(&a), [State::Running]);
}

#[test]
fn calls_fail_cleanly_on_a_full_disk_and_succeed_with_room() {
    let lab = Lab::new();
    let disk = lab.tiny_disk("tiny");
    let (a, b) = (host_on(&lab, "a", &disk), lab.host("b"));
    let spec = workload("undone", 43, &["count", "1000043"]);
    disk.fill();
    assert!(a.call(|engine| engine.prepare(&spec, 0)).is_err());
    disk.make_room();
    assert!(a.is_empty());
    let (node, mut output) = counting(&spec, &a);
    disk.fill();
    assert!(a.call(|engine| engine.arm(&spec.name)).is_err());
    assert!(!lab::has_criu(&a.network_of(&spec.name)));
    disk.make_room();
    a.call(|engine| engine.arm(&spec.name)).unwrap();
    disk.fill();
    node.suspend(&mut output);
    assert!(a.call(|engine| engine.suspend(&spec.name, None, &Watch::QUIET)).is_err());
    let node = runs(a.listen(&spec.name), &mut output);
    disk.make_room();
    relocate(node, &spec, &a, &b, &mut output);
}
