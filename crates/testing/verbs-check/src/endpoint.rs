//! One side's queue pairs at work: posts the operations of the plan and checks their completions.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use anyhow::{Context as _, Result};

use crate::completion::{Completion, Memory as _, send_id, sender};
use crate::control::Peer;
use crate::initiator::{Initiator, Next, Request};
use crate::layout::{CONSTANT, COUNTER, Layout, VERIFIED};
use crate::meter::Meter;
use crate::pattern::key;
use crate::plan::{Operation, constant};
use crate::receives::Receives;
use crate::target::Target;
use crate::verbs::{self, Address, Capacity, CompletionQueue, Device, QueuePair, Receive, Region, Send};
use crate::violation::Violation;
use crate::workload::{Kind, Side, Workload};

/// The most work requests posted in one list.
const LONGEST_LIST: usize = 8;

/// The byte that overwrites an inline payload's buffer as soon as it is posted.
const SCRIBBLE: u8 = 0xee;

/// The tag of the shared receive queue's `wr_id`s.
const SHARED: u16 = u16::MAX;

/// Everything of one side. The fields are dropped in this order, which the library requires.
pub struct Endpoint {
    pairs: Vec<Pair>,
    shared_receives: Option<SharedQueue>,
    send_queue: CompletionQueue,
    receive_queue: CompletionQueue,
    shared_area: Region,
    device: Device,
    layout: Layout,
    by_number: HashMap<u32, u16>,
    peer_shared_area: (u64, u32),
    /// Queue pairs on which something may be posted.
    ready: VecDeque<u16>,
    completions: Vec<(u32, Completion)>,
    payload: Vec<u8>,
}

struct Pair {
    queue: QueuePair,
    block: Region,
    psn: u32,
    initiator: Initiator,
    target: Target,
    receives: Receives,
    peer_block: (u64, u32),
    is_ready: bool,
}

struct SharedQueue {
    queue: verbs::SharedReceives,
    receives: Receives,
}

/// Why a run ended early.
#[derive(Debug)]
pub enum Failure {
    /// The traffic was wrong.
    Violation(Violation),
    /// The workload could not run.
    Error(anyhow::Error),
}

impl From<Violation> for Failure {
    fn from(violation: Violation) -> Self {
        Self::Violation(violation)
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Error(error)
    }
}

impl Endpoint {
    /// Makes the queue pairs and the memory of `side`.
    ///
    /// # Errors
    /// If the device refuses.
    pub fn new(device: &Device, workload: &Workload, side: Side, with_events: bool) -> Result<Self> {
        let layout = Layout::new(workload);
        let pairs = usize::from(workload.queue_pairs);
        let send_queue = CompletionQueue::new(device, pairs * layout.send_slots(), with_events)?;
        let receives =
            if workload.shared_receives { layout.receive_slots() } else { pairs * layout.receive_slots() };
        let receive_queue = CompletionQueue::new(device, receives, with_events)?;
        let shared_area = Region::new(device, layout.shared_area())?;
        let mut bytes = vec![0; layout.constant()];
        constant(workload.seed, side).fill(0, &mut bytes);
        shared_area.copy_in(CONSTANT, &bytes);
        let mut endpoint = Self {
            pairs: Vec::with_capacity(pairs),
            shared_receives: None,
            send_queue,
            receive_queue,
            shared_area,
            device: device.clone(),
            by_number: HashMap::new(),
            peer_shared_area: (0, 0),
            ready: (0..workload.queue_pairs).collect(),
            completions: Vec::new(),
            payload: vec![0; layout.slot()],
            layout,
        };
        endpoint.make_shared_queue(workload)?;
        for pair in 0..workload.queue_pairs {
            endpoint.make_pair(workload, side, pair).with_context(|| format!("queue pair {pair}"))?;
        }
        Ok(endpoint)
    }

    fn make_shared_queue(&mut self, workload: &Workload) -> Result<()> {
        if workload.shared_receives {
            let slots = self.layout.receive_slots();
            self.shared_receives = Some(SharedQueue {
                queue: verbs::SharedReceives::new(&self.device, slots)?,
                receives: Receives::new(SHARED, slots, false),
            });
        }
        Ok(())
    }

