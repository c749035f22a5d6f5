//! Hosts made of network namespaces, and a node that only listens to its instance's first process.

use std::fs::{self, File};
use std::io::Write;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use engine_criu::{Config, Error, ProcessEngine, Watch};
use fabric::attach::{self, NotStarted, OutputStream, Role, SOCKET_NAME, ToNode, ToProcess};
use fabric::{Epoch, FabricId, NetworkKind, ProcessId, Vid, netns, seqpacket};
use instance::{Container, InstanceName, InstanceSpec, Network, Program, Workload};

/// The longest that anything here may take.
pub const PATIENCE: Duration = Duration::from_secs(20);

static NUMBER: AtomicU32 = AtomicU32::new(1);

/// Hosts behind one switch. Everything ends with it.
pub struct Lab {
    folder: PathBuf,
    switch: OwnedFd,
}

impl Lab {
    pub fn new() -> Self {
        // SAFETY: no memory is passed.
        let user = unsafe { libc::geteuid() };
        assert_eq!(user, 0, "these tests make namespaces and need root: sudo make test");
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("th-eng-{}-{number}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let switch = netns::create().unwrap();
        inside(&switch, || ip("link add sw0 type bridge; link set sw0 up"));
        Self { folder, switch }
    }

    /// Where its files are.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A disk with room for small images only. It must outlive the hosts that use it.
    pub fn tiny_disk(&self, name: &str) -> TinyDisk {
        let path = self.folder.join(name);
        fs::create_dir_all(&path).unwrap();
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=20m", "tiny"]).arg(&path).status();
        assert!(mounted.unwrap().success());
        TinyDisk(path)
    }

    /// A program that is CRIU but when it is to work: then it hangs, and so does what it has forked.
    pub fn hanging_criu(&self) -> PathBuf {
        let path = self.folder.join("hanging-criu");
        let work = "[ $1 = swrk ] && { sleep 60 & exec sleep 60; }";
        let script = format!("#!/bin/sh\n{work}\nexec {} \"$@\"\n", criu().display());
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    pub fn host(&self, name: &str) -> Host {
        self.host_with(name, |_| {})
    }

    pub fn host_with(&self, name: &str, change: impl FnOnce(&mut Config)) -> Host {
        let network = netns::create().unwrap();
        let there = format!("/proc/{}/fd/{}", std::process::id(), network.as_raw_fd());
        inside(&network, || ip("link add br0 type bridge; link set br0 up; link set lo up"));
        inside(&self.switch, || {
            ip(&format!(
                "link add dev {name} type veth peer name up0 netns {there}; link set dev {name} master sw0 up"
            ));
        });
        inside(&network, || ip("link set up0 master br0 up"));
        let folder = self.folder.join(name);
        let example = |name: &str| examples().join(name);
        let mut config = Config {
            criu: criu(),
            state: folder.join("state"),
            images: vec![PathBuf::from("/dev/shm").join(self.folder.file_name().unwrap()).join(name)],
            bridge: "br0".into(),
            overlay: None,
            init: vec![example("init").into()],
            containers: None,
        };
        change(&mut config);
        let engine = ProcessEngine::new(config.clone()).unwrap();
        Host { network, engine, config }
    }
}

/// A small file system in memory.
pub struct TinyDisk(PathBuf);

impl TinyDisk {
    pub fn path(&self) -> PathBuf {
        self.0.clone()
    }

    /// Leaves no room on it.
    pub fn fill(&self) {
        let mut file = File::create(self.0.join("fill")).unwrap();
        while file.write_all(&[1; 4096]).is_ok() {}
    }

    pub fn make_room(&self) {
        fs::remove_file(self.0.join("fill")).unwrap();
    }
}

impl Drop for TinyDisk {
    fn drop(&mut self) {
        let _gone = Command::new("umount").arg(&self.0).status();
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _gone = fs::remove_dir_all(&self.folder);
        let _gone = fs::remove_dir_all(Path::new("/dev/shm").join(self.folder.file_name().unwrap()));
    }
}

/// A host: a network with a bridge, and an engine in it.
pub struct Host {
    network: OwnedFd,
    engine: ProcessEngine,
    pub config: Config,
}

impl Host {
    /// Calls the engine in the host's network.
    pub fn call<T: Send>(&self, work: impl FnOnce(&ProcessEngine) -> T + Send) -> T {
        netns::enter(self.network.as_fd(), || work(&self.engine)).unwrap()
    }

    /// The same host after its node has ended and started again.
    pub fn restart(&mut self) {
        self.engine = ProcessEngine::new(self.config.clone()).unwrap();
    }

    pub fn start(&self, spec: &InstanceSpec) -> Node {
        self.call(|engine| engine.prepare(spec, 0)).unwrap();
        let listener = self.listen(&spec.name);
        self.call(|engine| engine.start(&spec.name)).unwrap();
        Node::accept(&listener)
    }

    /// The network of an instance on this host.
    pub fn network_of(&self, name: &InstanceName) -> OwnedFd {
        self.call(|engine| engine.network_namespace(name)).unwrap()
    }

    /// Nothing of any instance is left on this host.
    pub fn is_empty(&self) -> bool {
        let entries = fs::read_dir(&self.config.state).unwrap();
        let records = entries.filter(|entry| entry.as_ref().unwrap().path().is_file()).count();
        let images = fs::read_dir(&self.config.images[0]).map_or(0, Iterator::count);
        let mut links = String::new();
        inside(&self.network, || links = fs::read_to_string("/proc/thread-self/net/dev").unwrap());
        records == 0 && images == 0 && !links.contains(" th0")
    }

    pub fn listen(&self, name: &InstanceName) -> OwnedFd {
        let network = self.network_of(name);
        netns::enter(network.as_fd(), || seqpacket::listen(SOCKET_NAME)).unwrap().unwrap()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.call(|engine| {
            for record in fs::read_dir(&self.config.state).unwrap() {
                let path = record.unwrap().path();
                let name = InstanceName::new(path.file_stem().unwrap().to_str().unwrap()).unwrap();
                engine.destroy(&name).unwrap();
            }
        });
    }
}

/// The node's side of one instance.
pub struct Node {
    connection: OwnedFd,
    pub resumed: bool,
}

impl Node {
    /// Waits for the first process, and welcomes it.
    pub fn accept(listener: &OwnedFd) -> Self {
        Self::accept_as(Role::Init, listener)
    }

    /// Waits for a connection of the first process that is for `wanted`, and welcomes it. Others are closed.
    pub fn accept_as(wanted: Role, listener: &OwnedFd) -> Self {
        let process = ProcessId { vid: Vid::new(7).unwrap(), index: 1 };
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            wait_readable(listener);
            let connection = seqpacket::accept(listener.as_fd()).unwrap();
            let mut node = Self { connection, resumed: false };
            let Some(ToNode::Hello { role, resume, .. }) = node.receive() else { panic!("no greeting") };
            if role == wanted {
                node.resumed = resume == Some(process);
                node.send(&ToProcess::Welcome { process, fabric: FabricId(1), epoch: Epoch(0) });
                return node;
            }
        }
        panic!("no greeting as {wanted:?}")
    }

    pub fn send(&self, message: &ToProcess) {
        seqpacket::send(self.connection.as_fd(), &attach::encode(message), &[]).unwrap();
    }

    /// The next message; `None` when the other side has closed.
    pub fn receive(&mut self) -> Option<ToNode> {
        wait_readable(&self.connection);
        let packet = seqpacket::receive(self.connection.as_fd()).unwrap();
        (!packet.bytes.is_empty()).then(|| attach::decode(&packet.bytes).unwrap())
    }

    /// Takes messages into `output` until `enough` of it is there.
    pub fn read(&mut self, output: &mut Output, enough: impl Fn(&Output) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !enough(output) {
            assert!(Instant::now() < end, "only {:?}", output.tail());
            output.take(self.receive().expect("the first process closed"));
        }
    }

    /// Tells the first process to let go, and takes all that it said before.
    pub fn suspend(mut self, output: &mut Output) {
        self.send(&ToProcess::Suspend);
        while let Some(message) = self.receive() {
            output.take(message);
        }
        assert!(output.suspended, "closed without a word");
        output.suspended = false;
    }
}

/// What the command wrote, and how it ended.
#[derive(Default)]
pub struct Output {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub started: bool,
    pub not_started: Option<NotStarted>,
    pub code: Option<i32>,
    suspended: bool,
}

impl Output {
    fn take(&mut self, message: ToNode) {
        match message {
            ToNode::Output { stream: OutputStream::Stdout, bytes } => self.stdout.extend(bytes),
            ToNode::Output { stream: OutputStream::Stderr, bytes } => self.stderr.extend(bytes),
            ToNode::Exited { code } => self.code = Some(code),
            ToNode::Started => self.started = true,
            ToNode::NotStarted(why) => self.not_started = Some(why),
            ToNode::Suspended { .. } => self.suspended = true,
            ToNode::Resumed { .. } => {}
            other => panic!("unexpected {other:?}"),
        }
    }

