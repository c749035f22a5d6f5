//! Processes that attach, get links, suspend and resume. Needs the right to make network namespaces.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use broker::local::{LocalFabric, LocalInstance};
use broker::{Flow, SuspendError};
use fabric::attach::{self, LinkRefusal, OutputStream, Role, SOCKET_NAME, ToNode, ToProcess, Transport};
use fabric::directory::{Answer, Entry, Request};
use fabric::session::{MAX_SESSIONS, Server, SessionId, State, ToSession, Word};
use fabric::traffic::{Traffic, Volume};
use fabric::{Epoch, InstanceId, ProcessId, netns, seqpacket};
use rustix::io::ioctl_fionbio;

/// The broker's view of a process: a socket and its identity.
struct Process {
    socket: OwnedFd,
    id: ProcessId,
    epoch: Epoch,
}

impl Process {
    fn attach(instance: &LocalInstance, role: Role, resume: Option<ProcessId>) -> Self {
        let deadline = Instant::now() + Duration::from_secs(5);
        let connect = || netns::enter(instance.network(), || seqpacket::connect(SOCKET_NAME)).flatten();
        let socket = loop {
            match connect() {
                Ok(socket) => break socket,
                Err(error) if Instant::now() > deadline => panic!("no broker listens: {error}"),
                Err(_) => std::thread::yield_now(),
            }
        };
        Self::greet(socket, role, resume)
    }

    fn greet(socket: OwnedFd, role: Role, resume: Option<ProcessId>) -> Self {
        send(&socket, &ToNode::Hello { version: attach::VERSION, role, resume });
        match receive(&socket) {
            Some((ToProcess::Welcome { process, epoch, .. }, _)) => Self { socket, id: process, epoch },
            other => panic!("expected Welcome: {other:?}"),
        }
    }

    /// In the virtual machine that is the instance.
    fn inside(fabric: &LocalFabric, instance: &LocalInstance, pid: i32) -> Self {
        Self::greet(connect_inside(fabric, instance, pid), Role::Verbs, None)
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
            panic!("expected LinkUp: {message:?}")
        };
        assert_eq!((peer, descriptors.len()), (from, 4));
        File::from(descriptors.swap_remove(0)).metadata().unwrap().ino()
    }

    /// A link to another host.
    fn link_up(&self, from: ProcessId) -> TcpStream {
        let (message, mut descriptors) = self.hear();
        let ToProcess::LinkUp { peer, transport: Transport::Stream, .. } = message else {
            panic!("expected LinkUp: {message:?}")
        };
        assert_eq!(peer, from);
        let stream = TcpStream::from(descriptors.pop().unwrap());
        stream.set_nonblocking(false).unwrap();
        stream
    }

    /// Suspends on request.
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

fn connect_inside(fabric: &LocalFabric, instance: &LocalInstance, pid: i32) -> OwnedFd {
    let socket = fabric.connect(instance, pid).unwrap();
    ioctl_fionbio(&socket, false).unwrap();
    socket
}

/// They share no memory with each other or with the host.
#[test]
fn processes_in_a_virtual_machine_get_streams() {
    let fabric = LocalFabric::new(1).unwrap();
    let (machine, other) = (fabric.add_instance(0).unwrap(), fabric.add_instance(0).unwrap());
    let (one, two) = (Process::inside(&fabric, &machine, 7), Process::inside(&fabric, &machine, 8));
    let neighbour = Process::verbs(&other);
    for peer in [&two, &neighbour] {
        one.say(&ToNode::OpenLink { peer: peer.id });
        assert_joined(&mut one.link_up(peer.id), &mut peer.link_up(one.id));
    }
}

