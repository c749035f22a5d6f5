//! Devices joined in one process, in virtual time.

#![allow(dead_code, reason = "each test program uses a part of it")]

pub mod pipe;

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fabric::attach::LinkRefusal;
use fabric::{Epoch, FabricId, ProcessId, Vid};
use softhca::*;
use verbs::Policy;

pub const FABRIC: FabricId = FabricId(7);

/// Devices made so far.
static INCARNATIONS: AtomicU64 = AtomicU64::new(0);

/// The connection between the devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// A pipe in memory that splits reads and writes anywhere.
    Pipe,
    Tcp,
    Shm,
}

impl Medium {
    pub const ALL: [Self; 3] = [Self::Pipe, Self::Tcp, Self::Shm];
}

/// xorshift64*: repeatable.
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 11) % end
    }

    pub fn one_in(&mut self, odds: u64) -> bool {
        self.below(odds) == 0
    }
}

/// Memory of an application, which devices write behind the compiler's back.
pub struct Memory {
    at: *mut u8,
    length: usize,
}

impl Memory {
    pub fn new(length: usize) -> Self {
        let words = vec![0u64; length.div_ceil(8)].into_boxed_slice();
        Self { at: Box::leak(words).as_mut_ptr().cast(), length }
    }

    /// Whole pages that no other code uses, far from any thread's stack: memory close to one is not shared.
    pub fn pages(length: usize) -> Self {
        const FAR: usize = 4 << 20;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh mapping at an address of the kernel's choice. Its middle is then made usable.
        unsafe {
            let around = libc::mmap(std::ptr::null_mut(), FAR + length + FAR, libc::PROT_NONE, flags, -1, 0);
            assert_ne!(around, libc::MAP_FAILED);
            let at = around.cast::<u8>().add(FAR);
            assert_eq!(libc::mprotect(at.cast(), length, libc::PROT_READ | libc::PROT_WRITE), 0);
            Self { at, length }
        }
    }

    pub fn address(&self) -> u64 {
        self.at as u64
    }

    pub fn len(&self) -> usize {
        self.length
    }

    pub fn store(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.length);
        // SAFETY: in bounds, and no device runs while the test does.
        unsafe { self.at.add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    pub fn load(&self, offset: usize, length: usize) -> Vec<u8> {
        assert!(offset + length <= self.length);
        // SAFETY: in bounds, and no device runs while the test does.
        unsafe { std::slice::from_raw_parts(self.at.add(offset), length) }.to_vec()
    }

    pub fn word(&self, offset: usize) -> u64 {
        u64::from_ne_bytes(self.load(offset, 8).try_into().unwrap())
    }
}

/// How many peers a device has at a time.
pub const MAX_PEERS: u32 = 16;

/// A device and its user.
pub struct Node {
    pub id: ProcessId,
    pub device: Device,
    pub epoch: Epoch,
    pub suspended: bool,
    pub gone: bool,
    pub events: Vec<Event>,
}

/// Devices and their connection.
pub struct Net {
    pub nodes: Vec<Node>,
    pub medium: Medium,
    pub now: Duration,
    pub random: Random,
    pub pipes: HashMap<(ProcessId, ProcessId), pipe::Cutter>,
    /// The memory of the last shared-memory link of each pair.
    shared: HashMap<(ProcessId, ProcessId), OwnedFd>,
    /// Bytes after which a new pipe breaks, if it does.
    pub cut_within: Option<u64>,
    pub refuse_with: LinkRefusal,
}

impl Net {
    pub fn new(count: usize, policy: Policy, medium: Medium, seed: u64) -> Self {
        let nodes = (0..count).map(|at| Node::new(at, policy, seed)).collect();
        Self {
            nodes,
            medium,
            now: Duration::from_secs(1),
            random: Random::new(seed),
            pipes: HashMap::new(),
            shared: HashMap::new(),
            cut_within: None,
            refuse_with: LinkRefusal::Moving,
        }
    }

