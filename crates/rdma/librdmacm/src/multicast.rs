//! Multicast groups of IP addresses, as IP over InfiniBand maps them.

use std::net::{IpAddr, SocketAddr};

use libc::{c_int, c_void, sockaddr};
use verbs_abi::{ibv_ah_attr, ibv_gid, rdma_cm_id, rdma_cm_join_mc_attr_ex};

use crate::address;
use crate::datagrams;
use crate::errno::{Errno, INVALID, Result, done, status};
use crate::happening::Happening;
use crate::id::Id;
use crate::manager::Manager;
use waiting::lock;

/// The signatures of IPv4 and IPv6 in a group's GID, before the partition key.
const SIGNATURE_V4: [u8; 2] = [0x40, 0x1b];
const SIGNATURE_V6: [u8; 2] = [0x60, 0x1b];

/// The first LID of multicast.
const FIRST_LID: u16 = 0xc000;

/// The group of an address; the lower bits of an IPv6 address, and 28 bits of an IPv4 one, tell groups apart.
fn group_of(address: IpAddr) -> ibv_gid {
    let mut raw = [0; 16];
    raw[..2].copy_from_slice(&[0xff, 0x12]);
    raw[4..6].copy_from_slice(&[0xff, 0xff]);
    match address {
        IpAddr::V4(address) => {
            raw[2..4].copy_from_slice(&SIGNATURE_V4);
            raw[12..].copy_from_slice(&address.octets());
            raw[12] &= 0x0f;
        }
        IpAddr::V6(address) => {
            raw[2..4].copy_from_slice(&SIGNATURE_V6);
            raw[6..].copy_from_slice(&address.octets()[6..]);
        }
    }
    ibv_gid { raw }
}

/// A LID for the group: it is not used, as the GID is always there.
fn lid_of(group: ibv_gid) -> u16 {
    FIRST_LID | u16::from_be_bytes([group.raw[14], group.raw[15]]) & 0x3ffe
}

/// The way to a group.
pub(crate) fn route_to(group: ibv_gid) -> ibv_ah_attr {
    let mut attr = datagrams::route_to(lid_of(group));
    attr.is_global = 1;
    attr.grh.dgid = group;
    attr.grh.hop_limit = 1;
    attr
}

/// A group that an identifier is in.
pub(crate) struct Membership {
    address: SocketAddr,
    group: ibv_gid,
    /// It does not only send to it.
    receives: bool,
}

/// Has the identifier's new queue pair receive from the groups that it is in.
pub(crate) fn attach_to_all(id: &Id) -> Result<()> {
    let groups = lock(&id.core.state)
        .groups
        .iter()
        .filter(|joined| joined.receives)
        .map(|joined| joined.group)
        .collect::<Vec<_>>();
    groups.into_iter().try_for_each(|group| attach(id, group))
}

fn attach(id: &Id, group: ibv_gid) -> Result<()> {
    if id.c.qp.is_null() {
        return Ok(());
    }
    let verbs = Manager::get()?.device.verbs;
    // SAFETY: the identifier's queue pair is live, and the group can be read.
    done(unsafe { (verbs.ibv_attach_mcast)(id.c.qp, &raw const group, lid_of(group)) })
}

fn detach(id: &Id, group: ibv_gid) {
    let (false, Some(manager)) = (id.c.qp.is_null(), Manager::current()) else { return };
    // A queue pair that the program has destroyed has left by itself.
    // SAFETY: as above.
    unsafe { (manager.device.verbs.ibv_detach_mcast)(id.c.qp, &raw const group, lid_of(group)) };
}

fn join(id: &mut Id, address: SocketAddr, context: *mut c_void, receives: bool) -> Result<()> {
    if !address.ip().is_multicast() || !id.is_datagram() {
        return Err(INVALID);
    }
    let group = group_of(address.ip());
    let joined = if receives { attach(id, group) } else { Ok(()) };
    let happening = match joined {
        Ok(()) => {
            lock(&id.core.state).groups.push(Membership { address, group, receives });
            Happening::Joined(group, context.addr())
        }
        Err(Errno(errno)) => Happening::JoinFailed(-errno, context.addr()),
    };
    id.core.push(happening);
    id.complete()
}

fn leave(id: &mut Id, address: SocketAddr) -> Result<()> {
    let group = {
        let mut state = lock(&id.core.state);
        let at = state.groups.iter().position(|joined| joined.address.ip() == address.ip());
        state.groups.swap_remove(at.ok_or(Errno(libc::EADDRNOTAVAIL))?).group
    };
    detach(id, group);
    Ok(())
}

/// Leaves all groups: the identifier goes.
pub(crate) fn leave_all(id: &Id) {
    let groups = std::mem::take(&mut lock(&id.core.state).groups);
    for Membership { group, .. } in groups {
        detach(id, group);
    }
}

pub(crate) unsafe extern "C" fn rdma_join_multicast(
    id: *mut rdma_cm_id,
    address: *mut sockaddr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the contract of the connection manager: a live identifier, and a whole address.
    status(|| unsafe { Id::given(id).and_then(|id| join(id, address::read(address)?, context, true)) })
}

pub(crate) unsafe extern "C" fn rdma_join_multicast_ex(
    id: *mut rdma_cm_id,
    attributes: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    /// `enum rdma_cm_join_mc_attr_mask`: the address and the flags are there.
    const ALL: u32 = 3;
    /// `enum rdma_cm_mc_join_flags`.
    const FULL_MEMBER: u32 = 0;
    const SEND_ONLY: u32 = 1;
    // SAFETY: as above; the attributes can be read.
    status(|| unsafe {
        Id::given(id).and_then(|id| {
            let attributes = attributes.as_ref().filter(|given| given.comp_mask == ALL).ok_or(INVALID)?;
            if !matches!(attributes.join_flags, FULL_MEMBER | SEND_ONLY) {
                return Err(INVALID);
            }
            let receives = attributes.join_flags == FULL_MEMBER;
            join(id, address::read(attributes.addr)?, context, receives)
        })
    })
}

pub(crate) unsafe extern "C" fn rdma_leave_multicast(id: *mut rdma_cm_id, address: *mut sockaddr) -> c_int {
    // SAFETY: as above.
    status(|| unsafe { Id::given(id).and_then(|id| leave(id, address::read(address)?)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_match_ip_over_infiniband() {
        let group = group_of("239.1.2.3".parse().unwrap());
        assert_eq!(group.raw, [0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0x0f, 1, 2, 3]);
        let group = group_of("ff02::1:2".parse().unwrap());
        assert_eq!(group.raw, [0xff, 0x12, 0x60, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0, 2]);
        assert!(lid_of(group) >= FIRST_LID && lid_of(group) < 0xffff);
    }
}
