//! Addresses, namespaces and files of a lab.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use crate::{Host, LabName, Place};

/// The most hosts of a lab: the last byte of their addresses distinguishes them.
pub const MAX_HOSTS: u16 = 250;

/// The parent directory of the labs' directories.
pub const RUN: &str = "/run/transhume";

/// The folder of files on disk: that of all labs on the machine, and the own one of each host, which it sees here.
pub const DISKS: &str = "/var/lib/transhume";

/// The directory of named network namespaces of `ip netns`.
pub const NAMESPACES: &str = "/run/netns";

/// The prefix length of the network of hosts, instances and the coordinator.
pub const PREFIX_LENGTH: u8 = 16;

/// The control port of the coordinator and of each node.
pub const CONTROL_PORT: u16 = 7700;

/// The port of each daemon's metrics.
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

    /// The lab's directory. It exists as long as the lab does, and serves as its lock.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The file of the lab's record ([`crate::record::Record`]).
    #[must_use]
    pub fn record(&self) -> PathBuf {
        self.root.join("lab.json")
    }

    /// The directory of the keys and certificates of the coordinator and all nodes.
    #[must_use]
    pub fn pki(&self) -> PathBuf {
        self.root.join("pki")
    }

    /// The coordinator's socket for the command line.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.root.join("coordinator.sock")
    }

    /// The state directory of the daemon at `place`.
    #[must_use]
    pub fn state(&self, place: Place) -> PathBuf {
        self.root.join(place.to_string())
    }

    /// The directory of image files in memory, because `/run` may be small.
    #[must_use]
    pub fn images_in_memory(&self) -> PathBuf {
        Path::new("/dev/shm").join(format!("transhume-lab-{}", self.name))
    }

    /// The folder of the files that keep the hosts' mount namespaces.
    #[must_use]
    pub fn mount_namespaces(&self) -> PathBuf {
        self.root.join("mounts")
    }

    /// The file that keeps the mount namespace of `host`. It does not exist if the host shares the machine's files.
    #[must_use]
    pub fn mount_namespace(&self, host: Host) -> PathBuf {
        self.mount_namespaces().join(host.to_string())
    }

    /// The folder of the hosts' own folders on the machine's disk.
    #[must_use]
    pub fn disks(&self) -> PathBuf {
        Path::new(DISKS).join(format!("lab-{}", self.name))
    }

    /// The log of the daemon at `place`.
    #[must_use]
    pub fn log(&self, place: Place) -> PathBuf {
        self.root.join(format!("{place}.log"))
    }

    /// The file with the process of the daemon at `place` ([`crate::process::Identity`]).
    #[must_use]
    pub fn pid_file(&self, place: Place) -> PathBuf {
        self.root.join(format!("{place}.pid"))
    }

    /// The prefix of the names of this lab's namespaces, unique to it.
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

/// The switch's port of `place`.
#[must_use]
pub fn port(place: Place) -> String {
    match place {
        Place::Coordinator => "c".to_owned(),
        Place::Host(host) => host.to_string(),
    }
}

/// The place at the switch's port `name`.
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

/// The MAC of `place`; it is fixed, because a bridge would otherwise change its MAC with its ports.
#[must_use]
pub fn mac(place: Place) -> String {
    match place {
        Place::Coordinator => "02:74:68:00:01:00".to_owned(),
        Place::Host(host) => format!("02:74:68:00:00:{:02x}", last_byte(host)),
    }
}

/// The control address of the daemon at `place`.
#[must_use]
pub fn control_address(place: Place) -> SocketAddr {
    (address(place), CONTROL_PORT).into()
}

/// The address of the metrics of the daemon at `place`.
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
