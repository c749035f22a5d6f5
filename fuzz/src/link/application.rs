//! The application: its objects for the attacker, and those for its honest peer.

use softhca::attr::GlobalRoute;
use softhca::*;

use crate::input::Input;

use super::arena::Lent;
use super::world::{FABRIC, process};

const PAGE: usize = 4096;

/// The parts of the memory by owner, in bytes from its start.
pub struct MemoryMap;

impl MemoryMap {
    /// The attacker may do everything here.
    pub const GRANTED: (usize, usize) = (PAGE + 64, 8 * PAGE);
    /// It may read here, and these bytes are always the same.
    pub const READABLE: (usize, usize) = (12 * PAGE, PAGE);
    /// The honest peer may do everything here.
    pub const HONEST: (usize, usize) = (20 * PAGE, 2 * PAGE);
    /// No peer may access this.
    pub const UNGRANTED: &[(usize, usize)] = &[
        (0, Self::GRANTED.0),
        (Self::GRANTED.0 + Self::GRANTED.1, Self::READABLE.0 - Self::GRANTED.0 - Self::GRANTED.1),
        (13 * PAGE, 7 * PAGE),
        (22 * PAGE, 10 * PAGE),
    ];
}

/// The initial content of [`MemoryMap::GRANTED`].
pub const GRANTED_BYTE: u8 = 0x11;

/// The content of [`MemoryMap::READABLE`].
pub const READABLE_BYTE: u8 = 0x22;

const EVERYTHING: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

const CAPS: QpCaps =
    QpCaps { max_send_wr: 32, max_recv_wr: 32, max_send_sge: 2, max_recv_sge: 2, max_inline: 64 };

/// The first message's number of every connection: it wraps as a PSN soon.
pub const FIRST: u32 = 0x00ff_fff0;

/// The key of datagrams that the attacker knows.
pub const KNOWN_QKEY: u32 = 7;
const SECRET_QKEY: u32 = 0x5ec_4e75;

/// A multicast group from which the application receives.
pub const GROUP: GroupId = [0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0x0f, 1, 2, 3];

/// The kinds of queue pairs that the attacker may use, in their order.
pub const KINDS: [QpKind; 6] =
    [QpKind::Rc, QpKind::Uc, QpKind::XrcRecv, QpKind::XrcSend, QpKind::Rc, QpKind::Ud];
/// Of these, the one that takes its receives from a shared queue.
const WITH_SHARED_QUEUE: usize = 4;

/// Objects that the attacker may use, all in one domain.
pub struct Application {
    pd: Pd,
    cq: Cq,
    srq: Srq,
    xrc_srq: Srq,
    xrcd: Xrcd,
    window: (Mw, u32),
    memory: (Mr, u32),
    base: u64,
    queue_pairs: [Qp; KINDS.len()],
    routes: [Ah; 2],
    /// Their numbers, as applications know them.
    pub qpns: [u32; KINDS.len()],
    /// The shared receive queue's number.
    pub srq_number: u32,
    /// Keys of the granted memory, of the readable memory, and of the window.
    pub keys: [u32; 3],
}

/// Attributes with usual values for all others.
fn attributes(remote_qpn: u32, lid: u16, qkey: u32) -> QpAttr {
    QpAttr {
        path_mtu: 3,
        port: 1,
        access: EVERYTHING,
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        min_rnr_timer: 1,
        timeout: 1,
        retry_count: 7,
        rnr_retry: 7,
        rq_psn: FIRST,
        sq_psn: FIRST,
        remote_qpn,
        address: AddressVector { dlid: lid, port: 1, ..AddressVector::default() },
        qkey,
        ..QpAttr::default()
    }
}

/// Brings a fresh queue pair up.
fn bring_up(device: &mut Device, qp: Qp, kind: QpKind, attr: &QpAttr) {
    use QpAttrMask as M;
    let where_to = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
    let responds = M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
    let requests = M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
    let rights = if kind == QpKind::Ud { M::QKEY } else { M::ACCESS_FLAGS };
    let (rtr, rts) = match kind {
        QpKind::Rc => (where_to | responds, M::SQ_PSN | M::TIMEOUT | requests),
        QpKind::Uc => (where_to, M::SQ_PSN),
        QpKind::Ud => (M::empty(), M::SQ_PSN),
        QpKind::XrcSend => (where_to, M::SQ_PSN | M::TIMEOUT | requests),
        QpKind::XrcRecv => (where_to | responds, M::SQ_PSN | M::TIMEOUT),
    };
    let steps = [(QpState::Init, M::PKEY_INDEX | M::PORT | rights), (QpState::Rtr, rtr), (QpState::Rts, rts)];
    for (state, mask) in steps {
        device.modify_qp(qp, &QpAttr { state, ..*attr }, mask | M::STATE).expect("the usual steps");
    }
}

