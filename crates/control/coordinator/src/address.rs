//! The addresses of instances.

use std::net::Ipv4Addr;

use fabric::Vid;

/// The first two bytes of all addresses; hosts have 0 or 255 in the third byte.
const NETWORK: (u8, u8) = (10, 77);

/// The instance's address: 10.77.1.1 for VID 1; the last byte is never 0 or 255.
pub fn address(vid: Vid) -> Ipv4Addr {
    let number = vid.lid() - 1;
    let byte = |value: u16| u8::try_from(value).unwrap_or(u8::MAX);
    Ipv4Addr::new(NETWORK.0, NETWORK.1, byte(number / 254 + 1), byte(number % 254 + 1))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn addresses_are_distinct_and_not_a_hosts() {
        let all: HashSet<_> = (1..=Vid::MAX).filter_map(Vid::new).map(address).collect();
        assert_eq!(all.len(), usize::from(Vid::MAX));
        assert!(all.iter().all(|address| !matches!(address.octets(), [_, _, 0 | 255, _] | [.., 0 | 255])));
    }
}
