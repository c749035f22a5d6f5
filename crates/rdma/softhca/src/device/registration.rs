//! Re-registration of memory regions, null regions, and the real addresses of regions.

use crate::attr::Access;
use crate::device::{Device, require, require_room};
use crate::errno::Errno;
use crate::handle::{Keys, Mr, Pd};
use crate::region::Region;
use crate::work::Sge;

/// The attributes of a region that change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rereg {
    /// Where it is: address and bytes. Peers and work requests then call its first byte by its address, unless it is
    /// zero-based.
    pub translation: Option<(u64, u64)>,
    /// Its protection domain.
    pub pd: Option<Pd>,
    /// The new access rights.
    pub access: Option<Access>,
}

impl Device {
    /// Changes a memory region, which keeps its keys. Requests that still need its former memory fail.
    ///
    /// # Errors
    /// The errors of [`Self::reg_mr`]; `BUSY` while memory windows are bound to it. It then stays as it was.
    ///
    /// # Safety
    /// As for [`Self::reg_mr`]: the memory that it is from now on stays mapped, with the right to store if the access
    /// lets anything be stored.
    pub unsafe fn rereg_mr(&mut self, mr: Mr, change: &Rereg) -> Result<(), Errno> {
        let old = *self.core.regions.get(mr).ok_or(Errno::INVALID)?;
        require(!old.is_null)?;
        if old.windows > 0 {
            return Err(Errno::BUSY);
        }
        let new = changed(&old, change);
        new.check(&self.core.limits)?;
        self.enter_domain(new.pd)?;
        self.leave_domain(old.pd);
        self.forget_memory(mr, &old);
        if let Some(region) = self.core.regions.get_mut(mr) {
            *region = new;
        }
        Ok(())
    }

    /// Makes a region that covers all addresses and holds nothing: stored bytes are gone, and loaded bytes are
    /// zero. It has no remote key.
    ///
    /// # Errors
    /// `INVALID` if there is no such domain; `NO_MEMORY` past the device's limit.
    pub fn alloc_null_mr(&mut self, pd: Pd) -> Result<(Mr, Keys), Errno> {
        require_room(self.core.regions.len(), self.core.limits.max_mr)?;
        self.enter_domain(pd)?;
        let (mr, line) = self.core.regions.insert_null(&mut *self.core.source, pd);
        self.tell(line);
        Ok((mr, Keys { lkey: line.virtual_handle, rkey: 0 }))
    }

    /// The address that `sge` names in the domain `pd`, for stores if `stores`; `None` if it names nothing, or allows
    /// no stores.
    #[must_use]
    pub fn address_of(&self, pd: Pd, sge: &Sge, stores: bool) -> Option<u64> {
        let needs = if stores { Access::LOCAL_WRITE } else { Access::empty() };
        self.core.regions.local(pd, sge, needs)
    }

    /// The access rights of a region.
    ///
    /// # Errors
    /// `INVALID` if there is no such region.
    pub fn access_of(&self, mr: Mr) -> Result<Access, Errno> {
        self.core.regions.get(mr).map(|region| region.access).ok_or(Errno::INVALID)
    }

    /// Region `mr` will not be where it was.
    pub(super) fn forget_memory(&mut self, mr: Mr, region: &Region) {
        if self.sharing.is_shared(mr) {
            self.close_gates();
        }
        self.sharing.forget(mr);
        self.links.copy_out_range(region.addr, region.length);
    }
}

fn changed(old: &Region, change: &Rereg) -> Region {
    let access = change.access.unwrap_or(old.access);
    let (addr, length) = change.translation.unwrap_or((old.addr, old.length));
    let was_zero_based = old.access.contains(Access::ZERO_BASED);
    let iova = match access.contains(Access::ZERO_BASED) {
        true => 0,
        false if change.translation.is_some() || was_zero_based => addr,
        false => old.iova,
    };
    Region { pd: change.pd.unwrap_or(old.pd), addr, length, iova, access, ..*old }
}
