//! Counts events that a program has not acknowledged yet.

use std::sync::{Condvar, Mutex, PoisonError};

use crate::{PerProcess, lock};

#[derive(Debug, Default)]
struct Count {
    outstanding: Mutex<i64>,
    settled: Condvar,
}

/// Counts events that a program took and has not acknowledged; destroying the object waits for it. A forked child has taken none.
#[derive(Debug, Default)]
pub struct Acks(PerProcess<Count>);

impl Acks {
    /// The program has taken one.
    pub fn taken(&self) {
        *lock(&self.0.get().outstanding) += 1;
    }

    /// The program has acknowledged `events`.
    pub fn acknowledge(&self, events: u32) {
        let count = self.0.get();
        let mut outstanding = lock(&count.outstanding);
        *outstanding -= i64::from(events);
        if *outstanding <= 0 {
            count.settled.notify_all();
        }
    }

    /// Waits until all are acknowledged.
    pub fn wait(&self) {
        let count = self.0.get();
        let mut outstanding = lock(&count.outstanding);
        while *outstanding > 0 {
            outstanding = count.settled.wait(outstanding).unwrap_or_else(PoisonError::into_inner);
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
