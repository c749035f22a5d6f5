//! Random operations between three processes while links break, processes are moved and handles
//! change: nothing may be lost, doubled, reordered or wrong.
//!
//! A failure names its seed, and the same seed fails again.

mod support;

use std::collections::VecDeque;

use softhca::*;
use support::*;
use verbs::Policy;

const SLOTS: usize = 8;
const SLOT: usize = 300 * 1024;
const COUNTER: usize = 0;
const SWAPPED: usize = 8;
const READABLE: usize = 4096;
const SOURCES: usize = READABLE + SLOT;
const TARGETS: usize = SOURCES + SLOTS * SLOT;
const RECEIVES: usize = TARGETS + SLOTS * SLOT;
const MEMORY: usize = RECEIVES + SLOTS * SLOT;

/// A posted request, and its expected result.
#[derive(Debug)]
struct Posted {
    number: u64,
    signaled: bool,
    length: usize,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Send,
    Write,
    WriteImm,
    Read {
        from: usize,
    },
    Add {
        expect: u64,
    },
    Swap {
        expect: u64,
    },
    /// A memory window is bound here.
    Local,
}

/// The expected content of a receive.
#[derive(Debug)]
struct Expected {
    number: u64,
    length: usize,
    imm: Option<u32>,
    placed: bool,
}

/// One direction of a connection.
#[derive(Default)]
struct Lane {
    posted: VecDeque<Posted>,
    expected: VecDeque<Expected>,
    numbers: u64,
    added: u64,
    swapped: u64,
    receives_posted: u64,
    receives_done: u64,
    /// The newest key of the peer's memory.
    key: u32,
    /// The key of a window to it.
    window: u32,
    /// The first key of a window of its own, which is bound again and again.
    own_window: u32,
}

struct Pair {
    ends: [End; 2],
    lanes: [Lane; 2],
    seed: u64,
}

impl Pair {
    fn new(net: &mut Net, a: usize, b: usize, seed: u64) -> Self {
        let mr_access = EVERYTHING | Access::MW_BIND;
        let mut plan = Plan { memory: MEMORY, whole_pages: true, mr_access, ..Plan::default() };
        plan.attr.min_rnr_timer = 1;
        let (a, b) = pair(net, a, b, &plan);
        let ends = [a, b];
        for (at, end) in ends.iter().enumerate() {
            end.memory.store(READABLE, &pattern(seed + at as u64, SLOT));
        }
        let windows = [0, 1].map(|at| open_window(net, &ends[at]));
        let lanes = [0, 1].map(|at: usize| {
            let own_window = net.device(ends[at].node).alloc_mw(ends[at].pd, WindowKind::One).unwrap().1;
            Lane { key: ends[1 - at].key, window: windows[1 - at], own_window, ..Lane::default() }
        });
        Self { ends, lanes, seed }
    }

    fn content(&self, side: usize, number: u64, length: usize) -> Vec<u8> {
        pattern(self.seed ^ (number << 8) ^ side as u64, length)
    }