/// Registers a part of `memory`.
fn register(
    device: &mut Device,
    pd: Pd,
    memory: &Lent,
    (offset, length): (usize, usize),
    access: Access,
) -> (Mr, u32) {
    let at = memory.address() + offset as u64;
    // SAFETY: the memory stays mapped for as long as its thread.
    let registered = unsafe { device.reg_mr(pd, at, length as u64, at, access) };
    let (mr, keys) = registered.expect("a region");
    (mr, keys.rkey)
}

impl Application {
    /// Makes the objects, connected with the attacker's.
    pub fn new(device: &mut Device, memory: &Lent) -> Self {
        let (pd, (cq, _)) = (device.alloc_pd().expect("a domain"), device.create_cq(8192).expect("a queue"));
        let attr = SrqAttr { max_wr: 64, max_sge: 2, limit: 0 };
        let (srq, _) = device.create_srq(pd, &attr).expect("a queue");
        let xrcd = device.alloc_xrcd().expect("a domain");
        let (xrc_srq, _) = device.create_xrc_srq(pd, Xrc { xrcd, cq }, &attr).expect("a queue");
        let granted = register(device, pd, memory, MemoryMap::GRANTED, EVERYTHING | Access::MW_BIND);
        let readable = register(device, pd, memory, MemoryMap::READABLE, Access::REMOTE_READ);
        let window = device.alloc_mw(pd, WindowKind::Two).expect("a window");
        let mut this = Self {
            pd,
            cq,
            srq,
            xrc_srq,
            xrcd,
            window,
            memory: granted,
            base: memory.address() + MemoryMap::GRANTED.0 as u64,
            queue_pairs: [Qp(0); KINDS.len()],
            routes: [3, 2].map(|lid| route(device, pd, lid)),
            qpns: [0; KINDS.len()],
            srq_number: device.srq_number(xrc_srq).expect("its number"),
            keys: [granted.1, readable.1, window.1],
        };
        for slot in 0..KINDS.len() {
            this.create(device, slot);
        }
        device.attach_group(this.queue_pairs[5], GROUP).expect("a group");
        this.bind(device);
        this
    }

    /// Makes the queue pair of `slot`, with a few receives.
    fn create(&mut self, device: &mut Device, slot: usize) {
        let kind = KINDS[slot];
        let is_target = kind == QpKind::XrcRecv;
        let init = QpInit {
            kind,
            pd: if is_target { Pd::NONE } else { self.pd },
            send_cq: if is_target { Cq::NONE } else { self.cq },
            recv_cq: if kind.receives() { self.cq } else { Cq::NONE },
            srq: (slot == WITH_SHARED_QUEUE).then_some(self.srq),
            xrcd: is_target.then_some(self.xrcd),
            caps: CAPS,
            sq_sig_all: false,
        };
        let (qp, qpn, _) = device.create_qp(&init).expect("a queue pair");
        self.queue_pairs[slot] = qp;
        self.qpns[slot] = qpn;
        self.bring_up(device, slot);
        for _ in 0..3 {
            self.receive(device, slot, 0, 4200);
        }
    }

    fn bring_up(&self, device: &mut Device, slot: usize) {
        let attr = attributes(process(3).qpn(slot as u16 + 1), 3, KNOWN_QKEY);
        bring_up(device, self.queue_pairs[slot], KINDS[slot], &attr);
    }

    fn sge(&self, offset: usize, length: u32) -> Sge {
        Sge { addr: self.base + offset as u64, length, lkey: self.memory.1 }
    }

    fn receive(&self, device: &mut Device, slot: usize, offset: usize, length: u32) {
        let sges = [self.sge(offset, length / 2), self.sge(offset + 8192, length - length / 2)];
        // Full queues, and states that take none.
        let _ = match (KINDS[slot], slot) {
            (QpKind::XrcRecv | QpKind::XrcSend, _) => device.post_srq_recv(self.xrc_srq, 1, &sges),
            (_, WITH_SHARED_QUEUE) => device.post_srq_recv(self.srq, 1, &sges),
            _ => device.post_recv(self.queue_pairs[slot], 1, &sges),
        };
    }

    fn bind(&self, device: &mut Device) {
        self.post(device, 0, SendOp::Bind(self.binding()), &[]);
    }

    fn binding(&self) -> Binding {
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        Binding { key: self.window.1, lkey: self.memory.1, access, va: self.base, length: 4096 }
    }

    fn post(&self, device: &mut Device, slot: usize, op: SendOp, sges: &[Sge]) {
        let payload = Payload::Sges(sges);
        let (signaled, fence) = (true, false);
        let srq_number = self.srq_number;
        let wr = SendWr { wr_id: 1, op, signaled, fence, solicited: false, srq_number, payload };
        let qp = self.queue_pairs[slot];
        // SAFETY: nothing is inline. Full queues, and states that take none, are as good.
        if unsafe { device.post_send(qp, &wr) } == Ok(Posted::Queued) {
            device.flush_doorbell(qp);
        }
    }

