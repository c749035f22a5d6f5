//! Multicast groups.

use fabric::ProcessId;

use crate::address::is_group;
use crate::attr::QpKind;
use crate::device::{Device, require, require_room};
use crate::errno::Errno;
use crate::groups::GroupId;
use crate::handle::Qp;

impl Device {
    /// Attaches `qp` to `group`; it also receives its own datagrams. Returns whether it is the first queue pair of
    /// the process that does: then the user makes the process a member.
    ///
    /// # Errors
    /// `INVALID` unless it is a datagram queue pair, and a multicast GID; `NO_MEMORY` past the device's limit.
    pub fn attach_group(&mut self, qp: Qp, group: GroupId) -> Result<bool, Errno> {
        let entry = self.core.qps.get(qp.0).ok_or(Errno::INVALID)?;
        require(entry.init.kind == QpKind::Ud && is_group(&group))?;
        require_room(self.core.groups.attached(), self.core.limits.max_groups)?;
        Ok(self.core.groups.attach(group, qp))
    }

    /// Detaches `qp` from `group`. Returns whether it was the last queue pair of the process.
    ///
    /// # Errors
    /// `INVALID` if it did not receive.
    pub fn detach_group(&mut self, qp: Qp, group: GroupId) -> Result<bool, Errno> {
        self.core.groups.detach(group, qp).ok_or(Errno::INVALID)
    }

    /// The groups from which `qp` receives.
    #[must_use]
    pub fn groups_of(&self, qp: Qp) -> Vec<GroupId> {
        self.core.groups.of(qp)
    }

    /// Groups whose members the user has to find out; each is named once until [`Self::learn_members`].
    pub fn take_group_requests(&mut self, into: &mut Vec<GroupId>) {
        self.core.groups.take_wanted(into);
    }

    /// `members` have queue pairs that receive from `group`; `None` if that could not be found out.
    pub fn learn_members(&mut self, group: GroupId, members: Option<Vec<ProcessId>>) {
        self.core.groups.learn(group, members, &mut self.core.unblocked);
        self.settle();
    }
}
