//! The directory of the fabric ([`fabric::directory`]), offered to this project's `librdmacm.so.1` in a version node
//! of its own.
//!
//! A caller chooses a number, and gets the answer with it from the library's thread. Unanswered questions are
//! repeated after a move, and after the coordinator was away; so are publications. A request may wait for as
//! long as the coordinator is away: a caller that stops waiting forgets it.
//!
//! The library itself keeps the members of multicast groups there.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::c_void;
use std::mem;
use std::sync::Mutex;

use fabric::directory::{Answer, Entry, MAX_KEY, MAX_VALUE, Request};
use fabric::{ProcessId, Vid};
use libc::c_int;
use softhca::GroupId;

use crate::devices;
use crate::process::Process;
use waiting::lock;

/// The most requests that are on their way, watches aside: the node need not queue more for us.
const MAX_UNDER_WAY: usize = 256;

/// The most requests that wait for an answer; as many more watches, which wait as long as their subject exists.
const MAX_UNANSWERED: usize = 1 << 14;

/// Begins the keys of multicast groups.
const GROUP: &[u8] = b"group";

/// Numbers from here on are those of the library itself.
const OWN: u64 = 1 << 63;

/// A value that was found.
#[repr(C)]
pub(crate) struct Found {
    /// The instance of the process that published it.
    lid: u16,
    /// Which of its processes that is.
    process: u8,
    /// How much of `value` counts.
    length: u8,
    value: [u8; MAX_VALUE],
}

/// The library's thread calls it with the number of a request, 0 or an errno, and the found value.
type OnAnswer = unsafe extern "C" fn(*mut c_void, u64, c_int, *const Found, usize);

/// The receiver of the answers.
#[derive(Clone, Copy)]
struct Listener {
    function: OnAnswer,
    context: *mut c_void,
}

// SAFETY: the context is not used here; its owner has promised that the function may be called from any thread.
unsafe impl Send for Listener {}

/// A key and a value.
type Published = (Vec<u8>, Vec<u8>);

/// The messages that this process has sent to the directory, and has yet to send.
#[derive(Default)]
pub(crate) struct Directory(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    listener: Option<Listener>,
    /// By number.
    unanswered: BTreeMap<u64, Request>,
    /// Numbers of watches.
    watches: BTreeSet<u64>,
    /// Numbers of unsent requests.
    waiting: VecDeque<u64>,
    /// Numbers of sent requests that are answered soon.
    under_way: BTreeSet<u64>,
    /// Keys and values, and whether they are exclusive.
    published: BTreeMap<Published, bool>,
    /// Multicast groups with unanswered questions for their members, by number.
    groups: BTreeMap<u64, GroupId>,
    /// The number, less [`OWN`], that the library used last.
    last: u64,
}

fn key_of(group: &GroupId) -> Vec<u8> {
    [GROUP, group].concat()
}

fn is_watch(request: &Request) -> bool {
    matches!(request, Request::Watch { .. })
}

impl Directory {
    fn listen(&self, listener: Listener) {
        lock(&self.0).listener = Some(listener);
    }

    fn ask(&self, number: u64, request: Request) -> c_int {
        if !request.is_within_limits() {
            return libc::EINVAL;
        }
        lock(&self.0).queue(number, request)
    }

    /// Makes this process a member of a multicast group.
    pub(crate) fn join(&self, group: &GroupId) {
        lock(&self.0).queue_own(Request::Publish { key: key_of(group), value: Vec::new(), exclusive: false });
    }

    /// Ends the membership.
    pub(crate) fn leave(&self, group: &GroupId) {
        lock(&self.0).queue_own(Request::Withdraw { key: key_of(group), value: Vec::new() });
    }

    /// Asks for the members of a multicast group. False if too much is asked already.
    pub(crate) fn ask_for_members(&self, group: GroupId) -> bool {
        let mut inner = lock(&self.0);
        let asked = inner.queue_own(Request::Look { key: key_of(&group) });
        // Under the same lock: the answer may come at once.
        asked.map(|number| inner.groups.insert(number, group)).is_some()
    }

    /// The group that request `number` was about, and its members if `answer` names them.
    pub(crate) fn members(&self, number: u64, answer: &Answer) -> Option<(GroupId, Option<Vec<ProcessId>>)> {
        let group = lock(&self.0).groups.remove(&number)?;
        let members = match answer {
            Answer::Found(entries) => Some(entries.iter().map(|entry| entry.process).collect()),
            _ => None,
        };
        Some((group, members))
    }

    fn forget(&self, number: u64) {
        let mut inner = lock(&self.0);
        inner.take(number);
        inner.under_way.remove(&number);
    }

