//! Ethernet addresses.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An Ethernet address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Everybody's.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// True for a group address, including broadcast.
    #[must_use]
    pub fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// True for an address that a single station may send from.
    #[must_use]
    pub fn is_station(self) -> bool {
        !self.is_group() && self.0 != [0; 6]
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// The text is not an Ethernet address.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{0}` is not a MAC address: expected six pairs of hexadecimal digits, as in 02:74:72:00:00:01")]
pub struct InvalidMac(String);

impl FromStr for Mac {
    type Err = InvalidMac;

    fn from_str(text: &str) -> Result<Self, InvalidMac> {
        let invalid = || InvalidMac(text.to_owned());
        let mut bytes = [0; 6];
        let mut pairs = text.split(':');
        for byte in &mut bytes {
            let pair =
                pairs.next().filter(|pair| pair.len() == 2 && pair.bytes().all(|c| c.is_ascii_hexdigit()));
            *byte = u8::from_str_radix(pair.ok_or_else(invalid)?, 16).map_err(|_| invalid())?;
        }
        if pairs.next().is_some() { Err(invalid()) } else { Ok(Self(bytes)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_their_text() {
        let mac = Mac([0x02, 0x74, 0x72, 0, 0xab, 0xff]);
        assert_eq!(mac.to_string(), "02:74:72:00:ab:ff");
        assert_eq!(mac.to_string().parse(), Ok(mac));
        assert_eq!("02:74:72:00:AB:FF".parse(), Ok(mac));
    }

    #[test]
    fn other_text_is_refused() {
        for text in [
            "",
            "02:74:72:00:00",
            "02:74:72:00:00:01:02",
            "2:74:72:0:0:1",
            "02:74:72:00:00:0g",
            "02-74-72-00-00-01",
            "02:74:72:00:00:+1",
        ] {
            assert!(text.parse::<Mac>().is_err(), "{text}");
        }
    }
}
