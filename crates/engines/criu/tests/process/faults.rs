//! What fails is undone, and a second try succeeds.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use engine_criu::{Error, MemorySink, Owner, State, Watch};
use instance::InstanceSpec;

use crate::lab::{self, Host, Lab, Node, Output, copy_images, relocate, workload};

/// An instance that counts and is suspended on `from`, with its images at `to`.
pub fn suspended(spec: &InstanceSpec, from: &Host, to: &Host) -> Output {
    let (mut node, mut output) = (from.start(spec), Output::default());
    node.read(&mut output, |output| output.lines() > 20);
    node.suspend(&mut output);
    from.call(|engine| engine.suspend(&spec.name, None, &Watch::QUIET)).unwrap();
    to.call(|engine| engine.prepare(spec, 0)).unwrap();
    to.call(|engine| engine.arm(&spec.name)).unwrap();
    copy_images(from, to, &spec.name);
    output
}

/// The instance runs, and has lost nothing.
pub fn runs(listener: OwnedFd, output: &mut Output) -> Node {
    let mut node = Node::accept(&listener);
    let before = output.lines();
    node.read(output, |output| output.lines() > before + 20);
    output.assert_counts();
    node
}

/// A node of this host that holds the restored instance, and can be killed.
pub fn hold(host: &Host, spec: &InstanceSpec) -> Child {
    let config = &host.config;
    let containers = config.containers.as_ref().map_or(Path::new("/none"), |found| &found.folder);
    let mut holder = host.call(|_| {
        Command::new(lab::examples().join("holder"))
            .args([&config.criu, &config.state, &config.images[0]])
            .args([&config.bridge, spec.name.as_str(), "runc"])
            .arg(containers)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    });
    let mut line = String::new();
    BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "held\n");
    holder
}

/// CRIU has it end with `EINTR`, also where it was begun.
#[test]
fn interrupted_system_calls_resume_their_wait_after_a_rollback() {
    let lab = Lab::new();
    let (a, b) = (lab.host("a"), lab.host("b"));
    let spec = workload("waiting", 52, &["keep_waiting"]);
    let mut output = suspended(&spec, &a, &b);
    let listener = a.listen(&spec.name);
    a.call(|engine| engine.resume(&spec.name)).unwrap();
    let (mut node, lines) = (runs(listener, &mut output), output.lines());
    // What its threads say comes on another way than its lines.
    node.read(&mut output, |output| output.lines() > lines + 300);
    output.assert_counts();
}

#[test]
fn aborting_a_held_instance_leaves_nothing_and_the_source_runs_on() {
    let lab = Lab::new();
    let (a, b) = (lab.host("a"), lab.host("b"));
    let spec = workload("aborted", 21, &["count", "1000021"]);
    let mut output = suspended(&spec, &a, &b);
    b.call(|engine| engine.restore(&spec.name, &Watch::QUIET)).unwrap();
    let source = a.network_of(&spec.name);
    assert!(!lab::copies(&spec, &source).is_empty());
    b.call(|engine| engine.abort(&spec.name)).unwrap();
    assert_eq!(lab::copies(&spec, &source), [0_i32; 0]);
    assert!(b.is_empty());

    let listener = a.listen(&spec.name);
    a.call(|engine| engine.resume(&spec.name)).unwrap();
    let node = runs(listener, &mut output);
    relocate(node, &spec, &a, &b, &mut output);
}

#[test]
fn a_held_instance_dies_with_its_node_and_is_restored_again() {
    let lab = Lab::new();
    let (a, mut b) = (lab.host("a"), lab.host("b"));
    let spec = workload("orphan", 22, &["count", "1000022"]);
    let mut output = suspended(&spec, &a, &b);
    b.restart();
    let mut holder = hold(&b, &spec);
    let source = a.network_of(&spec.name);
    assert!(!lab::copies(&spec, &source).is_empty());
    holder.kill().unwrap();
    holder.wait().unwrap();

    b.restart();
    let recovered = b.call(|engine| engine.recover()).unwrap();
    assert_eq!(recovered.iter().map(|found| found.state).collect::<Vec<_>>(), [State::Prepared]);
    assert_eq!(lab::copies(&spec, &source), [0_i32; 0]);
    let listener = b.listen(&spec.name);
    b.call(|engine| engine.restore(&spec.name, &Watch::QUIET)).unwrap();
    b.call(|engine| engine.release(&spec.name, &Watch::QUIET)).unwrap();
    runs(listener, &mut output);
}

