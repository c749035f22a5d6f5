//! Processes that attach, get links, let go and come back. Needs the right to make network namespaces.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use broker::local::{LocalFabric, LocalInstance};
use broker::{SuspendError, in_network};
use fabric::attach::{self, LinkRefusal, OutputStream, Role, SOCKET_NAME, ToNode, ToProcess, Transport};
use fabric::{Epoch, ProcessId, seqpacket};

/// A process, as far as its broker can tell.
struct Process {
    socket: OwnedFd,
    id: ProcessId,
    epoch: Epoch,
}

impl Process {
    fn attach(instance: &LocalInstance, role: Role, resume: Option<ProcessId>) -> Self {
        let deadline = Instant::now() + Duration::from_secs(5);
        let connect = || in_network(instance.network(), || seqpacket::connect(SOCKET_NAME));
        let socket = loop {
            match connect() {
                Ok(socket) => break socket,
                Err(error) if Instant::now() > deadline => panic!("nobody listens: {error}"),
                Err(_) => std::thread::yield_now(),
            }
        };
        send(&socket, &ToNode::Hello { version: attach::VERSION, role, resume });
        match receive(&socket) {
            Some((ToProcess::Welcome { process, epoch, .. }, _)) => Self { socket, id: process, epoch },
            other => panic!("not welcome: {other:?}"),
        }
    }

    fn verbs(instance: &LocalInstance) -> Self {
        Self::attach(instance, Role::Verbs, None)
    }

    fn say(&self, message: &ToNode) {
        send(&self.socket, message);
    }

    fn hear(&self) -> (ToProcess, Vec<OwnedFd>) {
        receive(&self.socket).expect("the broker closed")
    }

    /// The inode of the memory of a link within the host.
    fn shared_memory(&self, from: ProcessId) -> u64 {
        let (message, mut descriptors) = self.hear();
        let ToProcess::LinkUp { peer, transport: Transport::SharedMemory, .. } = message else {
            panic!("no link but {message:?}")
        };
        assert_eq!((peer, descriptors.len()), (from, 4));
        File::from(descriptors.swap_remove(0)).metadata().unwrap().ino()
    }

    /// A link to another host.
    fn link_up(&self, from: ProcessId) -> TcpStream {
        let (message, mut descriptors) = self.hear();
        let ToProcess::LinkUp { peer, transport: Transport::Stream, .. } = message else {
            panic!("no link but {message:?}")
        };
        assert_eq!(peer, from);
        let stream = TcpStream::from(descriptors.pop().unwrap());
        stream.set_nonblocking(false).unwrap();
        stream
    }

    /// Lets go when it is told to.
    fn let_go(self) -> ProcessId {
        assert_eq!(self.hear().0, ToProcess::Suspend);
        self.say(&ToNode::Suspended {
            elapsed_us: 7,
            queue_pairs: 2,
            memory_regions: 3,
            active_peers: Vec::new(),
        });
        self.id
    }
}

fn send(socket: &OwnedFd, message: &ToNode) {
    seqpacket::send(socket.as_fd(), &attach::encode(message), &[]).unwrap();
}

fn receive(socket: &OwnedFd) -> Option<(ToProcess, Vec<OwnedFd>)> {
    let packet = seqpacket::receive(socket.as_fd()).unwrap();
    (!packet.bytes.is_empty()).then(|| (attach::decode(&packet.bytes).unwrap(), packet.descriptors))
}

fn assert_joined(near: &mut TcpStream, far: &mut TcpStream) {
    near.write_all(b"ping").unwrap();
    let mut got = [0; 4];
    far.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"ping");
}

#[test]
fn processes_of_one_instance_get_a_link() {
    let fabric = LocalFabric::new(1).unwrap();
    let instance = fabric.add_instance(0).unwrap();
    let (one, two) = (Process::verbs(&instance), Process::verbs(&instance));
    assert_eq!((one.id.index, two.id.index), (1, 2));
    one.say(&ToNode::OpenLink { peer: two.id });
    assert_eq!(one.shared_memory(two.id), two.shared_memory(one.id));
}

#[test]
fn the_higher_process_only_nudges() {
    let fabric = LocalFabric::new(2).unwrap();
    let (a, b) = (fabric.add_instance(0).unwrap(), fabric.add_instance(1).unwrap());
    let (low, high) = (Process::verbs(&a), Process::verbs(&b));
    high.say(&ToNode::OpenLink { peer: low.id });
    assert_eq!(low.hear().0, ToProcess::Nudge { peer: high.id });
    low.say(&ToNode::OpenLink { peer: high.id });
    assert_joined(&mut low.link_up(high.id), &mut high.link_up(low.id));
}

