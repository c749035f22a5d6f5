//! Events that a program still uses.

use std::sync::{Condvar, Mutex, PoisonError};

use crate::lock;

/// Counts events that a program took and has not acknowledged; destroying the object waits for it.
#[derive(Debug, Default)]
pub struct Acks {
    outstanding: Mutex<i64>,
    settled: Condvar,
}

impl Acks {
    /// The program has taken one.
    pub fn taken(&self) {
        *lock(&self.outstanding) += 1;
    }

    /// The program has acknowledged `events`.
    pub fn acknowledge(&self, events: u32) {
        let mut outstanding = lock(&self.outstanding);
        *outstanding -= i64::from(events);
        if *outstanding <= 0 {
            self.settled.notify_all();
        }
    }

    /// Waits until all are acknowledged.
    pub fn wait(&self) {
        let mut outstanding = lock(&self.outstanding);
        while *outstanding > 0 {
            outstanding = self.settled.wait(outstanding).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_ends_with_the_last_acknowledgement() {
        let acks = Acks::default();
        acks.taken();
        acks.taken();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| acks.wait());
            acks.acknowledge(2);
            waiter.join().unwrap();
        });
    }
}
