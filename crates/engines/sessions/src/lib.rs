//! Sessions ([`fabric::session`]): commands that a process runs for clients of the coordinator, with their pipes, terminals and signals.
//!
//! Init serves them for process trees and containers, and the agent in the guest for virtual machines. Both own the ends of the pipes, so
//! that sessions travel with the instance, and keep the bytes that the coordinator has not acknowledged.
//!
//! * [`sessions`]: all sessions, and their connection to the node. [`session`]: one of them. [`own_input`]: the input of the instance's own
//!   command, until a session takes it.
//! * [`attach`]: a connection to the node that is made again when it is lost. [`children`]: commands that have ended.
//! * [`launch`]: a command with its user, directory and environment. [`capabilities`], [`home`], [`numbers`]: parts of that.
//! * [`pipe`], [`terminal`]: what carries a command's input and output. [`poll`]: waits for them.

pub mod attach;
pub mod capabilities;
pub mod children;
mod home;
pub mod launch;
mod numbers;
mod own_input;
pub mod pipe;
pub mod poll;
mod session;
mod sessions;
mod terminal;

pub use sessions::Sessions;