#[test]
fn a_process_in_a_virtual_machine_cannot_speak_for_it() {
    let fabric = LocalFabric::new(1).unwrap();
    let (machine, other) = (fabric.add_instance(0).unwrap(), fabric.add_instance(0).unwrap());
    let stranger = Process::verbs(&other);
    let claims = [(Role::Init, None), (Role::Sessions, None), (Role::Verbs, Some(stranger.id))];
    for (role, resume) in claims {
        let socket = connect_inside(&fabric, &machine, 7);
        send(&socket, &ToNode::Hello { version: attach::VERSION, role, resume });
        assert!(matches!(receive(&socket), Some((ToProcess::Refused { .. }, _))), "{role:?}");
    }
}

#[test]
fn a_request_of_the_higher_process_becomes_a_nudge() {
    let fabric = LocalFabric::new(2).unwrap();
    let (a, b) = (fabric.add_instance(0).unwrap(), fabric.add_instance(1).unwrap());
    let (low, high) = (Process::verbs(&a), Process::verbs(&b));
    high.say(&ToNode::OpenLink { peer: low.id });
    assert_eq!(low.hear().0, ToProcess::Nudge { peer: high.id });
    low.say(&ToNode::OpenLink { peer: high.id });
    assert_joined(&mut low.link_up(high.id), &mut high.link_up(low.id));
}

#[test]
fn the_directory_answers_and_removes_the_values_of_an_ended_process() {
    let fabric = LocalFabric::new(2).unwrap();
    let (a, b) = (fabric.add_instance(0).unwrap(), fabric.add_instance(1).unwrap());
    let (mine, other) = (Process::verbs(&a), Process::verbs(&b));
    let ask = |process: &Process, number, request| process.say(&ToNode::Directory { number, request });
    let answer = |process: &Process| match process.hear().0 {
        ToProcess::Directory { number, answer } => (number, answer),
        other => panic!("expected an answer: {other:?}"),
    };
    let look = || Request::Look { key: b"k".to_vec() };
    ask(&mine, 1, Request::Publish { key: b"k".to_vec(), value: b"v".to_vec(), exclusive: true });
    assert_eq!(answer(&mine), (1, Answer::Done));
    ask(&other, 2, look());
    let entry = Entry { process: mine.id, value: b"v".to_vec() };
    assert_eq!(answer(&other), (2, Answer::Found(vec![entry])));
    ask(&other, 3, Request::Watch { process: mine.id });
    drop(mine);
    assert_eq!(answer(&other), (3, Answer::Done));
    ask(&other, 4, look());
    assert_eq!(answer(&other), (4, Answer::Found(Vec::new())));
    ask(&other, 5, Request::Look { key: vec![0; 65] });
    assert_eq!(answer(&other), (5, Answer::Full));
}

#[test]
fn a_process_keeps_its_index_across_moves() {
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

    // A process that attaches at the new host gets the next index.
    for away in [id, ProcessId { index: id.index + 1, ..id }] {
        peer.say(&ToNode::OpenLink { peer: away });
        assert_eq!(peer.hear().0, ToProcess::LinkRefused { peer: away, reason: LinkRefusal::Moving });
    }

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
    // Both processes are on one host now.
    back.say(&ToNode::OpenLink { peer: peer.id });
    assert_eq!(back.shared_memory(peer.id), peer.shared_memory(id));
}

/// A guest that stands still answers nothing. Its programs attach again when it goes on.
#[test]
fn programs_of_a_stopped_guest_are_parted_with_and_keep_their_seats() {
    let fabric = LocalFabric::new(2).unwrap();
    let machine = fabric.add_instance(0).unwrap();
    let stopped = Process::inside(&fabric, &machine, 41);
    let report = thread::scope(|scope| {
        let suspending = scope.spawn(|| fabric.suspend(&machine));
        assert_eq!(stopped.hear().0, ToProcess::Suspend);
        assert!(!suspending.is_finished());
        fabric.broker(0).unwrap().part_without_word(machine.id());
        suspending.join().unwrap().unwrap()
    });
    assert_eq!(report.processes.iter().map(|process| process.process).collect::<Vec<_>>(), [stopped.id]);
    assert!(receive(&stopped.socket).is_none(), "the connection is closed");
    thread::scope(|scope| {
        let resuming = scope.spawn(|| fabric.resume(&machine, 1));
        let socket = loop {
            match fabric.connect(&machine, 41) {
                Ok(socket) => break socket,
                Err(_) => thread::yield_now(),
            }
        };
        ioctl_fionbio(&socket, false).unwrap();
        let back = Process::greet(socket, Role::Verbs, Some(stopped.id));
        assert_eq!((back.id, back.epoch > stopped.epoch), (stopped.id, true));
        back.say(&ToNode::Resumed { elapsed_us: 1 });
        resuming.join().unwrap().unwrap();
    });
}