    /// Runs the script.
    pub fn act(&mut self, device: &mut Device, input: &mut Input<'_>) {
        let slot = input.below(KINDS.len());
        match input.below(10) {
            0 | 1 => self.receive(device, slot, usize::from(input.byte()) * 32, u32::from(input.byte()) * 32),
            2..=5 => self.send(device, slot, input),
            6 => self.start_again(device, slot),
            7 => self.register_again(device),
            8 => self.bind(device),
            _ => device.hold_acks(input.coin()),
        }
    }

    fn send(&self, device: &mut Device, slot: usize, input: &mut Input<'_>) {
        let sges = [self.sge(usize::from(input.byte()) * 8, 8 * u32::from(input.byte()))];
        let word = [self.sge(usize::from(input.byte()) * 8, 8)];
        // The attacker's QPN.
        let (va, rkey) = (input.long(), u32::from(input.byte()));
        let (imm, compare) = (7, 0);
        let (op, sges) = match input.below(8) {
            0 => (SendOp::Send, sges),
            1 => (SendOp::SendImm(imm), sges),
            2 => (SendOp::Write { va, rkey }, sges),
            3 => (SendOp::WriteImm { va, rkey, imm }, sges),
            4 => (SendOp::Read { va, rkey }, sges),
            5 => (SendOp::FetchAdd { va, rkey, add: 1 }, word),
            6 => (SendOp::CompareSwap { va, rkey, compare, swap: 1 }, word),
            _ => (SendOp::LocalInvalidate(self.window.1), word),
        };
        if KINDS[slot] == QpKind::Ud {
            let ah = self.routes[input.below(2)];
            let op = SendOp::Datagram { ah, qpn: 0x1_0006, qkey: KNOWN_QKEY, imm: None };
            return self.post(device, slot, op, &sges);
        }
        self.post(device, slot, op, &sges);
    }

    /// A queue pair fails, or ends, and is there again.
    fn start_again(&mut self, device: &mut Device, slot: usize) {
        let qp = self.queue_pairs[slot];
        if device.destroy_qp(qp).is_ok() {
            return self.create(device, slot);
        }
        // It receives from a group.
        for state in [QpState::Error, QpState::Reset] {
            let attr = QpAttr { state, ..QpAttr::default() };
            device.modify_qp(qp, &attr, QpAttrMask::STATE).expect("from anywhere");
        }
        self.bring_up(device, slot);
    }

    /// The granted memory gets another key, unless the window still shows it.
    fn register_again(&mut self, device: &mut Device) {
        if device.dereg_mr(self.memory.0).is_err() {
            return;
        }
        let length = MemoryMap::GRANTED.1 as u64;
        // SAFETY: the memory stays mapped for as long as its thread.
        let registered =
            unsafe { device.reg_mr(self.pd, self.base, length, self.base, EVERYTHING | Access::MW_BIND) };
        let (mr, keys) = registered.expect("a region");
        self.memory = (mr, keys.rkey);
        self.keys[0] = keys.rkey;
    }

    /// Takes completions: any of them may have failed.
    pub fn poll(&self, device: &mut Device) {
        while let Ok(1..) = device.poll_cq(self.cq, 64, |_| ()) {}
    }
}

fn route(device: &mut Device, pd: Pd, lid: u16) -> Ah {
    let global = Some(GlobalRoute { dgid: process(lid).vid.gid(FABRIC), ..GlobalRoute::default() });
    let address = AddressVector { dlid: lid, port: 1, global, ..AddressVector::default() };
    device.create_ah(pd, &address).expect("an address handle")
}

/// One side of the honest connections.
struct Side {
    cq: Cq,
    connected: (Qp, u32),
    datagrams: (Qp, u32),
    route: Ah,
    key: u32,
    base: u64,
    done: usize,
}

impl Side {
    fn new(device: &mut Device, memory: &Lent, peer: u16) -> Self {
        let (pd, (cq, _)) = (device.alloc_pd().expect("a domain"), device.create_cq(256).expect("a queue"));
        let create = |device: &mut Device, kind| {
            let (caps, srq, xrcd) = (CAPS, None, None);
            let init = QpInit { kind, pd, send_cq: cq, recv_cq: cq, srq, xrcd, caps, sq_sig_all: true };
            let (qp, qpn, _) = device.create_qp(&init).expect("a queue pair");
            (qp, qpn)
        };
        let (connected, datagrams) = (create(device, QpKind::Rc), create(device, QpKind::Ud));
        let (_, key) = register(device, pd, memory, MemoryMap::HONEST, EVERYTHING);
        let base = memory.address() + MemoryMap::HONEST.0 as u64;
        Self { cq, connected, datagrams, route: route(device, pd, peer), key, base, done: 0 }
    }

