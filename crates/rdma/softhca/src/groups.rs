//! Multicast groups: the queue pairs of this process that receive, and the other member processes.
//!
//! The device does not know the members of a group: it asks its user for them. It asks again when a queue pair sends to the
//! group and the known members are older than [`FRESH`]. Datagrams for a group with unknown members wait for the answer, for
//! [`PATIENCE`] at most.

use std::collections::HashMap;
use std::time::Duration;

use fabric::ProcessId;

use crate::handle::Qp;
use crate::timer::Pause;

/// A group's GID, in network order.
pub type GroupId = [u8; 16];

const FRESH: Duration = Duration::from_millis(200);
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Group {
    /// Queue pairs of this process that receive.
    receivers: Vec<Qp>,
    /// Processes that have receivers, this one perhaps among them. `None`: not known.
    members: Option<Vec<ProcessId>>,
    /// The known members are fresh, or a question for them is pending.
    pause: Pause,
    is_asked: bool,
    /// Queue pairs with datagrams that wait for the answer.
    waiting: Vec<Qp>,
}

/// The groups that this process receives from or sends to.
#[derive(Default)]
pub(crate) struct Groups {
    groups: HashMap<GroupId, Group>,
    /// Groups with unknown members.
    wanted: Vec<GroupId>,
}

impl Groups {
    /// How many groups have receivers.
    pub fn attached(&self) -> usize {
        self.groups.values().filter(|group| !group.receivers.is_empty()).count()
    }

    /// `qp` receives. Returns whether it is the first of the process.
    pub fn attach(&mut self, id: GroupId, qp: Qp) -> bool {
        let receivers = &mut self.groups.entry(id).or_default().receivers;
        if !receivers.contains(&qp) {
            receivers.push(qp);
            return receivers.len() == 1;
        }
        false
    }

    /// `qp` is detached. Returns whether it was the last of the process; `None` if it was not attached.
    pub fn detach(&mut self, id: GroupId, qp: Qp) -> Option<bool> {
        let receivers = &mut self.groups.get_mut(&id)?.receivers;
        let at = receivers.iter().position(|receiver| *receiver == qp)?;
        receivers.swap_remove(at);
        Some(receivers.is_empty())
    }

    /// The groups from which `qp` receives.
    pub fn of(&self, qp: Qp) -> Vec<GroupId> {
        let groups = self.groups.iter();
        groups.filter(|(_, group)| group.receivers.contains(&qp)).map(|(id, _)| *id).collect()
    }

    /// Queue pairs of this process that receive.
    pub fn receivers(&self, id: GroupId) -> Vec<Qp> {
        self.groups.get(&id).map(|group| group.receivers.clone()).unwrap_or_default()
    }

    /// A queue pair is going to send. Some programs send once and exit at once, so the members should be known before.
    pub fn prepare(&mut self, id: GroupId) {
        let group = self.groups.entry(id).or_default();
        if !group.is_asked && group.pause.is_over() {
            group.is_asked = true;
            self.wanted.push(id);
        }
    }

    /// Processes with receivers, for a datagram of `sender`, which waits if they are not known.
    pub fn members(&mut self, id: GroupId, sender: Qp) -> Option<&[ProcessId]> {
        self.prepare(id);
        let group = self.groups.entry(id).or_default();
        if group.members.is_none() {
            if group.waiting.is_empty() {
                group.pause = Pause::Noted(PATIENCE);
            }
            if !group.waiting.contains(&sender) {
                group.waiting.push(sender);
            }
        }
        group.members.as_deref()
    }

    /// Groups with unknown members.
    pub fn take_wanted(&mut self, into: &mut Vec<GroupId>) {
        into.append(&mut self.wanted);
    }

    pub fn has_wanted(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// Learns the members of a group. Adds the queue pairs that have waited for it to `unblocked`; they go on.
    /// `None`: the lookup has failed, and is repeated at the next send.
    pub fn learn(&mut self, id: GroupId, members: Option<Vec<ProcessId>>, unblocked: &mut Vec<Qp>) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        group.is_asked = false;
        if members.is_none() {
            return;
        }
        group.members = members;
        group.pause = Pause::Noted(FRESH);
        unblocked.append(&mut group.waiting);
    }

    /// Ends pauses that are over. Returns when the next one ends.
    pub fn tick(&mut self, now: Duration, unblocked: &mut Vec<Qp>) -> Option<Duration> {
        let mut next: Option<Duration> = None;
        for group in self.groups.values_mut().filter(|group| !group.pause.is_over()) {
            match group.pause.tick(now) {
                Some(deadline) => next = Some(next.map_or(deadline, |next| next.min(deadline))),
                None if group.members.is_none() => {
                    // Without an answer the group is taken for empty.
                    group.members = Some(Vec::new());
                    unblocked.append(&mut group.waiting);
                }
                None => {}
            }
        }
        next
    }

    /// Keeps the remaining pauses for another clock.
    pub fn freeze(&mut self, now: Duration) {
        for group in self.groups.values_mut() {
            group.pause.freeze(now);
        }
    }
}