#[test]
fn reports_of_traffic_add_up_over_processes_and_moves() {
    let fabric = LocalFabric::new(1).unwrap();
    let (a, b) = (fabric.add_instance(0).unwrap(), fabric.add_instance(0).unwrap());
    let volume = |bytes| Volume { bytes, messages: 1 };
    let report = |process: Process, sent| {
        let traffic = Traffic { sent: volume(sent), fetched: Volume::default() };
        process.say(&ToNode::Traffic { instances: vec![(b.id().vid, traffic)] });
        process.let_go()
    };
    let (one, two) = (Process::verbs(&a), Process::verbs(&a));
    std::thread::scope(|scope| {
        scope.spawn(|| report(one, 100));
        scope.spawn(|| report(two, 20));
        fabric.suspend(&a).unwrap();
    });
    let flow = Flow { from: a.id().vid, to: b.id().vid, volume: Volume { bytes: 120, messages: 2 } };
    assert_eq!(fabric.broker(0).unwrap().traffic(), [flow]);
}

#[test]
fn links_to_an_ended_process_are_refused_as_gone() {
    let fabric = LocalFabric::new(1).unwrap();
    let instance = fabric.add_instance(0).unwrap();
    let (one, two) = (Process::verbs(&instance), Process::verbs(&instance));
    let gone = two.id;
    drop(two);
    // Until the broker notices, it may still make a link that ends at once.
    let refused = (0..1000).any(|_| {
        one.say(&ToNode::OpenLink { peer: gone });
        one.hear().0 == ToProcess::LinkRefused { peer: gone, reason: LinkRefusal::Gone }
    });
    assert!(refused);
}