    /// The messages that can be sent now.
    pub(crate) fn take_outgoing(&self) -> Vec<(u64, Request)> {
        let mut inner = lock(&self.0);
        let mut outgoing = Vec::new();
        while inner.under_way.len() < MAX_UNDER_WAY {
            let Some(number) = inner.waiting.pop_front() else { break };
            let Some(request) = inner.unanswered.get(&number).cloned() else { continue };
            if !is_watch(&request) {
                inner.under_way.insert(number);
            }
            outgoing.push((number, request));
        }
        outgoing
    }

    /// Passes an answer on.
    pub(crate) fn answered(&self, number: u64, answer: &Answer) {
        let Some(listener) = self.settle(number, answer) else { return };
        let (status, entries) = match answer {
            Answer::Done => (0, &[] as &[Entry]),
            Answer::Found(entries) => (0, entries.as_slice()),
            Answer::Taken => (libc::EADDRINUSE, &[] as &[Entry]),
            Answer::Full => (libc::ENOSPC, &[] as &[Entry]),
            // It is asked again.
            Answer::Busy => return,
        };
        let found: Vec<_> = entries.iter().filter_map(Found::of).collect();
        // SAFETY: the listener's promise in `transhume_directory_attend`; no lock is held.
        unsafe { (listener.function)(listener.context, number, status, found.as_ptr(), found.len()) };
    }

    /// Records the answer to a request; `None` if no caller waits for it.
    fn settle(&self, number: u64, answer: &Answer) -> Option<Listener> {
        let mut inner = lock(&self.0);
        inner.under_way.remove(&number);
        let request = inner.take(number)?;
        match (request, answer) {
            // So many were asked at once that the node does not keep up: it is asked again.
            (request, Answer::Busy) => {
                inner.put(number, request);
                return None;
            }
            // Values published before are resent, or will be the next time.
            (Request::Publish { key, value, exclusive }, answer)
                if number >= OWN || *answer == Answer::Done =>
            {
                inner.published.insert((key, value), exclusive);
            }
            _ => {}
        }
        inner.listener.filter(|_| number < OWN)
    }

    /// Repeats all publications and unanswered requests: the node may have forgotten them, or never got them.
    pub(crate) fn resend(&self) {
        let inner = &mut *lock(&self.0);
        inner.under_way.clear();
        for ((key, value), exclusive) in mem::take(&mut inner.published) {
            let number = inner.own_number();
            inner.unanswered.insert(number, Request::Publish { key, value, exclusive });
        }
        let is_publish = |request: &Request| matches!(request, Request::Publish { .. });
        let (first, others): (Vec<_>, Vec<_>) =
            inner.unanswered.iter().partition(|(_, request)| is_publish(request));
        inner.waiting = first.into_iter().chain(others).map(|(number, _)| *number).collect();
    }
}

impl Inner {
    fn queue(&mut self, number: u64, request: Request) -> c_int {
        // There are no more of these than published values, and an unsent one would be published again.
        let takes_back = match &request {
            Request::Withdraw { key, value } => self.withdraw_value(key, value),
            _ => false,
        };
        if !takes_back && self.is_full_for(&request) {
            return libc::EAGAIN;
        }
        if let Request::Publish { key, value, .. } = &request {
            // A resent one would come after this.
            let opposite = Request::Withdraw { key: key.clone(), value: value.clone() };
            self.unanswered.retain(|_, other| *other != opposite);
        }
        self.put(number, request);
        0
    }

    fn is_full_for(&self, request: &Request) -> bool {
        let watches = self.watches.len();
        let count = if is_watch(request) { watches } else { self.unanswered.len() - watches };
        count >= MAX_UNANSWERED
    }

    /// Makes a value neither published nor about to be; whether it was. Its answer would make it published again.
    fn withdraw_value(&mut self, key: &[u8], value: &[u8]) -> bool {
        let was_published = self.published.remove(&(key.to_vec(), value.to_vec())).is_some();
        let before = self.unanswered.len();
        let same = |other: &Request| matches!(other, Request::Publish { key: k, value: v, .. } if k == key && v == value);
        self.unanswered.retain(|_, other| !same(other));
        was_published || self.unanswered.len() < before
    }

    fn put(&mut self, number: u64, request: Request) {
        if is_watch(&request) {
            self.watches.insert(number);
        }
        self.unanswered.insert(number, request);
        self.waiting.push_back(number);
    }

    /// The request, which is not unanswered any more.
    fn take(&mut self, number: u64) -> Option<Request> {
        self.watches.remove(&number);
        self.unanswered.remove(&number)
    }

    /// Queues a request of the library itself. Returns its number; `None` if too much is asked already.
    fn queue_own(&mut self, request: Request) -> Option<u64> {
        let number = self.own_number();
        (self.queue(number, request) == 0).then_some(number)
    }

    fn own_number(&mut self) -> u64 {
        self.last += 1;
        OWN | self.last
    }
}

