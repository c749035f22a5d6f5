//! The memory of this host that machines have reserved.
//!
//! A guest touches its memory little by little, so the host's free memory is more than what is left for other machines. Each machine
//! reserves all of its memory before its emulator starts, and the part that it has not touched yet counts as used. Check and reservation
//! are one step: two machines that come at the same time do not count the same room.

use std::collections::HashMap;
use std::fs;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex};

use engine_api::{Error, Result};
use engine_criu::shared::{memory_available, tree};
use instance::{Blocker, InstanceName};

use crate::lock::lock;

/// The reservations of a host.
#[derive(Debug, Default)]
pub struct Reservations(Mutex<HashMap<InstanceName, Reservation>>);

#[derive(Debug)]
struct Reservation {
    bytes: u64,
    user: User,
}

/// The first process of the machine that uses a reservation.
#[derive(Clone, Debug, Default)]
pub struct User(Arc<AtomicI32>);

impl User {
    /// Sets its PID; `None` if nothing runs.
    pub fn set(&self, pid: Option<i32>) {
        self.0.store(pid.unwrap_or(0), Ordering::Relaxed);
    }

    /// The part of `reserved` bytes that its processes have not touched; none if they have ended.
    fn untouched(&self, reserved: u64) -> u64 {
        match self.0.load(Ordering::Relaxed) {
            0 => reserved,
            first => {
                let touched: u64 = tree(first).unwrap_or_default().into_iter().map(resident).sum();
                if touched == 0 { 0 } else { reserved.saturating_sub(touched) }
            }
        }
    }
}

impl Reservations {
    /// Reserves the memory of a machine, which may have a reservation already.
    ///
    /// # Errors
    /// If the host has less.
    pub fn reserve(&self, name: &InstanceName, bytes: u64) -> Result<User> {
        self.reserve_of(memory_available()?, name, bytes)
    }

    fn reserve_of(&self, available: u64, name: &InstanceName, bytes: u64) -> Result<User> {
        let mut reservations = lock(&self.0);
        if let Some(Blocker { what, remedy }) = lack(&reservations, available, name, bytes) {
            return Err(Error::unusable(what, remedy));
        }
        let user = User::default();
        reservations.insert(name.clone(), Reservation { bytes, user: user.clone() });
        Ok(user)
    }

    /// Enters the reservation of a machine that was here before this engine.
    pub fn enter(&self, name: &InstanceName, bytes: u64) -> User {
        let user = User::default();
        lock(&self.0).insert(name.clone(), Reservation { bytes, user: user.clone() });
        user
    }

    /// Ends the reservation of a machine, if it has one.
    pub fn release(&self, name: &InstanceName) {
        lock(&self.0).remove(name);
    }

    /// The blocker, if the host has less memory than one more machine needs.
    ///
    /// # Errors
    /// If the host does not say what it has.
    pub fn lack(&self, name: &InstanceName, bytes: u64) -> Result<Option<Blocker>> {
        Ok(lack(&lock(&self.0), memory_available()?, name, bytes))
    }
}

fn lack(
    reservations: &HashMap<InstanceName, Reservation>,
    available: u64,
    name: &InstanceName,
    wanted: u64,
) -> Option<Blocker> {
    let others = reservations.iter().filter(|(other, _)| *other != name);
    let untouched = others.map(|(_, held)| held.user.untouched(held.bytes));
    let free = available.saturating_sub(untouched.sum());
    (free < wanted).then(|| {
        let what = format!("the machine needs {} MiB of memory, and {} MiB are free", wanted >> 20, free >> 20);
        Blocker::new(
            what,
            "end other programs or machines there, give the machine less with --memory, or choose another host",
        )
    })
}

/// The memory of a process that is in RAM, in bytes; 0 if it has ended.
fn resident(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kibibytes.unwrap_or(0) << 10
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const GIB: u64 = 1 << 30;

    fn name(text: &str) -> InstanceName {
        InstanceName::new(text).unwrap()
    }

    #[test]
    fn two_machines_do_not_reserve_the_same_room() {
        let reservations = Reservations::default();
        reservations.reserve_of(3 * GIB, &name("one"), 2 * GIB).unwrap();
        let refusal = reservations.reserve_of(3 * GIB, &name("two"), 2 * GIB).unwrap_err().to_string();
        let expected = "the machine needs 2048 MiB of memory, and 1024 MiB are free: end other programs";
        assert!(refusal.starts_with(expected), "{refusal}");
        reservations.reserve_of(3 * GIB, &name("one"), 2 * GIB).expect("its own reservation does not count");
        reservations.release(&name("one"));
        reservations.reserve_of(3 * GIB, &name("two"), 2 * GIB).unwrap();
    }

    #[test]
    fn what_a_machine_has_touched_is_not_counted_twice() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id().cast_signed();
        let (reservations, touched) = (Reservations::default(), resident(pid));
        assert!(touched > 0);
        reservations.enter(&name("one"), 2 * GIB).set(Some(pid));
        let free = 3 * GIB - (2 * GIB - touched);
        assert!(reservations.reserve_of(3 * GIB, &name("two"), free + GIB / 2).is_err());
        reservations.reserve_of(3 * GIB, &name("two"), free - GIB / 2).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        reservations.reserve_of(3 * GIB, &name("two"), 3 * GIB).expect("the machine has ended");
    }
}
