//! Debian's perftest, unmodified, between two instances that let go of their node and come back
//! while it runs, here and at another host.
//!
//! Needs perftest, iproute2, and the right to make network namespaces.

use std::fs::File;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use broker::Flow;
use broker::local::{LocalFabric, LocalInstance};

/// Two network namespaces joined by a pair of virtual Ethernet devices, 10.99.0.1 and 10.99.0.2.
struct Networks([String; 2]);

impl Networks {
    fn new(test: &str) -> Self {
        let names = [1, 2].map(|n| format!("th-{test}-{}-{n}", std::process::id()));
        for name in &names {
            ip(&format!("netns add {name}"));
        }
        let networks = Self(names);
        let [one, two] = &networks.0;
        ip(&format!("-n {one} link add e0 type veth peer name e0 netns {two}"));
        for (name, address) in [(one, "10.99.0.1/24"), (two, "10.99.0.2/24")] {
            ip(&format!("-n {name} addr add {address} dev e0"));
            ip(&format!("-n {name} link set e0 up"));
        }
        networks
    }

    fn instances(&self, fabric: &LocalFabric) -> [LocalInstance; 2] {
        [0, 1].map(|host| {
            let network = File::open(format!("/run/netns/{}", self.0[host])).unwrap();
            fabric.adopt(host, network.into()).unwrap()
        })
    }
}

impl Drop for Networks {
    fn drop(&mut self) {
        for name in &self.0 {
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

fn ip(arguments: &str) {
    assert!(
        Command::new("ip").args(arguments.split(' ')).status().expect("iproute2").success(),
        "{arguments}"
    );
}

/// Starts a program in an instance, for a minute at most.
fn start(instance: &LocalInstance, program: &str) -> Child {
    let library = test_support::libraries::folder().join("libibverbs.so.1");
    let mut command = Command::new("timeout");
    command.arg("60").args(program.split(' ')).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env("LD_PRELOAD", &library).env("LD_LIBRARY_PATH", library.parent().unwrap());
    instance.enter(&mut command).spawn().expect("perftest")
}

fn finish(child: Child) -> Output {
    let output = child.wait_with_output().unwrap();
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&text));
    output
}

/// Waits until a program in the instance listens on perftest's port.
fn wait_for_listener(instance: &LocalInstance) {
    for _ in 0..2000 {
        let output = instance.enter(Command::new("ss").arg("-ltn")).output().expect("iproute2");
        if String::from_utf8_lossy(&output.stdout).contains(":18515") {
            return;
        }
    }
    panic!("no process listens");
}

/// How long a program may take to start, on a busy machine.
const LIMIT: Duration = Duration::from_secs(30);

/// Between moves that found no traffic.
const PAUSE: Duration = Duration::from_millis(20);

/// Moves until `rounds` moves have interrupted traffic.
fn move_under_traffic(fabric: &LocalFabric, instances: &[LocalInstance; 2], rounds: usize) {
    let (mut interrupted, began) = (0, Instant::now());
    for round in 0.. {
        assert!(began.elapsed() < LIMIT, "there was no traffic to interrupt");
        let instance = &instances[round % 2];
        let report = fabric.suspend(instance).unwrap();
        let had_traffic = report.processes.iter().any(|process| !process.active_peers.is_empty());
        fabric.resume(instance, (round / 2) % 2).unwrap();
        interrupted += usize::from(had_traffic);
        if interrupted == rounds {
            return;
        }
        if !had_traffic {
            // Programs come to nothing between moves that follow each other more quickly than links are made.
            thread::sleep(PAUSE);
        }
    }
}

/// Moves both ends of `program` while it runs, and nothing else does. Returns the bytes that the brokers have counted from client to server.
fn does_not_notice_moves(name: &str, program: &str) -> u64 {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock();
    let networks = Networks::new(name);
    let fabric = LocalFabric::new(2).expect("brokers");
    let instances = networks.instances(&fabric);
    let server = start(&instances[0], program);
    wait_for_listener(&instances[0]);
    let client = start(&instances[1], &format!("{program} 10.99.0.1"));
    move_under_traffic(&fabric, &instances, 10);
    finish(client);
    finish(server);
    let [server, client] = instances.map(|instance| instance.id().vid);
    let flows = (0..2).flat_map(|host| fabric.broker(host).unwrap().traffic());
    let is_it = |flow: &Flow| flow.from == client && flow.to == server;
    flows.filter(is_it).map(|flow| flow.volume.bytes).sum()
}

#[test]
fn ib_write_bw_does_not_notice_moves() {
    does_not_notice_moves("moves", "ib_write_bw -F -s 65536 -q 4 -D 4");
}

/// What was in flight in a move is sent again, and counts again: up to 16 messages.
#[test]
fn counts_of_traffic_are_neither_lost_nor_doubled_by_moves() {
    const SENT: u64 = 12_000 * 65536;
    let counted = does_not_notice_moves("moves-counted", "ib_write_bw -F -s 65536 -n 12000 -t 16");
    assert!((SENT..SENT + SENT / 10).contains(&counted), "{counted} bytes were counted instead of {SENT}");
}

#[test]
fn ib_send_bw_over_extended_connections_does_not_notice_moves() {
    does_not_notice_moves("moves-xrc", "ib_send_bw -c XRC -F -s 65536 -q 4 -D 4");
}