impl Found {
    fn of(entry: &Entry) -> Option<Self> {
        let mut value = [0; MAX_VALUE];
        value.get_mut(..entry.value.len())?.copy_from_slice(&entry.value);
        let length = u8::try_from(entry.value.len()).ok()?;
        Some(Self { lid: entry.process.vid.lid(), process: entry.process.index, length, value })
    }
}

/// # Safety
/// `bytes` is readable for `length` bytes.
unsafe fn copied(bytes: *const u8, length: usize, limit: usize) -> Option<Vec<u8>> {
    // SAFETY: the caller's promise.
    (length <= limit).then(|| unsafe { std::slice::from_raw_parts(bytes, length) }.to_vec())
}

/// Queues a request of this process, if it is attached.
fn ask(number: u64, request: Option<Request>) -> c_int {
    let Some(request) = request else { return libc::EINVAL };
    let Some(process) = Process::current() else { return libc::ENODEV };
    let result = process.directory.ask(number, request);
    process.wake.signal();
    result
}

/// Makes `function` get the answers of this process from now on; attaches the process if it is not.
/// `ENODEV` if it cannot be. The function may be called from any thread, and must not wait.
pub(crate) unsafe extern "C" fn transhume_directory_attend(
    function: OnAnswer,
    context: *mut c_void,
) -> c_int {
    let Some(process) = devices::attached() else { return libc::ENODEV };
    process.directory.listen(Listener { function, context });
    0
}

/// Publishes a value. Both parts must be readable as long as stated, here and below.
pub(crate) unsafe extern "C" fn transhume_directory_publish(
    number: u64,
    key: *const u8,
    key_length: usize,
    value: *const u8,
    value_length: usize,
    exclusive: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let parts = unsafe { (copied(key, key_length, MAX_KEY), copied(value, value_length, MAX_VALUE)) };
    let request = match parts {
        (Some(key), Some(value)) => Some(Request::Publish { key, value, exclusive: exclusive != 0 }),
        _ => None,
    };
    ask(number, request)
}

/// Takes a value back.
pub(crate) unsafe extern "C" fn transhume_directory_withdraw(
    number: u64,
    key: *const u8,
    key_length: usize,
    value: *const u8,
    value_length: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    let parts = unsafe { (copied(key, key_length, MAX_KEY), copied(value, value_length, MAX_VALUE)) };
    let request = match parts {
        (Some(key), Some(value)) => Some(Request::Withdraw { key, value }),
        _ => None,
    };
    ask(number, request)
}

/// Looks a key up.
pub(crate) unsafe extern "C" fn transhume_directory_look(
    number: u64,
    key: *const u8,
    key_length: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    ask(number, unsafe { copied(key, key_length, MAX_KEY) }.map(|key| Request::Look { key }))
}

/// Is answered when a process has ended.
pub(crate) unsafe extern "C" fn transhume_directory_watch(number: u64, lid: u16, index: u8) -> c_int {
    ask(number, Vid::new(lid).map(|vid| Request::Watch { process: ProcessId { vid, index } }))
}

