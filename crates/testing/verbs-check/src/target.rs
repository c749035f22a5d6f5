//! The target's accounting of one queue pair: the expected content of each receive, and of the memory
//! that WRITEs and atomics change.

use std::collections::VecDeque;

use crate::completion::{Completion, Memory, opcode};
use crate::initiator::Done;
use crate::layout::Layout;
use crate::pattern::Mismatch;
use crate::plan::{Operation, Plan};
use crate::violation::Violation;
use crate::workload::{Kind, Side, Workload};

/// The range of messages around the expected one in which a wrong one is searched.
const NEIGHBOURS: usize = 64;

/// A shorter payload contains too little to be recognised.
const RECOGNISABLE: usize = 8;

/// One direction of one queue pair, at its target.
#[derive(Debug)]
pub struct Target {
    queue_pair: u16,
    layout: Layout,
    plan: Plan,
    received: u64,
    verified: u64,
    counter: u64,
    shared_added: u64,
    recent: VecDeque<Operation>,
    scratch: Vec<u8>,
}

impl Target {
    /// The books of the operations that the side opposite to `side` starts on `queue_pair`.
    #[must_use]
    pub fn new(workload: &Workload, side: Side, queue_pair: u16) -> Self {
        Self {
            queue_pair,
            layout: Layout::new(workload),
            plan: Plan::new(workload, side.other(), queue_pair),
            received: 0,
            verified: 0,
            counter: 0,
            shared_added: 0,
            recent: VecDeque::new(),
            scratch: vec![0; workload.max_size.max(8) as usize],
        }
    }

    /// Checks a receive with its payload at `slot` of `receives`, and the WRITEs before it, which are in
    /// `block`.
    ///
    /// # Errors
    /// The first violation.
    /// The first violation.
    pub fn receive(
        &mut self,
        completion: &Completion,
        (receives, slot): (&impl Memory, usize),
        block: &impl Memory,
    ) -> Result<Done, Violation> {
        let queue_pair = self.queue_pair;
        if let Some((status, vendor_error)) = &completion.failure {
            let (what, status) = (format!("receive {}", self.received), status.clone());
            return Err(Violation::Failed { queue_pair, what, status, vendor_error: *vendor_error });
        }
        let before = self.plan.clone();
        let (writes, message) = self.walk();
        if let Err(violation) = self.check_message(&message, completion, receives, slot) {
            return Err(self.explain(&before, &message, completion, receives, slot).unwrap_or(violation));
        }
        let mut done = Done { operations: 1, bytes: u64::from(message.length) };
        for write in &writes {
            self.check_write(write, block)?;
            done.bytes += u64::from(write.length);
        }
        self.verified += writes.len() as u64;
        self.received += 1;
        self.remember(message);
        Ok(done)
    }

    /// Goes on to the next message of the plan; returns the WRITEs up to it and the message.
    fn walk(&mut self) -> (Vec<Operation>, Operation) {
        let mut writes = Vec::new();
        loop {
            let operation = self.plan.advance();
            match operation.kind {
                Kind::FetchAdd => self.counter = self.counter.wrapping_add(operation.operand),
                Kind::CompareSwap if operation.matches => self.counter = operation.operand,
                Kind::SharedAdd => self.shared_added = self.shared_added.wrapping_add(operation.operand),
                Kind::Write | Kind::WriteImm => writes.push(operation.clone()),
                _ => {}
            }
            if operation.kind.takes_receive() {
                return (writes, operation);
            }
        }
    }

    fn check_message(
        &mut self,
        message: &Operation,
        completion: &Completion,
        receives: &impl Memory,
        slot: usize,
    ) -> Result<(), Violation> {
        let (queue_pair, index) = (self.queue_pair, message.index);
        check_envelope(queue_pair, message, completion)?;
        if message.kind.writes() {
            return Ok(());
        }
        let (kind, length) = (message.kind, message.length);
        self.check_bytes(message, receives, slot).map_err(|mismatch| Violation::WrongBytes {
            queue_pair,
            index,
            kind,
            length,
            mismatch,
        })
    }