    fn bring_up(&self, device: &mut Device, peer: &Self, lid: u16) {
        bring_up(device, self.connected.0, QpKind::Rc, &attributes(peer.connected.1, lid, 0));
        bring_up(device, self.datagrams.0, QpKind::Ud, &attributes(0, lid, SECRET_QKEY));
    }

    fn sge(&self, offset: usize, length: usize) -> Sge {
        Sge { addr: self.base + offset as u64, length: length as u32, lkey: self.key }
    }

    fn post(&self, device: &mut Device, qp: Qp, op: SendOp, sge: Sge) {
        let sges = [sge];
        let payload = Payload::Sges(&sges);
        let wr =
            SendWr { wr_id: 2, op, signaled: true, fence: false, solicited: false, srq_number: 0, payload };
        // SAFETY: nothing is inline.
        unsafe { device.post_send(qp, &wr) }.expect("an honest connection takes requests");
        device.flush_doorbell(qp);
    }

    /// Posts receives, and a message of each kind.
    fn exchange(&mut self, device: &mut Device, peer: &Self) {
        self.done = 0;
        for (qp, offset) in [(self.connected.0, RECEIVED), (self.datagrams.0, DATAGRAM)] {
            device.post_recv(qp, 3, &[self.sge(offset, 512)]).expect("an honest connection takes receives");
        }
        let write = SendOp::Write { va: peer.base + WRITTEN as u64, rkey: peer.key };
        self.post(device, self.connected.0, write, self.sge(SOURCE, LENGTH));
        self.post(device, self.connected.0, SendOp::Send, self.sge(SOURCE, LENGTH));
        let op = SendOp::Datagram { ah: self.route, qpn: peer.datagrams.1, qkey: SECRET_QKEY, imm: Some(1) };
        self.post(device, self.datagrams.0, op, self.sge(SOURCE, LENGTH));
    }

    /// True if two sends, a datagram and two receives have completed.
    fn is_done(&mut self, device: &mut Device) -> bool {
        let done = &mut self.done;
        let check = |wc: &Wc| {
            assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
            *done += 1;
        };
        device.poll_cq(self.cq, 16, check).expect("the queue is whole");
        self.done == 5
    }
}

/// Where in each side's memory.
const SOURCE: usize = 0;
const WRITTEN: usize = 1024;
const RECEIVED: usize = 2048;
const DATAGRAM: usize = 3072;
const ROUTE: usize = 40;
const LENGTH: usize = 300;

/// Connections of the victim and its friend.
pub struct Honest {
    ours: Side,
    theirs: Side,
    turns: u8,
}

impl Honest {
    /// Connects both.
    pub fn new(victim: &mut Device, memory: &Lent, friend: &mut Device, friends: &Lent) -> Self {
        let (ours, theirs) = (Side::new(victim, memory, 2), Side::new(friend, friends, 1));
        ours.bring_up(victim, &theirs, 2);
        theirs.bring_up(friend, &ours, 1);
        Self { ours, theirs, turns: 0 }
    }

    /// Whether it is one of the victim's honest queue pairs.
    #[must_use]
    pub fn has(&self, qp: Qp) -> bool {
        [self.ours.connected.0, self.ours.datagrams.0].contains(&qp)
    }

    /// The victim's honest queue pair's number, the friend's, and the victim's key: the attacker may know them.
    #[must_use]
    pub fn names(&self) -> (u32, u32, u32) {
        (self.ours.connected.1, self.theirs.connected.1, self.ours.key)
    }

    /// Begins an exchange.
    pub fn post(&mut self, victim: &mut Device, memory: &mut Lent, friend: &mut Device, friends: &mut Lent) {
        self.turns = self.turns.wrapping_add(1);
        memory.store(MemoryMap::HONEST.0 + SOURCE, &[self.turns; LENGTH]);
        friends.store(MemoryMap::HONEST.0 + SOURCE, &[!self.turns; LENGTH]);
        self.ours.exchange(victim, &self.theirs);
        self.theirs.exchange(friend, &self.ours);
    }

    /// True if it is over.
    pub fn is_done(&mut self, victim: &mut Device, friend: &mut Device) -> bool {
        let ours = self.ours.is_done(victim);
        self.theirs.is_done(friend) && ours
    }

    /// Received bytes equal the sent ones.
    pub fn check(&self, memory: &Lent, friends: &Lent) {
        for (side, sent) in [(memory, !self.turns), (friends, self.turns)] {
            for offset in [WRITTEN, RECEIVED, DATAGRAM + ROUTE] {
                assert_eq!(side.load(MemoryMap::HONEST.0 + offset, LENGTH), [sent; LENGTH], "at {offset}");
            }
        }
    }
}
