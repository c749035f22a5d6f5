//! The directories of all fabrics, which the coordinator keeps in memory. No IO.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{Answer, Due, Entry, MAX_OF_PROCESS, MAX_VALUES, MAX_WATCHES, Member, Request};
use crate::{FabricId, InstanceId, ProcessId};

/// The values of a key.
#[derive(Debug, Default)]
struct Values {
    entries: Vec<Entry>,
    /// One process has claimed the key for itself.
    are_exclusive: bool,
}

/// A key and a value.
type Published = (Vec<u8>, Vec<u8>);

/// The directories of all fabrics.
#[derive(Debug, Default)]
pub struct Directory {
    keys: HashMap<(FabricId, Vec<u8>), Values>,
    /// The published values of each process.
    published: BTreeMap<Member, BTreeSet<Published>>,
    /// The processes of an instance, as far as they are known.
    rosters: HashMap<InstanceId, BTreeSet<u8>>,
    /// The watchers of each watched process, with their request numbers.
    watches: HashMap<Member, BTreeSet<(Member, u64)>>,
    /// The number of watches of each process.
    watching: HashMap<Member, usize>,
}

impl Directory {
    /// The answer to a request of `asker`; `None` if it comes later.
    pub fn ask(&mut self, asker: Member, number: u64, request: Request) -> Option<Answer> {
        if !request.is_within_limits() {
            return Some(Answer::Full);
        }
        match request {
            Request::Publish { key, value, exclusive } => Some(self.publish(asker, key, value, exclusive)),
            Request::Withdraw { key, value } => {
                self.withdraw(asker, key, value);
                Some(Answer::Done)
            }
            Request::Look { key } => Some(Answer::Found(self.values(asker.fabric, key))),
            Request::Watch { process } => self.watch(asker, number, process),
        }
    }

    /// Sets the processes of an instance. Processes that are no longer among them have ended.
    pub fn set_processes(&mut self, instance: InstanceId, indexes: BTreeSet<u8>) -> Vec<Due> {
        self.forget(instance, |process| !indexes.contains(&process.index));
        self.rosters.insert(instance, indexes);
        self.fire(instance)
    }

    /// Records that the instance has ended.
    pub fn end_instance(&mut self, instance: InstanceId) -> Vec<Due> {
        self.forget(instance, |_| true);
        self.rosters.insert(instance, BTreeSet::new());
        let due = self.fire(instance);
        self.rosters.remove(&instance);
        due
    }

    fn publish(&mut self, asker: Member, key: Vec<u8>, value: Vec<u8>, exclusive: bool) -> Answer {
        let Values { entries, are_exclusive } = self.keys.entry((asker.fabric, key.clone())).or_default();
        if entries.iter().any(|entry| entry.process == asker.process && entry.value == value) {
            return Answer::Done;
        }
        if (exclusive || *are_exclusive) && entries.iter().any(|entry| entry.process != asker.process) {
            return Answer::Taken;
        }
        let published = self.published.entry(asker).or_default();
        if entries.len() >= MAX_VALUES || published.len() >= MAX_OF_PROCESS {
            self.drop_if_empty(asker.fabric, key);
            return Answer::Full;
        }
        published.insert((key, value.clone()));
        entries.push(Entry { process: asker.process, value });
        *are_exclusive |= exclusive;
        Answer::Done
    }

    fn withdraw(&mut self, asker: Member, key: Vec<u8>, value: Vec<u8>) {
        if let Some(published) = self.published.get_mut(&asker) {
            published.remove(&(key.clone(), value.clone()));
            if published.is_empty() {
                self.published.remove(&asker);
            }
        }
        self.remove_value(asker, key, &value);
    }

    fn remove_value(&mut self, asker: Member, key: Vec<u8>, value: &[u8]) {
        if let Some(values) = self.keys.get_mut(&(asker.fabric, key.clone())) {
            values.entries.retain(|entry| entry.process != asker.process || entry.value != value);
        }
        self.drop_if_empty(asker.fabric, key);
    }

    fn drop_if_empty(&mut self, fabric: FabricId, key: Vec<u8>) {
        let key = (fabric, key);
        if self.keys.get(&key).is_some_and(|values| values.entries.is_empty()) {
            self.keys.remove(&key);
        }
    }

    fn values(&self, fabric: FabricId, key: Vec<u8>) -> Vec<Entry> {
        self.keys.get(&(fabric, key)).map(|values| values.entries.clone()).unwrap_or_default()
    }

    fn watch(&mut self, asker: Member, number: u64, process: ProcessId) -> Option<Answer> {
        let watched = Member { fabric: asker.fabric, process };
        let roster = self.rosters.get(&watched.instance());
        if roster.is_some_and(|indexes| !indexes.contains(&process.index)) {
            return Some(Answer::Done);
        }
        let count = self.watching.entry(asker).or_default();
        if *count >= MAX_WATCHES {
            return Some(Answer::Full);
        }
        if self.watches.entry(watched).or_default().insert((asker, number)) {
            *count += 1;
        }
        None
    }

