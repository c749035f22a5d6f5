//! The initiator's accounting of one queue pair: outstanding requests, and the expected content of each completion.

use std::collections::VecDeque;

use crate::completion::{Completion, Memory, opcode, send_id, send_opcode};
use crate::layout::Layout;
use crate::plan::{Operation, Plan};
use crate::violation::Violation;
use crate::workload::{Kind, Side, Workload};

/// A work request to post.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// An operation of the plan.
    Operation(Operation),
    /// A READ of how many WRITEs the target has verified.
    AskVerified,
}

/// The next action on a queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Post this under this number.
    Post(u64, Request),
    /// Wait for completions.
    Wait,
    /// Everything is posted.
    Ended,
}

/// Checked work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Operations.
    pub operations: u64,
    /// Bytes that they moved.
    pub bytes: u64,
}

#[derive(Debug)]
struct Outstanding {
    number: u64,
    request: Request,
    /// For atomics on the own counter: the value before.
    original: u64,
}

/// One direction of one queue pair, at its initiator.
#[derive(Debug)]
pub struct Initiator {
    queue_pair: u16,
    layout: Layout,
    depth: usize,
    count: Option<u64>,
    plan: Plan,
    upcoming: Option<Operation>,
    outstanding: VecDeque<Outstanding>,
    next_number: u64,
    ended: bool,
    /// Whether the last operation posted takes a receive and asks for a completion.
    at_boundary: bool,
    writes_verified: u64,
    asking: bool,
    messages: u64,
    counter: u64,
    shared_seen: u64,
    scratch: Vec<u8>,
}

impl Initiator {
    /// The books of the operations that `side` starts on `queue_pair`.
    #[must_use]
    pub fn new(workload: &Workload, side: Side, queue_pair: u16) -> Self {
        Self {
            queue_pair,
            layout: Layout::new(workload),
            depth: usize::from(workload.depth),
            count: workload.count,
            plan: Plan::new(workload, side, queue_pair),
            upcoming: None,
            outstanding: VecDeque::new(),
            next_number: 0,
            ended: false,
            at_boundary: true,
            writes_verified: 0,
            asking: false,
            messages: 0,
            counter: 0,
            shared_seen: 0,
            scratch: vec![0; workload.max_size.max(8) as usize],
        }
    }

    /// The counts of this direction's operations.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The work request that comes next. With `stop`, the stream ends at the next operation that
    /// takes a receive, so that every WRITE before it gets verified.
    pub fn next(&mut self, stop: bool) -> Next {
        let ending = stop || self.count.is_some_and(|count| self.plan.taken() >= count);
        if self.ended || (ending && self.at_boundary && self.upcoming.is_none()) {
            self.ended = true;
            return Next::Ended;
        }
        if self.outstanding.len() >= self.depth {
            return Next::Wait;
        }
        let mut operation = match self.upcoming.take() {
            Some(operation) => operation,
            None => self.plan.advance(),
        };
        if self.awaits_verification(&operation) {
            self.upcoming = Some(operation);
            return self.ask_verified();
        }
        operation.signaled |= ending;
        self.post_operation(operation)
    }

    fn awaits_verification(&self, operation: &Operation) -> bool {
        let slots = self.layout.write_slots() as u64;
        operation.kind.writes() && operation.place - self.writes_verified >= slots
    }

    fn ask_verified(&mut self) -> Next {
        if self.asking {
            return Next::Wait;
        }
        self.asking = true;
        self.post(Request::AskVerified, 0)
    }

    fn post_operation(&mut self, operation: Operation) -> Next {
        let original = self.counter;
        match operation.kind {
            Kind::FetchAdd => self.counter = self.counter.wrapping_add(operation.operand),
            Kind::CompareSwap if operation.matches => self.counter = operation.operand,
            _ => {}
        }
        self.messages += u64::from(operation.kind.takes_receive());
        self.at_boundary = operation.kind.takes_receive() && operation.signaled;
        self.post(Request::Operation(operation), original)
    }

    fn post(&mut self, request: Request, original: u64) -> Next {
        let number = self.next_number;
        self.next_number += 1;
        self.outstanding.push_back(Outstanding { number, request: request.clone(), original });
        Next::Post(number, request)
    }

