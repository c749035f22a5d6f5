//! Violations of the expected traffic.

use crate::pattern::Mismatch;
use crate::workload::Kind;

/// The first thing that was wrong. Queue pairs are counted from 0, operations in the order in
/// which their initiator posted them on their queue pair.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A work request ended with an error.
    #[error("queue pair {queue_pair}: {what} completed with {status} (vendor error {vendor_error:#x})")]
    Failed {
        /// Which queue pair.
        queue_pair: u16,
        /// Which work request.
        what: String,
        /// The completion status, in the library's words.
        status: String,
        /// The device's own error code.
        vendor_error: u32,
    },
    /// A work request completed twice.
    #[error("queue pair {queue_pair}: work request {wr_id:#x} completed a second time")]
    CompletedTwice {
        /// Which queue pair.
        queue_pair: u16,
        /// Its identifier.
        wr_id: u64,
    },
    /// A completion of something that was never posted.
    #[error("queue pair {queue_pair}: completion of work request {wr_id:#x}, which was not posted")]
    NotPosted {
        /// Which queue pair.
        queue_pair: u16,
        /// Its identifier.
        wr_id: u64,
    },
    /// A completion that was not requested.
    #[error("queue pair {queue_pair}: completion of {kind} {index}, which was posted unsignalled", kind = .kind.name())]
    Unsignaled {
        /// Which queue pair.
        queue_pair: u16,
        /// Which operation.
        index: u64,
        /// Its kind.
        kind: Kind,
    },
    /// A completion overtook or swallowed an earlier one.
    #[error(
        "queue pair {queue_pair}: work request {arrived:#x} completed before {missing:#x}, which was posted earlier"
    )]
    OutOfOrder {
        /// Which queue pair.
        queue_pair: u16,
        /// The request that should have completed first.
        missing: u64,
        /// The request that completed.
        arrived: u64,
    },
    /// A completion on the wrong queue pair.
    #[error("work request {wr_id:#x} completed with QP number {qpn:#x}, which is not its queue pair's")]
    WrongQueuePair {
        /// Its identifier.
        wr_id: u64,
        /// The number in the completion.
        qpn: u32,
    },
    /// The completion's opcode does not fit the operation.
    #[error("queue pair {queue_pair}: operation {index} ({kind}) completed with opcode {found}, expected {expected}", kind = .kind.name())]
    WrongOpcode {
        /// Which queue pair.
        queue_pair: u16,
        /// Which operation.
        index: u64,
        /// Its kind.
        kind: Kind,
        /// The opcode in the completion.
        found: u32,
        /// The opcode that belongs to the kind.
        expected: u32,
    },
    /// A receive holds more or fewer bytes than were sent.
    #[error("queue pair {queue_pair}: operation {index} arrived with {found} bytes, expected {expected}")]
    WrongLength {
        /// Which queue pair.
        queue_pair: u16,
        /// Which operation.
        index: u64,
        /// The completion's length.
        found: u32,
        /// The operation's length.
        expected: u32,
    },
    /// A receive's immediate data differs from the sent data.
    #[error(
        "queue pair {queue_pair}: operation {index} arrived with immediate data {found:#x?}, expected {expected:#x?}"
    )]
    WrongImmediate {
        /// Which queue pair.
        queue_pair: u16,
        /// Which operation.
        index: u64,
        /// The message that arrived.
        found: Option<u32>,
        /// The message that was sent.
        expected: Option<u32>,
    },
    /// Data differ from the sent data.
    #[error(
        "queue pair {queue_pair}: {kind} {index}, {length} bytes: byte {at} is {found:#04x}, expected {expected:#04x}",
        kind = .kind.name(), at = .mismatch.at, found = .mismatch.found, expected = .mismatch.expected
    )]
    WrongBytes {
        /// Which queue pair.
        queue_pair: u16,
        /// Which operation.
        index: u64,
        /// Its kind.
        kind: Kind,
        /// Its length.
        length: u32,
        /// The first wrong byte.
        mismatch: Mismatch,
    },
    /// Messages between the expected and the arrived one are missing.
    #[error("queue pair {queue_pair}: operation {expected} is lost: {arrived} arrived in its place")]
    Lost {
        /// Which queue pair.
        queue_pair: u16,
        /// The operation that should have arrived.
        expected: u64,
        /// The later one that did.
        arrived: u64,
    },
    /// A message that was there before arrived again.
    #[error("queue pair {queue_pair}: operation {arrived} arrived again, where {expected} was expected")]
    ArrivedTwice {
        /// Which queue pair.
        queue_pair: u16,
        /// The operation that should have arrived.
        expected: u64,
        /// The earlier one that did.
        arrived: u64,
    },
    /// An atomic operation returned a value that its word cannot have had.
    #[error("queue pair {queue_pair}: {kind} {index} returned {found}, expected {expected}", kind = .kind.name())]
    WrongOriginal {
        /// Which queue pair.
        queue_pair: u16,
        /// Which operation.
        index: u64,
        /// Its kind.
        kind: Kind,
        /// The value that it returned.
        found: u64,
        /// The value, or for the shared counter the least value, that it must return.
        expected: u64,
    },
    /// A counter does not hold the sum of the additions.
    #[error("{counter} ended at {found}, expected {expected}")]
    WrongSum {
        /// Which counter.
        counter: String,
        /// Its value.
        found: u64,
        /// The sum.
        expected: u64,
    },
    /// The two sides do not agree how much was sent.
    #[error("queue pair {queue_pair}: {found} messages were received, {expected} were sent")]
    WrongCount {
        /// Which queue pair.
        queue_pair: u16,
        /// Receives completed here.
        found: u64,
        /// Messages sent by the other side.
        expected: u64,
    },
    /// Nothing completed for too long.
    #[error("nothing completed for {seconds} s; {waiting}")]
    Stalled {
        /// For how long.
        seconds: u64,
        /// The outstanding requests.
        waiting: String,
    },
    /// The device reported an asynchronous error.
    #[error("the device reported an asynchronous event: {event}")]
    AsyncEvent {
        /// In the library's words.
        event: String,
    },
    /// The other side found a violation first.
    #[error("the other side reports: {0}")]
    Reported(String),
}