    /// Removes the values and watches of those processes of an instance that are `gone`.
    fn forget(&mut self, instance: InstanceId, gone: impl Fn(ProcessId) -> bool) {
        for member in
            members(&self.published, instance).filter(|member| gone(member.process)).collect::<Vec<_>>()
        {
            for (key, value) in self.published.remove(&member).unwrap_or_default() {
                self.remove_value(member, key, &value);
            }
        }
        let is_gone = |asker: Member| asker.instance() == instance && gone(asker.process);
        self.watching.retain(|asker, _| !is_gone(*asker));
        self.watches.retain(|_, waiting| {
            waiting.retain(|(asker, _)| !is_gone(*asker));
            !waiting.is_empty()
        });
    }

    /// Answers the watches of processes that the instance does not have.
    fn fire(&mut self, instance: InstanceId) -> Vec<Due> {
        let Some(indexes) = self.rosters.get(&instance) else { return Vec::new() };
        let ended =
            |member: &Member| member.instance() == instance && !indexes.contains(&member.process.index);
        let ended: Vec<_> = self.watches.keys().copied().filter(ended).collect();
        let waiting = ended.iter().filter_map(|member| self.watches.remove(member)).flatten();
        let due: Vec<_> =
            waiting.map(|(asker, number)| Due { asker, number, answer: Answer::Done }).collect();
        for Due { asker, .. } in &due {
            if let Some(count) = self.watching.get_mut(asker) {
                *count = count.saturating_sub(1);
            }
        }
        due
    }
}

fn members<T>(map: &BTreeMap<Member, T>, instance: InstanceId) -> impl Iterator<Item = Member> {
    let member = |index| {
        let process = ProcessId { vid: instance.vid, index };
        Member { fabric: instance.fabric, process }
    };
    map.range(member(0)..=member(u8::MAX)).map(|(member, _)| *member)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Vid;

    fn member(fabric: u32, vid: u16, index: u8) -> Member {
        let process = ProcessId { vid: Vid::new(vid).unwrap(), index };
        Member { fabric: FabricId(fabric), process }
    }

    fn publish(key: &str, value: &str, exclusive: bool) -> Request {
        Request::Publish { key: key.into(), value: value.into(), exclusive }
    }

    fn found(directory: &mut Directory, asker: Member, key: &str) -> Vec<String> {
        match directory.ask(asker, 0, Request::Look { key: key.into() }) {
            Some(Answer::Found(entries)) => {
                entries.into_iter().map(|entry| String::from_utf8(entry.value).unwrap()).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn values_are_visible_in_their_fabric_only_and_end_with_their_process() {
        let mut directory = Directory::default();
        let (mine, other, stranger) = (member(1, 1, 1), member(1, 2, 1), member(2, 3, 1));
        assert_eq!(directory.ask(mine, 1, publish("k", "a", false)), Some(Answer::Done));
        assert_eq!(directory.ask(mine, 1, publish("k", "a", false)), Some(Answer::Done));
        assert_eq!(directory.ask(other, 2, publish("k", "b", false)), Some(Answer::Done));
        assert_eq!(found(&mut directory, other, "k"), ["a", "b"]);
        assert!(found(&mut directory, stranger, "k").is_empty());
        directory.set_processes(mine.instance(), BTreeSet::from([2]));
        assert_eq!(found(&mut directory, other, "k"), ["b"]);
        directory.ask(other, 3, Request::Withdraw { key: "k".into(), value: "b".into() });
        assert!(found(&mut directory, other, "k").is_empty());
        assert!(directory.keys.is_empty() && directory.published.is_empty());
    }

    #[test]
    fn an_exclusive_key_has_one_owner() {
        let mut directory = Directory::default();
        let (mine, other) = (member(1, 1, 1), member(1, 1, 2));
        assert_eq!(directory.ask(mine, 1, publish("port", "a", true)), Some(Answer::Done));
        assert_eq!(directory.ask(other, 1, publish("port", "b", true)), Some(Answer::Taken));
        assert_eq!(directory.ask(other, 1, publish("port", "b", false)), Some(Answer::Taken));
        directory.end_instance(mine.instance());
        assert_eq!(directory.ask(other, 1, publish("port", "b", true)), Some(Answer::Done));
    }

    #[test]
    fn a_watch_is_answered_when_the_process_ends() {
        let mut directory = Directory::default();
        let (watched, asker) = (member(1, 1, 7), member(1, 2, 1));
        let watch = Request::Watch { process: watched.process };
        assert_eq!(directory.ask(asker, 5, watch.clone()), None);
        assert_eq!(directory.ask(asker, 5, watch.clone()), None, "a repeated request");
        assert!(directory.set_processes(watched.instance(), BTreeSet::from([7])).is_empty());
        let due = directory.set_processes(watched.instance(), BTreeSet::new());
        assert_eq!(due, [Due { asker, number: 5, answer: Answer::Done }]);
        assert_eq!(directory.ask(asker, 6, watch), Some(Answer::Done));
        assert_eq!(directory.watching[&asker], 0);
    }

    #[test]
    fn refuses_values_beyond_the_limits() {
        let mut directory = Directory::default();
        let asker = member(1, 1, 1);
        for number in 0..MAX_OF_PROCESS {
            let answer = directory.ask(asker, 0, publish(&number.to_string(), "v", true));
            assert_eq!(answer, Some(Answer::Done));
        }
        assert_eq!(directory.ask(asker, 0, publish("more", "v", true)), Some(Answer::Full));
        assert!(!directory.keys.contains_key(&(asker.fabric, b"more".to_vec())));
        let long = "x".repeat(65);
        assert_eq!(directory.ask(asker, 0, publish(&long, "v", true)), Some(Answer::Full));
    }
}