    pub fn device(&mut self, at: usize) -> &mut Device {
        &mut self.nodes[at].device
    }

    /// The process of a node ends, and another one takes its name.
    pub fn replace(&mut self, at: usize) {
        self.nodes[at] = Node::new(at, Policy::Stable, 1);
        self.cut();
        self.settle();
    }

    fn broker(&mut self) {
        for at in 0..self.nodes.len() {
            let mut wanted = Vec::new();
            self.nodes[at].device.take_link_requests(&mut wanted);
            for peer in wanted {
                let other = self.nodes.iter().position(|node| node.id == peer && !node.gone);
                match other.filter(|other| !self.nodes[*other].suspended) {
                    Some(other) => self.join(at, other),
                    None => {
                        let gone = other.is_none();
                        let reason = if gone { LinkRefusal::Gone } else { self.refuse_with };
                        self.nodes[at].device.link_refused(peer, reason, self.now);
                    }
                }
            }
        }
    }

    /// Makes a link between two nodes.
    pub fn join(&mut self, a: usize, b: usize) {
        let (a, b) = if self.nodes[a].id < self.nodes[b].id { (a, b) } else { (b, a) };
        let (lower, higher) = self.streams((self.nodes[a].id, self.nodes[b].id));
        for (at, other, stream) in [(a, b, lower), (b, a, higher)] {
            let (peer, epoch) = (self.nodes[other].id, self.nodes[other].epoch);
            self.nodes[at].device.link_up(peer, epoch, stream);
        }
    }

    fn streams(&mut self, pair: (ProcessId, ProcessId)) -> (Box<dyn Stream>, Box<dyn Stream>) {
        match self.medium {
            Medium::Pipe => {
                let cut = self.cut_within.map(|within| self.random.below(within));
                let (cutter, a, b) = pipe::pair(self.random.next(), cut);
                self.pipes.insert(pair, cutter);
                (a, b)
            }
            Medium::Tcp => {
                let (a, b) = tcp_pair();
                (stream::tcp_stream(a).unwrap(), stream::tcp_stream(b).unwrap())
            }
            Medium::Shm => {
                let (a, b) = stream::create_shm_pair().unwrap();
                self.shared.insert(pair, a[0].try_clone().unwrap());
                (stream::shm_stream(a, true).unwrap(), stream::shm_stream(b, false).unwrap())
            }
        }
    }

    /// Makes it look as if the neighbour with the lower id stood in the gate of the one with the higher id for ever.
    pub fn stay_inside(&self, lower: usize, higher: usize) {
        /// Behind the controls of both rings, the gate of the lower end, and the count of the higher end's gate.
        const INSIDE: u64 = 2 * 1024 + 256 + 128;
        let memory = &self.shared[&(self.nodes[lower].id, self.nodes[higher].id)];
        std::fs::File::from(memory.try_clone().unwrap()).write_all_at(&1u32.to_ne_bytes(), INSIDE).unwrap();
    }

    /// Breaks every link.
    pub fn cut(&mut self) {
        for cutter in self.pipes.values() {
            cutter.cut();
        }
    }

    /// Loses the link of two neighbours, with all that is in its rings, to a new one.
    pub fn replace_a_ring(&mut self) {
        let mut pairs: Vec<_> = self.shared.keys().copied().collect();
        if pairs.is_empty() {
            return;
        }
        pairs.sort_unstable();
        let (a, b) = pairs[self.random.below(pairs.len() as u64) as usize];
        let at = |id| self.nodes.iter().position(|node| node.id == id && !node.suspended && !node.gone);
        if let (Some(a), Some(b)) = (at(a), at(b)) {
            self.join(a, b);
        }
    }

