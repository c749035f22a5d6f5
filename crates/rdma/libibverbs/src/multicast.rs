//! Multicast: a process is a member of the groups of its queue pairs, and publishes that in the fabric's directory.

use libc::c_int;
use softhca::{Device, Errno, GroupId, Qp as Handle};
use verbs_abi::{ibv_gid, ibv_qp};

use crate::directory::Directory;
use crate::errno;
use crate::qp::Qp;

/// Groups are identified by their GIDs: a LID is not needed.
pub(crate) unsafe extern "C" fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    // SAFETY: the contract of verbs.
    let (qp, group) = unsafe { (Qp::of(qp), (*gid).raw) };
    errno::code(qp.process.with(|state| {
        if state.device.attach_group(qp.handle, group)? {
            qp.process.directory.join(&group);
            qp.process.wake.signal();
        }
        Ok(())
    }))
}

pub(crate) unsafe extern "C" fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    // SAFETY: the contract of verbs.
    let (qp, group) = unsafe { (Qp::of(qp), (*gid).raw) };
    errno::code(qp.process.with(|state| {
        detach(&mut state.device, &qp.process.directory, qp.handle, group)?;
        qp.process.wake.signal();
        Ok(())
    }))
}

fn detach(device: &mut Device, directory: &Directory, qp: Handle, group: GroupId) -> Result<(), Errno> {
    if device.detach_group(qp, group)? {
        directory.leave(&group);
    }
    Ok(())
}

/// `qp` receives from no group any more.
pub(crate) fn detach_all(device: &mut Device, directory: &Directory, qp: Handle) {
    for group in device.groups_of(qp) {
        // It receives from each of them.
        let _ = detach(device, directory, qp, group);
    }
}
