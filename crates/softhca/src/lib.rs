//! An RDMA device in user space: reliable connections, complete, without kernel RDMA.
//!
//! A [`Device`] is one process' view. It owns no thread, reads no clock and takes no lock: its
//! user calls it under a lock of his own, tells it the time, opens the links that it asks for,
//! and turns its [`Event`]s into whatever wakes an application.
//!
//! * [`attr`], [`work`], [`event`], [`handle`], [`limits`], [`errno`]: the vocabulary.
//! * [`stream`]: what a link runs over.

pub mod attr;
pub mod device;
pub mod errno;
pub mod event;
pub mod handle;
pub mod limits;
pub mod stream;
pub mod work;

pub use attr::{Access, AddressVector, GlobalRoute, QpAttr, QpAttrMask, QpCaps, QpInit, QpState, SrqAttr};
pub use device::{Config, Counts, Device, Progress, Suspended};
pub use errno::Errno;
pub use event::{AsyncEvent, Event};
pub use handle::{Cq, Keys, Mr, Pd, Qp, Srq};
pub use limits::Limits;
pub use stream::{Stream, Waitable};
pub use work::{Payload, SendOp, SendWr, Sge, Wc, WcOpcode, WcStatus};
