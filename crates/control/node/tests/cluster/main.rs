//! A coordinator and three nodes, with an engine that only pretends. Needs the right to make network
//! namespaces.

mod cooling;
mod engine;
mod library;
mod machines;
mod vm;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use api::{
    Bytes, Client, EnginePart, Event, Failure, Instance, MoveReport, MoveRequest, Outcome, Phase, Position,
    Request, RunRequest, State,
};
use coordinator::CoordinatorOptions;
use engine::{FakeEngine, IMAGES, World};
use fabric::attach::OutputStream;
use fabric::directory::{self, Entry};
use fabric::{Epoch, FabricId};
use library::{LIMIT, Library, assert_linked, run_command};
use node::{Nics, NodeOptions};
use overlay_io::offloads::Offloads;
use tokio::runtime::Runtime;
use vm::FakeVmEngine;

const HOSTS: [&str; 3] = ["h1", "h2", "h3"];

struct Cluster {
    directory: tempfile::TempDir,
    world: Arc<World>,
    join: SocketAddr,
    coordinator: Option<Runtime>,
    nodes: Vec<Option<Runtime>>,
    engines: Vec<Arc<FakeEngine>>,
    machines: Vec<Arc<FakeVmEngine>>,
    /// As the next coordinator is told.
    cool_down: Duration,
}

impl Cluster {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let pki = directory.path().join("pki");
        rpc::pki::create_authority(&pki).unwrap();
        for name in ["coordinator"].into_iter().chain(HOSTS) {
            rpc::pki::issue(&pki, name).unwrap();
        }
        let world = Arc::new(World::default());
        let engine = |host| FakeEngine::new(world.clone(), directory.path().join(host).join("images"));
        let engines = HOSTS.map(engine).to_vec();
        let machines = HOSTS.map(|_| FakeVmEngine::new(world.clone())).to_vec();
        let join = free_address();
        let mut cluster = Self {
            directory,
            world,
            join,
            coordinator: None,
            nodes: vec![None, None, None],
            engines,
            machines,
            cool_down: Duration::ZERO,
        };
        cluster.start_coordinator();
        for host in 0..HOSTS.len() {
            cluster.start_node(host);
        }
        cluster
    }

    fn start_coordinator(&mut self) {
        let options = CoordinatorOptions {
            listen: self.join,
            socket: self.socket(),
            metrics: None,
            pki: self.directory.path().join("pki"),
            state: self.directory.path().join("coordinator"),
            enrolment: None,
            cool_down: self.cool_down,
        };
        let runtime = Runtime::new().unwrap();
        runtime.spawn(async { panic!("the coordinator ended: {}", coordinator::serve(options).await) });
        self.coordinator = Some(runtime);
    }

    /// Kills the coordinator, and starts the next one.
    fn replace_coordinator(&mut self) {
        self.coordinator.take().unwrap().shutdown_timeout(LIMIT / 10);
        self.start_coordinator();
        for host in HOSTS {
            self.wait_for_host(host, true);
        }
    }

    /// Starts a node, and waits until it is connected.
    fn start_node(&mut self, host: usize) {
        let options = NodeOptions {
            name: HOSTS[host].into(),
            listen: (Ipv4Addr::LOCALHOST, 0).into(),
            join: self.join,
            metrics: None,
            offloads: Offloads::ALL,
            pki: self.directory.path().join("pki"),
            state: self.directory.path().join(HOSTS[host]),
            engines: vec![self.engines[host].clone(), self.machines[host].clone()],
            start_patience: Duration::ZERO,
            sample_interval: Duration::from_secs(10),
            move_bandwidth: None,
            nics: Nics::default(),
            device: None,
            progress: Box::new(drop),
        };
        let runtime = Runtime::new().unwrap();
        runtime.spawn(async { panic!("the node ended: {}", node::serve(options).await) });
        self.nodes[host] = Some(runtime);
        self.wait_for_host(HOSTS[host], true);
    }

    fn stop_node(&mut self, host: usize) {
        self.nodes[host].take().unwrap().shutdown_timeout(LIMIT / 10);
        self.wait_for_host(HOSTS[host], false);
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    fn ask(&self, request: &Request) -> Event {
        let deadline = Instant::now() + LIMIT;
        loop {
            match Client::ask(&self.socket(), request) {
                Ok(event) => return event,
                Err(error) if Instant::now() > deadline => panic!("{error}"),
                Err(_) => std::thread::yield_now(),
            }
        }
    }

    fn wait_for_host(&self, name: &str, up: bool) {
        let deadline = Instant::now() + LIMIT;
        loop {
            let Event::Hosts(hosts) = self.ask(&Request::Hosts) else { panic!("no hosts") };
            if hosts.iter().any(|host| host.name == name && host.up == up) {
                return;
            }
            assert!(Instant::now() < deadline, "{name} is not up: {up}");
            std::thread::yield_now();
        }
    }

    fn request_run(&self, name: &str, host: &str) -> Event {
        self.ask(&Request::Run(run_request(name, host).into()))
    }
    fn run(&self, name: &str, host: &str) -> Instance {
        match self.request_run(name, host) {
            Event::Started(instance) => *instance,
            other => panic!("not started: {other:?}"),
        }
    }

    fn run_library(&self, name: &str, host: &str) -> Library {
        self.run(name, host);
        Library::attach(self.world.network(name))
    }

    fn request_move(&self, name: &str, host: &str, dry_run: bool) -> Event {
        self.ask(&Request::Move(MoveRequest {
            name: name.into(),
            host: host.into(),
            dry_run,
            force: false,
            post_copy: false,
            within_s: None,
        }))
    }

    fn move_to(&self, name: &str, host: &str) -> MoveReport {
        match self.request_move(name, host, false) {
            Event::Moved(report) => *report,
            other => panic!("not moved: {other:?}"),
        }
    }

    fn instance(&self, name: &str) -> Instance {
        let Event::Instances(instances) = self.ask(&Request::List) else { panic!("no instances") };
        instances.into_iter().find(|instance| instance.name == name).unwrap()
    }

    fn wait_until(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + LIMIT;
        while !condition(self) {
            assert!(Instant::now() < deadline, "{what} does not happen");
            std::thread::yield_now();
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let runtimes = self.nodes.iter_mut().chain([&mut self.coordinator]);
        runtimes.filter_map(Option::take).for_each(Runtime::shutdown_background);
    }
}

fn run_request(name: &str, host: &str) -> RunRequest {
    RunRequest {
        group: None,
        labels: BTreeMap::new(),
        anti_affinity: BTreeSet::new(),
        affinity: BTreeSet::new(),
        demand: api::Demand::default(),
        cool_down_s: None,
        pin: false,
        network: None,
        name: Some(name.into()),
        host: Some(host.into()),
        fabric: FabricId(1),
        command: vec!["true".into()],
        environment: Vec::new(),
        directory: "/".into(),
        followed: false,
        stdin: false,
        container: None,
        vm: None,
    }
}

fn free_address() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap()
}

