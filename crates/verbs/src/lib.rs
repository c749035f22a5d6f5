//! Names of RDMA objects, as applications and as the device know them.
//!
//! An application keeps handles and hands them to its peers by means of its own, so they must
//! outlive a move although the device behind them gives out others afterwards. The
//! application's name is the *virtual* handle, the device's the *real* one (Nomad, section 4).
//!
//! * [`source`]: how a device picks real handles, honestly or to provoke mistakes.
//! * [`names`]: the owner's table, virtual to real and back, with conflicts resolved.
//! * [`lookup`]: what a process knows of one peer's handles.
//! * [`registered`]: who must be told when handles change.
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
