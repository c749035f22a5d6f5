//! Who is who in a fabric, and what an instance and its node say to each other.
//!
//! * [`identity`]: VIDs, processes, and how they appear as LID, GID and QPN.
//! * [`attach`]: the messages between a process of an instance and the node of its host.
//! * [`seqpacket`]: the socket that carries these messages, with descriptors beside them.

pub mod attach;
pub mod identity;
pub mod seqpacket;

pub use identity::{Epoch, FabricId, ProcessId, Vid};
