//! The overlay: a layer-2 network for instances, over any network between the nodes.
//!
//! Nothing here does IO, reads a clock or starts a thread: frames and times come in; frames and their destinations
//! come out.
//!
//! * [`mac`], [`ethernet`]: addresses, and the header of a frame.
//! * [`matrix`]: the traffic matrix, how much each pair of addresses sends.
//! * [`message`]: the contents of a datagram.
//! * [`parts`]: fragmentation of frames that are longer than a datagram.
//! * [`path_bursts`]: detects paths that lose datagrams sent in one call (GSO).
//! * [`path_liveness`]: detects blocked paths. [`path_mtu`]: finds the path MTU. [`path_quality`]: measures round trips and
//!   loss. [`path_rate`]: measures the available rate.
//! * [`segment`]: large segments of TCP and UDP, split into frames and merged again.
//! * [`suspicion`]: decides whether an offload causes failures.
//! * [`switch`]: forwards frames, and knows the owner of each MAC.
//! * [`topology`]: nodes, links, and the routes of frames.
//! * [`tunnel`]: encryption of datagrams between two nodes.

pub mod ethernet;
pub mod mac;
pub mod matrix;
pub mod message;
pub mod parts;
pub mod path_bursts;
pub mod path_liveness;
pub mod path_mtu;
pub mod path_quality;
pub mod path_rate;
pub mod segment;
pub mod suspicion;
pub mod switch;
pub mod topology;
pub mod tunnel;

pub use mac::Mac;
