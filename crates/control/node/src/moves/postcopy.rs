//! Post-copy: the instance runs at the destination before all its memory is there.
//!
//! * [`fetching`]: the destination fetches missing memory; [`relay`]: over a connection that it opens again whenever it breaks.
//! * [`memory_server`]: the source serves it.

mod fetching;
mod memory_server;
mod relay;

pub use self::fetching::Fetchings;
pub use self::memory_server::MemoryServer;
