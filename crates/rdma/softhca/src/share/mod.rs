//! Direct mappings: one-sided access to the memory of neighbours on the same host.
//!
//! One-sided operations do not involve the target's program, so between processes of one host they
//! should not wait for it either. Pages of a region are converted into shared memory in place
//! and passed to the neighbour; from then on the neighbour executes WRITEs and READs as stores and loads.
//!
//! ```text
//!  initiator                                     owner
//!    │ WRITE(rkey) by the ring ───────────────────▶│
//!    │ MAP_REQUEST(rkey) ─────────────────────────▶│ the pages become shared, a MiB at a time
//!    │◀──────────── memory's descriptor, beside it │
//!    │◀── EXPORT(rkey, range, rights, gate's count)│
//!    │ maps the memory: a direct mapping           │
//!    │ WRITE: enter gate, copy, leave gate         │
//!    ┊                                             ┊
//!    │   dereg, fork, suspend, a queue pair fails: │ closes the gate (count + 1), waits until
//!    │ finds another count: back to the ring       │ no initiator is inside
//! ```
//!
//! The owner decides what is exported: a direct mapping has the rights of region and queue pair, for this
//! queue pair alone. A request uses a direct mapping only if its send queue is empty, so that order is kept.
//!
//! Neighbours are trusted to respect the gate, as instances of one fabric on one host: a link to an
//! untrusted neighbour does not offer [`crate::stream::Neighbour`].
//!
//! Only small, private, anonymous pages that lie wholly inside a region are converted; all other memory
//! stays on the ring. A fork would share converted pages between parent and child, so they
//! become private before it, and stay on the ring afterwards.
//!
//! ```text
//!  owner, direct_mapping  the two sides
//!    maps                 finds pages that can be converted
//!    make_shared, make_private
//!                         convert them to shared memory, and back
//!      sleepers           finds threads that would never be woken
//!      userfault          makes other threads wait meanwhile
//!      scratch            holds the pages meanwhile
//!    memfd                the memory that both sides map
//! ```

pub(crate) mod direct_mapping;
mod make_private;
mod make_shared;
mod maps;
mod memfd;
pub(crate) mod owner;
mod scratch;
mod sleepers;
mod syscall;
#[cfg(test)]
mod testing;
mod userfault;

/// Bytes that are converted at a time. A thread that touches them meanwhile waits until they are copied.
const BLOCK: u64 = 1 << 20;

/// Bytes of a page.
const PAGE: u64 = 4096;
