//! Where a lab's parts are: addresses, namespaces, files.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use crate::{Host, LabName, Place};

/// The most hosts in a lab: they share the last byte of an address.
pub const MAX_HOSTS: u16 = 250;

/// Under this folder lies one folder for each lab.
pub const RUN: &str = "/run/transhume";

/// Where `ip netns` keeps the names of namespaces.
pub const NAMESPACES: &str = "/run/netns";

/// The network in which hosts, instances and the coordinator are.
pub const PREFIX_LENGTH: u8 = 16;

/// Where the coordinator waits for nodes, and each node for the coordinator and other nodes.
pub const CONTROL_PORT: u16 = 7700;

/// Where each daemon's metrics are.
const METRICS_PORT: u16 = 9464;

/// The names and paths of one lab.
#[derive(Clone, Debug)]
pub struct Layout {
    name: LabName,
    root: PathBuf,
}

impl Layout {
    /// The layout of lab `name`.
    #[must_use]
    pub fn of(name: &LabName) -> Self {
        Self { name: name.clone(), root: Path::new(RUN).join(format!("lab-{name}")) }
    }

    /// The lab's folder. It exists as long as the lab does, and carries its lock.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// What the lab is made of ([`crate::record::Record`]).
    #[must_use]
    pub fn record(&self) -> PathBuf {
        self.root.join("lab.json")
    }

    /// Keys and certificates of the coordinator and all nodes.
    #[must_use]
    pub fn pki(&self) -> PathBuf {
        self.root.join("pki")
    }

    /// The coordinator's socket for the command line.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.root.join("coordinator.sock")
    }

    /// The folder in which the daemon at `place` keeps its state.
    #[must_use]
    pub fn state(&self, place: Place) -> PathBuf {
        self.root.join(place.to_string())
    }

    /// Where images of instances lie in memory: `/run` may be small.
    #[must_use]
    pub fn images_in_memory(&self) -> PathBuf {
        Path::new("/dev/shm").join(format!("transhume-lab-{}", self.name))
    }

    /// The log of the daemon at `place`.
    #[must_use]
    pub fn log(&self, place: Place) -> PathBuf {
        self.root.join(format!("{place}.log"))
    }

    /// Who the daemon at `place` is ([`crate::process::Identity`]).
    #[must_use]
    pub fn pid_file(&self, place: Place) -> PathBuf {
        self.root.join(format!("{place}.pid"))
    }

    /// What the names of all namespaces of this lab, and of no other, begin with.
    #[must_use]
    pub fn namespace_prefix(&self) -> String {
        format!("th-{}-", self.name)
    }

    /// The namespace of `place`.
    #[must_use]
    pub fn namespace(&self, place: Place) -> String {
        format!("{}{}", self.namespace_prefix(), port(place))
    }

    /// The switch's namespace.
    #[must_use]
    pub fn switch(&self) -> String {
        format!("{}sw", self.namespace_prefix())
    }
}

/// The switch's port to which `place` is plugged.
#[must_use]
pub fn port(place: Place) -> String {
    match place {
        Place::Coordinator => "c".to_owned(),
        Place::Host(host) => host.to_string(),
    }
}

/// What is plugged to the switch's port `name`.
#[must_use]
pub fn place_of_port(name: &str) -> Option<Place> {
    if name == "c" { Some(Place::Coordinator) } else { name.parse().map(Place::Host).ok() }
}

/// The address of `place`.
#[must_use]
pub fn address(place: Place) -> Ipv4Addr {
    match place {
        Place::Coordinator => Ipv4Addr::new(10, 77, 255, 254),
        Place::Host(host) => Ipv4Addr::new(10, 77, 0, last_byte(host)),
    }
}

/// The MAC address of `place`: a bridge without a fixed one changes it with its ports.
#[must_use]
pub fn mac(place: Place) -> String {
    match place {
        Place::Coordinator => "02:74:68:00:01:00".to_owned(),
        Place::Host(host) => format!("02:74:68:00:00:{:02x}", last_byte(host)),
    }
}

/// Where the daemon at `place` listens for other daemons.
#[must_use]
pub fn control_address(place: Place) -> SocketAddr {
    (address(place), CONTROL_PORT).into()
}

/// Where the metrics of the daemon at `place` are.
#[must_use]
pub fn metrics_address(place: Place) -> SocketAddr {
    (address(place), METRICS_PORT).into()
}

fn last_byte(host: Host) -> u8 {
    u8::try_from(host.number()).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_place_has_addresses_of_its_own() {
        let places = || Place::all(MAX_HOSTS);
        assert_eq!(places().map(address).collect::<HashSet<_>>().len(), places().count());
        assert_eq!(places().map(mac).collect::<HashSet<_>>().len(), places().count());
    }

    #[test]
    fn ports_lead_back_to_their_places() {
        for place in Place::all(3) {
            assert_eq!(place_of_port(&port(place)), Some(place));
        }
        assert_eq!(place_of_port("eth0"), None);
    }
}