/// Makes an answer that has not come unwanted.
pub(crate) unsafe extern "C" fn transhume_directory_forget(number: u64) {
    if let Some(process) = Process::current() {
        process.directory.forget(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn publish(value: &str) -> Request {
        Request::Publish { key: b"k".to_vec(), value: value.into(), exclusive: true }
    }

    #[test]
    fn publications_and_open_questions_are_resent() {
        let directory = Directory::default();
        directory.ask(1, publish("a"));
        directory.ask(2, Request::Look { key: b"k".to_vec() });
        assert_eq!(directory.take_outgoing().len(), 2);
        assert!(directory.take_outgoing().is_empty());
        directory.answered(1, &Answer::Done);
        directory.resend();
        directory.resend();
        let again = directory.take_outgoing();
        let [(number, first), second] = &again[..] else { panic!("{again:?}") };
        assert_eq!((first, second), (&publish("a"), &(2, Request::Look { key: b"k".to_vec() })));
        directory.answered(*number, &Answer::Busy);
        assert_eq!(directory.take_outgoing(), [(*number, publish("a"))]);
        directory.answered(*number, &Answer::Full);
        directory.resend();
        assert_eq!(directory.take_outgoing()[0].1, publish("a"), "a publication is not given up");
        directory.ask(3, Request::Withdraw { key: b"k".to_vec(), value: b"a".to_vec() });
        directory.answered(2, &Answer::Found(Vec::new()));
        directory.resend();
        assert_eq!(directory.take_outgoing().iter().map(|(number, _)| *number).collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn resent_messages_do_not_flood_the_node() {
        let directory = Directory::default();
        for number in 1..=1000 {
            directory.ask(number, publish(&number.to_string()));
        }
        let mut said = BTreeSet::new();
        let mut take_all = || {
            said.clear();
            loop {
                let outgoing = directory.take_outgoing();
                assert!(outgoing.len() <= MAX_UNDER_WAY);
                if outgoing.is_empty() {
                    return said.len();
                }
                for (number, request) in outgoing {
                    let Request::Publish { value, .. } = request else { panic!("{request:?}") };
                    said.insert(value);
                    directory.answered(number, &Answer::Done);
                }
            }
        };
        assert_eq!(take_all(), 1000);
        directory.resend();
        assert_eq!(take_all(), 1000);
    }

    fn fill(directory: &Directory, request: &Request) -> u64 {
        (100..).find(|number| directory.ask(*number, request.clone()) == libc::EAGAIN).unwrap()
    }

    #[test]
    fn withdrawals_are_possible_at_the_limit_of_questions() {
        let withdraw = |value: &str| Request::Withdraw { key: b"k".to_vec(), value: value.into() };
        let directory = Directory::default();
        directory.ask(1, publish("a"));
        directory.take_outgoing();
        directory.answered(1, &Answer::Done);
        directory.ask(2, publish("b"));
        fill(&directory, &Request::Look { key: b"k".to_vec() });
        assert_eq!(directory.ask(3, withdraw("a")), 0);
        assert_eq!(directory.ask(4, withdraw("b")), 0, "an unanswered publication is withdrawn as well");
        assert_eq!(
            directory.ask(5, withdraw("c")),
            libc::EAGAIN,
            "a withdrawal without a publication takes no room"
        );
        directory.resend();
        let is_published = |request: &Request| matches!(request, Request::Publish { .. });
        assert!(!directory.take_outgoing().iter().any(|(_, request)| is_published(request)));
    }

    #[test]
    fn a_new_publication_survives_an_earlier_withdrawal() {
        let withdraw = Request::Withdraw { key: b"k".to_vec(), value: b"a".to_vec() };
        let directory = Directory::default();
        directory.ask(1, publish("a"));
        directory.ask(2, withdraw.clone());
        directory.ask(3, publish("a"));
        directory.resend();
        assert_eq!(directory.take_outgoing(), [(3, publish("a"))]);
        directory.answered(3, &Answer::Done);
        directory.ask(4, withdraw.clone());
        assert_eq!(directory.take_outgoing(), [(4, withdraw)]);
        directory.ask(5, publish("a"));
        directory.answered(4, &Answer::Busy);
        assert_eq!(directory.take_outgoing(), [(5, publish("a"))]);
    }

    #[test]
    fn a_process_with_many_watches_can_ask() {
        let directory = Directory::default();
        let process = ProcessId { vid: Vid::new(7).unwrap(), index: 1 };
        let refused = fill(&directory, &Request::Watch { process });
        assert_eq!(directory.ask(1, publish("a")), 0);
        directory.forget(refused - 1);
        assert_eq!(directory.ask(refused, Request::Watch { process }), 0);
    }

    #[test]
    fn members_of_groups_come_from_the_directory() {
        let (directory, group) = (Directory::default(), [0xff; 16]);
        directory.join(&group);
        directory.ask_for_members(group);
        let [(join, _), (look, _)] = directory.take_outgoing().try_into().unwrap();
        directory.answered(join, &Answer::Busy);
        assert_eq!(directory.take_outgoing()[0].0, join, "it is said again");
        directory.answered(join, &Answer::Done);
        let process = ProcessId { vid: Vid::new(7).unwrap(), index: 1 };
        let found = Answer::Found(vec![Entry { process, value: Vec::new() }]);
        assert_eq!(directory.members(look, &found), Some((group, Some(vec![process]))));
        assert_eq!(directory.members(look, &found), None);
        directory.leave(&group);
        directory.take_outgoing();
        directory.resend();
        assert!(
            directory.take_outgoing().iter().all(|(_, request)| !matches!(request, Request::Publish { .. }))
        );
    }

    #[test]
    fn questions_that_the_node_drops_are_asked_again() {
        let directory = Directory::default();
        let look = Request::Look { key: b"k".to_vec() };
        directory.ask(1, look.clone());
        for _ in 0..3 {
            assert_eq!(directory.take_outgoing(), [(1, look.clone())]);
            directory.answered(1, &Answer::Busy);
        }
        directory.forget(1);
        assert!(directory.take_outgoing().is_empty());
    }

    #[test]
    fn a_node_is_not_flooded() {
        let directory = Directory::default();
        for number in 1..=1000 {
            directory.ask(number, publish("a"));
        }
        assert_eq!(directory.take_outgoing().len(), MAX_UNDER_WAY);
        directory.answered(1, &Answer::Busy);
        directory.forget(2);
        assert_eq!(directory.take_outgoing().len(), 2);
    }
}