    fn check_write(&mut self, write: &Operation, block: &impl Memory) -> Result<(), Violation> {
        let (queue_pair, index, kind, length) = (self.queue_pair, write.index, write.kind, write.length);
        let slot = self.layout.write_slot(write.place);
        self.check_bytes(write, block, slot).map_err(|mismatch| Violation::WrongBytes {
            queue_pair,
            index,
            kind,
            length,
            mismatch,
        })
    }

    fn check_bytes(
        &mut self,
        operation: &Operation,
        memory: &impl Memory,
        at: usize,
    ) -> Result<(), Mismatch> {
        let bytes = &mut self.scratch[..operation.length as usize];
        memory.copy_out(at, bytes);
        let (pattern, start) = self.plan.payload(operation);
        pattern.check(start, bytes)
    }

    fn remember(&mut self, message: Operation) {
        if self.recent.len() == NEIGHBOURS {
            self.recent.pop_front();
        }
        self.recent.push_back(message);
    }

    /// Names the message that arrived instead of `expected`, if it is one of its neighbours.
    fn explain(
        &mut self,
        before: &Plan,
        expected: &Operation,
        completion: &Completion,
        receives: &impl Memory,
        slot: usize,
    ) -> Option<Violation> {
        let (queue_pair, expected) = (self.queue_pair, expected.index);
        let earlier: Vec<_> = self.recent.iter().cloned().collect();
        if let Some(twice) = earlier.iter().find(|one| self.is_it(one, completion, receives, slot)) {
            return Some(Violation::ArrivedTwice { queue_pair, expected, arrived: twice.index });
        }
        let mut ahead = before.clone();
        let later = std::iter::repeat_with(|| ahead.advance()).filter(|one| one.kind.takes_receive());
        let later: Vec<_> = later.skip(1).take(NEIGHBOURS).collect();
        let arrived = later.iter().find(|one| self.is_it(one, completion, receives, slot))?;
        Some(Violation::Lost { queue_pair, expected, arrived: arrived.index })
    }

    fn is_it(
        &mut self,
        one: &Operation,
        completion: &Completion,
        receives: &impl Memory,
        slot: usize,
    ) -> bool {
        let recognisable = one.kind.has_immediate() || one.length as usize >= RECOGNISABLE;
        recognisable && self.check_message(one, completion, receives, slot).is_ok()
    }

    /// Messages received.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.received
    }

    /// WRITEs verified.
    #[must_use]
    pub fn verified(&self) -> u64 {
        self.verified
    }

    /// The expected counter in this side's block after the last message.
    #[must_use]
    pub fn counter(&self) -> u64 {
        self.counter
    }

    /// The sum that the initiator has added to the shared counter by the last message.
    #[must_use]
    pub fn shared_added(&self) -> u64 {
        self.shared_added
    }
}