    fn make_pair(&mut self, workload: &Workload, side: Side, number: u16) -> Result<()> {
        let own_receives = if workload.shared_receives { 0 } else { self.layout.receive_slots() };
        let capacity = Capacity {
            sends: self.layout.send_slots(),
            receives: own_receives,
            inline: workload.inline_size,
        };
        let shared = self.shared_receives.as_ref().map(|shared| &shared.queue);
        let queues = (&self.send_queue, &self.receive_queue);
        let mut queue = QueuePair::new(&self.device, queues, shared, capacity)?;
        queue.initialise()?;
        self.by_number.insert(queue.number(), number);
        self.pairs.push(Pair {
            psn: (key(&[workload.seed, side as u64, u64::from(number), 1]) & 0xff_ffff) as u32,
            queue,
            block: Region::new(&self.device, self.layout.block())?,
            initiator: Initiator::new(workload, side, number),
            target: Target::new(workload, side, number),
            receives: Receives::new(number, own_receives, true),
            peer_block: (0, 0),
            is_ready: true,
        });
        Ok(())
    }

    /// Where this side is, for the other one.
    ///
    /// # Errors
    /// If the device refuses.
    pub fn describe(&self) -> Result<Peer> {
        let (lid, gid) = self.device.port_address()?;
        let describe = |pair: &Pair| {
            let address = Address { lid, gid, qpn: pair.queue.number(), psn: pair.psn };
            (address, pair.block.address(0), pair.block.rkey())
        };
        let shared = (self.shared_area.address(0), self.shared_area.rkey());
        Ok(Peer { shared, pairs: self.pairs.iter().map(describe).collect() })
    }

    /// Connects each queue pair to its counterpart and posts the receives.
    ///
    /// # Errors
    /// If the device refuses.
    pub fn connect(&mut self, peer: &Peer) -> Result<()> {
        anyhow::ensure!(
            peer.pairs.len() == self.pairs.len(),
            "the peer has a different number of queue pairs"
        );
        self.peer_shared_area = peer.shared;
        for (pair, (address, block, rkey)) in self.pairs.iter_mut().zip(&peer.pairs) {
            pair.peer_block = (*block, *rkey);
            pair.queue.connect(pair.psn, address)?;
        }
        self.post_all_receives()
    }

    fn post_all_receives(&mut self) -> Result<()> {
        let slots: Vec<usize> = (0..self.layout.receive_slots()).collect();
        match &mut self.shared_receives {
            Some(shared) => shared.post(&self.layout, &self.shared_area, &slots),
            None => self.pairs.iter_mut().try_for_each(|pair| pair.post_receives(&self.layout, &slots)),
        }
    }

    /// Takes and checks the completions that are there; returns how many there were.
    ///
    /// # Errors
    /// The first violation, or if the device refuses.
    pub fn poll(&mut self, meter: &mut Meter) -> Result<usize, Failure> {
        let mut completions = std::mem::take(&mut self.completions);
        completions.clear();
        let count = self.receive_queue.poll(&mut completions)? + self.send_queue.poll(&mut completions)?;
        if count > 0 {
            meter.completed(count, Instant::now());
        }
        for (qpn, completion) in &completions {
            self.complete(*qpn, completion, meter)?;
        }
        self.completions = completions;
        Ok(count)
    }

    fn complete(&mut self, qpn: u32, completion: &Completion, meter: &mut Meter) -> Result<(), Failure> {
        let wr_id = completion.wr_id;
        let number = *self.by_number.get(&qpn).ok_or(Violation::WrongQueuePair { wr_id, qpn })?;
        match sender(wr_id) {
            Some(owner) if owner != number => Err(Violation::WrongQueuePair { wr_id, qpn }.into()),
            Some(_) => {
                let pair = &mut self.pairs[usize::from(number)];
                meter.sent(pair.initiator.complete(completion, &pair.block)?);
                self.set_ready(number);
                Ok(())
            }
            None => self.complete_receive(number, completion, meter),
        }
    }

    fn complete_receive(
        &mut self,
        number: u16,
        completion: &Completion,
        meter: &mut Meter,
    ) -> Result<(), Failure> {
        let pair = &mut self.pairs[usize::from(number)];
        let (books, memory) = match &mut self.shared_receives {
            Some(shared) => (&mut shared.receives, &self.shared_area),
            None => (&mut pair.receives, &pair.block),
        };
        let slot = books.complete(completion.wr_id)?;
        let at = self.layout.receive_slot(slot);
        meter.received(pair.target.receive(completion, (memory, at), &pair.block)?);
        pair.block.put_word(VERIFIED, pair.target.verified());
        match &mut self.shared_receives {
            Some(shared) => shared.post(&self.layout, &self.shared_area, &[slot])?,
            None => pair.post_receives(&self.layout, &[slot])?,
        }
        Ok(())
    }