    /// One round of everything. Returns whether anything happened, and the next deadline.
    pub fn step(&mut self) -> (bool, Option<Duration>) {
        self.broker();
        let (mut worked, mut next) = (false, None::<Duration>);
        for node in &mut self.nodes {
            let progress = node.device.progress(self.now);
            worked |= progress.did_work;
            if let Some(deadline) = progress.next_deadline {
                next = Some(next.map_or(deadline, |next| next.min(deadline)));
            }
            node.device.take_events(&mut node.events);
        }
        (worked, next)
    }

    /// Runs until nothing moves and no end waits for a timer.
    pub fn settle(&mut self) {
        self.run(|_| false, 200_000);
    }

    /// Runs until `done` or rest, at most `steps` rounds.
    pub fn run(&mut self, mut done: impl FnMut(&mut Self) -> bool, steps: usize) {
        let mut quiet = 0;
        for _ in 0..steps {
            if done(self) {
                return;
            }
            let (worked, next) = self.step();
            quiet = if worked { 0 } else { quiet + 1 };
            match next {
                Some(deadline) if quiet > 3 => {
                    self.now = self.now.max(deadline) + Duration::from_nanos(1);
                    quiet = 0;
                }
                None if quiet > self.patience() => return,
                None if quiet > 20 => std::thread::yield_now(),
                _ => {}
            }
        }
        panic!("no end after {steps} steps at {:?}", self.now);
    }

    /// Rounds in which nothing moves before it is taken for granted that nothing will: on a busy machine the kernel may
    /// take its time to carry bytes from one socket to the other.
    fn patience(&self) -> u32 {
        if self.medium == Medium::Tcp { 1000 } else { 20 }
    }

    /// Moves a node: suspends it here, lets the others run, and resumes it with other handles.
    pub fn suspend(&mut self, at: usize) -> Suspended {
        self.nodes[at].suspended = true;
        self.nodes[at].device.suspend(self.now)
    }

    pub fn resume(&mut self, at: usize) {
        self.nodes[at].suspended = false;
        self.nodes[at].epoch = self.nodes[at].epoch.next();
        let epoch = self.nodes[at].epoch;
        self.nodes[at].device.resume(epoch);
    }

    pub fn asyncs(&self, at: usize) -> Vec<AsyncEvent> {
        let events = self.nodes[at].events.iter();
        events.filter_map(|event| if let Event::Async(event) = event { Some(*event) } else { None }).collect()
    }
}

impl Node {
    fn new(at: usize, policy: Policy, seed: u64) -> Self {
        let id = ProcessId { vid: Vid::new(at as u16 + 1).unwrap(), index: 1 };
        let config = Config {
            process: id,
            fabric: FABRIC,
            incarnation: INCARNATIONS.fetch_add(1, Ordering::Relaxed),
            epoch: Epoch(0),
            handles: policy.source(seed + at as u64),
            limits: Limits { max_peers: MAX_PEERS, ..Limits::default() },
        };
        let device = Device::new(config);
        Self { id, device, epoch: Epoch(0), suspended: false, gone: false, events: Vec::new() }
    }
}

fn tcp_pair() -> (OwnedFd, OwnedFd) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let a = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (a.into(), listener.accept().unwrap().0.into())
}

/// One end of a connection: a queue pair with its own CQs and memory.
pub struct End {
    pub node: usize,
    pub pd: Pd,
    pub qp: Qp,
    pub qpn: u32,
    pub send_cq: Cq,
    pub recv_cq: Cq,
    pub memory: Memory,
    pub mr: Mr,
    pub key: u32,
}

pub const EVERYTHING: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// How a connection is made.
#[derive(Clone, Copy)]
pub struct Plan {
    pub kind: QpKind,
    pub caps: QpCaps,
    pub memory: usize,
    pub cq_depth: u32,
    pub attr: QpAttr,
    pub srq: Option<Srq>,
    pub mr_access: Access,
    pub whole_pages: bool,
}

