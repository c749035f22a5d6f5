//! Room for connections that have not yet said who they are.
//!
//! Instances reach the addresses of their hosts. So other hosts have room of their own, which a program that
//! connects in a loop cannot take from them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::directory::Directory;

/// The most connections from other hosts.
const HOSTS: usize = 1024;

/// The most from elsewhere: hosts that are not yet known, or come from another of their addresses.
const OTHERS: usize = 128;

/// Before the next connection is looked at when one had no room, or could not be accepted: who connects in a loop
/// does not make the node do the same.
pub const PAUSE: Duration = Duration::from_millis(2);

/// The room at one port.
#[derive(Debug)]
pub struct Lobby {
    hosts: Arc<Semaphore>,
    others: Arc<Semaphore>,
}

impl Lobby {
    pub fn new() -> Self {
        Self { hosts: Arc::new(Semaphore::new(HOSTS)), others: Arc::new(Semaphore::new(OTHERS)) }
    }

    /// Room for a connection from `address`, until it is dropped; `None` if there is none.
    pub fn enter(&self, address: SocketAddr, directory: &Directory) -> Option<OwnedSemaphorePermit> {
        let room = if directory.is_host(address.ip()) { &self.hosts } else { &self.others };
        room.clone().try_acquire_owned().ok()
    }
}

#[cfg(test)]
mod tests {
    use moves::HostName;

    use super::*;

    #[test]
    fn strangers_leave_room_for_hosts() {
        let directory = Directory::default();
        let host: SocketAddr = "10.77.0.2:7700".parse().unwrap();
        directory.set_hosts(vec![(HostName::new("h2").unwrap(), host)]);
        let (lobby, stranger) = (Lobby::new(), "10.77.1.1:5000".parse().unwrap());
        let mut taken: Vec<_> = (0..OTHERS).map(|_| lobby.enter(stranger, &directory).unwrap()).collect();
        assert!(lobby.enter(stranger, &directory).is_none());
        assert!(lobby.enter("10.77.0.2:40000".parse().unwrap(), &directory).is_some());
        taken.pop();
        assert!(lobby.enter(stranger, &directory).is_some());
    }
}