    /// The value with which a compare-and-swap, the last operation posted, must compare.
    #[must_use]
    pub fn comparand(&self, operation: &Operation) -> u64 {
        let original = self.outstanding.back().map_or(0, |last| last.original);
        if operation.matches { original } else { !original }
    }

    /// Checks a completion of this queue pair's send queue, and all requests that it covers.
    ///
    /// # Errors
    /// The first violation.
    pub fn complete(&mut self, completion: &Completion, block: &impl Memory) -> Result<Done, Violation> {
        let queue_pair = self.queue_pair;
        let at = self.find(completion.wr_id)?;
        self.check_earlier(at, completion.wr_id)?;
        self.check_itself(at, completion)?;
        let mut done = Done::default();
        for _ in 0..=at {
            let Some(outstanding) = self.outstanding.pop_front() else { break };
            match &outstanding.request {
                Request::AskVerified => self.learn_verified(queue_pair, &outstanding, block)?,
                Request::Operation(operation) => {
                    self.check_result(operation, &outstanding, block)?;
                    done.operations += 1;
                    done.bytes += u64::from(operation.length);
                }
            }
        }
        Ok(done)
    }

    fn find(&self, wr_id: u64) -> Result<usize, Violation> {
        let queue_pair = self.queue_pair;
        let found = self.outstanding.iter().position(|one| send_id(queue_pair, one.number) == wr_id);
        found.ok_or_else(|| {
            if wr_id < send_id(queue_pair, self.next_number) {
                Violation::CompletedTwice { queue_pair, wr_id }
            } else {
                Violation::NotPosted { queue_pair, wr_id }
            }
        })
    }

    fn check_earlier(&self, at: usize, arrived: u64) -> Result<(), Violation> {
        let queue_pair = self.queue_pair;
        match self.outstanding.iter().take(at).find(|one| one.request.is_signaled()) {
            Some(missing) => {
                let missing = send_id(queue_pair, missing.number);
                Err(Violation::OutOfOrder { queue_pair, missing, arrived })
            }
            None => Ok(()),
        }
    }

    fn check_itself(&self, at: usize, completion: &Completion) -> Result<(), Violation> {
        let queue_pair = self.queue_pair;
        let request = &self.outstanding[at].request;
        if let Some((status, vendor_error)) = &completion.failure {
            let (what, status) = (request.describe(), status.clone());
            return Err(Violation::Failed { queue_pair, what, status, vendor_error: *vendor_error });
        }
        let (index, kind, expected) = match request {
            Request::AskVerified => (self.plan.taken(), Kind::Read, opcode::RDMA_READ),
            Request::Operation(operation) => (operation.index, operation.kind, send_opcode(operation.kind)),
        };
        if !request.is_signaled() {
            return Err(Violation::Unsignaled { queue_pair, index, kind });
        }
        let found = completion.opcode;
        if found != expected {
            return Err(Violation::WrongOpcode { queue_pair, index, kind, found, expected });
        }
        Ok(())
    }

    fn learn_verified(
        &mut self,
        queue_pair: u16,
        outstanding: &Outstanding,
        block: &impl Memory,
    ) -> Result<(), Violation> {
        self.asking = false;
        let found = block.word(self.layout.send_slot(outstanding.number));
        let expected = self.writes_verified;
        let counter = format!("queue pair {queue_pair}: the count of verified WRITEs");
        if found < expected {
            return Err(Violation::WrongSum { counter, found, expected });
        }
        self.writes_verified = found;
        Ok(())
    }

    fn check_result(
        &mut self,
        operation: &Operation,
        outstanding: &Outstanding,
        block: &impl Memory,
    ) -> Result<(), Violation> {
        let slot = self.layout.send_slot(outstanding.number);
        if operation.kind.is_atomic() {
            return self.check_original(operation, outstanding.original, block.word(slot));
        }
        if !operation.kind.reads() {
            return Ok(());
        }
        let (pattern, start) = self.plan.payload(operation);
        let bytes = &mut self.scratch[..operation.length as usize];
        block.copy_out(slot, bytes);
        pattern.check(start, bytes).map_err(|mismatch| Violation::WrongBytes {
            queue_pair: self.queue_pair,
            index: operation.index,
            kind: operation.kind,
            length: operation.length,
            mismatch,
        })
    }