#[test]
fn a_command_runs_and_its_output_and_exit_code_are_kept() {
    let cluster = Cluster::start();
    let instance = cluster.run("job", "h1");
    assert_eq!((instance.host.as_str(), instance.state), ("h1", State::Running));
    run_command(&cluster.world.network("job"), "hello\n", 3);
    cluster.world.end("job");
    assert_eq!(cluster.ask(&Request::Wait { name: "job".into() }), Event::Exited { code: 3 });
    let request = Request::Logs { name: "job".into(), follow: true, after: None };
    let mut client = Client::send(&cluster.socket(), &request).unwrap();
    let position = Position { vid: instance.vid, next: 1 };
    let output = Event::Output { stream: OutputStream::Stdout, bytes: Bytes(b"hello\n".into()), position };
    assert_eq!(client.next_event().unwrap(), output);
    assert_eq!(client.next_event().unwrap(), Event::Exited { code: 3 });
    let request = Request::Logs { name: "job".into(), follow: true, after: Some(position) };
    assert_eq!(cluster.ask(&request), Event::Exited { code: 3 }, "nothing is behind the end");
    assert_eq!(cluster.instance("job").state, State::Exited { code: 3 });
}

#[test]
fn logs_warn_of_missing_output_when_the_host_is_away() {
    let mut cluster = Cluster::start();
    cluster.run("job", "h1");
    run_command(&cluster.world.network("job"), "hello\n", 3);
    cluster.world.end("job");
    assert_eq!(cluster.ask(&Request::Wait { name: "job".into() }), Event::Exited { code: 3 });
    cluster.stop_node(0);
    let request = Request::Logs { name: "job".into(), follow: true, after: None };
    let mut client = Client::send(&cluster.socket(), &request).unwrap();
    let Event::Unread(why) = client.next_event().unwrap() else { panic!("it is not said") };
    assert!(why.message.contains("h1"), "{why}");
    assert_eq!(client.next_event().unwrap(), Event::Exited { code: 3 });
}

