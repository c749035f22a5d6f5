//! `transhume net attach`, `transhume net proxy` and `transhume net detach`

use std::net::IpAddr;
use std::process::ExitCode;

use api::{Event, NetChange, NetDeviceKind, Purpose};
use clap::Args;
use clap::builder::RangedI64ValueParser;
use serde::Serialize;

use super::change;
use crate::cli::target::Target;
use crate::failure::{Result, unexpected};
use crate::output;

/// Attaches a network device of a host to the overlay
///
/// The device is a TAP, for use by the host, a bridge, a container or a VM. It persists across restarts
/// of the node.
///
/// An existing persistent TAP of that name (`ip tuntap add`) is adopted: it keeps its MAC, MTU, addresses and
/// bridge, and remains after `detach`. If a running VM has it open, pass the MAC of the VM's NIC with `--mac`.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  transhume net attach h1 tap1 --address 10.88.0.1/24\n  transhume net attach h2 tap1 --mtu 8900\n  \
                  transhume net attach h2 web0 --netns web --address 10.88.0.2/24\n  \
                  transhume net attach h2 vnet0 --mac 52:54:00:12:34:56\n  \
                  transhume net attach h3 tap1 --json | jq -r .mac"
)]
pub struct Attach {
    /// The host
    host: String,
    /// The device's name
    device: String,
    /// The device's address with its prefix
    #[arg(long, value_name = "ADDRESS/PREFIX", value_parser = address)]
    address: Option<String>,
    /// The device's MAC, unique on the overlay [default: generated]
    #[arg(long, value_name = "MAC")]
    mac: Option<String>,
    /// The network namespace for the device, as `ip netns` lists it [default: the node's]
    #[arg(long, value_name = "NAME")]
    netns: Option<String>,
    /// The device's MTU; frames that do not fit into a datagram are fragmented, which is slower [default: 1400]
    #[arg(long, value_name = "BYTES", value_parser = mtu())]
    mtu: Option<u32>,
    /// Prints the changes as JSON; failures go to standard error as JSON
    #[arg(long)]
    json: bool,
}

/// Connects the overlay to a LAN, through a bridge of one host
///
/// All devices of the overlay join the LAN: they can use its DHCP server and reach its machines. If no
/// topology was laid out before, the proxy becomes the center of a star. `transhume net detach` removes the proxy.
#[derive(Args)]
#[command(after_help = "Example:\n  transhume net proxy h1 --bridge br0")]
pub struct Proxy {
    /// The host
    host: String,
    /// The bridge that contains the LAN's interface
    #[arg(long, value_name = "IFACE")]
    bridge: String,
    /// The name of the proxy device, which becomes a port of the bridge
    #[arg(long, default_value = "transhume0")]
    device: String,
    /// Prints the changes as JSON; failures go to standard error as JSON
    #[arg(long)]
    json: bool,
}

/// Detaches a network device from the overlay
///
/// The host may be unreachable: the overlay drops the device at once, and the host removes it when it reconnects.
#[derive(Args)]
#[command(after_help = "Example:\n  transhume net detach h1 tap1")]
pub struct Detach {
    /// The host
    host: String,
    /// The device's name
    device: String,
    /// Prints the changes as JSON; failures go to standard error as JSON
    #[arg(long)]
    json: bool,
}

/// An attached device, as `--json` prints it.
#[derive(Serialize)]
struct Attached {
    host: String,
    device: String,
    kind: NetDeviceKind,
    mac: String,
    bridge: Option<String>,
    netns: Option<String>,
    adopted: bool,
    address: Option<String>,
    mtu_bytes: Option<u32>,
}

/// A detached device, as `--json` prints it.
#[derive(Serialize)]
struct Detached {
    host: String,
    device: String,
    /// The host is unreachable and removes the device when it reconnects.
    away: bool,
}

impl Attach {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        let Self { host, device, address, mac, netns, mtu, json } = self;
        attach(target, host, device, Purpose::Station { address, mtu, netns }, mac, json)
    }
}

impl Proxy {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        let Self { host, bridge, device, json } = self;
        attach(target, host, device, Purpose::Proxy { bridge }, None, json)
    }
}

