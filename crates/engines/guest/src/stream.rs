//! Links: TCP connections to the relay, which stand for streams to peers.

use std::fs;
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::wire::TOKEN;

/// How long a relay may take to accept a connection.
const PATIENCE: Duration = Duration::from_secs(5);

/// Opens a connection to the relay at `address` for the link of `token`.
///
/// # Errors
/// Those of `connect` and `write`.
pub fn open(address: SocketAddrV4, token: &[u8; TOKEN]) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&address.into(), PATIENCE)?;
    stream.set_nodelay(true)?;
    stream.write_all(token)?;
    Ok(stream)
}

/// Lets packets to the relay leave through the NIC with this MAC: its address is outside the machine's networks.
///
/// # Errors
/// If there is no such NIC, or no `ip` command, or it refuses.
pub fn route(relay: Ipv4Addr, mac: [u8; 6]) -> io::Result<()> {
    let device = nic(mac)?;
    let mut command = Command::new("ip");
    command.args(["route", "replace", &format!("{relay}/32"), "dev", &device]).stdout(Stdio::null());
    let done = command.output()?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    Err(io::Error::other(format!("`ip route replace {relay}/32 dev {device}` fails: {}", said.trim())))
}

fn nic(mac: [u8; 6]) -> io::Result<String> {
    let wanted = mac.map(|byte| format!("{byte:02x}")).join(":");
    for entry in fs::read_dir("/sys/class/net")? {
        let entry = entry?;
        if fs::read_to_string(entry.path().join("address")).is_ok_and(|found| found.trim() == wanted) {
            return Ok(entry.file_name().to_string_lossy().into_owned());
        }
    }
    Err(io::Error::new(io::ErrorKind::NotFound, format!("no network device has the MAC {wanted}")))
}