#[test]
fn a_silent_process_fails_the_suspension_and_stays_attached() {
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

/// Adds the instance to the broker again with its carried state, as after a restart of the node: no process is attached.
fn restart(runtime: &tokio::runtime::Runtime, broker: &broker::Broker, instance: &LocalInstance) {
    let (id, carried) = (instance.id(), broker.carried(instance.id()).unwrap());
    let network = instance.network().try_clone_to_owned().unwrap();
    broker.add(broker::Config { id, network, pids: None, carried });
    let deadline = Instant::now() + Duration::from_secs(5);
    // A separate task closes the old listening socket.
    while let Err(error) = runtime.block_on(broker.resume(id, Epoch::default())) {
        assert!(Instant::now() < deadline, "{error}");
        thread::yield_now();
    }
}

#[test]
fn after_a_restart_an_instance_is_suspended_once_all_processes_are_attached() {
    const LIMIT: Duration = Duration::from_secs(5);
    let fabric = LocalFabric::new(1).unwrap();
    let instance = fabric.add_instance(0).unwrap();
    let (process, broker) = (Process::verbs(&instance), fabric.broker(0).unwrap());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    restart(&runtime, broker, &instance);
    // It was attached until now, so its end removes its seat.
    let id = process.id;
    drop(process);
    let (whole, suspend) = (
        |limit| runtime.block_on(broker.whole(instance.id(), limit)),
        || runtime.block_on(broker.suspend(instance.id(), LIMIT)),
    );
    let away = SuspendError::Away { processes: 1 };
    assert_eq!(whole(Duration::from_millis(50)), Err(away.clone()));
    let begin = Instant::now();
    assert_eq!(suspend().unwrap_err(), away);
    assert!(begin.elapsed() < LIMIT, "the call must not wait");
    thread::scope(|scope| {
        scope.spawn(|| {
            let back = Process::attach(&instance, Role::Verbs, Some(id));
            back.say(&ToNode::Resumed { elapsed_us: 1 });
            back.let_go();
        });
        whole(LIMIT).unwrap();
        assert_eq!(suspend().unwrap().processes.len(), 1);
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
fn sessions_have_their_own_connection() {
    let (fabric, id) = (LocalFabric::new(1).unwrap(), SessionId(5));
    let instance = fabric.add_instance(0).unwrap();
    let broker = fabric.broker(0).unwrap();
    let verbs = Process::verbs(&instance);
    let init = Process::attach(&instance, Role::Sessions, None);
    init.say(&ToNode::Sessions(Word::All(Vec::new())));
    broker.tell_session(instance.id(), Server::Commands, id, ToSession::Leave);
    assert_eq!(init.hear().0, ToProcess::Session { id, message: ToSession::Leave });
    broker.ask_again();
    assert_eq!((init.hear().0, verbs.hear().0), (ToProcess::SayAgain, ToProcess::DirectoryBack));
    let state = (id, State::default());
    for (process, word) in [(verbs, Word::All(Vec::new())), (init, Word::All(vec![state; MAX_SESSIONS + 1]))]
    {
        process.say(&ToNode::Sessions(word));
        assert!(receive(&process.socket).is_none(), "the broker must close the connection");
    }
}

#[test]
fn a_lagging_first_process_is_disconnected_and_attaches_again() {
    let (fabric, id) = (LocalFabric::new(1).unwrap(), SessionId(5));
    let instance = fabric.add_instance(0).unwrap();
    let broker = fabric.broker(0).unwrap();
    let init = Process::attach(&instance, Role::Sessions, None);
    let input = ToSession::Input { offset: 0, bytes: vec![0; 16 * 1024] };
    for _ in 0..2000 {
        broker.tell_session(instance.id(), Server::Commands, id, input.clone());
    }
    let mut heard = 0;
    while receive(&init.socket).is_some() {
        heard += 1;
    }
    assert!(heard < 2000);
    let init = Process::attach(&instance, Role::Sessions, Some(init.id));
    broker.ask_again();
    assert_eq!(init.hear().0, ToProcess::SayAgain);
}

/// A message that fails because the process has closed would hide the last ones of the process.
#[test]
fn a_process_that_is_told_to_suspend_is_told_no_more() {
    let (fabric, id) = (LocalFabric::new(1).unwrap(), SessionId(5));
    let instance = fabric.add_instance(0).unwrap();
    let init = Process::attach(&instance, Role::Console, None);
    thread::scope(|scope| {
        let suspending = scope.spawn(|| fabric.suspend(&instance).unwrap());
        assert_eq!(init.hear().0, ToProcess::Suspend);
        fabric.broker(0).unwrap().tell_session(instance.id(), Server::Console, id, ToSession::Leave);
        assert!(!says_something(&init.socket, 200));
        drop(init);
        suspending.join().unwrap();
    });
}

/// Writes numbered pieces until the socket accepts none for a while, and returns their total number.
fn write_until_held(init: &Process, mut written: u64) -> u64 {
    let takes = |milliseconds| {
        let mut poll = libc::pollfd { fd: init.socket.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
        // SAFETY: one live pollfd is passed.
        unsafe { libc::poll(&raw mut poll, 1, milliseconds) == 1 }
    };
    while takes(300) {
        assert!(written < 1000, "the command must wait");
        let mut bytes = vec![0; 16 * 1024];
        bytes[..8].copy_from_slice(&written.to_le_bytes());
        init.say(&ToNode::Output { stream: OutputStream::Stdout, bytes });
        written += 1;
    }
    written
}

/// Reads all output from position `next` on, checks that it is complete, and returns its end.
fn read_on(broker: &broker::Broker, id: InstanceId, mut next: u64) -> u64 {
    loop {
        let (chunks, end, _) = broker.output(id, next, 64 * 1024).unwrap();
        for (number, chunk) in (next..).zip(&chunks) {
            assert_eq!(chunk.bytes[..8], number.to_le_bytes());
        }
        if chunks.is_empty() {
            return next;
        }
        assert_eq!(end, next + chunks.len() as u64);
        next = end;
        broker.follow(id, 1, next);
    }
}

fn read_until(broker: &broker::Broker, id: InstanceId, mut next: u64, end: u64) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while next < end {
        assert!(Instant::now() < deadline, "{next} of {end} pieces came");
        next = read_on(broker, id, next);
        thread::yield_now();
    }
}

#[test]
fn a_command_waits_for_a_lagging_follower_until_that_is_removed() {
    let fabric = LocalFabric::new(1).unwrap();
    let instance = fabric.add_instance(0).unwrap();
    let broker = fabric.broker(0).unwrap();
    let init = Process::attach(&instance, Role::Init, None);
    broker.expect_follower(instance.id());
    let written = write_until_held(&init, 0);
    read_until(broker, instance.id(), 0, written);
    let more = write_until_held(&init, written);
    read_until(broker, instance.id(), written, more);
    write_until_held(&init, more);
    broker.unfollow(instance.id(), 1);
    init.say(&ToNode::Exited { code: 3 });
    assert_eq!(init.hear().0, ToProcess::Farewell);
}

#[test]
fn a_move_loses_no_output_while_a_follower_lags() {
    let fabric = LocalFabric::new(2).unwrap();
    let instance = fabric.add_instance(0).unwrap();
    fabric.broker(0).unwrap().follow(instance.id(), 1, 0);
    let init = Process::attach(&instance, Role::Init, None);
    let written = write_until_held(&init, 0);
    let id = thread::scope(|scope| {
        let letting_go = scope.spawn(|| init.let_go());
        fabric.suspend(&instance).unwrap();
        letting_go.join().unwrap()
    });
    let init = thread::scope(|scope| {
        let back = scope.spawn(|| Process::attach(&instance, Role::Init, Some(id)));
        fabric.resume(&instance, 1).unwrap();
        back.join().unwrap()
    });
    let broker = fabric.broker(1).unwrap();
    let more = write_until_held(&init, written);
    assert!(more > written, "the socket must accept some pieces");
    read_until(broker, instance.id(), 0, more);
}

#[test]
fn processes_of_other_instances_and_bad_messages_are_disconnected() {
    let fabric = LocalFabric::new(1).unwrap();
    let instance = fabric.add_instance(0).unwrap();
    let process = Process::verbs(&instance);
    process.say(&ToNode::Exited { code: 0 });
    assert!(receive(&process.socket).is_none());
    let socket = netns::enter(instance.network(), || seqpacket::connect(SOCKET_NAME)).flatten().unwrap();
    send(&socket, &ToNode::Hello { version: 0, role: Role::Verbs, resume: None });
    assert!(matches!(receive(&socket), Some((ToProcess::Refused { .. }, _))));
    let init = Process::attach(&instance, Role::Init, None);
    init.say(&ToNode::Traffic { instances: Vec::new() });
    assert!(receive(&init.socket).is_none(), "the first process uses no RDMA");
}

/// Connections that send no `Hello`.
struct Silent(Vec<OwnedFd>);

impl Silent {
    fn connect(instance: &LocalInstance, count: usize) -> Self {
        raise_descriptor_limit();
        let connect = || (0..count).map(|_| seqpacket::connect(SOCKET_NAME)).collect::<std::io::Result<_>>();
        Self(netns::enter(instance.network(), connect).flatten().unwrap())
    }

    /// Waits until the broker has closed all but `most`.
    fn wait_until_left(&mut self, most: usize, limit: Duration) {
        let deadline = Instant::now() + limit;
        while self.0.len() > most {
            assert!(Instant::now() < deadline, "the broker keeps {}", self.0.len());
            self.0.retain(|socket| !says_something(socket, 0));
        }
    }
}

/// Raises this process' limit of descriptors to the maximum, as a node does: it holds both ends, and a login on
/// Debian allows 1024.
fn raise_descriptor_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is live and writable.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
    }
}

/// Whether the broker sends something, or closes, within so many milliseconds.
fn says_something(socket: &OwnedFd, milliseconds: libc::c_int) -> bool {
    let mut poll = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one live pollfd is passed.
    unsafe { libc::poll(&raw mut poll, 1, milliseconds) == 1 }
}

#[test]
fn silent_connections_are_limited_per_instance() {
    let fabric = LocalFabric::new(1).unwrap();
    let (hostile, calm) = (fabric.add_instance(0).unwrap(), fabric.add_instance(0).unwrap());
    let member = Process::verbs(&hostile);
    let mut silent = Silent::connect(&hostile, 400);
    // Well before the time limit for their `Hello`, also on a busy machine: the broker sleeps before each that it
    // refuses.
    silent.wait_until_left(256, Duration::from_secs(4));
    assert_eq!(Process::verbs(&calm).id.index, 1);
    thread::scope(|scope| {
        scope.spawn(|| member.let_go());
        fabric.suspend(&hostile).unwrap();
    });
    silent.wait_until_left(0, Duration::from_secs(2));
}

#[test]
fn a_flood_of_connections_does_not_delay_a_suspension() {
    let fabric = LocalFabric::new(1).unwrap();
    let instance = fabric.add_instance(0).unwrap();
    let stop = AtomicBool::new(false);
    let flood = || {
        while !stop.load(Ordering::Relaxed) {
            let _ = seqpacket::connect(SOCKET_NAME);
        }
    };
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| netns::enter(instance.network(), flood).unwrap());
        }
        let _stopped = OnDrop(|| stop.store(true, Ordering::Relaxed));
        for _ in 0..20 {
            // Once the backlog is full, connections wait for the broker.
            drop(Silent::connect(&instance, 300));
            let began = Instant::now();
            fabric.suspend(&instance).unwrap();
            assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
            fabric.resume(&instance, 0).unwrap();
        }
    });
}

