//! CRIU is killed in a dump, where it stops and at any moment. The instance runs on with all that it had.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use engines::{InstanceSpec, Watch};

use crate::lab::{self, Host, Lab, Node, Output, relocate, workload};

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
    host.call(|engine| engine.arm(&spec.name)).unwrap();
    let criu = lab::criu_in(&host.network_of(&spec.name));
    let dumped = std::thread::scope(|scope| {
        let began = Instant::now();
        scope.spawn(move || {
            while began.elapsed() < delay {
                std::hint::spin_loop();
            }
            criu.iter().for_each(lab::kill);
        });
        let dumped = host.call(|engine| engine.suspend(&spec.name, &Watch::QUIET));
        dumped.map(|_| began.elapsed())
    });
    if dumped.is_ok() {
        host.call(|engine| engine.resume(&spec.name)).unwrap();
    }
    dumped.ok()
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
fn threads_in_waits_do_not_notice_that_criu_is_killed_where_it_stops() {
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
fn threads_in_waits_do_not_notice_that_criu_is_killed_at_any_moment() {
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
