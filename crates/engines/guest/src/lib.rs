//! The agent of a virtual machine. It is to the programs in the machine what a node is to the programs on a host: it listens on the
//! socket of the attach protocol ([`fabric::attach`]), and passes each packet on to the node over a virtio-serial port.
//!
//! ```text
//! program ══ attach protocol ══ agent ══ frames on the port ══ relay ══ attach protocol ══ broker of the node
//!    ║                            │                              ║
//!    ╚═ link, a TCP connection ═══╧══════ over the NIC ══════════╝ link to the peer
//! ```
//!
//! The agent does not understand the packets. The relay is a client of the broker for each connection of a program, so a program in the
//! machine has the rights of a program of this instance, and no more. Descriptors cannot pass a port: instead of a link's stream, the
//! relay sends a token, with which the agent opens a TCP connection to the relay, and hands that over to the program.
//!
//! The agent also runs commands for `transhume exec`: it serves their sessions over a connection of its own.
//!
//! * [`wire`]: the frames. [`frames`]: how they are cut from bytes of the port, and found again after a torn one.
//! * [`agent`]: the agent. [`commands`]: sessions. [`port`]: its end of the port.

pub mod agent;
mod commands;
mod connection;
pub mod frames;
pub mod port;
mod stream;
pub mod wire;