/// Ends the tasks that a failed assertion would leave running.
struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        self.0();
    }
}

#[test]
fn links_for_a_process_that_does_not_read_are_refused() {
    let fabric = LocalFabric::new(1).unwrap();
    let instance = fabric.add_instance(0).unwrap();
    let (one, deaf) = (Process::verbs(&instance), Process::verbs(&instance));
    let refusal = ToProcess::LinkRefused { peer: deaf.id, reason: LinkRefusal::Unreachable };
    let refused = (0..2000).any(|_| {
        one.say(&ToNode::OpenLink { peer: deaf.id });
        // A request that arrives while an equal one is being handled gets no answer of its own.
        says_something(&one.socket, 10) && one.hear().0 == refusal
    });
    assert!(refused);
}

/// The agent keeps its sessions by itself, so nothing in the machine can hold up a move.
#[test]
fn a_silent_agent_in_a_virtual_machine_does_not_hold_up_a_suspension() {
    let fabric = LocalFabric::new(1).unwrap();
    let machine = fabric.add_instance(0).unwrap();
    let socket = fabric.connect_agent(&machine, 7).unwrap();
    ioctl_fionbio(&socket, false).unwrap();
    let agent = Process::greet(socket, Role::Sessions, None);
    fabric.suspend(&machine).unwrap();
    assert!(receive(&agent.socket).is_none());
}
