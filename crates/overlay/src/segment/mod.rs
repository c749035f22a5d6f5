//! Segments: what a TAP device with `IFF_VNET_HDR` hands over in one piece, of up to 64 KiB, and the frames that it
//! stands for.
//!
//! * [`vnet`]: the header that travels with a frame. * `checksum`: sums.

mod checksum;
pub mod vnet;

pub use checksum::complete_checksum;
pub use vnet::{VnetError, VnetHeader};