    fn set_ready(&mut self, number: u16) {
        let pair = &mut self.pairs[usize::from(number)];
        if !pair.is_ready {
            pair.is_ready = true;
            self.ready.push_back(number);
        }
    }

    /// Posts a list on each queue pair that has room. With `stop`, streams end as soon as they can.
    ///
    /// # Errors
    /// If the device refuses.
    pub fn post(&mut self, stop: bool) -> Result<()> {
        for _ in 0..self.ready.len() {
            let Some(number) = self.ready.pop_front() else { break };
            let shared = self.peer_shared_area;
            let pair = &mut self.pairs[usize::from(number)];
            let more = pair.post_list(number, &self.layout, shared, stop, &mut self.payload)?;
            pair.is_ready = more;
            if more {
                self.ready.push_back(number);
            }
        }
        Ok(())
    }

    /// Asks for events at the next completions.
    ///
    /// # Errors
    /// If the device refuses.
    pub fn arm(&self) -> Result<()> {
        self.send_queue.arm()?;
        self.receive_queue.arm()
    }

    /// The completion queues, to wait for their events.
    #[must_use]
    pub fn queues(&self) -> [&CompletionQueue; 2] {
        [&self.send_queue, &self.receive_queue]
    }

    /// The next asynchronous event, in words. This workload causes none.
    ///
    /// # Errors
    /// If the library refuses.
    pub fn async_event(&self) -> Result<Option<String>> {
        self.device.async_event()
    }

    /// True if all requests of this side have completed, and it will post no more.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.pairs.iter().all(|pair| pair.initiator.is_finished())
    }

    /// Messages posted, per queue pair.
    #[must_use]
    pub fn messages(&self) -> Vec<u64> {
        self.pairs.iter().map(|pair| pair.initiator.messages()).collect()
    }

    /// Whether each queue pair has received `expected` messages.
    ///
    /// # Errors
    /// If one has received more.
    pub fn has_received(&self, expected: &[u64]) -> Result<bool, Violation> {
        let mut complete = expected.len() == self.pairs.len();
        for ((queue_pair, pair), expected) in (0..).zip(&self.pairs).zip(expected) {
            let (found, expected) = (pair.target.received(), *expected);
            if found > expected {
                return Err(Violation::WrongCount { queue_pair, found, expected });
            }
            complete &= found == expected;
        }
        Ok(complete)
    }

    /// Checks the counters, when everything has been received.
    ///
    /// # Errors
    /// If one does not hold the sum of the other side's additions.
    pub fn check_counters(&self) -> Result<(), Violation> {
        let mut shared = 0u64;
        for (number, pair) in self.pairs.iter().enumerate() {
            shared = shared.wrapping_add(pair.target.shared_added());
            let (found, expected) = (pair.block.word(COUNTER), pair.target.counter());
            if found != expected {
                let counter = format!("the counter of queue pair {number}");
                return Err(Violation::WrongSum { counter, found, expected });
            }
        }
        let found = self.shared_area.word(COUNTER);
        if found != shared {
            let counter = "the shared counter".into();
            return Err(Violation::WrongSum { counter, found, expected: shared });
        }
        Ok(())
    }

    /// The outstanding requests, in words.
    #[must_use]
    pub fn waiting(&self) -> String {
        let busy = self.pairs.iter().enumerate().filter(|(_, pair)| pair.initiator.outstanding() > 0);
        let first = busy.clone().next().map_or("none".into(), |(number, _)| number.to_string());
        let outstanding: usize = self.pairs.iter().map(|pair| pair.initiator.outstanding()).sum();
        let received: u64 = self.pairs.iter().map(|pair| pair.target.received()).sum();
        format!(
            "{outstanding} work requests are outstanding on {} queue pairs, the first of them {first}; {received} \
             messages were received",
            busy.count()
        )
    }
}

impl Pair {
    fn post_receives(&mut self, layout: &Layout, slots: &[usize]) -> Result<()> {
        let receives = receives(&mut self.receives, layout, &self.block, slots);
        self.queue.post_receives(&receives)
    }

