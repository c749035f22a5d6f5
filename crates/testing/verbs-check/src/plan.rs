//! The stream of operations of one direction of one QP, derived from the seed. Initiator and
//! target each generate their own copy, so that the target can predict every arriving byte.

use crate::pattern::{Pattern, Random, key};
use crate::workload::{Kind, Side, Workload};

/// The largest number that a fetch-and-add of this workload adds.
const LARGEST_ADD: u64 = 1 << 20;

/// The bytes of constant data that READs read from, beyond the longest message.
pub const CONSTANT_SLACK: u32 = 4096;

/// One work request of the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Its place in the stream.
    pub index: u64,
    /// The kind of operation.
    pub kind: Kind,
    /// Its bytes.
    pub length: u32,
    /// The first bytes that get a scatter/gather entry of their own; equal to `length` for one entry.
    pub split: u32,
    /// WRITE and read-back: which WRITE of the stream, counted from 0. READ: where the data begins.
    pub place: u64,
    /// Fetch-and-add: the summand. Compare-and-swap: the new value. Read-back: the WRITE's index.
    pub operand: u64,
    /// Compare-and-swap: whether it compares with the value that is there.
    pub matches: bool,
    /// Whether the payload is inline.
    pub inline: bool,
    /// Whether a completion is asked for.
    pub signaled: bool,
    /// Whether it is posted in one list with the operation after it.
    pub chained: bool,
}

impl Operation {
    /// The immediate data it carries, if its kind has any.
    #[must_use]
    pub fn immediate(&self) -> u32 {
        (self.index & u64::from(u32::MAX)) as u32
    }
}

/// One direction of one QP.
#[derive(Clone, Debug)]
pub struct Plan {
    workload: Workload,
    random: Random,
    stream: u64,
    constant: Pattern,
    next_index: u64,
    writes: u64,
    /// Index and length of the last WRITE.
    last_write: Option<(u64, u32)>,
    unsignaled_run: u16,
    run_without_receive: u16,
}

impl Plan {
    /// The operations of `side` on QP number `qp`.
    #[must_use]
    pub fn new(workload: &Workload, side: Side, qp: u16) -> Self {
        let stream = key(&[workload.seed, side as u64, u64::from(qp)]);
        Self {
            random: Random::new(stream),
            stream,
            constant: constant(workload.seed, side.other()),
            workload: workload.clone(),
            next_index: 0,
            writes: 0,
            last_write: None,
            unsignaled_run: 0,
            run_without_receive: 0,
        }
    }

    /// Operations taken so far.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.next_index
    }

    /// The bytes that `operation` carries, and the position at which they begin.
    #[must_use]
    pub fn payload(&self, operation: &Operation) -> (Pattern, u64) {
        match operation.kind {
            Kind::Read => (self.constant, operation.place),
            Kind::ReadBack => (self.pattern(operation.operand), 0),
            _ => (self.pattern(operation.index), 0),
        }
    }

    fn pattern(&self, index: u64) -> Pattern {
        Pattern::new(key(&[self.stream, index]))
    }

    /// The next operation.
    pub fn advance(&mut self) -> Operation {
        let kind = self.next_kind();
        let mut operation = Operation {
            index: self.next_index,
            kind,
            length: self.next_length(kind),
            split: 0,
            place: 0,
            operand: 0,
            matches: self.random.one_in(2),
            inline: false,
            signaled: false,
            chained: self.random.one_in(2),
        };
        self.place(&mut operation);
        operation.split = self.next_split(operation.length);
        operation.inline = self.next_inline(&operation);
        operation.signaled = self.next_signaled();
        self.next_index += 1;
        operation
    }

    fn next_kind(&mut self) -> Kind {
        let picked = match self.workload.mix.pick(self.random.number()) {
            Kind::ReadBack if self.last_write.is_none() => Kind::Read,
            picked => picked,
        };
        let kind = if self.run_without_receive >= self.workload.depth { Kind::Send } else { picked };
        self.run_without_receive = if kind.takes_receive() { 0 } else { self.run_without_receive + 1 };
        kind
    }

    /// Short messages are as frequent as long ones: the number of bits is equally distributed.
    fn next_length(&mut self, kind: Kind) -> u32 {
        if kind.is_atomic() {
            return 8;
        }
        let (min, max) = (self.workload.min_size, self.workload.max_size);
        let bits = self.random.below(u64::from(bits(max) - bits(min)) + 1) as u32 + bits(min);
        let ceiling = u64::from(max).min((1 << bits) - 1);
        let floor = u64::from(min).max(if bits == 0 { 0 } else { 1 << (bits - 1) });
        (floor + self.random.below(ceiling - floor + 1)) as u32
    }

    fn place(&mut self, operation: &mut Operation) {
        let operand = self.random.number();
        match operation.kind {
            Kind::Send | Kind::SendImm => {}
            Kind::Write | Kind::WriteImm => {
                operation.place = self.writes;
                self.writes += 1;
                self.last_write = Some((operation.index, operation.length));
            }
            Kind::Read => operation.place = operand % u64::from(CONSTANT_SLACK),
            Kind::ReadBack => {
                if let Some((index, length)) = self.last_write {
                    operation.place = self.writes - 1;
                    operation.operand = index;
                    operation.length = length;
                }
            }
            Kind::CompareSwap => operation.operand = operand,
            Kind::FetchAdd | Kind::SharedAdd => operation.operand = 1 + operand % LARGEST_ADD,
        }
    }

    fn next_split(&mut self, length: u32) -> u32 {
        let split = 1 + self.random.below(u64::from(length.max(2)) - 1) as u32;
        if length < 16 || self.random.one_in(2) { length } else { split }
    }

    fn next_inline(&mut self, operation: &Operation) -> bool {
        let wanted = self.random.one_in(2);
        let possible = !operation.kind.reads() && !operation.kind.is_atomic();
        wanted && possible && operation.length <= self.workload.inline_size
    }

    /// At least one of each `depth / 2` operations asks for a completion, so that the queue never
    /// fills up with unsignalled operations.
    fn next_signaled(&mut self) -> bool {
        let wanted = self.random.one_in(3);
        let signaled = wanted || self.unsignaled_run + 1 >= self.workload.depth / 2;
        self.unsignaled_run = if signaled { 0 } else { self.unsignaled_run + 1 };
        signaled
    }
}