fn attach(
    target: &Target,
    host: String,
    device: String,
    purpose: Purpose,
    mac: Option<String>,
    json: bool,
) -> Result<ExitCode> {
    let request =
        NetChange::Attach { host: host.clone(), device: device.clone(), purpose: purpose.clone(), mac };
    let (mac, mtu_bytes, adopted) = match change(target, request, json)? {
        Event::NetAttached { mac, mtu_bytes, adopted } => (mac, mtu_bytes, adopted),
        event => return Err(unexpected(&event)),
    };
    if json {
        let (kind, bridge, netns, address) = match purpose {
            Purpose::Station { address, netns, .. } => (NetDeviceKind::Station, None, netns, address),
            Purpose::Proxy { bridge } => (NetDeviceKind::Proxy, Some(bridge), None, None),
        };
        output::json(&Attached { host, device, kind, mac, bridge, netns, adopted, address, mtu_bytes })?;
    }
    Ok(ExitCode::SUCCESS)
}

impl Detach {
    pub fn run(self, target: &Target) -> Result<ExitCode> {
        let Self { host, device, json } = self;
        let request = NetChange::Detach { host: host.clone(), device: device.clone() };
        let away = match change(target, request, json)? {
            Event::Done => false,
            Event::NetForgotten => true,
            event => return Err(unexpected(&event)),
        };
        if json {
            output::json(&Detached { host, device, away })?;
        } else if away {
            let told =
                format!("{device} is detached; {host} is unreachable and removes it when it reconnects");
            output::line(&told)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// A valid MTU of a TAP, in bytes.
pub fn mtu() -> RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(68..=65521)
}

/// Parses an address with its prefix, as `ip` does.
pub fn address(text: &str) -> std::result::Result<String, String> {
    let parts = text
        .split_once('/')
        .and_then(|(address, prefix)| Some((address.parse::<IpAddr>().ok()?, prefix.parse::<u8>().ok()?)));
    match parts {
        Some((address, prefix)) if prefix <= if address.is_ipv4() { 32 } else { 128 } => {
            match lack(address, prefix) {
                None => Ok(text.to_owned()),
                Some(lack) => Err(format!("{lack}: use a host address such as 10.88.0.1/24")),
            }
        }
        _ => Err("use an address with its prefix, such as 10.88.0.1/24".into()),
    }
}

/// Why the address is not valid for a station.
fn lack(address: IpAddr, prefix: u8) -> Option<String> {
    let is_for_all = match address {
        IpAddr::V4(four) => four.is_broadcast() || prefix < 31 && is_edge(four.to_bits(), prefix),
        IpAddr::V6(_) => false,
    };
    if prefix == 0 || address.is_unspecified() || is_for_all {
        Some(format!("{address}/{prefix} is a network or broadcast address"))
    } else if address.is_multicast() {
        Some(format!("{address} is a multicast address"))
    } else if address.is_loopback() {
        Some(format!("{address} is a loopback address"))
    } else {
        None
    }
}

/// Whether the address is the first or the last of its network, which are reserved.
fn is_edge(address: u32, prefix: u8) -> bool {
    let of_host = u32::MAX.checked_shr(prefix.into()).unwrap_or(0);
    [0, of_host].contains(&(address & of_host))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_prefix() {
        assert!(address("10.88.0.1/24").is_ok() && address("fd00::1/64").is_ok());
        for wrong in ["10.88.0.1", "10.88.0.1/33", "fd00::1/129", "/24", "10.88.0.1/-1", "h1/24"] {
            assert!(address(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn rejects_network_multicast_and_loopback_addresses() {
        for right in ["10.88.0.0/31", "10.88.0.255/32", "10.88.0.255/23", "fe80::1/64", "169.254.0.9/16"] {
            assert!(address(right).is_ok(), "{right}");
        }
        for wrong in [
            "0.0.0.0/0",
            "::/0",
            "::/64",
            "fd00::1/0",
            "10.88.0.0/24",
            "10.88.0.255/24",
            "255.255.255.255/32",
            "224.0.0.1/24",
            "ff02::1/64",
            "127.0.0.1/8",
            "::1/128",
        ] {
            assert!(address(wrong).is_err(), "{wrong}");
        }
    }
}
