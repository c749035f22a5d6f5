//! Counts of the payload that the process has exchanged with other instances.

use std::collections::BTreeMap;

use fabric::Vid;
use fabric::traffic::Traffic;

use crate::device::Device;
use crate::device::links::Links;

/// Payload by instances that was counted, and not taken yet.
#[derive(Default)]
pub(super) struct Counted(BTreeMap<Vid, Traffic>);

impl Counted {
    pub fn add(&mut self, instance: Vid, traffic: Traffic) {
        if traffic != Traffic::default() {
            self.0.entry(instance).or_default().add(traffic);
        }
    }
}

impl Links {
    /// Gathers the counts of all links but those within instance `own`.
    fn gather(&mut self, own: Vid) {
        for link in &mut self.links {
            let traffic = std::mem::take(&mut link.tx.traffic);
            if link.peer.vid != own {
                self.counted.add(link.peer.vid, traffic);
            }
        }
        self.counted.0.remove(&own);
    }
}

impl Device {
    /// The payload exchanged with other instances that has not been taken yet, for `most` of them.
    pub fn take_traffic(&mut self, most: usize) -> Vec<(Vid, Traffic)> {
        self.links.gather(self.core.process.vid);
        let counted = &mut self.links.counted.0;
        std::iter::from_fn(|| counted.pop_first()).take(most).collect()
    }

    /// Takes back counts that could not be reported: the next call of [`Self::take_traffic`] returns them again.
    pub fn keep_traffic(&mut self, traffic: Vec<(Vid, Traffic)>) {
        traffic.into_iter().for_each(|(instance, traffic)| self.links.counted.add(instance, traffic));
    }
}
