//! An RDMA device in user space: complete connections without kernel RDMA.
//!
//! A [`Device`] is one process' view. It owns no thread, reads no clock and takes no lock: its
//! user calls it under its own lock, passes the time, opens the links that it asks for,
//! and wakes the application when it reports [`Event`]s.
//!
//! ```text
//!  device       objects, posting, links, time, suspension: the interface
//!    core       the objects that requests are executed on
//!      requester, responder     the two halves of a connection
//!      send_queue, receive_queue, completion_queue, region, memory_window, qp
//!    link       frames in and out over a stream; greeting, resynchronisation
//!      wire     the wire format
//!  share        direct mappings: one-sided access between processes of one host
//!  stream       TCP, shared memory, loopback
//!  memory       the only module that accesses memory of the application
//!  mapping      `mmap` and relatives as plain system calls, past the hooks of other libraries
//! ```
//!
//! The path of a WRITE: `post_send` puts it into the send queue; `flush_doorbell` has the requester
//! stage a header and the payload's address, and the link writes both to its stream; at the peer the link
//! reads the header, the responder checks key and range, and the stream delivers the payload
//! into the named memory; an acknowledgement comes back, and the requester completes.

mod address;
pub mod asymmetric;
pub mod attr;
mod completion_queue;
mod core;
mod datagram;
pub mod device;
pub mod errno;
pub mod event;
mod groups;
pub mod handle;
pub mod limits;
mod link;
mod mapping;
mod memory;
mod memory_window;
mod qp;
mod receive_queue;
mod region;
mod requester;
mod responder;
mod scatter;
mod send_queue;
mod share;
mod shared_receive_queue;
mod slab;
pub mod stream;
mod timer;
pub mod wire;
pub mod work;

pub use attr::{
    Access, AddressVector, GlobalRoute, QpAttr, QpAttrMask, QpCaps, QpInit, QpKind, QpState, SrqAttr,
    WindowKind,
};
pub use device::{Config, Counts, Device, Progress, Rereg, Suspended};
pub use errno::Errno;
pub use event::{AsyncEvent, Event};
pub use groups::GroupId;
pub use handle::{Ah, Cq, Keys, Mr, Mw, Pd, Qp, Srq, Xrcd};
pub use limits::Limits;
pub use link::LinkLoss;
pub use shared_receive_queue::Xrc;
pub use stream::{Interest, Stream, Waitable};
pub use work::{Binding, Payload, PlainSend, Posted, Rdma, SendOp, SendWr, Sge, Wc, WcOpcode, WcStatus};