#[test]
fn a_process_keeps_its_index_wherever_it_comes_back() {
    let fabric = LocalFabric::new(2).unwrap();
    let (a, b) = (fabric.add_instance(0).unwrap(), fabric.add_instance(1).unwrap());
    let (moving, peer) = (Process::verbs(&a), Process::verbs(&b));
    let id = moving.id;
    let report = std::thread::scope(|scope| {
        scope.spawn(|| moving.let_go());
        fabric.suspend(&a).unwrap()
    });
    assert_eq!(report.processes.len(), 1);
    assert_eq!((report.processes[0].process, report.processes[0].queue_pairs), (id, 2));

    peer.say(&ToNode::OpenLink { peer: id });
    assert_eq!(peer.hear().0, ToProcess::LinkRefused { peer: id, reason: LinkRefusal::Moving });

    let back = std::thread::scope(|scope| {
        let back = scope.spawn(|| {
            let back = Process::attach(&a, Role::Verbs, Some(id));
            back.say(&ToNode::Resumed { elapsed_us: 11 });
            back
        });
        assert_eq!(fabric.resume(&a, 1).unwrap().slowest_us, 11);
        back.join().unwrap()
    });
    assert_eq!((back.id, back.epoch), (id, Epoch(1)));
    // It has come to its peer's host.
    back.say(&ToNode::OpenLink { peer: peer.id });
    assert_eq!(back.shared_memory(peer.id), peer.shared_memory(id));
}

#[test]
fn a_process_that_ended_is_gone() {
    let fabric = LocalFabric::new(1).unwrap();
    let instance = fabric.add_instance(0).unwrap();
    let (one, two) = (Process::verbs(&instance), Process::verbs(&instance));
    let gone = two.id;
    drop(two);
    // The broker notices soon; until then it may still make a link that ends at once.
    let refused = (0..1000).any(|_| {
        one.say(&ToNode::OpenLink { peer: gone });
        one.hear().0 == ToProcess::LinkRefused { peer: gone, reason: LinkRefusal::Gone }
    });
    assert!(refused);
}

#[test]
fn a_silent_process_stops_the_suspension_and_stays_attached() {
    let fabric = LocalFabric::new(1).unwrap();
    let instance = fabric.add_instance(0).unwrap();
    let process = Process::verbs(&instance);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let limit = Duration::from_millis(50);
    let suspended = runtime.block_on(fabric.broker(0).unwrap().suspend(instance.id(), limit));
    assert!(matches!(suspended, Err(SuspendError::Silent { processes, .. }) if processes.len() == 1));
    let id = process.let_go();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            Process::attach(&instance, Role::Verbs, Some(id)).say(&ToNode::Resumed { elapsed_us: 1 })
        });
        fabric.resume(&instance, 0).unwrap();
    });
}

#[test]
fn output_and_exit_code_arrive_before_the_farewell() {
    let fabric = LocalFabric::new(1).unwrap();
    let instance = fabric.add_instance(0).unwrap();
    let init = Process::attach(&instance, Role::Init, None);
    init.say(&ToNode::Output { stream: OutputStream::Stdout, bytes: b"hello".to_vec() });
    init.say(&ToNode::Exited { code: 3 });
    assert_eq!(init.hear().0, ToProcess::Farewell);
    let (chunks, next, exit) = fabric.broker(0).unwrap().output(instance.id(), 0, 100).unwrap();
    assert_eq!((chunks[0].bytes.as_slice(), next, exit), (b"hello".as_slice(), 1, Some(3)));
}

#[test]
fn strangers_and_speakers_for_others_are_cut_off() {
    let fabric = LocalFabric::new(1).unwrap();
    let instance = fabric.add_instance(0).unwrap();
    let process = Process::verbs(&instance);
    process.say(&ToNode::Exited { code: 0 });
    assert!(receive(&process.socket).is_none());
    let socket = in_network(instance.network(), || seqpacket::connect(SOCKET_NAME)).unwrap();
    send(&socket, &ToNode::Hello { version: 0, role: Role::Verbs, resume: None });
    assert!(matches!(receive(&socket), Some((ToProcess::Refused { .. }, _))));
}
