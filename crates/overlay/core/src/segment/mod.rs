//! Segments: TCP or UDP data of up to 64 KiB that a TAP device with `IFF_VNET_HDR` passes in one piece, and the frames that it
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
//! field has the folded sum of the pseudo-header. A node that sends the frame to a receiver without checksum offload completes it
//! ([`complete_checksum`]).
//!
//! Only frames that splitting restores byte for byte are merged. Frames come from instances and from
//! peers, and neither is trusted: no content makes this code panic, or work without a bound.
//!
//! * [`vnet`]: the header that travels with a frame. * [`split`], [`merge`]: the two directions.
//! * `layout`: positions of headers in a frame. * `edit`: differences between the headers of pieces.
//! * `checksum`: sums. * `claims`: checks whether a frame is as its device claims.

mod checksum;
mod claims;
mod edit;
mod layout;
pub mod merge;
pub mod split;
pub mod vnet;

pub use checksum::complete_checksum;
pub use claims::matches_claims;
pub use layout::LayoutError;
pub use merge::{Merger, Segment};
pub use split::{Plan, SplitError};
pub use vnet::{VnetError, VnetHeader};
