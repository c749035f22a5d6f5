//! Memory regions: keys, ranges, rights.

use verbs::{HandleKind, HandleSource, Names, Translation};

use crate::attr::{Access, WindowKind};
use crate::errno::Errno;
use crate::handle::{Mr, Mw, Pd};
use crate::limits::Limits;
use crate::memory_window::{Bearer, Bound, HandleChange, MemoryWindow};
use crate::slab::Slab;
use crate::work::{Binding, Sge};

/// A memory region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    pub pd: Pd,
    /// Where it is.
    pub addr: u64,
    pub length: u64,
    /// The virtual address of its first byte in work requests.
    pub iova: u64,
    pub access: Access,
    /// Its virtual key, local and remote.
    pub key: u32,
    /// Memory windows that are bound to it.
    pub windows: u32,
    /// It covers all addresses and holds nothing; then its length is 0.
    pub is_null: bool,
}

impl Region {
    /// True if the address range is valid.
    ///
    /// # Errors
    /// `INVALID` for a range that wraps or is too long, or remote access that stores without local write access.
    pub fn check(&self, limits: &Limits) -> Result<(), Errno> {
        let stores = self.access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let wraps =
            self.addr.checked_add(self.length).is_none() || self.iova.checked_add(self.length).is_none();
        let is_good = !wraps && self.length <= limits.max_mr_size;
        let may_store = !stores || self.access.contains(Access::LOCAL_WRITE);
        if is_good && may_store { Ok(()) } else { Err(Errno::INVALID) }
    }

    /// The address of `length` bytes at `va`, if they all lie within.
    #[inline]
    fn address(&self, va: u64, length: u64) -> Option<u64> {
        let offset = va.checked_sub(self.iova)?;
        let end = offset.checked_add(length)?;
        (end <= self.length).then(|| self.addr + offset)
    }

    /// Where bytes of a null region come from, or go to if it `needs` to be stored to.
    #[cold]
    fn nowhere(&self, length: u64, needs: Access) -> Option<u64> {
        let start = if needs.contains(Access::LOCAL_WRITE) { self.addr + NOWHERE } else { self.addr };
        (self.is_null && length <= NOWHERE).then_some(start)
    }
}

/// The longest piece of a null region that has an address: nothing is moved in longer ones.
const NOWHERE: u64 = crate::share::direct_mapping::LONGEST as u64;
const _: () = assert!(NOWHERE >= crate::wire::MAX_SEGMENT as u64);

/// The device's regions and their keys.
pub(crate) struct Regions {
    slab: Slab<Region>,
    windows: Slab<MemoryWindow>,
    /// The object that a key names: a region's index, or a window's with [`WINDOW`].
    names: Names,
    /// Tells the keys of one index apart: a key that was given back should not soon be valid again.
    salt: u8,
    /// Zeroes, and behind them room for unwanted bytes. It stays in its place, and takes memory when it is used.
    nowhere: Option<Box<[u8]>>,
}

/// In an object's number: it is a window. No region's index is so large.
const WINDOW: u32 = 1 << 31;

/// The search for the first keys of windows starts here, where an honest device has no keys of regions.
const WINDOW_KEYS: u32 = 1 << 31;