    /// The whole lines so far.
    pub fn lines(&self) -> usize {
        self.stdout.iter().filter(|byte| **byte == b'\n').count()
    }

    /// Asserts that the lines count from 0 without a gap or a repetition, and that nothing failed.
    pub fn assert_counts(&self) {
        let text = String::from_utf8(self.stdout.clone()).unwrap();
        let whole = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
        for (number, line) in whole.lines().enumerate() {
            assert_eq!(line.parse::<usize>().unwrap(), number);
        }
        assert_eq!(String::from_utf8_lossy(&self.stderr), "");
    }

    fn tail(&self) -> String {
        let all = [&self.stdout[..], &self.stderr[..]].concat();
        String::from_utf8_lossy(&all[all.len().saturating_sub(200)..]).into_owned()
    }
}

/// An instance that runs a workload.
pub fn workload(name: &str, number: u8, words: &[&str]) -> InstanceSpec {
    let program = examples().join("workload").to_str().unwrap().to_owned();
    let command = [program].into_iter().chain(words.iter().map(|word| (*word).to_owned()));
    let environment = vec![("PATH".into(), "/usr/bin:/bin".into())];
    InstanceSpec {
        name: InstanceName::new(name).unwrap(),
        network: Network {
            mac: [2, 0, 0, 0, 0, number],
            address: Ipv4Addr::new(10, 77, 0, number),
            prefix: 16,
            mtu: 1500,
        },
        network_kind: NetworkKind::Bridge,
        workload: Workload::Process(Program { environment, ..Program::new(command) }),
    }
}

/// The program of the instance.
pub fn program(spec: &mut InstanceSpec) -> &mut Program {
    match &mut spec.workload {
        Workload::Process(program) | Workload::Container(Container { program, .. }) => program,
        Workload::Vm(_) => panic!("a virtual machine has no program"),
    }
}

/// The container of the instance.
pub fn container(spec: &mut InstanceSpec) -> &mut Container {
    match &mut spec.workload {
        Workload::Container(container) => container,
        other => panic!("{other:?} is not a container"),
    }
}

/// Brings a stopped instance's images to its destination.
pub fn copy_images(from: &Host, to: &Host, name: &InstanceName) {
    let source = from.call(|engine| engine.image_directory(name)).unwrap();
    let target = to.call(|engine| engine.image_directory(name)).unwrap();
    for entry in fs::read_dir(source).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), target.join(entry.file_name())).unwrap();
    }
}