#[test]
fn disarming_leaves_nothing_behind() {
    let lab = Lab::new();
    let (a, b) = (lab.host("a"), lab.host("b"));
    let spec = workload("calm", 30, &["count", "1000030"]);
    let (mut node, mut output) = (a.start(&spec), Output::default());
    node.read(&mut output, |output| output.lines() > 20);
    b.call(|engine| engine.prepare(&spec, 0)).unwrap();
    for host in [&a, &b] {
        host.call(|engine| engine.arm(&spec.name)).unwrap();
    }
    b.call(|engine| engine.abort(&spec.name)).unwrap();
    assert!(b.is_empty());
    assert!(lab::has_criu(&a.network_of(&spec.name)));
    a.call(|engine| engine.disarm(&spec.name)).unwrap();
    assert!(!lab::has_criu(&a.network_of(&spec.name)));
    a.call(|engine| engine.arm(&spec.name)).unwrap();
    let before = output.lines();
    node.read(&mut output, |output| output.lines() > before + 20);
    a.call(|engine| engine.destroy(&spec.name)).unwrap();
    assert!(a.is_empty());
    output.assert_counts();
}

#[test]
fn a_restarted_node_finds_running_and_stopped_instances() {
    let lab = Lab::new();
    let mut a = lab.host("a");
    let spec = workload("found", 23, &["count", "1000023"]);
    let (mut node, mut output) = (a.start(&spec), Output::default());
    node.read(&mut output, |output| output.lines() > 20);
    a.restart();
    let states = |host: &Host| {
        let found = host.call(|engine| engine.recover()).unwrap();
        found.iter().map(|found| found.state).collect::<Vec<_>>()
    };
    assert_eq!(states(&a), [State::Running]);
    node.suspend(&mut output);
    a.call(|engine| engine.suspend(&spec.name, None, &Watch::QUIET)).unwrap();
    a.restart();
    assert_eq!(states(&a), [State::Stopped]);
    let listener = a.listen(&spec.name);
    a.call(|engine| engine.resume(&spec.name)).unwrap();
    runs(listener, &mut output);
}

#[test]
fn a_cancelled_dump_lets_the_instance_run_on() {
    let lab = Lab::new();
    let a = lab.host("a");
    let spec = workload("cancelled", 24, &["count", "1000024"]);
    let (mut node, mut output) = (a.start(&spec), Output::default());
    node.read(&mut output, |output| output.lines() > 20);
    node.suspend(&mut output);
    let watch = Watch { cancelled: &|| true, ..Watch::QUIET };
    let refused = a.call(|engine| engine.suspend(&spec.name, None, &watch)).unwrap_err();
    assert!(matches!(refused, Error::Cancelled), "{refused}");
    runs(a.listen(&spec.name), &mut output);
}

#[test]
fn a_cancel_ends_a_hanging_criu() {
    let lab = Lab::new();
    let criu = lab.hanging_criu();
    let (a, b) = (lab.host("a"), lab.host_with("b", |config| config.criu = criu));
    let spec = workload("hanging", 38, &["count", "1000038"]);
    let mut output = suspended(&spec, &a, &b);
    let network = b.network_of(&spec.name);
    let began = Instant::now();
    let watch = Watch { cancelled: &|| true, ..Watch::QUIET };
    let refused = b.call(|engine| engine.restore(&spec.name, &watch)).unwrap_err();
    assert!(matches!(refused, Error::Cancelled), "{refused}");
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    b.call(|engine| engine.abort(&spec.name)).unwrap();
    assert!(b.is_empty());
    lab::await_silence(&network);
    let listener = a.listen(&spec.name);
    a.call(|engine| engine.resume(&spec.name)).unwrap();
    runs(listener, &mut output);
}