#[test]
fn an_instance_moves_around_all_hosts_and_keeps_its_links() {
    let cluster = Cluster::start();
    let mut a = cluster.run_library("a", "h1");
    let b = cluster.run_library("b", "h2");
    assert_linked(&a, &b);
    for (round, host) in ["h3", "h2", "h1"].into_iter().enumerate() {
        let report = cluster.move_to("a", host);
        assert_eq!(report.outcome, Outcome::Moved);
        assert_eq!(a.comes_back(), Epoch(round as u64 + 1));
        assert_eq!((report.epoch, report.network.queue_pairs), (Epoch(round as u64 + 1), 2));
        assert_eq!((report.network.suspend_us, report.network.resume_us), (3, 5));
        // Its three pages of memory went once, while it ran.
        let EnginePart { image_bytes, precopied_bytes, .. } = report.engine;
        assert_eq!((image_bytes, precopied_bytes), (IMAGES + 3 * 4096, 3 * 4096));
        assert!(report.blackout_us > 0);
        assert_eq!(cluster.instance("a").host, host);
        assert_linked(&a, &b);
    }
}

#[test]
fn a_move_that_fails_leaves_the_instance_where_it_was() {
    let cluster = Cluster::start();
    let mut a = cluster.run_library("a", "h1");
    let b = cluster.run_library("b", "h2");
    cluster.engines[2].fail_restore.store(true, Ordering::SeqCst);
    let report = cluster.move_to("a", "h3");
    let Outcome::RolledBack(why) = &report.outcome else { panic!("{report:?}") };
    assert_eq!(why.message, "it could not be restored on host h3 (CRIU says: the test says so)");
    assert!(why.remedy.starts_with("move it again"), "{why:?}");
    assert_eq!(a.comes_back(), Epoch(0));
    assert_linked(&a, &b);
    assert_eq!(cluster.move_to("a", "h3").outcome, Outcome::Moved);
    assert_eq!(a.comes_back(), Epoch(1));
    assert_linked(&a, &b);
    cluster.wait_until("destroying", |cluster| !cluster.engines[0].has("a"));
}

#[test]
fn a_dump_that_fails_has_no_transfer_behind_it() {
    let cluster = Cluster::start();
    let mut a = cluster.run_library("a", "h1");
    cluster.engines[0].fail_dump.store(true, Ordering::SeqCst);
    let report = cluster.move_to("a", "h3");
    let phases: Vec<_> = report.phases.iter().map(|time| time.phase).collect();
    let expected = [Phase::Prepare, Phase::Precopy, Phase::Suspend, Phase::Dump, Phase::RollBack];
    assert_eq!(phases, expected, "{report:?}");
    let Outcome::RolledBack(why) = &report.outcome else { panic!("{report:?}") };
    assert!(why.message.contains("h1") && why.message.contains("the test says so"), "{why:?}");
    assert_eq!(a.comes_back(), Epoch(0));
}

#[test]
fn a_failed_release_is_repeated() {
    let cluster = Cluster::start();
    let mut a = cluster.run_library("a", "h1");
    let b = cluster.run_library("b", "h2");
    cluster.engines[2].fail_release.store(true, Ordering::SeqCst);
    assert_eq!(cluster.move_to("a", "h3").outcome, Outcome::Moved);
    assert_eq!(a.comes_back(), Epoch(1));
    assert_linked(&a, &b);
}

#[test]
fn a_refused_request_names_the_remedy() {
    let cluster = Cluster::start();
    cluster.run("a", "h1");
    for (name, host) in [("a", "h1"), ("a", "h9"), ("x", "h2"), ("a", "../h2")] {
        let Event::Failed(failure) = cluster.request_move(name, host, false) else { panic!("{name} {host}") };
        assert!(!failure.message.is_empty() && !failure.remedy.is_empty());
    }
    assert_eq!(cluster.request_move("a", "h2", true), Event::Checked { obstacles: Vec::new() });
    assert_eq!(cluster.instance("a").host, "h1");
}

