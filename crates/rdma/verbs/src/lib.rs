//! Names of RDMA objects: the handles of applications, and those of the device.
//!
//! An application keeps handles and passes them to its peers by its own means, so they must
//! survive a move although the device gives out others afterwards. The
//! application's name is the *virtual* handle, the device's the *real* one (Nomad, section 4).
//!
//! * [`source`]: picks real handles, as a real device or to provoke conflicts.
//! * [`names`]: the owner's table, virtual to real and back, with conflicts resolved.
//! * [`lookup`]: the translations of one peer's handles.
//! * [`registered`]: the peers to notify when handles change.
//! * [`hash`]: the tables' hash function.
//!
//! Nothing here does IO or knows a device.

pub mod hash;
pub mod lookup;
pub mod names;
mod recent;
pub mod registered;
pub mod source;

pub use lookup::LookupList;
pub use names::{Names, Translation};
pub use registered::RegisteredList;
pub use source::{HandleKind, HandleSource, Policy};