/// CRIU stops twice in a dump: with the tree seized, and with its images complete.
#[test]
fn an_instance_runs_on_when_criu_is_killed_at_a_stop() {
    let lab = Lab::new();
    let (a, b) = (lab.host("a"), lab.host("b"));
    let spec = workload("survivor", 25, &["mixed"]);
    let (mut node, mut output) = (a.start(&spec), Output::default());
    node.read(&mut output, |output| output.lines() > 20);
    for stop in 0..2 {
        node.suspend(&mut output);
        lab::suspend_and_kill(&a, &spec, stop);
        node = runs(a.listen(&spec.name), &mut output);
    }
    relocate(node, &spec, &a, &b, &mut output);
}

#[test]
fn a_restore_succeeds_after_criu_was_killed_in_the_first_try() {
    let lab = Lab::new();
    let (a, b) = (lab.host("a"), lab.host("b"));
    let spec = workload("retried", 29, &["count", "1000029"]);
    let mut output = suspended(&spec, &a, &b);
    let network = b.network_of(&spec.name);
    for stop in 0..4 {
        let kill_there = lab::killing_at(&network, stop);
        let watch = Watch { cancelled: &kill_there, ..Watch::QUIET };
        // Killed at the last stop, it is missed when it shall let go.
        let held = b.call(|engine| engine.restore(&spec.name, &watch));
        let refused = held
            .map(|_| ())
            .and_then(|()| b.call(|engine| engine.release(&spec.name, &Watch::QUIET)).map(|_| ()));
        assert!(matches!(refused, Err(Error::Criu { .. })), "{stop}: {refused:?}");
        assert_eq!(lab::copies(&spec, &a.network_of(&spec.name)), [0_i32; 0]);
    }
    let listener = b.listen(&spec.name);
    b.call(|engine| engine.restore(&spec.name, &Watch::QUIET)).unwrap();
    b.call(|engine| engine.release(&spec.name, &Watch::QUIET)).unwrap();
    runs(listener, &mut output);
}

/// At its last hook CRIU has completed the tree, which goes on by itself.
#[test]
fn an_instance_survives_a_kill_of_criu_at_the_end_of_a_restore() {
    let lab = Lab::new();
    let (a, b) = (lab.host("a"), lab.host("b"));
    let server = workload("steady", 33, &["serve", "10.77.0.33:700"]);
    let client = workload("parted", 34, &["crowd", "10.77.0.33:700"]);
    let (mut serving, mut heard) = (a.start(&server), Output::default());
    serving.read(&mut heard, |output| output.lines() > 0);
    let mut output = suspended(&client, &a, &b);
    let network = b.network_of(&client.name);
    b.call(|engine| engine.restore(&client.name, &Watch::QUIET)).unwrap();
    let kill_there = |phase: &engine_criu::Phase| {
        if phase.name == "complete" {
            lab::kill_criu(&network);
        }
    };
    let watch = Watch { progress: &kill_there, ..Watch::QUIET };
    let listener = b.listen(&client.name);
    b.call(|engine| engine.release(&client.name, &watch)).unwrap();
    let node = runs(listener, &mut output);
    let refused = b.call(|engine| engine.restore(&client.name, &Watch::QUIET)).unwrap_err();
    assert!(matches!(refused, Error::State { is: "running", .. }), "{refused}");
    a.call(|engine| engine.destroy(&client.name)).unwrap();
    relocate(node, &client, &b, &a, &mut output);
}

#[test]
fn an_instance_that_ends_in_its_release_is_lost_and_not_restored_again() {
    let lab = Lab::new();
    let (a, b) = (lab.host("a"), lab.host("b"));
    let spec = workload("ended", 35, &["count", "1000035"]);
    suspended(&spec, &a, &b);
    b.call(|engine| engine.restore(&spec.name, &Watch::QUIET)).unwrap();
    let network = b.network_of(&spec.name);
    let end_there = |phase: &engine_criu::Phase| {
        if phase.name == "complete" {
            lab::end_all(&network);
        }
    };
    let watch = Watch { progress: &end_there, ..Watch::QUIET };
    let lost = b.call(|engine| engine.release(&spec.name, &watch)).unwrap_err();
    assert!(matches!(lost, Error::Lost { .. }), "{lost}");
    assert!(b.call(|engine| engine.restore(&spec.name, &Watch::QUIET)).is_err());
}