impl Plan {
    fn if_reliable(&self, mask: QpAttrMask) -> QpAttrMask {
        if self.kind == QpKind::Rc { mask } else { QpAttrMask::empty() }
    }
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            kind: QpKind::Rc,
            caps: QpCaps {
                max_send_wr: 64,
                max_recv_wr: 64,
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline: 256,
            },
            memory: 64 * 1024,
            cq_depth: 1024,
            attr: QpAttr {
                path_mtu: 3,
                port: 1,
                access: EVERYTHING,
                max_rd_atomic: 4,
                max_dest_rd_atomic: 4,
                min_rnr_timer: 12,
                timeout: 14,
                retry_count: 7,
                rnr_retry: 7,
                rq_psn: 0x00ff_fff0,
                sq_psn: 0x00ff_fff0,
                ..QpAttr::default()
            },
            srq: None,
            mr_access: EVERYTHING,
            whole_pages: false,
        }
    }
}

pub fn open(net: &mut Net, node: usize, plan: &Plan) -> End {
    let device = net.device(node);
    let pd = device.alloc_pd().unwrap();
    let (send_cq, _) = device.create_cq(plan.cq_depth).unwrap();
    let (recv_cq, _) = device.create_cq(plan.cq_depth).unwrap();
    let init = QpInit {
        kind: plan.kind,
        pd,
        send_cq,
        recv_cq,
        srq: plan.srq,
        xrcd: None,
        caps: plan.caps,
        sq_sig_all: false,
    };
    let (qp, qpn, _) = device.create_qp(&init).unwrap();
    let memory = if plan.whole_pages { Memory::pages(plan.memory) } else { Memory::new(plan.memory) };
    let (at, length) = (memory.address(), memory.len() as u64);
    // SAFETY: test memory is never unmapped.
    let (mr, keys) = unsafe { device.reg_mr(pd, at, length, at, plan.mr_access) }.unwrap();
    End { node, pd, qp, qpn, send_cq, recv_cq, memory, mr, key: keys.rkey }
}

pub fn to_init(net: &mut Net, end: &End, plan: &Plan) {
    use QpAttrMask as M;
    let attr = QpAttr { state: QpState::Init, ..plan.attr };
    let mask = M::STATE | M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS;
    net.device(end.node).modify_qp(end.qp, &attr, mask).unwrap();
}

pub fn to_rtr(net: &mut Net, end: &End, peer: &End, plan: &Plan) {
    let lid = net.nodes[peer.node].id.vid.lid();
    to_rtr_with(net, end, lid, peer.qpn, plan);
}

/// The peer need not exist.
pub fn to_rtr_with(net: &mut Net, end: &End, dlid: u16, remote_qpn: u32, plan: &Plan) {
    use QpAttrMask as M;
    let address = AddressVector { dlid, port: 1, ..AddressVector::default() };
    let attr = QpAttr { state: QpState::Rtr, remote_qpn, address, ..plan.attr };
    let reliable = M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
    let mask = M::STATE | M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | plan.if_reliable(reliable);
    net.device(end.node).modify_qp(end.qp, &attr, mask).unwrap();
}

pub fn to_rts(net: &mut Net, end: &End, plan: &Plan) {
    use QpAttrMask as M;
    let attr = QpAttr { state: QpState::Rts, ..plan.attr };
    let reliable = M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
    let mask = M::STATE | M::SQ_PSN | plan.if_reliable(reliable);
    net.device(end.node).modify_qp(end.qp, &attr, mask).unwrap();
}

pub fn connect(net: &mut Net, a: &End, b: &End, plan: &Plan) {
    for end in [a, b] {
        to_init(net, end, plan);
    }
    to_rtr(net, a, b, plan);
    to_rtr(net, b, a, plan);
    for end in [a, b] {
        to_rts(net, end, plan);
    }
}