    fn post(&mut self, net: &mut Net, side: usize, signaled: bool) {
        if self.lanes[side].posted.len() >= SLOTS {
            return;
        }
        let number = self.lanes[side].numbers;
        let slot = (number as usize % SLOTS) * SLOT;
        let length = match net.random.below(40) {
            0 => SLOT - net.random.below(1000) as usize,
            1..20 => net.random.below(200) as usize,
            _ => net.random.below(5000) as usize,
        };
        let (me, peer) = (&self.ends[side], &self.ends[1 - side]);
        let lane = &self.lanes[side];
        let (rkey, va) = (lane.key, peer.va(TARGETS + slot));
        let imm = number as u32 ^ 0xabcd;
        let window = if net.random.one_in(3) { lane.window } else { rkey };
        let (op, kind, length) = match net.random.below(9) {
            0 | 1 => (SendOp::Send, Kind::Send, length),
            2 => (SendOp::SendImm(imm), Kind::Send, length),
            3 => (SendOp::Write { va, rkey: window }, Kind::Write, length),
            4 => (SendOp::WriteImm { va, rkey, imm }, Kind::WriteImm, length),
            5 => {
                let from = net.random.below((SLOT - length) as u64 + 1) as usize;
                (SendOp::Read { va: peer.va(READABLE + from), rkey }, Kind::Read { from }, length)
            }
            6 => {
                let key = lane.own_window + number as u32 % 256;
                (SendOp::Bind(binding(me, key)), Kind::Local, 0)
            }
            7 => {
                let op = SendOp::FetchAdd { va: peer.va(COUNTER), rkey, add: number };
                (op, Kind::Add { expect: lane.added }, 8)
            }
            _ => {
                let (compare, swap) = (lane.swapped, lane.swapped + 1);
                let op = SendOp::CompareSwap { va: peer.va(SWAPPED), rkey, compare, swap };
                (op, Kind::Swap { expect: compare }, 8)
            }
        };
        if matches!(kind, Kind::Send | Kind::Write | Kind::WriteImm) {
            me.memory.store(SOURCES + slot, &self.content(side, number, length));
        }
        let cut = net.random.below(length as u64 + 1) as usize;
        let halves = [me.sge(SOURCES + slot, cut), me.sge(SOURCES + slot + cut, length - cut)];
        let whole = [me.sge(SOURCES + slot, length)];
        let atomic = matches!(kind, Kind::Add { .. } | Kind::Swap { .. });
        let small = length <= 256 && matches!(kind, Kind::Send | Kind::Write | Kind::WriteImm);
        let payload = match net.random.below(3) {
            0 if small => Payload::Inline(&halves),
            1 if !atomic => Payload::Sges(&halves),
            _ => Payload::Sges(&whole),
        };
        let fence = net.random.one_in(5);
        let wr = SendWr { wr_id: number, op, signaled, fence, solicited: false, srq_number: 0, payload };
        me.post_wr(net, &wr).unwrap();
        self.record(side, op, kind, length, signaled);
    }

    fn record(&mut self, side: usize, op: SendOp, kind: Kind, length: usize, signaled: bool) {
        let lane = &mut self.lanes[side];
        let number = lane.numbers;
        lane.numbers += 1;
        match kind {
            Kind::Add { .. } => lane.added += number,
            Kind::Swap { .. } => lane.swapped += 1,
            _ => {}
        }
        let imm = match op {
            SendOp::SendImm(imm) | SendOp::WriteImm { imm, .. } => Some(imm),
            _ => None,
        };
        if matches!(kind, Kind::Send | Kind::WriteImm) {
            let placed = kind == Kind::Send;
            lane.expected.push_back(Expected { number, length, imm, placed });
        }
        lane.posted.push_back(Posted { number, signaled, length, kind });
    }

    /// Posts receives for the messages of `side`.
    fn receive(&mut self, net: &mut Net, side: usize) {
        let lane = &mut self.lanes[side];
        if lane.receives_posted - lane.receives_done >= SLOTS as u64 {
            return;
        }
        let end = &self.ends[1 - side];
        let at = RECEIVES + (lane.receives_posted as usize % SLOTS) * SLOT;
        let first = net.random.below(100) as usize;
        end.receive(net, lane.receives_posted, &[end.sge(at, first), end.sge(at + first, SLOT - first)]);
        lane.receives_posted += 1;
    }

    fn check(&mut self, net: &mut Net, side: usize) {
        for wc in self.ends[1 - side].poll_receives(net) {
            self.check_receive(side, &wc);
        }
        for wc in self.ends[side].poll_sends(net) {
            assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
            loop {
                let posted = self.lanes[side].posted.pop_front().expect("a completion of something posted");
                self.check_done(side, &posted);
                if posted.signaled {
                    assert_eq!(wc.wr_id, posted.number, "in order");
                    break;
                }
            }
        }
    }