#[test]
fn a_full_disk_stops_the_dump_and_not_the_instance() {
    let lab = Lab::new();
    let tiny = lab.tiny_disk("tiny");
    let a = lab.host_with("a", |config| config.images = vec![tiny.path()]);
    let spec = workload("big", 26, &["hold", "48"]);
    let (mut node, mut output) = (a.start(&spec), Output::default());
    node.read(&mut output, |output| output.lines() > 5);
    node.suspend(&mut output);
    let refused = a.call(|engine| engine.suspend(&spec.name, None, &Watch::QUIET)).unwrap_err();
    assert!(matches!(refused, Error::NoRoom(_)), "{refused}");
    runs(a.listen(&spec.name), &mut output);
}

/// Has sent all memory on.
struct Elsewhere;

impl MemorySink for Elsewhere {
    fn begin(&self) -> io::Result<()> {
        Ok(())
    }

    fn open(&self, _: Owner) -> io::Result<()> {
        Ok(())
    }

    fn take(&self, _: Owner, _: u64, _: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn end(&self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn pages_need_room_at_the_source_only_if_they_stay_there() {
    let lab = Lab::new();
    let tiny = lab.tiny_disk("tiny");
    let a = lab.host_with("a", |config| config.images = vec![tiny.path()]);
    let spec = workload("leaving", 83, &["hold", "48"]);
    let (mut node, mut output) = (a.start(&spec), Output::default());
    node.read(&mut output, |output| output.lines() > 5);
    let lacks = |stays| a.call(|engine| engine.check(&spec.name, stays)).unwrap().blockers;
    assert_eq!(lacks(false), []);
    let lacks = lacks(true);
    assert!(lacks.len() == 1 && lacks[0].what.starts_with("at the source"), "{lacks:?}");
    node.suspend(&mut output);
    a.call(|engine| engine.suspend(&spec.name, Some(&Elsewhere), &Watch::QUIET)).unwrap();
    let listener = a.listen(&spec.name);
    a.call(|engine| engine.resume(&spec.name)).unwrap();
    runs(listener, &mut output);
}

#[test]
fn a_destination_without_room_says_so() {
    let lab = Lab::new();
    let tiny = lab.tiny_disk("tiny");
    let a = lab.host_with("a", |config| config.images = vec![tiny.path()]);
    let spec = workload("big", 27, &["hold", "48"]);
    let refused = a.call(|engine| engine.prepare(&spec, 48 << 20)).unwrap_err();
    assert!(refused.to_string().contains("no room"), "{refused}");
    assert!(a.is_empty());
}

#[test]
fn damaged_images_are_refused_and_complete_ones_restored_afterwards() {
    let lab = Lab::new();
    let (a, b) = (lab.host("a"), lab.host("b"));
    let spec = workload("damaged", 28, &["count", "1000028"]);
    let mut output = suspended(&spec, &a, &b);
    let images = b.call(|engine| engine.image_directory(&spec.name)).unwrap();
    for image in ["core-1.img", "pages-1.img"] {
        fs::File::options().write(true).open(images.join(image)).unwrap().set_len(100).unwrap();
        let watch = Watch { timeout: Duration::from_secs(3), ..Watch::QUIET };
        let refused = b.call(|engine| engine.restore(&spec.name, &watch)).unwrap_err();
        println!("{image}: {refused}");
        assert_eq!(lab::copies(&spec, &a.network_of(&spec.name)), [0_i32; 0]);
        copy_images(&a, &b, &spec.name);
    }
    let listener = b.listen(&spec.name);
    b.call(|engine| engine.restore(&spec.name, &Watch::QUIET)).unwrap();
    b.call(|engine| engine.release(&spec.name, &Watch::QUIET)).unwrap();
    runs(listener, &mut output);
}
