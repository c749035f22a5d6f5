//! The host's end of the port to the agent in a virtual machine ([`guest`]).
//!
//! ```text
//! agent ══ port ══ Relay ══ a connection to the broker for each program
//!   ║                ║
//!   ╚═ TCP ══ Links ═╝ the stream of a link, which the broker has made
//! ```
//!
//! A machine is not trusted. Its programs get the rights of programs of this instance, since each of their connections is one that the
//! node has made for this instance. Everything has a limit: programs, frames, links that wait. A machine that does not read its port is
//! not read either, and holds up nobody else.
//!
//! * [`relay`]: the port, and the programs behind it. [`program`]: one program's connection to the broker.
//! * [`links`]: accepts the agent's connections for links, and carries their bytes.

mod links;
mod program;
mod relay;

pub use relay::{Machine, Relay};
