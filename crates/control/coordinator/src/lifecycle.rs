//! Instances that are being started or ended, and those that have ended.

use std::collections::{HashMap, HashSet, VecDeque};

use api::Failure;
use fabric::Vid;
use moves::journal::{Exit, Record};
use store::{EndedInstance, MAX_ENDED_INSTANCES};
use tokio::sync::watch;

use crate::core::{Base, Feature, Recorded};
use crate::occurrences;

/// Resolves to the outcome of ending an instance.
pub type Ending = watch::Receiver<Option<Result<(), Failure>>>;

/// What is known about the starts and ends of instances.
#[derive(Default)]
pub struct Lifecycle {
    /// Instances whose host has not yet confirmed their start.
    starting: HashSet<Vid>,
    /// Instances that are being ended.
    endings: HashMap<Vid, Ending>,
    /// Ended instances, the most recent last.
    ended: VecDeque<EndedInstance>,
    /// The VID that was given out last.
    last_vid: Option<Vid>,
}

impl Feature for Lifecycle {
    fn recorded(&mut self, recorded: &Recorded<'_>, base: &Base) {
        match recorded.record {
            Record::InstanceAdded { vid, .. } => self.last_vid = self.last_vid.max(Some(*vid)),
            Record::InstanceEnded { vid, exit } => {
                if let Some(instance) = &recorded.removed.instance {
                    if self.starting.contains(vid) && *exit != Exit::NotStarted {
                        base.log().note(&occurrences::started(instance));
                    }
                    base.log().note(&occurrences::ended(instance, exit));
                    if *exit != Exit::NotStarted {
                        let instance = instance.clone();
                        self.keep(EndedInstance { vid: *vid, instance, exit: exit.clone() });
                    }
                }
                self.has_started(*vid, base);
            }
            _ => {}
        }
    }
}

impl Lifecycle {
    /// The state after these instances have ended, the most recent last.
    pub fn load(ended: Vec<EndedInstance>, last_vid: Option<Vid>) -> Self {
        let mut lifecycle = Self { last_vid, ..Self::default() };
        ended.into_iter().for_each(|ended| lifecycle.keep(ended));
        lifecycle
    }

    /// The next VID in turn that is free.
    pub fn next_vid(&self, is_free: impl Fn(Vid) -> bool) -> Option<Vid> {
        let last = self.last_vid.map_or(0, Vid::lid);
        let in_turn = (last + 1..=Vid::MAX).chain(1..=last);
        in_turn.filter_map(Vid::new).find(|vid| is_free(*vid))
    }

    /// Notes that `vid` was given out.
    pub fn give_out(&mut self, vid: Vid) {
        self.last_vid = Some(vid);
    }

    /// Notes that the host of the instance is asked to start it.
    pub fn starts(&mut self, vid: Vid) {
        self.starting.insert(vid);
    }

    /// Notes that the start of the instance has completed or failed.
    pub fn has_started(&mut self, vid: Vid, base: &Base) {
        self.starting.remove(&vid);
        base.signals().started.notify_waiters();
    }

    /// Whether the start of the instance has not completed.
    pub fn is_starting(&self, vid: Vid) -> bool {
        self.starting.contains(&vid)
    }

    /// Notes that the instance is being ended.
    pub fn ends(&mut self, vid: Vid, ending: Ending) {
        self.endings.insert(vid, ending);
    }

    /// Notes that the attempt to end the instance is over.
    pub fn end_is_over(&mut self, vid: Vid) {
        self.endings.remove(&vid);
    }

    /// The attempt to end the instance, if one is under way.
    pub fn ending(&self, vid: Vid) -> Option<&Ending> {
        self.endings.get(&vid)
    }

    /// Whether the instance is being ended.
    pub fn is_ending(&self, vid: Vid) -> bool {
        self.endings.contains_key(&vid)
    }

    /// The instances that have ended, as far as they are remembered, the most recent last.
    pub fn ended(&self) -> impl DoubleEndedIterator<Item = &EndedInstance> {
        self.ended.iter()
    }

    /// Whether an instance called `name` has ended, as far as that is remembered.
    pub fn has_ended(&self, name: &str) -> bool {
        self.ended().any(|ended| ended.instance.name == name)
    }

    fn keep(&mut self, instance: EndedInstance) {
        self.ended.retain(|ended| ended.instance.name != instance.instance.name);
        self.ended.push_back(instance);
        if self.ended.len() as u64 > MAX_ENDED_INSTANCES {
            self.ended.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vids_come_in_turn_and_are_unused() {
        let mut lifecycle = Lifecycle::default();
        let mut give = |is_free: &dyn Fn(u16) -> bool| {
            let vid = lifecycle.next_vid(|vid| is_free(vid.lid()))?;
            lifecycle.give_out(vid);
            Some(vid.lid())
        };
        assert_eq!([give(&|_| true), give(&|lid| lid != 1)], [Some(1), Some(2)]);
        assert_eq!(give(&|lid| lid > 4), Some(5));
        assert_eq!(give(&|_| false), None);
        assert_eq!(give(&|lid| lid == Vid::MAX), Some(Vid::MAX));
        assert_eq!(give(&|lid| lid != 1), Some(2), "they begin again");
    }
}