impl Regions {
    pub fn new() -> Self {
        Self {
            slab: Slab::new(),
            windows: Slab::new(),
            names: Names::new(HandleKind::MemoryKey),
            salt: 0,
            nowhere: None,
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

    /// Adds a null region.
    pub fn insert_null(&mut self, source: &mut dyn HandleSource, pd: Pd) -> (Mr, Translation) {
        let room = || vec![0; 2 * NOWHERE as usize].into_boxed_slice();
        let addr = self.nowhere.get_or_insert_with(room).as_mut_ptr().expose_provenance() as u64;
        let access = Access::LOCAL_WRITE;
        self.insert(
            source,
            Region { pd, addr, length: 0, iova: 0, access, key: 0, windows: 0, is_null: true },
        )
    }

    /// Removes a region. Returns the peers' knowledge of its key, if it was translated.
    pub fn remove(&mut self, source: &mut dyn HandleSource, mr: Mr) -> Option<(Region, Option<Translation>)> {
        let region = self.slab.remove(mr.0)?;
        Some((region, self.names.remove(source, region.key)))
    }

    pub fn get(&self, mr: Mr) -> Option<&Region> {
        self.slab.get(mr.0)
    }

    pub fn get_mut(&mut self, mr: Mr) -> Option<&mut Region> {
        self.slab.get_mut(mr.0)
    }

    pub fn reissue(&mut self, source: &mut dyn HandleSource) {
        self.names.reissue(source);
    }

    pub fn translations(&self) -> impl Iterator<Item = Translation> + '_ {
        self.names.translations()
    }

    /// The address that `sge` names, if its key, domain, range and rights allow. Empty elements name nothing.
    #[inline(always)]
    pub fn local(&self, pd: Pd, sge: &Sge, needs: Access) -> Option<u64> {
        if sge.length == 0 {
            return Some(0);
        }
        let region = self.slab.get(self.names.by_virtual(sge.lkey)?)?;
        Self::check(region, pd, needs)?;
        let length = u64::from(sge.length);
        region.address(sge.addr, length).or_else(|| region.nowhere(length, needs))
    }

    /// True if `sge` names memory as [`Self::local`] wants it, in pieces if not as a whole.
    #[inline]
    pub fn has_local(&self, pd: Pd, sge: &Sge, needs: Access) -> bool {
        let is_long = u64::from(sge.length) > NOWHERE;
        self.local(pd, sge, needs).is_some()
            || is_long
                && self.local(pd, &Sge { length: 1, ..*sge }, needs).is_some()
                && self.is_nowhere(sge.lkey)
    }

    fn is_nowhere(&self, lkey: u32) -> bool {
        let region = self.names.by_virtual(lkey).and_then(|index| self.slab.get(index));
        region.is_some_and(|region| region.is_null)
    }

    /// The address that a peer names by a real key, if domain, range and rights allow. A length of 0 is not
    /// checked, as InfiniBand has it.
    #[inline]
    pub fn remote(&self, bearer: Bearer, rkey: u32, va: u64, length: u32, needs: Access) -> Option<u64> {
        if length == 0 {
            return Some(0);
        }
        let object = self.names.by_real(rkey)?;
        let Some(region) = self.slab.get(object) else {
            return self.window(object)?.address(bearer, va, u64::from(length), needs);
        };
        Self::check(region, bearer.pd, needs)?;
        region.address(va, u64::from(length))
    }

    /// The region that a peer names by a real key, if it is in the domain `pd`.
    pub fn named(&self, pd: Pd, rkey: u32) -> Option<(Mr, &Region)> {
        let index = self.names.by_real(rkey)?;
        let region = self.slab.get(index)?;
        (region.pd == pd).then_some((Mr(index), region))
    }

    fn window(&self, object: u32) -> Option<&MemoryWindow> {
        self.windows.get(object.checked_sub(WINDOW)?)
    }

    /// How many windows there are.
    pub fn windows(&self) -> usize {
        self.windows.len()
    }

    /// Adds a window. Returns the first of its keys, under which it shows nothing.
    pub fn insert_window(&mut self, pd: Pd, kind: WindowKind) -> (Mw, u32) {
        let index = self.windows.next_index();
        let block = self.names.reserve(WINDOW_KEYS.wrapping_add(index << 8), index | WINDOW);
        (Mw(self.windows.insert(MemoryWindow { pd, kind, block, bound: None })), block)
    }

    /// Removes a window, bound or not. Returns its domain.
    pub fn remove_window(
        &mut self,
        source: &mut dyn HandleSource,
        mw: Mw,
        handle_changes: &mut Vec<HandleChange>,
    ) -> Option<Pd> {
        self.unbind(source, mw.0, handle_changes)?;
        let window = self.windows.remove(mw.0)?;
        self.names.release(window.block);
        Some(window.pd)
    }

    /// Binds the window that `binding` names. `None` if anything forbids it.
    pub fn bind(
        &mut self,
        source: &mut dyn HandleSource,
        binding: &Binding,
        bearer: Bearer,
        handle_changes: &mut Vec<HandleChange>,
    ) -> Option<()> {
        let object = self.names.reserved(binding.key)?;
        self.window(object).filter(|window| window.accepts(binding, bearer))?;
        let index = object - WINDOW;
        if binding.length == 0 {
            return self.unbind(source, index, handle_changes);
        }
        let bound = self.shown(binding, bearer)?;
        self.unbind(source, index, handle_changes)?;
        self.slab.get_mut(bound.mr.0)?.windows += 1;
        self.windows.get_mut(index)?.bound = Some(bound);
        let line = self.names.insert_fixed(source, binding.key, object);
        if line.real != line.virtual_handle {
            handle_changes.push((line, line.real));
        }
        Some(())
    }

    /// The memory that a window with this binding opens, if the region allows it.
    fn shown(&self, binding: &Binding, bearer: Bearer) -> Option<Bound> {
        let index = self.names.by_virtual(binding.lkey)?;
        let region = self.slab.get(index)?;
        let stores = binding.access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let needs = if stores { Access::MW_BIND | Access::LOCAL_WRITE } else { Access::MW_BIND };
        Self::check(region, bearer.pd, needs)?;
        Some(Bound {
            key: binding.key,
            mr: Mr(index),
            addr: region.address(binding.va, binding.length)?,
            length: binding.length,
            iova: if binding.access.contains(Access::ZERO_BASED) { 0 } else { binding.va },
            access: binding.access,
            incarnation: bearer.incarnation,
        })
    }

    /// Ends the binding of window `index`, if it has one. `None` if there is no such window.
    fn unbind(
        &mut self,
        source: &mut dyn HandleSource,
        index: u32,
        handle_changes: &mut Vec<HandleChange>,
    ) -> Option<()> {
        let Some(bound) = self.windows.get_mut(index)?.bound.take() else { return Some(()) };
        if let Some(region) = self.slab.get_mut(bound.mr.0) {
            region.windows -= 1;
        }
        if let Some(known) = self.names.remove(source, bound.key) {
            handle_changes.push((Translation { real: known.virtual_handle, ..known }, known.real));
        }
        Some(())
    }

    /// Invalidates the window of type 2 that the virtual `key` names. `None` if there is none in the bearer's domain.
    pub fn invalidate(
        &mut self,
        source: &mut dyn HandleSource,
        key: u32,
        bearer: Bearer,
        handle_changes: &mut Vec<HandleChange>,
    ) -> Option<()> {
        let object = self.names.by_virtual(key)?;
        self.window(object).filter(|window| window.kind == WindowKind::Two && window.pd == bearer.pd)?;
        self.unbind(source, object - WINDOW, handle_changes)
    }

    /// The virtual key of the window that a peer names by a real one, if it may invalidate it.
    pub fn yielding(&self, rkey: u32, bearer: Bearer) -> Option<u32> {
        let window = self.window(self.names.by_real(rkey)?)?;
        window.bound.filter(|_| window.yields_to(bearer)).map(|bound| bound.key)
    }

    #[inline]
    fn check(region: &Region, pd: Pd, needs: Access) -> Option<()> {
        (region.pd == pd && region.access.contains(needs)).then_some(())
    }
}
