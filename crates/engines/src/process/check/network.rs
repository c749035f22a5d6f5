//! What the instance has set up in its network: it has what the node gives it at the destination, and no more.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};

use super::Findings;

impl Findings<'_> {
    pub(super) fn network(&mut self) -> io::Result<()> {
        let read = |name: &str| fs::read_to_string(format!("/proc/{}/net/{name}", self.first));
        let (trie, routes) = (read("fib_trie")?, read("route")?);
        // Kernels without IPv6 have none.
        let sixes = read("if_inet6").unwrap_or_default();
        let own = self.network.address;
        let given = [Ipv4Addr::LOCALHOST, own];
        let addresses = addresses(&trie).filter(|address| !given.contains(address)).map(|v4| v4.to_string());
        let sixes =
            addresses_of_six(&sixes).filter(|address| !address.is_loopback()).map(|v6| v6.to_string());
        let addresses: Vec<String> = addresses.chain(sixes).collect();
        for address in addresses {
            let what = format!("the instance has given itself the address {address}");
            self.block(what, format!("let it take that away again, and use {own}, which moves along"));
        }
        let prefix = self.network.prefix;
        let network = u32::from(own) & u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
        for (destination, gateway) in self::routes(&routes) {
            if gateway.is_unspecified() && u32::from(destination) == network {
                continue;
            }
            let what = format!("the instance has made itself a route to {destination} by {gateway}");
            self.block(what, "let it take that away again before the move");
        }
        Ok(())
    }
}

/// The addresses in `/proc/net/fib_trie`, which has them above a line `/32 host LOCAL`.
fn addresses(trie: &str) -> impl Iterator<Item = Ipv4Addr> {
    let lines: Vec<&str> = trie.lines().map(str::trim).collect();
    let found = lines.windows(2).filter(|pair| pair[1] == "/32 host LOCAL");
    let mut found: Vec<Ipv4Addr> =
        found.filter_map(|pair| pair[0].strip_prefix("|-- ")?.parse().ok()).collect();
    // Two tables may have the same.
    found.sort_unstable();
    found.dedup();
    found.into_iter()
}

/// The addresses in `/proc/net/if_inet6`.
fn addresses_of_six(list: &str) -> impl Iterator<Item = Ipv6Addr> {
    let number = |line: &str| u128::from_str_radix(line.split(' ').next()?, 16).ok();
    list.lines().filter_map(move |line| number(line).map(Ipv6Addr::from))
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
        assert_eq!(addresses(trie).collect::<Vec<_>>(), expected);
        let six = "00000000000000000000000000000001 01 80 10 80       lo\n";
        assert_eq!(addresses_of_six(six).collect::<Vec<_>>(), [Ipv6Addr::LOCALHOST]);
        let table = "Iface\tDestination\tGateway \tFlags\neth0\t0000320A\t09004D0A\t0003\n";
        let expected = (Ipv4Addr::new(10, 50, 0, 0), Ipv4Addr::new(10, 77, 0, 9));
        assert_eq!(routes(table).collect::<Vec<_>>(), [expected]);
    }
}
