//! Bytes over network devices, from `net/dev` and `net/route` of a process.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

/// The bytes over the device of the network that `address` is in; `None` if that is not known, as with IPv6.
pub fn towards_hosts(process: &Path, address: IpAddr) -> Option<u64> {
    let IpAddr::V4(address) = address else { return None };
    let routes = fs::read_to_string(process.join("net/route")).ok()?;
    bytes_over(process, route(&routes, u32::from_ne_bytes(address.octets()))?)
}

/// The bytes sent and received over the device of this name in the namespace of a process.
pub fn bytes_over(process: &Path, device: &str) -> Option<u64> {
    let devices = fs::read_to_string(process.join("net/dev")).ok()?;
    devices.lines().find_map(|line| {
        let (name, counters) = line.split_once(':')?;
        if name.trim() != device {
            return None;
        }
        let counters: Vec<u64> = counters.split_whitespace().map_while(|word| word.parse().ok()).collect();
        // Received bytes come first, and sent ones after the seven other counters of reception.
        Some(counters.first()? + counters.get(8)?)
    })
}

/// The device of the most specific route to `address`. All numbers have the byte order of the network, read as a number of this machine.
fn route(routes: &str, address: u32) -> Option<&str> {
    let matching = routes.lines().skip(1).filter_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let number = |place: usize| u32::from_str_radix(fields.get(place)?, 16).ok();
        let (device, destination, mask) = (*fields.first()?, number(1)?, number(7)?);
        (address & mask == destination).then_some((mask.count_ones(), device))
    });
    matching.max_by_key(|(length, _)| *length).map(|(_, device)| device)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICES: &str = "Inter-| Receive\n face |bytes\n lo: 9 0 0 0 0 0 0 0 9\n eth0: 100 1 0 0 0 0 0 0 50 2\n \
                           eth1: 7 1 0 0 0 0 0 0 1 1\n";

    #[test]
    fn the_device_of_the_most_specific_route_counts() {
        // The default route over eth0, and 10.1.0.0/16 over eth1.
        let network = u32::from_ne_bytes([10, 1, 0, 0]);
        let mask = u32::from_ne_bytes([255, 255, 0, 0]);
        let routes = format!(
            "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n\
             eth0 00000000 0100000A 0003 0 0 0 00000000 0 0 0\n\
             eth1 {network:08X} 00000000 0001 0 0 0 {mask:08X} 0 0 0\n"
        );
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("net")).unwrap();
        let towards = |address: &str| towards_hosts(folder.path(), address.parse().unwrap());
        assert_eq!(towards("10.1.2.3"), None, "no file tells it");
        fs::write(folder.path().join("net/dev"), DEVICES).unwrap();
        fs::write(folder.path().join("net/route"), &routes).unwrap();
        assert_eq!(towards("10.1.2.3"), Some(8));
        assert_eq!(towards("10.2.2.3"), Some(150));
        assert_eq!(towards("fe80::1"), None);
    }
}