    fn check_receive(&mut self, side: usize, wc: &Wc) {
        let lane = &mut self.lanes[side];
        assert_eq!((wc.status, wc.wr_id), (WcStatus::Success, lane.receives_done), "{wc:?}");
        let at = RECEIVES + (lane.receives_done as usize % SLOTS) * SLOT;
        lane.receives_done += 1;
        let expected = lane.expected.pop_front().expect("a receive for something sent");
        assert_eq!((wc.byte_len as usize, wc.imm), (expected.length, expected.imm));
        if expected.placed {
            let content = self.content(side, expected.number, expected.length);
            assert!(self.ends[1 - side].memory.load(at, expected.length) == content, "{expected:?}");
        }
    }

    fn check_done(&self, side: usize, posted: &Posted) {
        let (me, peer) = (&self.ends[side].memory, &self.ends[1 - side].memory);
        let slot = (posted.number as usize % SLOTS) * SLOT;
        match posted.kind {
            Kind::Send | Kind::Local => {}
            Kind::Write | Kind::WriteImm => {
                let content = self.content(side, posted.number, posted.length);
                assert!(peer.load(TARGETS + slot, posted.length) == content, "{posted:?}");
            }
            Kind::Read { from } => {
                let content = peer.load(READABLE + from, posted.length);
                assert!(me.load(SOURCES + slot, posted.length) == content, "{posted:?}");
            }
            Kind::Add { expect } | Kind::Swap { expect } => {
                assert_eq!(me.word(SOURCES + slot), expect, "{posted:?}");
            }
        }
    }

    /// Registers the memory again, under another key that is used from now on.
    fn renew_key(&mut self, net: &mut Net, side: usize) {
        let end = &self.ends[1 - side];
        let (at, length) = (end.memory.address(), end.memory.len() as u64);
        // SAFETY: test memory is never unmapped.
        let renewed = unsafe { net.device(end.node).reg_mr(end.pd, at, length, at, EVERYTHING) };
        self.lanes[side].key = renewed.unwrap().1.rkey;
    }

    fn is_done(&self) -> bool {
        self.lanes.iter().all(|lane| lane.posted.is_empty() && lane.expected.is_empty())
    }
}

/// A binding to all that `end` has.
fn binding(end: &End, key: u32) -> Binding {
    Binding { key, lkey: end.key, access: Access::REMOTE_WRITE, va: end.va(0), length: MEMORY as u64 }
}

/// Binds a window for the peer of `end`. Returns its key.
fn open_window(net: &mut Net, end: &End) -> u32 {
    let (_, key) = net.device(end.node).alloc_mw(end.pd, WindowKind::Two).unwrap();
    end.post(net, 0, SendOp::Bind(binding(end, key)), &[]);
    assert_eq!(statuses(&end.poll_sends(net)), [WcStatus::Success]);
    key
}

/// Further events in a run.
#[derive(Clone, Copy)]
struct Trouble {
    cuts: bool,
    moves: bool,
    /// Neighbours share memory.
    shares: bool,
}

fn disturb(net: &mut Net, pairs: &mut [Pair], trouble: Trouble) {
    if trouble.cuts && net.random.one_in(40) {
        net.cut();
        net.replace_a_ring();
    }
    if trouble.moves && net.random.one_in(60) {
        let at = net.random.below(net.nodes.len() as u64) as usize;
        match net.nodes[at].suspended {
            true => net.resume(at),
            false => drop(net.suspend(at)),
        }
    }
    if net.random.one_in(20) {
        let at = net.random.below(pairs.len() as u64) as usize;
        let side = net.random.below(2) as usize;
        pairs[at].renew_key(net, side);
    }
    if net.random.one_in(30) {
        // Objects that come and go take and give back handles.
        let at = net.random.below(net.nodes.len() as u64) as usize;
        let stranger = open(net, at, &Plan { memory: 64, ..Plan::default() });
        if net.random.one_in(2) {
            net.device(at).dereg_mr(stranger.mr).unwrap();
            net.device(at).destroy_qp(stranger.qp).unwrap();
        }
    }
}