#[test]
fn a_restarted_node_takes_over_its_instances() {
    let mut cluster = Cluster::start();
    let mut a = cluster.run_library("a", "h1");
    let b = cluster.run_library("b", "h2");
    cluster.stop_node(0);
    cluster.start_node(0);
    assert_eq!(a.comes_back(), Epoch(0));
    assert_linked(&a, &b);
    cluster.move_to("a", "h2");
    assert_eq!(a.comes_back(), Epoch(1));
    assert_linked(&a, &b);
}

#[test]
fn a_restarted_coordinator_restores_its_state() {
    let mut cluster = Cluster::start();
    let mut a = cluster.run_library("a", "h1");
    cluster.move_to("a", "h2");
    assert_eq!(a.comes_back(), Epoch(1));
    cluster.replace_coordinator();
    let instance = cluster.instance("a");
    assert_eq!((instance.host.as_str(), instance.epoch), ("h2", Epoch(1)));
    cluster.move_to("a", "h3");
    assert_eq!(a.comes_back(), Epoch(2));
}

#[test]
fn the_directory_serves_all_hosts_and_refills_after_a_coordinator_restart() {
    let mut cluster = Cluster::start();
    let mut a = cluster.run_library("a", "h1");
    let b = cluster.run_library("b", "h2");
    let publish = |value: &str| directory::Request::Publish {
        key: b"port".to_vec(),
        value: value.into(),
        exclusive: true,
    };
    let look = || directory::Request::Look { key: b"port".to_vec() };
    let of_a = directory::Answer::Found(vec![Entry { process: a.id, value: b"a".to_vec() }]);
    a.ask_directory(1, look());
    a.ask_directory(2, publish("a"));
    assert_eq!(
        a.answer(1),
        directory::Answer::Found(vec![]),
        "a first coordinator need not wait for anybody"
    );
    assert_eq!(a.answer(2), directory::Answer::Done);
    assert_eq!(b.directory(1, publish("b")), directory::Answer::Taken);
    assert_eq!(b.directory(2, look()), of_a);
    cluster.move_to("a", "h3");
    a.comes_back();
    assert_eq!(b.directory(3, look()), of_a, "what a process has published moves with it");

    cluster.replace_coordinator();
    a.directory_is_back();
    b.directory_is_back();
    b.ask_directory(4, look());
    assert_eq!(a.directory(3, publish("a")), directory::Answer::Done);
    assert_eq!(b.answer(4), of_a, "who asks early waits");

    b.ask_directory(5, directory::Request::Watch { process: a.id });
    assert_eq!(cluster.ask(&Request::Kill { name: "a".into(), grace_s: None }), Event::Done);
    assert_eq!(b.answer(5), directory::Answer::Done);
    assert_eq!(b.directory(6, publish("b")), directory::Answer::Done);
}

#[test]
fn outcomes_of_moves_and_commands_survive_a_coordinator_restart() {
    let mut cluster = Cluster::start();
    cluster.run("a", "h1");
    let wish = MoveRequest {
        name: "a".into(),
        host: "h2".into(),
        dry_run: false,
        force: false,
        post_copy: false,
        within_s: None,
    };
    let mut client = Client::send(&cluster.socket(), &Request::Move(wish)).unwrap();
    let Event::Begun { id } = client.next_event().unwrap() else { panic!("not begun") };
    while !client.next_event().unwrap().is_last() {}
    let instance = cluster.run("b", "h1");
    run_command(&cluster.world.network("b"), "hello\n", 3);
    cluster.world.end("b");
    assert_eq!(cluster.ask(&Request::Wait { name: "b".into() }), Event::Exited { code: 3 });

    cluster.replace_coordinator();
    let moved = cluster.ask(&Request::FollowMove { name: "a".into(), id });
    assert!(matches!(moved, Event::Moved(report) if report.restarted && report.to == "h2"));
    let unknown = cluster.ask(&Request::FollowMove { name: "a".into(), id: id + 1 });
    assert!(matches!(unknown, Event::Failed(_)));
    assert_eq!(cluster.ask(&Request::Wait { name: "b".into() }), Event::Exited { code: 3 });
    let request = Request::Logs { name: "b".into(), follow: true, after: None };
    let mut client = Client::send(&cluster.socket(), &request).unwrap();
    let position = Position { vid: instance.vid, next: 1 };
    let output = Event::Output { stream: OutputStream::Stdout, bytes: Bytes(b"hello\n".into()), position };
    assert_eq!(client.next_event().unwrap(), output);
}