/// Moves a running instance, and returns the node's side at the destination.
pub fn relocate(node: Node, spec: &InstanceSpec, from: &Host, to: &Host, output: &mut Output) -> Node {
    relocate_when(node, spec, from, to, output, |_, _| {})
}

/// The same; all is prepared when `ready` is called, and the instance is suspended at once when it returns.
pub fn relocate_when(
    mut node: Node,
    spec: &InstanceSpec,
    from: &Host,
    to: &Host,
    output: &mut Output,
    ready: impl FnOnce(&mut Node, &mut Output),
) -> Node {
    let name = &spec.name;
    let report = from.call(|engine| engine.check(name, true)).unwrap();
    assert_eq!(report.blockers, []);
    assert_eq!(to.call(|engine| engine.verify(&report.needs)).unwrap(), []);
    to.call(|engine| engine.prepare(spec, report.needs.memory)).unwrap();
    from.call(|engine| engine.arm(name)).unwrap();
    to.call(|engine| engine.arm(name)).unwrap();
    ready(&mut node, output);
    node.suspend(output);
    let dump = from.call(|engine| engine.suspend(name, None, &Watch::QUIET)).unwrap();
    copy_images(from, to, name);
    let listener = to.listen(name);
    let restore = to.call(|engine| engine.restore(name, &Watch::QUIET)).unwrap();
    let release = to.call(|engine| engine.release(name, &Watch::QUIET)).unwrap();
    let node = Node::accept(&listener);
    from.call(|engine| engine.destroy(name)).unwrap();
    println!("suspend {:?}\nrestore {:?}\nrelease {:?}", dump.phases, restore, release.phases);
    node
}

/// Suspends an instance and kills its CRIU at that of its stops: with the tree seized, or with its images complete.
pub fn suspend_and_kill(host: &Host, spec: &InstanceSpec, stop: u32) {
    let network = host.network_of(&spec.name);
    let kill_there = killing_at(&network, stop);
    let watch = Watch { cancelled: &kill_there, ..Watch::QUIET };
    let refused = host.call(|engine| engine.suspend(&spec.name, None, &watch)).unwrap_err();
    assert!(matches!(refused, Error::Criu { .. }), "{refused}");
}

