//! Memory regions: keys, ranges, rights.

use std::cell::Cell;

use verbs::{HandleKind, HandleSource, Names, Translation};

use crate::attr::Access;
use crate::handle::{Mr, Pd};
use crate::slab::Slab;
use crate::work::Sge;

/// A memory region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    pub pd: Pd,
    /// Where it is.
    pub addr: u64,
    pub length: u64,
    /// What work requests call its first byte.
    pub iova: u64,
    pub access: Access,
    /// Its virtual key, local and remote.
    pub key: u32,
}

impl Region {
    /// The address of `length` bytes at `va`, if they all lie within.
    #[inline]
    fn address(&self, va: u64, length: u64) -> Option<u64> {
        let offset = va.checked_sub(self.iova)?;
        let end = offset.checked_add(length)?;
        (end <= self.length).then(|| self.addr + offset)
    }
}

/// The device's regions and their keys.
pub(crate) struct Regions {
    slab: Slab<Region>,
    names: Names,
    /// Tells the keys of one index apart: a key that was given back should not soon be valid again.
    salt: u8,
    /// The local key that was looked up last, and its index: programs use one for long.
    recent: Cell<(u32, u32)>,
}

/// No region has this key, and no object this index.
const NOTHING: (u32, u32) = (0, u32::MAX);

impl Regions {
    pub fn new() -> Self {
        Self {
            slab: Slab::new(),
            names: Names::new(HandleKind::MemoryKey),
            salt: 0,
            recent: Cell::new(NOTHING),
        }
    }

    pub fn len(&self) -> usize {
        self.slab.len()
    }

    /// Adds `region`, and gives it its key.
    pub fn insert(&mut self, source: &mut dyn HandleSource, region: Region) -> (Mr, Translation) {
        self.salt = self.salt.wrapping_add(1);
        let index = self.slab.insert(region);
        let wanted = (index + 1) << 8 | u32::from(self.salt);
        let line = self.names.insert(source, wanted, index);
        if let Some(region) = self.slab.get_mut(index) {
            region.key = line.virtual_handle;
        }
        (Mr(index), line)
    }

    /// Removes a region. Returns what peers knew of its key, if it was translated.
    pub fn remove(&mut self, source: &mut dyn HandleSource, mr: Mr) -> Option<(Region, Option<Translation>)> {
        let region = self.slab.remove(mr.0)?;
        self.recent.set(NOTHING);
        Some((region, self.names.remove(source, region.key)))
    }

    pub fn get(&self, mr: Mr) -> Option<&Region> {
        self.slab.get(mr.0)
    }

    pub fn reissue(&mut self, source: &mut dyn HandleSource) {
        self.names.reissue(source);
    }

    pub fn translations(&self) -> impl Iterator<Item = Translation> + '_ {
        self.names.translations()
    }

    /// The address of what `sge` names, if its key, domain, range and rights allow. Empty elements
    /// name nothing.
    #[inline]
    pub fn local(&self, pd: Pd, sge: &Sge, needs: Access) -> Option<u64> {
        if sge.length == 0 {
            return Some(0);
        }
        if self.recent.get().0 != sge.lkey {
            self.recent.set((sge.lkey, self.names.by_virtual(sge.lkey)?));
        }
        let region = self.slab.get(self.recent.get().1)?;
        Self::check(region, pd, needs)?;
        region.address(sge.addr, u64::from(sge.length))
    }

    /// The address of what a peer names by a real key, if domain, range and rights allow. A length of 0
    /// is not checked, as InfiniBand has it.
    #[inline]
    pub fn remote(&self, pd: Pd, rkey: u32, va: u64, length: u32, needs: Access) -> Option<u64> {
        if length == 0 {
            return Some(0);
        }
        let region = self.slab.get(self.names.by_real(rkey)?)?;
        Self::check(region, pd, needs)?;
        region.address(va, u64::from(length))
    }

    /// The region that a peer names by a real key, if it is in the domain `pd`.
    pub fn named(&self, pd: Pd, rkey: u32) -> Option<(Mr, &Region)> {
        let index = self.names.by_real(rkey)?;
        let region = self.slab.get(index)?;
        (region.pd == pd).then_some((Mr(index), region))
    }

    #[inline]
    fn check(region: &Region, pd: Pd, needs: Access) -> Option<()> {
        (region.pd == pd && region.access.contains(needs)).then_some(())
    }
}