/// The constant data that `owner` offers to READs.
#[must_use]
pub fn constant(seed: u64, owner: Side) -> Pattern {
    Pattern::new(key(&[seed, owner as u64, u64::MAX]))
}

fn bits(value: u32) -> u32 {
    u32::BITS - value.leading_zeros()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::workload::Mix;

    pub(crate) fn workload() -> Workload {
        Workload {
            seed: 1,
            queue_pairs: 2,
            mix: Mix::default(),
            min_size: 1,
            max_size: 4096,
            depth: 8,
            inline_size: 64,
            shared_receives: false,
            count: None,
        }
    }

    fn take(plan: &mut Plan, count: usize) -> Vec<Operation> {
        (0..count).map(|_| plan.advance()).collect()
    }

    #[test]
    fn both_sides_derive_the_same_stream() {
        let mut one = Plan::new(&workload(), Side::Client, 1);
        let mut two = Plan::new(&workload(), Side::Client, 1);
        assert_eq!(take(&mut one, 500), take(&mut two, 500));
        let mut other = Plan::new(&workload(), Side::Server, 1);
        assert_ne!(take(&mut other, 500), take(&mut two, 500));
    }

    #[test]
    fn limits_are_kept_and_reached() {
        let operations = take(&mut Plan::new(&workload(), Side::Client, 0), 5000);
        assert!(operations.iter().all(|operation| (1..=4096).contains(&operation.length)));
        assert!(operations.iter().any(|operation| operation.length < 4));
        assert!(operations.iter().any(|operation| operation.length > 4000));
        assert!(operations.iter().all(|operation| !operation.inline || operation.length <= 64));
        assert!(operations.iter().all(|operation| operation.split <= operation.length));
        for kind in Kind::ALL {
            assert!(operations.iter().any(|operation| operation.kind == kind), "no {}", kind.name());
        }
    }

    #[test]
    fn a_receive_and_a_completion_come_often_enough() {
        let one_sided = Workload { mix: "write".parse().unwrap(), ..workload() };
        let operations = take(&mut Plan::new(&one_sided, Side::Client, 0), 500);
        for run in operations.windows(usize::from(one_sided.depth) + 1) {
            assert!(run.iter().any(|operation| operation.kind.takes_receive()));
        }
        for run in operations.windows(usize::from(one_sided.depth) / 2) {
            assert!(run.iter().any(|operation| operation.signaled));
        }
    }

    #[test]
    fn a_depth_and_a_size_of_one_work() {
        let smallest = Workload { depth: 1, min_size: 0, max_size: 1, ..workload() };
        let operations = take(&mut Plan::new(&smallest, Side::Client, 0), 200);
        assert!(operations.iter().all(|operation| operation.signaled));
    }
}