/// Never cancels, but kills the CRIU in a network when it is asked for that time: at each of its stops.
pub fn killing_at(network: &OwnedFd, stop: u32) -> impl Fn() -> bool + Sync + '_ {
    let stops = AtomicU32::new(0);
    move || {
        if stops.fetch_add(1, Ordering::Relaxed) == stop {
            kill_criu(network);
        }
        false
    }
}

fn wait_readable(socket: &OwnedFd) {
    let mut poll = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one live pollfd is passed.
    let ready = unsafe { libc::poll(&raw mut poll, 1, PATIENCE.as_millis() as libc::c_int) };
    assert_eq!(ready, 1, "nothing came within {PATIENCE:?}");
}

fn inside(network: &OwnedFd, work: impl FnOnce() + Send) {
    netns::enter(network.as_fd(), work).unwrap();
}

/// Runs `ip` for each command.
fn ip(commands: &str) {
    for command in commands.split("; ") {
        let output = Command::new("ip").args(command.split(' ')).output().unwrap();
        assert!(output.status.success(), "ip {command}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

pub fn examples() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().parent().unwrap().join("examples")
}

fn criu() -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../scripts/criu.sh");
    let output = Command::new(script).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    PathBuf::from(String::from_utf8(output.stdout).unwrap().trim())
}

/// Kills the CRIU that works in an instance's network, if there is one. It is not reaped before its
/// engine's call ends. What it has forked and left behind has its words, but is nobody's child here.
pub fn kill_criu(network: &OwnedFd) {
    criu_in(network).iter().filter(|pid| is_our_child(pid)).for_each(kill);
}

fn is_our_child(pid: &i32) -> bool {
    parent_of(*pid).map(i32::cast_unsigned) == Some(std::process::id())
}

pub fn parent_of(pid: i32) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

pub fn has_criu(network: &OwnedFd) -> bool {
    !criu_in(network).is_empty()
}

/// The CRIU that works in an instance's network.
pub fn criu_in(network: &OwnedFd) -> Vec<i32> {
    processes(|command, theirs| command.contains("swrk") && theirs == link_of(network))
}

/// Kills all processes in a network, and waits for their end.
pub fn end_all(network: &OwnedFd) {
    let found = processes(|_, theirs| theirs == link_of(network));
    found.iter().for_each(kill);
    await_ends(&found);
}

/// Waits until nothing is in a network.
pub fn await_silence(network: &OwnedFd) {
    await_ends(&processes(|_, theirs| theirs == link_of(network)));
}

fn await_ends(found: &[i32]) {
    let end = Instant::now() + PATIENCE;
    while found.iter().any(lives) {
        assert!(Instant::now() < end, "{found:?} do not end");
        std::thread::yield_now();
    }
}

fn lives(pid: &i32) -> bool {
    !matches!(state_of(*pid), None | Some('Z' | 'X'))
}

fn state_of(pid: i32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(") ").next()?.chars().next()
}

pub fn kill(pid: &i32) {
    signal(*pid, libc::SIGKILL);
}

/// Stops a process, and waits until it is.
pub fn stop(pid: i32) {
    signal(pid, libc::SIGSTOP);
    wait_for_state(pid, 'T');
}

/// Waits until a process is in this state of `/proc/PID/stat`.
pub fn wait_for_state(pid: i32, state: char) {
    let end = Instant::now() + PATIENCE;
    while state_of(pid) != Some(state) {
        assert!(Instant::now() < end, "{pid} does not come to state {state}");
        std::thread::yield_now();
    }
}

pub fn signal(pid: i32, signal: libc::c_int) {
    // SAFETY: no memory is passed.
    unsafe { libc::kill(pid, signal) };
}

/// The processes with an instance's command, which no other test has, outside of a network.
pub fn copies(spec: &InstanceSpec, besides: &OwnedFd) -> Vec<i32> {
    let words = spec.program().unwrap().command.join("\0");
    processes(|command, theirs| command.contains(&words) && theirs != link_of(besides))
}

/// The process in a network that runs an instance's command.
pub fn process_of(spec: &InstanceSpec, network: &OwnedFd) -> i32 {
    let words = spec.program().unwrap().command.join("\0");
    let found = processes(|command, theirs| command.starts_with(&words) && theirs == link_of(network));
    *found.first().expect("a process that runs the command")
}

fn link_of(network: &OwnedFd) -> PathBuf {
    fs::read_link(format!("/proc/self/fd/{}", network.as_raw_fd())).unwrap()
}

/// The processes whose command line and network namespace are like this.
fn processes(like: impl Fn(&str, PathBuf) -> bool) -> Vec<i32> {
    let all =
        fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    all.filter(|pid: &i32| {
        let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        fs::read_link(format!("/proc/{pid}/ns/net")).is_ok_and(|network| like(&command, network))
    })
    .collect()
}