/// Resets `end` and connects it to `peer` again. Both use the number `psn` first, where the transport allows.
pub fn start_new_incarnation(net: &mut Net, end: &End, peer: &End, plan: &Plan, psn: u32) {
    let reset = QpAttr { state: QpState::Reset, ..QpAttr::default() };
    net.device(end.node).modify_qp(end.qp, &reset, QpAttrMask::STATE).unwrap();
    let mut plan = *plan;
    (plan.attr.sq_psn, plan.attr.rq_psn) = (psn, psn);
    to_init(net, end, &plan);
    to_rtr(net, end, peer, &plan);
    to_rts(net, end, &plan);
}

pub fn pair(net: &mut Net, a: usize, b: usize, plan: &Plan) -> (End, End) {
    let (a, b) = (open(net, a, plan), open(net, b, plan));
    connect(net, &a, &b, plan);
    (a, b)
}

impl End {
    pub fn sge(&self, offset: usize, length: usize) -> Sge {
        Sge { addr: self.memory.address() + offset as u64, length: length as u32, lkey: self.key }
    }

    pub fn va(&self, offset: usize) -> u64 {
        self.memory.address() + offset as u64
    }

    /// Brings the queue pair to the error state.
    pub fn fail(&self, net: &mut Net) {
        let error = QpAttr { state: QpState::Error, ..QpAttr::default() };
        net.device(self.node).modify_qp(self.qp, &error, QpAttrMask::STATE).unwrap();
    }

    pub fn post(&self, net: &mut Net, wr_id: u64, op: SendOp, sges: &[Sge]) {
        self.try_post(net, wr_id, op, sges).unwrap();
    }

    pub fn try_post(&self, net: &mut Net, wr_id: u64, op: SendOp, sges: &[Sge]) -> Result<(), Errno> {
        let wr = SendWr {
            wr_id,
            op,
            signaled: true,
            fence: false,
            solicited: false,
            srq_number: 0,
            payload: Payload::Sges(sges),
        };
        self.post_wr(net, &wr)
    }

    pub fn post_wr(&self, net: &mut Net, wr: &SendWr<'_>) -> Result<(), Errno> {
        let polls_next = net.random.one_in(2);
        let device = net.device(self.node);
        // SAFETY: inline pieces of tests are readable.
        unsafe { device.post_send(self.qp, wr) }?;
        if polls_next {
            device.defer_doorbell(self.qp);
        } else {
            device.flush_doorbell(self.qp);
        }
        Ok(())
    }

    pub fn receive(&self, net: &mut Net, wr_id: u64, sges: &[Sge]) {
        net.device(self.node).post_recv(self.qp, wr_id, sges).unwrap();
    }

    pub fn poll_sends(&self, net: &mut Net) -> Vec<Wc> {
        poll(net, self.node, self.send_cq)
    }

    pub fn poll_receives(&self, net: &mut Net) -> Vec<Wc> {
        poll(net, self.node, self.recv_cq)
    }

    pub fn state(&self, net: &mut Net) -> QpState {
        net.device(self.node).query_qp(self.qp).unwrap().0.state
    }
}

pub fn poll(net: &mut Net, node: usize, cq: Cq) -> Vec<Wc> {
    let mut all = Vec::new();
    while let Ok(1..) = net.device(node).poll_cq(cq, 16, |wc| all.push(*wc)) {}
    all
}

/// Statuses in order.
pub fn statuses(completions: &[Wc]) -> Vec<WcStatus> {
    completions.iter().map(|wc| wc.status).collect()
}

pub fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..length).map(|_| random.next() as u8).collect()
}

/// True if `waitable` wakes a sleeper.
pub fn is_ready(waitable: &Waitable) -> bool {
    let reads = if waitable.readable { libc::POLLIN } else { 0 };
    let writes = if waitable.writable { libc::POLLOUT } else { 0 };
    let mut entry = libc::pollfd { fd: waitable.fd, events: reads | writes, revents: 0 };
    // SAFETY: one live entry is passed.
    unsafe { libc::poll(&raw mut entry, 1, 0) == 1 }
}
