//! Services: a port of an address in a port space.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// A port of an address in a port space (`enum rdma_port_space`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Service {
    /// The port space.
    pub space: u16,
    /// The address.
    pub address: IpAddr,
    /// The port.
    pub port: u16,
}

/// No port space: the key of such a service names the owner of an address.
const OF_ADDRESS: u16 = 0xfffe;

impl Service {
    /// The service of every process of the instance that has `address`, with or without a listener.
    #[must_use]
    pub fn of_address(address: IpAddr) -> Self {
        Self { space: OF_ADDRESS, address, port: 0 }
    }

    /// The service's key in the directory of the fabric, as instance `lid` sees it: a loopback address means another
    /// instance to each.
    #[must_use]
    pub fn key(&self, lid: u16) -> Vec<u8> {
        let mut key = b"cm".to_vec();
        let scope = if self.address.is_loopback() { lid } else { 0 };
        key.extend(scope.to_be_bytes());
        key.extend(self.space.to_be_bytes());
        key.extend(self.port.to_be_bytes());
        match self.address {
            IpAddr::V4(address) => key.extend(address.octets()),
            IpAddr::V6(address) => key.extend(address.octets()),
        }
        key
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_instance_has_its_own_loopback() {
        let service = |address: &str| Service { space: 1, address: address.parse().unwrap(), port: 7 };
        assert_ne!(service("127.0.0.1").key(1), service("127.0.0.1").key(2));
        assert_ne!(service("::1").key(1), service("::1").key(2));
        assert_eq!(service("10.0.0.1").key(1), service("10.0.0.1").key(2));
        assert_ne!(service("10.0.0.1").key(1), service("10.0.0.2").key(1));
        assert!(service("fe80::1").key(1).len() <= 64);
    }
}
