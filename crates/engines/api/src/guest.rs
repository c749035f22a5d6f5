//! The port to the agent in a virtual machine.

use std::net::TcpListener;
use std::os::unix::net::UnixStream;

/// The host's side of a virtual machine's agent. The node connects the machine's programs with it.
#[derive(Debug)]
pub struct Guest {
    /// The host's end of the serial port to the agent.
    pub port: UnixStream,
    /// Accepts connections of the agent, at an address that the machine reaches over its network device.
    pub links: TcpListener,
    /// The MAC of that device.
    pub mac: [u8; 6],
}