#[test]
fn a_move_waits_for_its_instance_to_be_started() {
    let cluster = Cluster::start();
    std::thread::scope(|scope| {
        let gate = cluster.engines[0].start_gate.lock().unwrap();
        let run = scope.spawn(|| cluster.run("a", "h1"));
        let deadline = Instant::now() + LIMIT;
        while !is_starting(&cluster, "a") {
            assert!(Instant::now() < deadline, "it does not begin to start");
            std::thread::yield_now();
        }
        let refused = cluster.request_move("a", "h2", false);
        assert!(matches!(refused, Event::Failed(why) if why.message.contains("still being started")));
        let moved = scope.spawn(|| cluster.move_to("a", "h2"));
        drop(gate);
        run.join().unwrap();
        assert_eq!(moved.join().unwrap().outcome, Outcome::Moved);
    });
}

fn is_starting(cluster: &Cluster, name: &str) -> bool {
    let Event::Instances(instances) = cluster.ask(&Request::List) else { panic!("no instances") };
    instances.iter().any(|instance| instance.name == name && instance.state == State::Starting)
}

#[test]
fn a_killed_instance_disappears() {
    let cluster = Cluster::start();
    cluster.run("a", "h1");
    assert_eq!(cluster.ask(&Request::Kill { name: "a".into(), grace_s: None }), Event::Done);
    assert_eq!(cluster.ask(&Request::Wait { name: "a".into() }), Event::Exited { code: 137 });
}

#[test]
fn an_instance_whose_node_is_being_restarted_is_killed_when_it_is_back() {
    let mut cluster = Cluster::start();
    cluster.run("a", "h1");
    cluster.stop_node(0);
    let mut killing =
        Client::send(&cluster.socket(), &Request::Kill { name: "a".into(), grace_s: None }).unwrap();
    cluster.start_node(0);
    assert_eq!(killing.next_event().unwrap(), Event::Done);
    assert_eq!(cluster.ask(&Request::Wait { name: "a".into() }), Event::Exited { code: 137 });
}

/// Begins a move, and follows it until `phase` begins.
fn move_up_to(cluster: &Cluster, name: &str, host: &str, phase: Phase) -> Client {
    let request = MoveRequest {
        name: name.into(),
        host: host.into(),
        dry_run: false,
        force: false,
        post_copy: false,
        within_s: None,
    };
    let mut events = Client::send(&cluster.socket(), &Request::Move(request)).unwrap();
    loop {
        match events.next_event().unwrap() {
            Event::Phase { phase: begun, .. } if begun == phase => return events,
            event => assert!(!event.is_last(), "{event:?}"),
        }
    }
}

fn outcome(mut events: Client) -> Outcome {
    loop {
        match events.next_event().unwrap() {
            Event::Moved(report) => return report.outcome,
            event => assert!(!event.is_last(), "{event:?}"),
        }
    }
}

/// Tells the coordinator to end an instance that is being moved.
fn begin_kill(cluster: &Cluster, name: &str) -> Client {
    let killing =
        Client::send(&cluster.socket(), &Request::Kill { name: name.into(), grace_s: None }).unwrap();
    let is_refused = |cluster: &Cluster| match cluster.request_move(name, "h3", false) {
        Event::Failed(why) => why.message.contains("is being ended"),
        event => panic!("two moves at a time: {event:?}"),
    };
    cluster.wait_until("the end of the instance begins", is_refused);
    killing
}

fn is_nowhere(cluster: &Cluster, name: &str) -> bool {
    cluster.engines.iter().all(|engine| !engine.has(name))
}