fn run(policy: Policy, medium: Medium, seed: u64, trouble: Trouble) {
    let net = &mut Net::new(3, policy, medium, seed);
    for node in &mut net.nodes {
        node.device.allow_sharing(trouble.shares);
    }
    net.cut_within = trouble.cuts.then_some(400_000);
    let ends = [(0, 1), (1, 2), (2, 0), (0, 1), (0, 0)];
    let mut pairs: Vec<Pair> =
        ends.iter().enumerate().map(|(at, &(a, b))| Pair::new(net, a, b, seed * 100 + at as u64)).collect();
    for _ in 0..400 {
        let at = net.random.below(pairs.len() as u64) as usize;
        let side = net.random.below(2) as usize;
        if net.random.one_in(2) {
            let signaled = net.random.one_in(2) || pairs[at].lanes[side].posted.len() > SLOTS / 2;
            pairs[at].post(net, side, signaled);
        }
        if net.random.one_in(3) {
            pairs[at].receive(net, side);
        }
        if net.random.one_in(2) {
            net.step();
            net.now += std::time::Duration::from_micros(net.random.below(200));
        }
        disturb(net, &mut pairs, trouble);
        pairs[at].check(net, side);
    }
    finish(net, &mut pairs);
}

/// Lets everything end, and checks that it does.
fn finish(net: &mut Net, pairs: &mut [Pair]) {
    net.cut_within = None;
    for at in 0..net.nodes.len() {
        if net.nodes[at].suspended {
            net.resume(at);
        }
    }
    for pair in pairs.iter_mut() {
        for side in 0..2 {
            let unsignaled_tail = pair.lanes[side].posted.back().is_some_and(|last| !last.signaled);
            if unsignaled_tail {
                pair.check(net, side);
                while pair.lanes[side].posted.len() >= SLOTS {
                    pair.receive(net, side);
                    net.step();
                    pair.check(net, side);
                }
                pair.post(net, side, true);
            }
        }
    }
    for _ in 0..20_000 {
        for pair in pairs.iter_mut() {
            for side in 0..2 {
                pair.receive(net, side);
                pair.check(net, side);
            }
        }
        if pairs.iter().all(Pair::is_done) {
            return;
        }
        net.step();
        net.now += std::time::Duration::from_micros(500);
    }
    let left: Vec<_> = pairs.iter().flat_map(|pair| &pair.lanes).map(|lane| &lane.posted).collect();
    panic!("work is left: {left:?}");
}

fn seeds(medium: Medium, trouble: Trouble, count: u64) {
    for policy in Policy::ALL {
        for seed in 0..test_support::seeds(count) {
            let outcome = std::panic::catch_unwind(|| run(policy, medium, seed, trouble));
            if let Err(reason) = outcome {
                eprintln!("failed: policy {policy:?}, medium {medium:?}, seed {seed}");
                std::panic::resume_unwind(reason);
            }
        }
    }
}

#[test]
fn undisturbed() {
    for medium in Medium::ALL {
        seeds(medium, Trouble { cuts: false, moves: false, shares: false }, 3);
    }
}

#[test]
fn links_break_anywhere() {
    seeds(Medium::Pipe, Trouble { cuts: true, moves: false, shares: false }, 12);
    seeds(Medium::Shm, Trouble { cuts: true, moves: false, shares: false }, 6);
}

#[test]
fn processes_move() {
    for medium in Medium::ALL {
        seeds(medium, Trouble { cuts: false, moves: true, shares: false }, 5);
    }
}

#[test]
fn neighbours_that_share_memory_move() {
    seeds(Medium::Shm, Trouble { cuts: false, moves: false, shares: true }, 1);
    seeds(Medium::Shm, Trouble { cuts: false, moves: true, shares: true }, 2);
}

#[test]
fn links_break_while_processes_move() {
    seeds(Medium::Pipe, Trouble { cuts: true, moves: true, shares: false }, 12);
    seeds(Medium::Shm, Trouble { cuts: true, moves: true, shares: true }, 4);
}
