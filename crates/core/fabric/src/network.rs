//! The network of an instance's programs: the network that its `eth0` is plugged into, and its MAC.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Vid;

/// The network that an instance's `eth0` is plugged into on each host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NetworkKind {
    /// The host's bridge, which is connected to those of the other hosts.
    #[default]
    Bridge,
    /// The overlay.
    Overlay,
}

impl NetworkKind {
    /// Its name in options and output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Bridge => "bridge",
            Self::Overlay => "overlay",
        }
    }
}

impl fmt::Display for NetworkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The prefix of the MACs of all instances: locally administered, and "tra" as in their GUIDs.
const FRONT: [u8; 4] = [0x02, b't', b'r', b'a'];

/// The MAC of an instance's `eth0`.
#[must_use]
pub fn mac_of(vid: Vid) -> [u8; 6] {
    let [a, b, c, d] = FRONT;
    let [high, low] = vid.lid().to_be_bytes();
    [a, b, c, d, high, low]
}

/// Whether `mac` has the prefix of instances.
#[must_use]
pub fn is_an_instances(mac: [u8; 6]) -> bool {
    mac.starts_with(&FRONT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn macs_of_instances_are_recognized_by_their_prefix() {
        let mac = mac_of(Vid::new(0x0102).unwrap());
        assert_eq!(mac, [0x02, 0x74, 0x72, 0x61, 1, 2]);
        assert!(is_an_instances(mac) && !is_an_instances([0x02, 0x74, 0x72, 0x62, 1, 2]));
    }
}