#[test]
fn a_move_whose_client_is_gone_is_cancelled_and_the_next_one_begins_at_once() {
    let cluster = Cluster::start();
    let _library = cluster.run_library("a", "h1");
    let cancel = || cluster.ask(&Request::Cancel { name: "a".into() });
    let refused = || match cancel() {
        Event::Failed(why) => why.message,
        event => panic!("{event:?}"),
    };
    assert_eq!(refused(), "`a` is not being moved");
    let gate = cluster.engines[1].restore_gate.lock().unwrap();
    drop(move_up_to(&cluster, "a", "h2", Phase::Restore));
    assert_eq!(cancel(), Event::Done);
    assert_eq!((cluster.instance("a").host.as_str(), cluster.instance("a").state), ("h1", State::Running));
    assert_eq!(refused(), "`a` is not being moved", "what is left at h2 is no move to its user");
    drop(gate);

    let gate = cluster.engines[2].release_gate.lock().unwrap();
    let events = move_up_to(&cluster, "a", "h3", Phase::Resume);
    assert_eq!(refused(), "the move of `a` is committed and cannot be cancelled");
    drop(gate);
    assert_eq!(outcome(events), Outcome::Moved);
    assert_eq!(cluster.ask(&Request::Kill { name: "a".into(), grace_s: None }), Event::Done);
    assert_eq!(refused(), "`a` has ended");
}

#[test]
fn a_waiting_client_is_told_of_a_cancelled_move() {
    let cluster = Cluster::start();
    let mut a = cluster.run_library("a", "h1");
    let gate = cluster.engines[1].restore_gate.lock().unwrap();
    let events = move_up_to(&cluster, "a", "h2", Phase::Restore);
    assert_eq!(cluster.ask(&Request::Cancel { name: "a".into() }), Event::Done);
    assert_eq!(outcome(events), Outcome::RolledBack(Failure::new("it was cancelled", "")));
    drop(gate);
    assert_eq!(a.comes_back(), Epoch(0));
}

#[test]
fn a_kill_cancels_a_move_and_ends_the_instance() {
    let cluster = Cluster::start();
    let _library = cluster.run_library("a", "h1");
    for (name, phase) in [("a", Phase::Restore), ("b", Phase::Suspend), ("c", Phase::Prepare)] {
        if name != "a" {
            cluster.run(name, "h1");
        }
        let gate = cluster.engines[1].restore_gate.lock().unwrap();
        let events = move_up_to(&cluster, name, "h2", phase);
        assert_eq!(cluster.ask(&Request::Kill { name: name.into(), grace_s: None }), Event::Done);
        assert_eq!(cluster.ask(&Request::Wait { name: name.into() }), Event::Exited { code: 137 });
        match outcome(events) {
            Outcome::Ended(why) => {
                assert_eq!(why.message, format!("it was cancelled because `{name}` is being ended"));
            }
            other => panic!("{phase:?}: {other:?}"),
        }
        drop(gate);
        cluster.wait_until("removal", |cluster| is_nowhere(cluster, name));
    }
}

#[test]
fn a_kill_after_the_commit_ends_the_instance_at_the_destination() {
    let cluster = Cluster::start();
    let _library = cluster.run_library("a", "h1");
    let gate = cluster.engines[1].release_gate.lock().unwrap();
    let events = move_up_to(&cluster, "a", "h2", Phase::Resume);
    let mut killing = begin_kill(&cluster, "a");
    drop(gate);
    assert_eq!(killing.next_event().unwrap(), Event::Done);
    assert_eq!(outcome(events), Outcome::Moved);
    assert_eq!(cluster.ask(&Request::Wait { name: "a".into() }), Event::Exited { code: 137 });
    assert_eq!(cluster.instance("a").host, "h2");
    cluster.wait_until("removal", |cluster| is_nowhere(cluster, "a"));
}

#[test]
fn a_kill_completes_without_its_client() {
    let cluster = Cluster::start();
    let _library = cluster.run_library("a", "h1");
    let gate = cluster.engines[1].release_gate.lock().unwrap();
    let events = move_up_to(&cluster, "a", "h2", Phase::Resume);
    drop((begin_kill(&cluster, "a"), events));
    drop(gate);
    assert_eq!(cluster.ask(&Request::Wait { name: "a".into() }), Event::Exited { code: 137 });
}

