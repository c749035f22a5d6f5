//! Limits for unauthenticated connections.
//!
//! Instances can connect to their hosts' addresses. Known hosts have a separate limit, so that a program that
//! connects in a loop cannot exhaust it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The most connections from known hosts.
const HOSTS: usize = 1024;

/// The most connections from other addresses: unknown hosts, or hosts at another of their addresses.
const OTHERS: usize = 128;

/// The most of these from one address, so that a program that connects in a loop from its instance leaves room for
/// unknown hosts.
const FROM_ONE: usize = 16;

/// Pause after a connection was dropped for a limit, or could not be accepted: a client that connects in a loop
/// must not make the daemon loop as well.
pub const PAUSE: Duration = Duration::from_millis(2);

/// Number of connections of each unknown address.
type Guests = Arc<Mutex<HashMap<IpAddr, usize>>>;

/// The limits of one port.
#[derive(Debug)]
pub struct Lobby {
    hosts: Arc<Semaphore>,
    others: Arc<Semaphore>,
    guests: Guests,
}

/// A permit for one connection; dropping it releases the permit.
#[derive(Debug)]
pub struct Place {
    _room: OwnedSemaphorePermit,
    guest: Option<(IpAddr, Guests)>,
}

impl Lobby {
    /// A lobby without connections.
    #[must_use]
    pub fn new() -> Self {
        let room = |size| Arc::new(Semaphore::new(size));
        Self { hosts: room(HOSTS), others: room(OTHERS), guests: Guests::default() }
    }

    /// A permit for a connection from `address`; `is_host` says whether it is a known host's. `None` if a limit is reached.
    #[must_use]
    pub fn enter(&self, address: IpAddr, is_host: bool) -> Option<Place> {
        if is_host {
            return Some(Place { _room: self.hosts.clone().try_acquire_owned().ok()?, guest: None });
        }
        let room = self.others.clone().try_acquire_owned().ok()?;
        let mut guests = lock(&self.guests);
        let present = guests.entry(address).or_default();
        if *present >= FROM_ONE {
            return None;
        }
        *present += 1;
        Some(Place { _room: room, guest: Some((address, self.guests.clone())) })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some((address, guests)) = &self.guest else { return };
        let mut guests = lock(guests);
        if let Some(present) = guests.get_mut(address) {
            *present -= 1;
            if *present == 0 {
                guests.remove(address);
            }
        }
    }
}

fn lock(guests: &Guests) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
    guests.lock().expect("no thread panics while it holds the lock")
}

impl Default for Lobby {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u8) -> IpAddr {
        [10, 77, 1, number].into()
    }

    #[test]
    fn strangers_leave_room_for_hosts() {
        let lobby = Lobby::new();
        let strangers = (1..).flat_map(|number| [address(number); FROM_ONE]).take(OTHERS);
        let mut taken: Vec<_> = strangers.map(|stranger| lobby.enter(stranger, false).unwrap()).collect();
        assert!(lobby.enter(address(200), false).is_none());
        assert!(lobby.enter(address(200), true).is_some());
        taken.pop();
        assert!(lobby.enter(address(200), false).is_some());
    }

    #[test]
    fn one_stranger_leaves_room_for_others() {
        let lobby = Lobby::new();
        let taken: Vec<_> = (0..OTHERS).filter_map(|_| lobby.enter(address(1), false)).collect();
        assert_eq!(taken.len(), FROM_ONE);
        assert!(lobby.enter(address(2), false).is_some());
        drop(taken);
        assert!(lobby.enter(address(1), false).is_some());
        assert!(lock(&lobby.guests).is_empty());
    }
}
