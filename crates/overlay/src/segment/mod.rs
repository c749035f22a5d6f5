//! Segments: what a TAP device with `IFF_VNET_HDR` hands over in one piece, of up to 64 KiB, and the frames that it
//! stands for.
//!
//! ```text
//!  VnetHeader │ Ethernet … IP … TCP or UDP │ payload, up to 64 KiB           from the TAP
//!      │
//!      ▼  split::Plan          header copied and edited, payload copied once
//!  VnetHeader │ header 0 │ gso_size bytes
//!  VnetHeader │ header 1 │ gso_size bytes                                    through the tunnel
//!  VnetHeader │ header 2 │ what is left
//!      │
//!      ▼  merge::Merger        one new header; payloads stay where they are
//!  VnetHeader │ header     │ payload 0 │ payload 1 │ payload 2               to the other TAP, in one vectored write
//! ```
//!
//! A piece is a frame of its own, except that its TCP or UDP checksum is *partial*, as the kernel leaves it to hardware: the
//! field has the folded sum of the pseudo-header, and who sends the frame to where nobody completes it does so
//! ([`complete_checksum`]).
//!
//! What is merged is what splitting gives back byte for byte, and nothing else. Frames come from instances and from
//! peers, of which neither is trusted: nothing that they say makes this panic, or work without a bound.
//!
//! * [`vnet`]: the header that travels with a frame. * [`split`], [`merge`]: the two ways.
//! * `layout`: where headers are in a frame. * `edit`: what differs between the headers of pieces.
//! * `checksum`: sums. * `claims`: whether what a device says of a frame is so.

mod checksum;
mod claims;
mod edit;
mod layout;
pub mod merge;
pub mod split;
pub mod vnet;

pub use checksum::complete_checksum;
pub use claims::is_as_said;
pub use layout::LayoutError;
pub use merge::{Merger, Segment};
pub use split::{Plan, SplitError};
pub use vnet::{VnetError, VnetHeader};