#[test]
fn a_coordinator_killed_during_a_kill_finishes_the_move_and_accepts_the_kill_again() {
    let mut cluster = Cluster::start();
    let _library = cluster.run_library("a", "h1");
    let engine = cluster.engines[1].clone();
    let gate = engine.release_gate.lock().unwrap();
    let _events = move_up_to(&cluster, "a", "h2", Phase::Resume);
    let mut killing = begin_kill(&cluster, "a");
    cluster.replace_coordinator();
    assert!(killing.next_event().is_err());
    drop(gate);
    cluster.wait_until("the move's end", |cluster| cluster.instance("a").state == State::Running);
    assert_eq!(cluster.instance("a").host, "h2");
    assert_eq!(cluster.ask(&Request::Kill { name: "a".into(), grace_s: None }), Event::Done);
    assert_eq!(cluster.ask(&Request::Wait { name: "a".into() }), Event::Exited { code: 137 });
}

#[test]
fn a_kill_that_waits_for_a_host_says_so() {
    let mut cluster = Cluster::start();
    let _library = cluster.run_library("a", "h1");
    *cluster.engines[1].delay.lock().unwrap() = LIMIT / 3;
    let events = move_up_to(&cluster, "a", "h2", Phase::Restore);
    cluster.stop_node(0);
    let mut killing = begin_kill(&cluster, "a");
    let Event::Waiting { host, outlook, .. } = killing.next_event().unwrap() else { panic!("it is done") };
    assert_eq!(host, "h1");
    assert_eq!(outlook, "the move is rolled back, and a is ended on h1 as soon as h1 answers");
    cluster.start_node(0);
    while killing.next_event().unwrap() != Event::Done {}
    assert!(matches!(outcome(events), Outcome::Ended(_)));
    assert_eq!(cluster.ask(&Request::Wait { name: "a".into() }), Event::Exited { code: 137 });
}

#[test]
fn an_instance_without_a_blueprint_is_lost_and_its_name_becomes_free() {
    let mut cluster = Cluster::start();
    let instance = cluster.run("a", "h1");
    cluster.stop_node(0);
    // As if the node had died before it wrote that down.
    let files = cluster.directory.path().join("h1/instances").join(instance.vid.lid().to_string());
    std::fs::remove_file(files.join("blueprint")).unwrap();
    cluster.start_node(0);
    let Event::Failed(failure) = cluster.ask(&Request::Wait { name: "a".into() }) else { panic!("it runs") };
    assert!(failure.message.contains("`a` is lost: host h1"), "{failure}");
    assert!(matches!(cluster.instance("a").state, State::Lost { .. }));
    assert_eq!(cluster.run("a", "h1").state, State::Running);
}

#[test]
fn an_instance_moves_back_to_a_host_that_still_removes_its_remains() {
    let cluster = Cluster::start();
    let mut a = cluster.run_library("a", "h1");
    for engine in &cluster.engines {
        *engine.delay.lock().unwrap() = LIMIT / 20;
    }
    for (round, host) in ["h2", "h1", "h2", "h1"].into_iter().enumerate() {
        assert_eq!(cluster.move_to("a", host).outcome, Outcome::Moved);
        assert_eq!(a.comes_back(), Epoch(round as u64 + 1));
    }
    assert_eq!(cluster.request_move("a", "h2", true), Event::Checked { obstacles: Vec::new() });
}

#[test]
fn dry_runs_and_refused_or_failed_moves_leave_nothing_armed() {
    let cluster = Cluster::start();
    let mut a = cluster.run_library("a", "h1");
    assert_eq!(cluster.request_move("a", "h2", true), Event::Checked { obstacles: Vec::new() });
    assert!(!cluster.engines[0].is_armed("a"));
    cluster.engines[1].fail_prepare.store(true, Ordering::SeqCst);
    assert!(matches!(cluster.move_to("a", "h2").outcome, Outcome::RolledBack(_)));
    cluster.wait_until("disarming", |cluster| !cluster.engines[0].is_armed("a"));
    cluster.engines[0].fail_dump.store(true, Ordering::SeqCst);
    assert!(matches!(cluster.move_to("a", "h2").outcome, Outcome::RolledBack(_)));
    assert_eq!(a.comes_back(), Epoch(0));
    cluster.wait_until("disarming after a dump", |cluster| !cluster.engines[0].is_armed("a"));
    assert_eq!(cluster.move_to("a", "h2").outcome, Outcome::Moved);
    assert_eq!(a.comes_back(), Epoch(1));
}

