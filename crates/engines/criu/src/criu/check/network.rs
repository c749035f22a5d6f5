//! Blockers in the instance's network: addresses, groups, devices and routes that it has added. At the destination it has only
//! those that the node gives it.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use super::findings::Findings;
use crate::linux::orphans;

/// The kernel retransmits segments that were lost while the link was cut, for example in a move of the peer: after 0.2 s, then 0.4
/// s, and so on; or after 3 s and more, if it had to send the SYN twice (RFC 6298, 5.7).
const RETRANSMISSION: Duration = Duration::from_secs(10);

impl Findings<'_> {
    pub(super) fn network(&mut self) -> io::Result<()> {
        let first = self.first;
        let read = |name: &str| fs::read_to_string(format!("/proc/{first}/net/{name}"));
        let (trie, routes) = (read("fib_trie")?, read("route")?);
        // Kernels without IPv6 have none.
        let sixes = read("if_inet6").unwrap_or_default();
        let own = self.network.address;
        let given = [Ipv4Addr::LOCALHOST, own];
        let addresses = addresses(&trie).into_iter().filter(|address| !given.contains(address));
        let addresses = addresses.map(|v4| v4.to_string());
        let sixes =
            addresses_of_six(&sixes).filter(|address| !address.is_loopback()).map(|v6| v6.to_string());
        let addresses: Vec<String> = addresses.chain(sixes).collect();
        for address in addresses {
            let what = format!("the instance has added the address {address}");
            self.block(what, format!("have it remove the address and use {own}, which moves with it"));
        }
        for group in groups(&read("igmp").unwrap_or_default()) {
            let what = format!("the instance has joined the multicast group {group}");
            self.block(what, "have it leave the group before the move");
        }
        for link in links(&read("dev")?) {
            let what = format!("the instance has created the network device {link}");
            self.block(what, "have it delete the device before the move");
        }
        if !orphans::have_sent_all(first, RETRANSMISSION, || false)? {
            self.blockers.push(orphans::blocker());
        }
        let prefix = self.network.prefix;
        let network = u32::from(own) & u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
        for (destination, gateway) in self::routes(&routes) {
            if gateway.is_unspecified() && u32::from(destination) == network {
                continue;
            }
            let what = format!("the instance has added a route to {destination} via {gateway}");
            self.block(what, "have it delete the route before the move");
        }
        Ok(())
    }
}

/// The addresses in `/proc/net/fib_trie`: each precedes a line `/32 host LOCAL`.
fn addresses(trie: &str) -> BTreeSet<Ipv4Addr> {
    let lines: Vec<&str> = trie.lines().map(str::trim).collect();
    let found = lines.windows(2).filter(|pair| pair[1] == "/32 host LOCAL");
    found.filter_map(|pair| pair[0].strip_prefix("|-- ")?.parse().ok()).collect()
}

/// The addresses in `/proc/net/if_inet6`.
fn addresses_of_six(list: &str) -> impl Iterator<Item = Ipv6Addr> {
    let number = |line: &str| u128::from_str_radix(line.split(' ').next()?, 16).ok();
    list.lines().filter_map(move |line| number(line).map(Ipv6Addr::from))
}

/// The groups in `/proc/net/igmp`, except the all-hosts group, which each device joins.
fn groups(list: &str) -> BTreeSet<Ipv4Addr> {
    const ALL_HOSTS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);
    let group = |line: &str| u32::from_str_radix(line.strip_prefix("\t\t\t\t")?.split(' ').next()?, 16).ok();
    let groups = list.lines().filter_map(group).map(|group| Ipv4Addr::from(group.swap_bytes()));
    groups.filter(|group| *group != ALL_HOSTS).collect()
}

/// The devices in `/proc/net/dev`, except those that the node or the kernel makes.
fn links(list: &str) -> impl Iterator<Item = &str> {
    /// Fallback devices that tunnel modules make in each namespace.
    const BY_THE_KERNEL: [&str; 9] =
        ["tunl0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0", "sit0", "ip6tnl0", "ip6gre0"];
    let names = list.lines().filter_map(|line| Some(line.split_once(':')?.0.trim()));
    names.filter(|name| !["lo", "eth0"].contains(name) && !BY_THE_KERNEL.contains(name))
}

/// Destination and gateway of each route in `/proc/net/route`.
fn routes(table: &str) -> impl Iterator<Item = (Ipv4Addr, Ipv4Addr)> {
    let address = |field: &str| u32::from_str_radix(field, 16).ok().map(|number| number.swap_bytes().into());
    table.lines().skip(1).filter_map(move |line| {
        let mut fields = line.split('\t').skip(1);
        Some((address(fields.next()?)?, address(fields.next()?)?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_routes_are_read_as_the_kernel_writes_them() {
        let trie = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 10.77.0.0\n        /16 link UNICAST\nLocal:\n     \
                    |-- 10.77.1.2\n        /32 host LOCAL\n     |-- 127.0.0.0\n        /8 host LOCAL\n     \
                    |-- 127.0.0.1\n        /32 host LOCAL\n";
        let expected = [Ipv4Addr::new(10, 77, 1, 2), Ipv4Addr::LOCALHOST];
        assert_eq!(addresses(trie), expected.into());
        let six = "00000000000000000000000000000001 01 80 10 80       lo\n";
        assert_eq!(addresses_of_six(six).collect::<Vec<_>>(), [Ipv6Addr::LOCALHOST]);
        let table = "Iface\tDestination\tGateway \tFlags\neth0\t0000320A\t09004D0A\t0003\n";
        let expected = (Ipv4Addr::new(10, 50, 0, 0), Ipv4Addr::new(10, 77, 0, 9));
        assert_eq!(routes(table).collect::<Vec<_>>(), [expected]);
    }

    #[test]
    fn groups_and_links_are_read_as_the_kernel_writes_them() {
        let groups_of_eth0 = "Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter\n\
                              4\teth0      :     2      V3\n\
                              \t\t\t\t030201EF     1 0:00000000\t\t0\n\
                              \t\t\t\t010000E0     1 0:00000000\t\t0\n";
        assert_eq!(groups(groups_of_eth0), [Ipv4Addr::new(239, 1, 2, 3)].into());
        let list = "Inter-|   Receive |  Transmit\n face |bytes | bytes\n    lo: 1 2\n  eth0: 3 4\n  sit0: 0 0\nbr7: 5 6\n";
        assert_eq!(links(list).collect::<Vec<_>>(), ["br7"]);
    }
}
