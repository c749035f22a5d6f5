//! The traffic counts of the threads of ports.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use overlay::matrix::{Flow, Matrix, Sum, Traffic, Volume};
use overlay::segment::vnet::VnetHeader;

use crate::lock::lock;

/// The most pairs in a report.
const MOST: usize = 4096;

/// One thread's matrix: its lock is contended only while all are read.
#[derive(Default)]
pub(crate) struct Meter(Mutex<Matrix>);

impl Meter {
    /// Counts `frame`, which came with `vnet`.
    pub fn count(&self, vnet: &VnetHeader, frame: &[u8], now: Duration) {
        if let (Some(flow), Some(volume)) = (Flow::of(frame), Volume::of(vnet, frame)) {
            self.add(flow, volume, now);
        }
    }

    /// Adds traffic that the kernel has carried.
    pub fn add(&self, flow: Flow, volume: Volume, now: Duration) {
        lock(&self.0).count(flow, volume, now);
    }
}

/// All of them.
#[derive(Default)]
pub(crate) struct Meters(Mutex<Vec<Arc<Meter>>>);

impl Meters {
    /// A meter for one thread. Meters of ended threads keep their counts, and are reused.
    pub fn take(&self) -> Arc<Meter> {
        let mut all = lock(&self.0);
        let free = all.iter().find(|meter| Arc::strong_count(meter) == 1).cloned();
        free.unwrap_or_else(|| {
            let new = Arc::<Meter>::default();
            all.push(new.clone());
            new
        })
    }

    /// The counts of all threads within `time`, the busiest pairs first.
    pub fn read(&self, time: Duration, now: Duration) -> Vec<Traffic> {
        let mut sum = Sum::new(time, now);
        lock(&self.0).iter().for_each(|meter| sum.add(&lock(&meter.0)));
        sum.busiest(MOST)
    }
}

#[cfg(test)]
mod tests {
    use overlay::matrix::SLOT;

    use super::*;

    #[test]
    fn counts_of_an_ended_thread_remain() {
        let (meters, now) = (Meters::default(), Duration::ZERO);
        for _ in 0..3 {
            let (one, two) = (meters.take(), meters.take());
            for meter in [&one, &two] {
                meter.count(&VnetHeader::default(), &[1; 60], now);
            }
        }
        let [traffic] = meters.read(SLOT, now + SLOT)[..] else { panic!("one pair has sent") };
        assert_eq!(traffic.volume, Volume { bytes: 6 * 60, frames: 6 });
        assert_eq!(lock(&meters.0).len(), 2, "no more than were there at one time");
    }
}