    /// Posts one list; returns whether more may follow at once.
    fn post_list(
        &mut self,
        number: u16,
        layout: &Layout,
        shared: (u64, u32),
        stop: bool,
        payload: &mut [u8],
    ) -> Result<bool> {
        let mut list: Vec<Send> = Vec::with_capacity(LONGEST_LIST);
        let mut chained = true;
        let mut more = true;
        while chained && list.len() < LONGEST_LIST {
            let Next::Post(request_number, request) = self.initiator.next(stop) else {
                more = false;
                break;
            };
            let slot = layout.send_slot(request_number);
            let wr_id = send_id(number, request_number);
            match request {
                Request::AskVerified => list.push(self.ask_verified(wr_id, slot)),
                Request::Operation(operation) => {
                    self.fill(&operation, slot, payload);
                    chained = operation.chained;
                    list.push(self.send(&operation, wr_id, slot, layout, shared));
                }
            }
        }
        if !list.is_empty() {
            self.queue.post_sends(&list)?;
        }
        self.scribble(&list, payload);
        Ok(more)
    }

    fn fill(&self, operation: &Operation, slot: usize, payload: &mut [u8]) {
        if !operation.kind.reads() && !operation.kind.is_atomic() {
            let bytes = &mut payload[..operation.length as usize];
            let (pattern, start) = self.initiator.plan().payload(operation);
            pattern.fill(start, bytes);
            self.block.copy_in(slot, bytes);
        }
    }

    /// Inline bytes are the library's as soon as they are posted: later changes of the buffer must not
    /// matter.
    fn scribble(&self, list: &[Send], payload: &mut [u8]) {
        for send in list.iter().filter(|send| send.inline) {
            let bytes = &mut payload[..send.local.length as usize];
            bytes.fill(SCRIBBLE);
            let offset = send.local.address - self.block.address(0);
            self.block.copy_in(usize::try_from(offset).unwrap_or(0), bytes);
        }
    }

    fn ask_verified(&self, wr_id: u64, slot: usize) -> Send {
        let (block, rkey) = self.peer_block;
        Send {
            wr_id,
            kind: Kind::Read,
            local: self.local(wr_id, slot, 8, 8),
            target: verbs::Target { address: block + VERIFIED as u64, rkey, ..Default::default() },
            immediate: 0,
            signaled: true,
            inline: false,
        }
    }

    fn send(
        &self,
        operation: &Operation,
        wr_id: u64,
        slot: usize,
        layout: &Layout,
        shared: (u64, u32),
    ) -> Send {
        Send {
            wr_id,
            kind: operation.kind,
            local: self.local(wr_id, slot, operation.length, operation.split),
            target: self.remote(operation, layout, shared),
            immediate: operation.immediate(),
            signaled: operation.signaled,
            inline: operation.inline,
        }
    }

    fn local(&self, wr_id: u64, slot: usize, length: u32, split: u32) -> Receive {
        Receive { wr_id, address: self.block.address(slot), length, split, lkey: self.block.lkey() }
    }

    fn remote(&self, operation: &Operation, layout: &Layout, shared: (u64, u32)) -> verbs::Target {
        let (area, offset) = match operation.kind {
            Kind::Send | Kind::SendImm => return verbs::Target::default(),
            Kind::Write | Kind::WriteImm | Kind::ReadBack => {
                (self.peer_block, layout.write_slot(operation.place) as u64)
            }
            Kind::Read => (shared, CONSTANT as u64 + operation.place),
            Kind::CompareSwap | Kind::FetchAdd => (self.peer_block, COUNTER as u64),
            Kind::SharedAdd => (shared, COUNTER as u64),
        };
        let compares = operation.kind == Kind::CompareSwap;
        verbs::Target {
            address: area.0 + offset,
            rkey: area.1,
            compare_add: if compares { self.initiator.comparand(operation) } else { operation.operand },
            swap: operation.operand,
        }
    }
}

impl SharedQueue {
    fn post(&mut self, layout: &Layout, area: &Region, slots: &[usize]) -> Result<()> {
        let receives = receives(&mut self.receives, layout, area, slots);
        self.queue.post(&receives)
    }
}

/// The receives of `slots`, each second one with two scatter/gather entries.
fn receives(books: &mut Receives, layout: &Layout, region: &Region, slots: &[usize]) -> Vec<Receive> {
    let length = u32::try_from(layout.slot()).unwrap_or(u32::MAX);
    let receive = |slot: &usize| Receive {
        wr_id: books.post(*slot),
        address: region.address(layout.receive_slot(*slot)),
        length,
        split: if slot.is_multiple_of(2) { length } else { length / 3 },
        lkey: region.lkey(),
    };
    slots.iter().map(receive).collect()
}
