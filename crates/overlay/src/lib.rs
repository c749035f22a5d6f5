//! The overlay: a layer-2 network for instances, over any network between the nodes.
//!
//! Nothing here does IO, reads a clock or starts a thread: frames and times come in, frames and where they
//! belong go out.
//!
//! * [`mac`], [`ethernet`]: addresses, and what stands at the front of a frame.
//! * [`matrix`]: who sends how much to whom.
//! * [`message`]: what is sealed in a datagram.
//! * [`parts`]: frames that are longer than a datagram can be.
//! * [`path_bursts`]: whether datagrams arrive that leave together.
//! * [`path_liveness`]: whether datagrams arrive at all. [`path_mtu`]: how long they may be. [`path_quality`]: how long they take, and
//!   how many are lost. [`path_rate`]: how many come at a time.
//! * [`segment`]: large segments of TCP and UDP, split into frames and merged again.
//! * [`suspicion`]: whether something is to blame for what goes wrong.
//! * [`switch`]: which frame goes where, and who owns a MAC.
//! * [`topology`]: nodes, links, and the ways that frames take.
//! * [`tunnel`]: what protects datagrams between two nodes.

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
