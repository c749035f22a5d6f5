//! CRIU is killed in a dump, where it stops and at any moment: the instance runs on with all that it had. It is killed
//! in a restore: nothing is left of it.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use engine_criu::{ProcessEngine, Watch};
use instance::InstanceSpec;

use crate::faults::{runs, suspended};
use crate::lab::{self, Host, Lab, Node, Output, copy_images, relocate, workload};

/// With the tree seized, and with its images complete.
const STOPS: u32 = 2;
/// How often it is killed at each.
const ROUNDS: u32 = 3;
/// How often it is killed at any moment.
const MOMENTS: u64 = 40;
/// The longest that the first process of an instance may take to come back to its node. A dump takes
/// a tenth of that.
const BACK: Duration = Duration::from_secs(5);

/// Suspends an instance, kills its CRIU so long after the begin, and lets the instance run on. Says how
/// long the dump took if it was quicker.
fn suspend_and_kill_after(host: &Host, spec: &InstanceSpec, delay: Duration) -> Option<Duration> {
    let dumped =
        kill_after(host, spec, delay, |engine| engine.suspend(&spec.name, None, &Watch::QUIET).is_ok());
    if dumped.is_some() {
        host.call(|engine| engine.resume(&spec.name)).unwrap();
    }
    dumped
}

/// Arms CRIU and kills it, and not what it has made, so long after the begin of `work`. Says how long that took if it was
/// quicker.
fn kill_after(
    host: &Host,
    spec: &InstanceSpec,
    delay: Duration,
    work: impl FnOnce(&ProcessEngine) -> bool + Send,
) -> Option<Duration> {
    host.call(|engine| engine.arm(&spec.name)).unwrap();
    let criu = lab::criu_in(&host.network_of(&spec.name));
    std::thread::scope(|scope| {
        let began = Instant::now();
        scope.spawn(move || {
            while began.elapsed() < delay {
                std::hint::spin_loop();
            }
            criu.iter().for_each(lab::kill);
        });
        host.call(work).then(|| began.elapsed())
    })
}

/// A client with threads in many kinds of waits, whose server is on another host.
struct Crowd {
    spec: InstanceSpec,
    node: Option<Node>,
    output: Output,
    /// A process of it, and the number of its descriptors.
    process: (i32, usize),
    _server: Node,
}

impl Crowd {
    fn start(here: &Host, there: &Host, number: u8) -> Self {
        let address = format!("10.77.0.{number}:700");
        let server = workload(&format!("echo{number}"), number, &["serve", &address]);
        let spec = workload(&format!("crowd{number}"), number + 1, &["crowd", &address]);
        let (mut serving, mut heard) = (there.start(&server), Output::default());
        serving.read(&mut heard, |output| output.lines() > 0);
        let (mut node, mut output) = (here.start(&spec), Output::default());
        node.read(&mut output, |output| output.lines() > 20);
        let pid = lab::process_of(&spec, &here.network_of(&spec.name));
        Self { spec, node: Some(node), output, process: (pid, descriptors_of(pid)), _server: serving }
    }

    fn suspend(&mut self) {
        self.node.take().unwrap().suspend(&mut self.output);
    }

    /// It has come back to its node on `here`, and neither lost anything, nor was interrupted, nor has
    /// anything of CRIU's in it.
    fn assert_runs_on(&mut self, here: &Host) {
        let node = self.node.insert(Node::accept(&here.listen(&self.spec.name)));
        let before = self.output.lines();
        node.read(&mut self.output, |output| output.lines() > before + 10);
        self.output.assert_counts();
        let (pid, descriptors) = self.process;
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        assert!(!maps.contains("CRIU"), "{maps}");
        assert_eq!(descriptors_of(pid), descriptors);
    }
}

fn descriptors_of(pid: i32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

#[test]
fn threads_in_waits_survive_a_kill_of_criu_at_each_stop() {
    let lab = Lab::new();
    let (a, b) = (lab.host("a"), lab.host("b"));
    let mut crowd = Crowd::start(&a, &b, 31);
    for round in 0..ROUNDS * STOPS {
        crowd.suspend();
        lab::suspend_and_kill(&a, &crowd.spec, round % STOPS);
        crowd.assert_runs_on(&a);
    }
    let mut output = crowd.output;
    let mut node = relocate(crowd.node.unwrap(), &crowd.spec, &a, &b, &mut output);
    let before = output.lines();
    node.read(&mut output, |output| output.lines() > before + 10);
    output.assert_counts();
}

#[test]
fn threads_in_waits_survive_a_kill_of_criu_at_any_moment() {
    let lab = Lab::new();
    let (a, b) = (lab.host("a"), lab.host("b"));
    let mut crowd = Crowd::start(&a, &b, 36);
    let random = RandomState::new();
    let mut whole = Duration::from_millis(50);
    for moment in 0..MOMENTS {
        let delay = Duration::from_nanos(random.hash_one(moment) % whole.as_nanos() as u64);
        crowd.suspend();
        let began = Instant::now();
        if let Some(took) = suspend_and_kill_after(&a, &crowd.spec, delay) {
            whole = whole.min(took);
        }
        crowd.assert_runs_on(&a);
        assert!(began.elapsed() < BACK, "killed after {delay:?}, it came back after {:?}", began.elapsed());
    }
}

#[test]
fn killing_criu_during_a_restore_leaves_nothing_behind() {
    let lab = Lab::new();
    let (a, b) = (lab.host("a"), lab.host("b"));
    let spec = workload("unborn", 37, &["count", "1000037"]);
    let mut output = suspended(&spec, &a, &b);
    let random = RandomState::new();
    let mut whole = Duration::from_millis(50);
    for moment in 0..MOMENTS {
        let delay = Duration::from_nanos(random.hash_one(moment) % whole.as_nanos() as u64);
        let restored =
            kill_after(&b, &spec, delay, |engine| engine.restore(&spec.name, &Watch::QUIET).is_ok());
        whole = restored.map_or(whole, |took| whole.min(took));
        let network = b.network_of(&spec.name);
        let began = Instant::now();
        while restored.is_none() && lab::has_criu(&network) {
            assert!(began.elapsed() < BACK, "killed after {delay:?}, it is there still");
            std::thread::sleep(Duration::from_millis(1));
        }
        b.call(|engine| engine.abort(&spec.name)).unwrap();
        b.call(|engine| engine.prepare(&spec, 0)).unwrap();
        copy_images(&a, &b, &spec.name);
    }
    let listener = b.listen(&spec.name);
    b.call(|engine| engine.restore(&spec.name, &Watch::QUIET)).unwrap();
    b.call(|engine| engine.release(&spec.name, &Watch::QUIET)).unwrap();
    runs(listener, &mut output);
}