/// Checks opcode, length and immediate data.
fn check_envelope(queue_pair: u16, message: &Operation, completion: &Completion) -> Result<(), Violation> {
    let (index, kind) = (message.index, message.kind);
    let expected = if kind == Kind::WriteImm { opcode::RECV_RDMA_WITH_IMM } else { opcode::RECV };
    if completion.opcode != expected {
        let found = completion.opcode;
        return Err(Violation::WrongOpcode { queue_pair, index, kind, found, expected });
    }
    let (found, expected) = (completion.length, message.length);
    if found != expected {
        return Err(Violation::WrongLength { queue_pair, index, found, expected });
    }
    let (found, expected) = (completion.immediate, kind.has_immediate().then(|| message.immediate()));
    if found != expected {
        return Err(Violation::WrongImmediate { queue_pair, index, found, expected });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::workload;

    /// A target, and its initiator's messages.
    struct Exchange {
        target: Target,
        plan: Plan,
        layout: Layout,
        block: Vec<u8>,
    }

    impl Exchange {
        fn new(mix: &str) -> Self {
            let workload = Workload { mix: mix.parse().unwrap(), min_size: 8, ..workload() };
            let layout = Layout::new(&workload);
            Self {
                target: Target::new(&workload, Side::Server, 0),
                plan: Plan::new(&workload, Side::Client, 0),
                block: vec![0; layout.block()],
                layout,
            }
        }

        /// Executes the plan up to the next message, which lands in receive slot 0.
        fn arrive(&mut self) -> Completion {
            loop {
                let operation = self.plan.advance();
                let (pattern, start) = self.plan.payload(&operation);
                let slot = if operation.kind.writes() {
                    self.layout.write_slot(operation.place)
                } else {
                    self.layout.receive_slot(0)
                };
                let bytes = &mut self.block[slot..slot + operation.length as usize];
                if operation.kind.takes_receive() || operation.kind.writes() {
                    pattern.fill(start, bytes);
                }
                if operation.kind.takes_receive() {
                    return completion(&operation);
                }
            }
        }

        fn receive(&mut self, completion: &Completion) -> Result<Done, Violation> {
            let slot = self.layout.receive_slot(0);
            self.target.receive(completion, (&self.block, slot), &self.block)
        }
    }

    fn completion(message: &Operation) -> Completion {
        let written = message.kind == Kind::WriteImm;
        Completion {
            wr_id: 0,
            failure: None,
            opcode: if written { opcode::RECV_RDMA_WITH_IMM } else { opcode::RECV },
            length: message.length,
            immediate: message.kind.has_immediate().then(|| message.immediate()),
        }
    }

    #[test]
    fn the_planned_stream_is_accepted() {
        let mut exchange = Exchange::new("all");
        for _ in 0..200 {
            let completion = exchange.arrive();
            exchange.receive(&completion).unwrap();
        }
        assert_eq!(exchange.target.received(), 200);
    }

    #[test]
    fn a_doubled_message_is_named() {
        let mut exchange = Exchange::new("send");
        let completion = exchange.arrive();
        exchange.receive(&completion).unwrap();
        let again = exchange.receive(&completion);
        assert_eq!(again, Err(Violation::ArrivedTwice { queue_pair: 0, expected: 1, arrived: 0 }));
    }

    #[test]
    fn a_lost_message_is_named() {
        let mut exchange = Exchange::new("send-imm");
        exchange.arrive();
        exchange.arrive();
        let completion = exchange.arrive();
        let lost = exchange.receive(&completion);
        assert_eq!(lost, Err(Violation::Lost { queue_pair: 0, expected: 0, arrived: 2 }));
    }

    #[test]
    fn a_wrong_byte_of_a_message_or_a_write_is_found() {
        let mut exchange = Exchange::new("send");
        let completion = exchange.arrive();
        let slot = exchange.layout.receive_slot(0);
        exchange.block[slot + 3] ^= 0x80;
        let wrong = exchange.receive(&completion);
        assert!(matches!(wrong, Err(Violation::WrongBytes { mismatch: Mismatch { at: 3, .. }, .. })));

        let mut exchange = Exchange::new("write");
        let completion = exchange.arrive();
        let slot = exchange.layout.write_slot(0);
        exchange.block[slot + 5] ^= 1;
        let wrong = exchange.receive(&completion);
        assert!(matches!(wrong, Err(Violation::WrongBytes { kind: Kind::Write, .. })), "{wrong:?}");
    }

    #[test]
    fn a_write_that_comes_after_its_message_is_found() {
        let mut exchange = Exchange::new("write");
        let completion = exchange.arrive();
        let slot = exchange.layout.write_slot(0);
        exchange.block[slot..slot + 8].fill(0);
        assert!(matches!(exchange.receive(&completion), Err(Violation::WrongBytes { .. })));
    }

    #[test]
    fn envelopes_are_checked() {
        let mut exchange = Exchange::new("send-imm");
        let good = exchange.arrive();
        let bad = Completion { length: good.length + 1, ..good.clone() };
        assert!(matches!(check(&mut exchange, &bad), Err(Violation::WrongLength { .. })));
        let bad = Completion { immediate: Some(99_999), ..good.clone() };
        assert!(matches!(check(&mut exchange, &bad), Err(Violation::WrongImmediate { .. })));
        let bad = Completion { opcode: opcode::RECV_RDMA_WITH_IMM, ..good.clone() };
        assert!(matches!(check(&mut exchange, &bad), Err(Violation::WrongOpcode { .. })));
        let bad = Completion { failure: Some(("flushed".into(), 0)), ..good };
        assert!(matches!(check(&mut exchange, &bad), Err(Violation::Failed { .. })));
    }

    fn check(exchange: &mut Exchange, completion: &Completion) -> Result<Done, Violation> {
        let mut fresh = Exchange::new("send-imm");
        fresh.block.clone_from(&exchange.block);
        fresh.receive(completion)
    }
}
