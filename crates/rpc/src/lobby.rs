//! Room for connections that have not yet said who they are.
//!
//! Instances reach the addresses of their hosts. So other hosts have room of their own, which a program that
//! connects in a loop cannot take from them.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The most connections from other hosts.
const HOSTS: usize = 1024;

/// The most from elsewhere: hosts that are not yet known, or come from another of their addresses.
const OTHERS: usize = 128;

/// The most of these from one address: a program that connects in a loop, from its instance's, leaves room for
/// a host that the daemon has yet to hear of.
const FROM_ONE: usize = 16;

/// Before the next connection is looked at when one had no room, or could not be accepted: who connects in a loop
/// does not make a daemon do the same.
pub const PAUSE: Duration = Duration::from_millis(2);

/// How many connections each address has among the others.
type Guests = Arc<Mutex<HashMap<IpAddr, usize>>>;

/// The room at one port.
#[derive(Debug)]
pub struct Lobby {
    hosts: Arc<Semaphore>,
    others: Arc<Semaphore>,
    guests: Guests,
}

/// Room for one connection, until it is dropped.
#[derive(Debug)]
pub struct Place {
    _room: OwnedSemaphorePermit,
    guest: Option<(IpAddr, Guests)>,
}

impl Lobby {
    /// With all of its room free.
    #[must_use]
    pub fn new() -> Self {
        let room = |size| Arc::new(Semaphore::new(size));
        Self { hosts: room(HOSTS), others: room(OTHERS), guests: Guests::default() }
    }

    /// Room for a connection from `address`, which is a known host's or not; `None` if there is none.
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
    guests.lock().unwrap_or_else(PoisonError::into_inner)
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
