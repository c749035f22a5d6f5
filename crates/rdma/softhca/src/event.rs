//! Events that a device reports to its user.

use fabric::ProcessId;

use crate::handle::{Cq, Qp, Srq};
use crate::link::LinkLoss;

/// Something happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// An armed CQ got a completion. It is not armed any more.
    Completion(Cq),
    /// An asynchronous event.
    Async(AsyncEvent),
    /// A link ended; another one is asked for as soon as it is needed. Of interest to diagnostics only.
    LinkLost {
        /// The process at the other end.
        peer: ProcessId,
        /// Why.
        reason: LinkLoss,
    },
}

/// `struct ibv_async_event`, of the kinds that this device raises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncEvent {
    /// A CQ overran: completions are lost, its QPs fail.
    CqError(Cq),
    /// A QP failed at something that no completion tells.
    QpFatal(Qp),
    /// The responder refused a malformed request that has no receive to tell of it.
    QpRequestError(Qp),
    /// The responder refused a request for want of access that has no receive to tell of it.
    QpAccessError(Qp),
    /// A message arrived while the QP was in RTR.
    CommunicationEstablished(Qp),
    /// A QP in SQD has nothing in flight any more.
    SendQueueDrained(Qp),
    /// A QP in error takes no more receives from its SRQ.
    LastWqeReached(Qp),
    /// Receives in an SRQ fell below the limit that was set.
    SrqLimitReached(Srq),
}
