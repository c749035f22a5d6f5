//! Memory that neighbours on the same host write and read by themselves.
//!
//! One-sided operations ask nothing of the target's program, so between processes of one host they
//! should not wait for it either. Pages of a region are turned into shared memory where they
//! are, and handed to the neighbour; from then on its WRITEs and READs are its own stores and loads.
//!
//! ```text
//!  initiator                                     owner
//!    │ WRITE(rkey) by the ring ───────────────────▶│
//!    │ MAP_REQUEST(rkey) ─────────────────────────▶│ the pages become shared, a MiB at a time
//!    │◀──────────── memory's descriptor, beside it │
//!    │◀── EXPORT(rkey, range, rights, gate's count)│
//!    │ maps the memory: a window                   │
//!    │ WRITE: enter gate, copy, leave gate         │
//!    ┊                                             ┊
//!    │   dereg, fork, suspend, a queue pair fails: │ closes the gate (counts on), waits until
//!    │ finds another count: back to the ring       │ nobody is inside
//! ```
//!
//! The owner decides what is exported: the window carries the rights of region and queue pair, for this
//! queue pair alone. A request goes by a window only if its send queue is empty, so that order is kept.
//!
//! Neighbours are trusted to respect the gate, as instances of one fabric on one host: a link over
//! which a neighbour is not to be trusted does not offer [`crate::stream::Neighbour`].
//!
//! Only whole, private, anonymous, small pages wholly inside a region are turned; everything else
//! stays on the ring. A fork would make such pages common to parent and child, so before it they
//! become private again, and stay on the ring.
//!
//! ```text
//!  owner, window          the two sides
//!    maps                 which pages can be turned
//!    turn, turn_back      turning them, and back
//!      sleepers           who would sleep for ever
//!      userfault          having others wait meanwhile
//!      scratch            room for pages on their way
//!    memfd                the memory that both sides map
//! ```

mod maps;
mod memfd;
pub(crate) mod owner;
mod scratch;
mod sleepers;
mod syscall;
#[cfg(test)]
mod testing;
mod turn;
mod turn_back;
mod userfault;
pub(crate) mod window;

/// Bytes that are turned at a time. Who touches them meanwhile waits until they are copied.
const WINDOW: u64 = 1 << 20;

/// Bytes of a page.
const PAGE: u64 = 4096;