#[test]
fn a_move_reports_that_it_waits_for_its_source_and_its_outcome() {
    let mut cluster = Cluster::start();
    let mut a = cluster.run_library("a", "h1");
    *cluster.engines[1].delay.lock().unwrap() = LIMIT / 3;
    let request = MoveRequest {
        name: "a".into(),
        host: "h2".into(),
        dry_run: false,
        force: false,
        post_copy: false,
        within_s: None,
    };
    let mut events = Client::send(&cluster.socket(), &Request::Move(request)).unwrap();
    while !matches!(events.next_event().unwrap(), Event::Phase { phase: Phase::Restore, .. }) {}
    cluster.stop_node(0);
    let (why, outlook) = loop {
        if let Event::Waiting { host, why, outlook } = events.next_event().unwrap() {
            assert_eq!(host, "h1");
            break (why, outlook);
        }
    };
    assert!(why.contains("not connected"), "{why}");
    assert!(outlook.contains("rolled back, and a resumes on h1"), "{outlook}");
    let mut cancelling = Client::send(&cluster.socket(), &Request::Cancel { name: "a".into() }).unwrap();
    assert_eq!(cancelling.next_event().unwrap(), Event::Cancelling);
    assert!(matches!(cancelling.next_event().unwrap(), Event::Waiting { host, .. } if host == "h1"));
    cluster.start_node(0);
    let report = loop {
        match events.next_event().unwrap() {
            Event::Moved(report) => break report,
            event => assert!(!event.is_last(), "{event:?}"),
        }
    };
    // For one of two reasons: it has waited long enough, or was cancelled before that.
    assert!(matches!(report.outcome, Outcome::RolledBack(_)));
    while cancelling.next_event().unwrap() != Event::Done {}
    assert_eq!(a.comes_back(), Epoch(0));
}

/// A small file system in memory.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(path: PathBuf) -> Self {
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=16m", "none"]).arg(&path).status();
        assert!(mounted.unwrap().success());
        Self(path)
    }

    /// Leaves no room on it.
    fn fill(&self) {
        let mut file = File::create(self.0.join("fill")).unwrap();
        while file.write_all(&[1; 4096]).is_ok() {}
    }

    fn make_room(&self) {
        fs::remove_file(self.0.join("fill")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _gone = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[test]
fn a_node_with_a_full_disk_refuses_new_work_until_there_is_room() {
    let mut cluster = Cluster::start();
    cluster.stop_node(1);
    let disk = SmallDisk::mount(cluster.directory.path().join("h2"));
    cluster.start_node(1);
    let _library = cluster.run_library("a", "h1");
    let refused = |cluster: &Cluster, host: &str| {
        let Event::Moved(report) = cluster.request_move("a", host, false) else { panic!("no report") };
        let Outcome::RolledBack(why) = report.outcome else { panic!("it was moved") };
        assert!(why.message.contains("host h2: no room") && why.message.contains("node.redb"), "{why:?}");
        assert!(
            why.message.contains("No space left on device") && why.remedy.contains("make room"),
            "{why:?}"
        );
    };
    disk.fill();
    for _ in 0..2 {
        refused(&cluster, "h2");
        assert_eq!(cluster.instance("a").host, "h1");
    }
    disk.make_room();
    assert_eq!(cluster.move_to("a", "h2").outcome, Outcome::Moved);
    disk.fill();
    refused(&cluster, "h3");
    assert_eq!(cluster.instance("a").state, State::Running);
    disk.make_room();
    assert_eq!(cluster.move_to("a", "h3").outcome, Outcome::Moved);
}

#[test]
fn a_run_on_a_full_host_leaves_no_instance() {
    let mut cluster = Cluster::start();
    cluster.stop_node(1);
    let disk = SmallDisk::mount(cluster.directory.path().join("h2"));
    cluster.start_node(1);
    disk.fill();
    let Event::Failed(why) = cluster.request_run("a", "h2") else { panic!("it runs") };
    assert!(why.message.contains("host h2: no room") && why.remedy.contains("make room"), "{why}");
    assert_eq!(cluster.ask(&Request::List), Event::Instances(Vec::new()));
    let Event::Failed(why) = cluster.ask(&Request::Wait { name: "a".into() }) else { panic!("it ended") };
    assert!(why.message.contains("there is no instance"), "{why}");
    disk.make_room();
    assert_eq!(cluster.run("a", "h2").state, State::Running);
}
