//! A veth pair from `eth0` in an instance's namespace to a port of the host's bridge.
//!
//! To cut it, the node removes the host's end from the bridge. Disabling the port does not suffice: the bridge enables it again at any
//! carrier event, which the kernel may deliver up to a second late.

use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::thread;
use std::time::{Duration, Instant};

use crate::instance::{InstanceSpec, Network};
use crate::process::network::link::{CARRIER, index_of};
use crate::process::network::netlink;
use engine_api::wiring::{DEVICE, Wiring};

/// The host's bridge, by its name.
#[derive(Debug)]
pub struct Bridge(pub String);

impl Wiring for Bridge {
    fn create(&self, spec: &InstanceSpec, namespace: BorrowedFd<'_>) -> io::Result<()> {
        let Network { mtu, .. } = spec.network;
        let near = host_end(&spec.network);
        netlink::delete_link(&near)?;
        self.index()?;
        let near_mac = host_mac(&spec.network);
        netlink::add_veth(&netlink::Veth { near: &near, near_mac, far: DEVICE, namespace, mtu })?;
        without_answers(&near);
        netlink::set_up(&near)
    }

    fn find(&self, _: &InstanceSpec, _: BorrowedFd<'_>) -> io::Result<()> {
        Ok(())
    }

    fn hold(&self, _: &Network) -> io::Result<()> {
        Ok(())
    }

    fn cut(&self, network: &Network) -> io::Result<()> {
        netlink::set_bridge(&host_end(network), None)
    }

    fn keeps_frames(&self) -> bool {
        false
    }

    fn mend(&self, network: &Network) -> io::Result<()> {
        let near = host_end(network);
        netlink::set_bridge(&near, Some(self.index()?))?;
        forward(index_of(&near)?)
    }

    fn delete(&self, network: &Network) -> io::Result<()> {
        netlink::delete_link(&host_end(network))
    }
}

impl Bridge {
    fn index(&self) -> io::Result<u32> {
        index_of(&self.0).map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", self.0)))
    }
}

/// The MAC of the host's end. A bridge without a MAC of its own adopts the lowest one of its ports: this one is never the lowest.
fn host_mac(network: &Network) -> [u8; 6] {
    let [_, rest @ ..] = network.mac;
    let mut mac = [0xfe; 6];
    mac[1..].copy_from_slice(&rest);
    mac
}

/// The name of the host's end.
fn host_end(network: &Network) -> String {
    let [_, _, a, b, c, d] = network.mac;
    format!("th{a:02x}{b:02x}{c:02x}{d:02x}")
}

/// Stops the host from answering at its own end. While that end is off the bridge, the kernel would answer the instance's ARP
/// requests for the host's own addresses. If this cannot be set, the host's answers go to the wrong port.
fn without_answers(near: &str) {
    let _read_only = fs::write(format!("/proc/sys/net/ipv4/conf/{near}/arp_ignore"), "8");
}

/// Waits until the bridge's port `index` forwards. The bridge enables the port when it sees the carrier.
fn forward(index: u32) -> io::Result<()> {
    let end = Instant::now() + CARRIER;
    loop {
        match netlink::set_forwarding(index) {
            Err(error) if error.raw_os_error() == Some(libc::ENETDOWN) && Instant::now() < end => {
                thread::sleep(Duration::from_micros(100));
            }
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn the_host_end_fits_an_interface_name() {
        let mac = [2, 0, 0xaa, 0xbb, 0xcc, 0x0d];
        let network = Network { mac, address: Ipv4Addr::LOCALHOST, prefix: 16, mtu: 1500 };
        assert_eq!(host_end(&network), "thaabbcc0d");
        assert_eq!(host_mac(&network), [0xfe, 0, 0xaa, 0xbb, 0xcc, 0x0d]);
    }
}