    fn check_original(&mut self, operation: &Operation, original: u64, found: u64) -> Result<(), Violation> {
        let shared = operation.kind == Kind::SharedAdd;
        let expected = if shared { self.shared_seen } else { original };
        let right = if shared { found >= expected } else { found == expected };
        if !right {
            let (queue_pair, index, kind) = (self.queue_pair, operation.index, operation.kind);
            return Err(Violation::WrongOriginal { queue_pair, index, kind, found, expected });
        }
        if shared {
            self.shared_seen = found + operation.operand;
        }
        Ok(())
    }

    /// Whether everything that was posted has completed, and nothing more will be posted.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.ended && self.outstanding.is_empty()
    }

    /// Work requests that have not completed.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    /// Operations posted that take a receive at the target.
    #[must_use]
    pub fn messages(&self) -> u64 {
        self.messages
    }
}

impl Request {
    fn is_signaled(&self) -> bool {
        match self {
            Self::AskVerified => true,
            Self::Operation(operation) => operation.signaled,
        }
    }

    fn describe(&self) -> String {
        match self {
            Self::AskVerified => "read of the count of verified WRITEs".into(),
            Self::Operation(operation) => format!("{} {}", operation.kind.name(), operation.index),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::workload;

    /// An initiator with one operation of `mix` after the other, and its memory.
    fn initiator(mix: &str) -> (Initiator, Vec<u8>) {
        let workload = Workload { mix: mix.parse().unwrap(), ..workload() };
        let block = vec![0; Layout::new(&workload).block()];
        (Initiator::new(&workload, Side::Client, 0), block)
    }

    /// Posts until one asks for a completion; returns that one.
    fn post(initiator: &mut Initiator) -> (u64, Operation) {
        loop {
            match initiator.next(false) {
                Next::Post(number, Request::Operation(operation)) if operation.signaled => {
                    return (number, operation);
                }
                Next::Post(_, Request::Operation(_)) => {}
                other => panic!("nothing to post: {other:?}"),
            }
        }
    }

    fn success(number: u64, operation: &Operation) -> Completion {
        Completion {
            wr_id: send_id(0, number),
            failure: None,
            opcode: send_opcode(operation.kind),
            length: 0,
            immediate: None,
        }
    }

    #[test]
    fn a_completion_retires_the_unsignaled_ones_before_it() {
        let (mut initiator, block) = initiator("send");
        let (number, operation) = post(&mut initiator);
        let done = initiator.complete(&success(number, &operation), &block).unwrap();
        assert_eq!(done.operations, number + 1);
        assert_eq!(initiator.outstanding(), 0);
    }

    #[test]
    fn a_second_completion_is_noticed() {
        let (mut initiator, block) = initiator("send");
        let (number, operation) = post(&mut initiator);
        let completion = success(number, &operation);
        initiator.complete(&completion, &block).unwrap();
        let again = initiator.complete(&completion, &block);
        assert!(matches!(again, Err(Violation::CompletedTwice { .. })), "{again:?}");
    }

    #[test]
    fn a_lost_completion_is_noticed_at_the_next() {
        let (mut initiator, block) = initiator("send");
        let (first, _) = post(&mut initiator);
        let (second, operation) = post(&mut initiator);
        assert_eq!(
            initiator.complete(&success(second, &operation), &block),
            Err(Violation::OutOfOrder {
                queue_pair: 0,
                missing: send_id(0, first),
                arrived: send_id(0, second)
            })
        );
    }

    #[test]
    fn a_completion_of_nothing_is_noticed() {
        let (mut initiator, block) = initiator("send");
        let (number, operation) = post(&mut initiator);
        let unknown = initiator.complete(&success(number + 1, &operation), &block);
        assert!(matches!(unknown, Err(Violation::NotPosted { .. })), "{unknown:?}");
    }

    #[test]
    fn an_unwanted_completion_is_noticed() {
        let (mut initiator, block) = initiator("send");
        let unsignaled = loop {
            match initiator.next(false) {
                Next::Post(number, Request::Operation(operation)) if !operation.signaled => {
                    break success(number, &operation);
                }
                Next::Post(number, Request::Operation(operation)) => {
                    initiator.complete(&success(number, &operation), &block).unwrap();
                }
                other => panic!("nothing to post: {other:?}"),
            }
        };
        let unwanted = initiator.complete(&unsignaled, &block);
        assert!(matches!(unwanted, Err(Violation::Unsignaled { .. })), "{unwanted:?}");
    }

    #[test]
    fn failures_and_wrong_opcodes_are_noticed() {
        let (mut initiator, block) = initiator("write");
        let (number, operation) = post(&mut initiator);
        let wrong = Completion { opcode: opcode::RDMA_READ, ..success(number, &operation) };
        assert!(matches!(initiator.complete(&wrong, &block), Err(Violation::WrongOpcode { .. })));
        let failed =
            Completion { failure: Some(("retry exceeded".into(), 1)), ..success(number, &operation) };
        assert!(matches!(initiator.complete(&failed, &block), Err(Violation::Failed { .. })));
    }

    #[test]
    fn wrong_bytes_of_a_read_are_noticed() {
        let (mut initiator, mut block) = initiator("read");
        let (number, operation) = post(&mut initiator);
        let reads = initiator.outstanding.iter().map(|one| (one.number, one.request.clone()));
        for (number, request) in reads.collect::<Vec<_>>() {
            let Request::Operation(read) = request else { panic!("not a read: {request:?}") };
            let (pattern, start) = initiator.plan.payload(&read);
            let slot = initiator.layout.send_slot(number);
            pattern.fill(start, &mut block[slot..slot + read.length as usize]);
        }
        block[initiator.layout.send_slot(number)] ^= 1;
        let wrong = initiator.complete(&success(number, &operation), &block);
        assert!(matches!(wrong, Err(Violation::WrongBytes { index, .. }) if index == operation.index));
    }

    #[test]
    fn an_atomic_executed_twice_is_noticed() {
        let (mut initiator, mut block) = initiator("fetch-add");
        let mut value = 0u64;
        let mut last = None;
        while last.is_none() {
            let Next::Post(number, Request::Operation(operation)) = initiator.next(false) else { panic!() };
            let slot = initiator.layout.send_slot(number);
            block[slot..slot + 8].copy_from_slice(&value.to_le_bytes());
            value += operation.operand;
            last = operation.signaled.then_some((number, operation));
        }
        let (number, operation) = last.unwrap();
        let slot = initiator.layout.send_slot(number);
        block[slot..slot + 8].copy_from_slice(&value.to_le_bytes());
        let twice = initiator.complete(&success(number, &operation), &block);
        assert!(matches!(twice, Err(Violation::WrongOriginal { .. })), "{twice:?}");
    }

    #[test]
    fn writes_wait_until_their_slot_is_verified() {
        let (mut initiator, block) = initiator("write");
        let mut posted = 0;
        loop {
            match initiator.next(false) {
                Next::Post(_, Request::AskVerified) => break,
                Next::Post(number, Request::Operation(operation)) => {
                    posted += u64::from(operation.kind.writes());
                    if operation.signaled {
                        initiator.complete(&success(number, &operation), &block).unwrap();
                    }
                }
                other => panic!("nothing to post: {other:?}"),
            }
        }
        assert_eq!(posted, initiator.layout.write_slots() as u64);
        assert_eq!(initiator.next(false), Next::Wait);
    }

    #[test]
    fn a_stream_ends_with_a_signaled_message() {
        let (mut initiator, block) = initiator("write,send");
        let (number, operation) = post(&mut initiator);
        initiator.complete(&success(number, &operation), &block).unwrap();
        let mut last = None;
        loop {
            match initiator.next(true) {
                Next::Post(number, Request::Operation(operation)) => {
                    initiator.complete(&success(number, &operation), &block).unwrap();
                    last = Some(operation);
                }
                Next::Ended => break,
                other => panic!("nothing to post: {other:?}"),
            }
        }
        assert!(last.is_none_or(|last| last.kind.takes_receive() && last.signaled));
        assert!(initiator.is_finished());
    }
}
