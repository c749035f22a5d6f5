//! This node's knowledge of the locations of instances and hosts.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard};

use fabric::{Epoch, Vid};
use moves::HostName;

use crate::lock::lock;

/// The limit of remembered places. Beyond it, all are forgotten, and the coordinator is asked again.
const MAX_PLACES: usize = 1 << 16;

/// Places of instances and addresses of hosts. The higher epoch wins.
#[derive(Debug, Default)]
pub struct Directory {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    places: HashMap<Vid, Place>,
    hosts: HashMap<HostName, SocketAddr>,
}

/// The host of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub host: HostName,
    pub epoch: Epoch,
}

impl Directory {
    pub fn place(&self, vid: Vid) -> Option<Place> {
        self.lock().places.get(&vid).cloned()
    }

    /// Records a place, unless a later one is known.
    pub fn note(&self, vid: Vid, place: Place) {
        let mut known = self.lock();
        if known.places.len() >= MAX_PLACES {
            known.places.clear();
        }
        let newer = known.places.get(&vid).is_none_or(|old| old.epoch <= place.epoch);
        if newer {
            known.places.insert(vid, place);
        }
    }

    /// Removes a place that turned out to be wrong.
    pub fn forget(&self, vid: Vid) {
        self.lock().places.remove(&vid);
    }

    pub fn set_hosts(&self, hosts: Vec<(HostName, SocketAddr)>) {
        self.lock().hosts.extend(hosts);
    }

    /// Removes all entries of the hosts that are `gone`.
    pub fn forget_hosts(&self, gone: impl Fn(&HostName) -> bool) {
        self.lock().hosts.retain(|host, _| !gone(host));
    }

    pub fn address(&self, host: &HostName) -> Option<SocketAddr> {
        self.lock().hosts.get(host).copied()
    }

    /// Whether a host listens at that address.
    pub fn is_host(&self, address: IpAddr) -> bool {
        self.lock().hosts.values().any(|known| known.ip() == address)
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        lock(&self.known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_higher_epoch_wins() {
        let directory = Directory::default();
        let vid = Vid::new(1).unwrap();
        let place = |host, epoch| Place { host: HostName::new(host).unwrap(), epoch: Epoch(epoch) };
        directory.note(vid, place("b", 2));
        directory.note(vid, place("a", 1));
        assert_eq!(directory.place(vid), Some(place("b", 2)));
        directory.forget(vid);
        directory.note(vid, place("a", 1));
        assert_eq!(directory.place(vid), Some(place("a", 1)));
    }
}
