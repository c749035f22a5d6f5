//! The owner's table of names: virtual to real, and real to object.
//!
//! ```text
//! application ── virtual ──▶ by_virtual ──▶ (real, object)
//! peer's frame ─── real ───▶ by_real ─────▶ object
//! ```
//!
//! QPNs are virtual from the start, because they name the process that owns them. A memory key
//! is real at first, so that a peer needs no lookup to use it; only where a new real key equals
//! a virtual one in use does the new region get an unused virtual key (Nomad, section 4.1.2).

use crate::hash::HandleMap;
use crate::recent::Recent;
use crate::source::{HandleKind, HandleSource};

/// The lowest handle given out: the numbers below are special in InfiniBand.
const FIRST: u32 = 2;

/// Virtual handles in a block that [`Names::reserve`] sets aside.
pub const BLOCK: u32 = 256;

/// One line of a table, as peers learn it. `real` equal to `virtual_handle` withdraws an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translation {
    /// The named object.
    pub kind: HandleKind,
    /// The application's name.
    pub virtual_handle: u32,
    /// The device's name.
    pub real: u32,
}

/// The entry of a virtual handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    real: u32,
    object: u32,
}

/// The names of one kind of object.
#[derive(Debug)]
pub struct Names {
    kind: HandleKind,
    by_virtual: HandleMap<Entry>,
    /// Objects.
    by_real: HandleMap<u32>,
    /// Objects, by the first handle of their reserved blocks.
    blocks: HandleMap<u32>,
    /// Objects, by their virtual and by their real handles.
    recent_virtual: Recent,
    recent_real: Recent,
}

impl Names {
    /// An empty table.
    #[must_use]
    pub fn new(kind: HandleKind) -> Self {
        let (by_virtual, by_real) = (HandleMap::default(), HandleMap::default());
        let (recent_virtual, recent_real) = (Recent::default(), Recent::default());
        Self { kind, by_virtual, by_real, blocks: HandleMap::default(), recent_virtual, recent_real }
    }

    /// The object that the application knows as `virtual_handle`.
    #[must_use]
    #[inline(always)]
    pub fn by_virtual(&self, virtual_handle: u32) -> Option<u32> {
        self.recent_virtual.get(virtual_handle).or_else(|| self.find_virtual(virtual_handle))
    }

    fn find_virtual(&self, virtual_handle: u32) -> Option<u32> {
        let object = self.by_virtual.get(&virtual_handle)?.object;
        self.recent_virtual.keep(virtual_handle, object);
        Some(object)
    }

    /// The object that the device knows as `real`.
    #[must_use]
    #[inline(always)]
    pub fn by_real(&self, real: u32) -> Option<u32> {
        self.recent_real.get(real).or_else(|| self.find_real(real))
    }

    fn find_real(&self, real: u32) -> Option<u32> {
        let object = *self.by_real.get(&real)?;
        self.recent_real.keep(real, object);
        Some(object)
    }

    /// The device's name for `virtual_handle`.
    #[must_use]
    pub fn real(&self, virtual_handle: u32) -> Option<u32> {
        self.by_virtual.get(&virtual_handle).map(|entry| entry.real)
    }

    /// True if no object has this virtual handle, and none may come to have it.
    #[must_use]
    pub fn is_free(&self, virtual_handle: u32) -> bool {
        !self.by_virtual.contains_key(&virtual_handle) && self.reserved(virtual_handle).is_none()
    }

    /// The object for which `virtual_handle` is reserved.
    #[must_use]
    pub fn reserved(&self, virtual_handle: u32) -> Option<u32> {
        if self.blocks.is_empty() { None } else { self.blocks.get(&block_of(virtual_handle)).copied() }
    }

    /// Sets a block of virtual handles aside, the first one that is free from `near` on, for `object`, which is
    /// called by one after the other ([`Self::insert_fixed`]). Returns its first handle.
    pub fn reserve(&mut self, near: u32, object: u32) -> u32 {
        let mut block = block_of(near) & self.kind.mask();
        while block < FIRST || (block..=block + (BLOCK - 1)).any(|handle| !self.is_free(handle)) {
            block = block.wrapping_add(BLOCK) & self.kind.mask();
        }
        self.blocks.insert(block, object);
        block
    }

    /// Gives a block back in which no handle is in use.
    pub fn release(&mut self, block: u32) {
        self.blocks.remove(&block);
    }

    /// Names `object` with a fixed virtual handle, which is free or in a block of its own. Returns the translation.
    pub fn insert_fixed(
        &mut self,
        source: &mut dyn HandleSource,
        virtual_handle: u32,
        object: u32,
    ) -> Translation {
        let real = self.pick_real(source, virtual_handle);
        self.link(virtual_handle, real, object)
    }

    /// Names `object` by its real handle, for which `wanted` is the first proposal; the virtual handle
    /// is the same where that is unambiguous.
    pub fn insert(&mut self, source: &mut dyn HandleSource, wanted: u32, object: u32) -> Translation {
        let real = self.pick_real(source, wanted);
        let virtual_handle = if self.is_free(real) { real } else { self.unused(real) };
        self.link(virtual_handle, real, object)
    }

    /// Forgets `virtual_handle`. Returns the line that peers knew, if they had to be told of it.
    pub fn remove(&mut self, source: &mut dyn HandleSource, virtual_handle: u32) -> Option<Translation> {
        let entry = self.by_virtual.remove(&virtual_handle)?;
        self.by_real.remove(&entry.real);
        self.recent_virtual.clear();
        self.recent_real.clear();
        source.released(self.kind, entry.real);
        (entry.real != virtual_handle).then_some(self.translation(virtual_handle, entry.real))
    }

    /// Gives every object another real handle, as a device does after a move.
    pub fn reissue(&mut self, source: &mut dyn HandleSource) {
        if !source.reissues() {
            return;
        }
        self.recent_real.clear();
        for real in std::mem::take(&mut self.by_real).into_keys() {
            source.released(self.kind, real);
        }
        let virtual_handles: Vec<u32> = self.by_virtual.keys().copied().collect();
        for virtual_handle in virtual_handles {
            let real = self.pick_real(source, virtual_handle);
            if let Some(entry) = self.by_virtual.get_mut(&virtual_handle) {
                entry.real = real;
                self.by_real.insert(real, entry.object);
            }
        }
    }

    /// The lines that a peer needs: handles whose names differ.
    pub fn translations(&self) -> impl Iterator<Item = Translation> + '_ {
        let all = self.by_virtual.iter().map(|(name, entry)| self.translation(*name, entry.real));
        all.filter(|line| line.real != line.virtual_handle)
    }

    /// How many objects have names.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_virtual.len()
    }

    /// True if nothing is named.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_virtual.is_empty()
    }

    fn link(&mut self, virtual_handle: u32, real: u32, object: u32) -> Translation {
        self.by_virtual.insert(virtual_handle, Entry { real, object });
        self.by_real.insert(real, object);
        self.translation(virtual_handle, real)
    }

    fn translation(&self, virtual_handle: u32, real: u32) -> Translation {
        Translation { kind: self.kind, virtual_handle, real }
    }

    /// A real handle that no live object has.
    fn pick_real(&self, source: &mut dyn HandleSource, wanted: u32) -> u32 {
        // A source that does not come to a free handle is helped out by counting on.
        const PATIENCE: u32 = 64;
        let mut candidate = wanted;
        for _ in 0..PATIENCE {
            candidate = source.candidate(self.kind, wanted, &|| self.colliding(wanted)) & self.kind.mask();
            if self.is_available(candidate) {
                return candidate;
            }
        }
        self.next_after(candidate, |real| self.is_available(real))
    }

    fn is_available(&self, real: u32) -> bool {
        real >= FIRST && !self.by_real.contains_key(&real)
    }

    /// A virtual handle of another object that is free as a real one.
    fn colliding(&self, wanted: u32) -> Option<u32> {
        self.by_virtual.keys().copied().find(|&name| name != wanted && self.is_available(name))
    }

    /// A handle that names nothing, neither virtual nor real.
    fn unused(&self, near: u32) -> u32 {
        self.next_after(near, |handle| self.is_free(handle) && self.is_available(handle))
    }

    /// The first handle after `start` that is `good`. There is one: tables are far smaller than spaces.
    fn next_after(&self, start: u32, good: impl Fn(u32) -> bool) -> u32 {
        let mut handle = start;
        loop {
            handle = handle.wrapping_add(1) & self.kind.mask();
            if good(handle) {
                return handle;
            }
        }
    }
}

/// The first handle of the block in which `handle` lies.
#[must_use]
pub fn block_of(handle: u32) -> u32 {
    handle & !(BLOCK - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Policy;
    use std::collections::HashSet;

    fn keys() -> Names {
        Names::new(HandleKind::MemoryKey)
    }

    #[test]
    fn stable_names_never_change() {
        let (mut names, mut source) = (keys(), Policy::Stable.source(1));
        let line = names.insert(&mut *source, 0x100, 7);
        assert_eq!((line.virtual_handle, line.real), (0x100, 0x100));
        names.reissue(&mut *source);
        assert_eq!(names.by_real(0x100), Some(7));
        assert_eq!(names.translations().count(), 0);
    }

    /// Gives out what the test wrote down.
    struct Script(Vec<u32>);

    impl HandleSource for Script {
        fn candidate(&mut self, _: HandleKind, _: u32, _: &dyn Fn() -> Option<u32>) -> u32 {
            self.0.remove(0)
        }

        fn reissues(&self) -> bool {
            true
        }

        fn released(&mut self, _: HandleKind, _: u32) {}
    }

    #[test]
    fn the_conflict_example_of_the_paper_is_resolved() {
        let (mut names, mut source) = (keys(), Script(vec![0x1000, 0x2000, 0x1000]));
        assert_eq!(names.insert(&mut source, 0, 1).virtual_handle, 0x1000);
        names.reissue(&mut source);
        let second = names.insert(&mut source, 0, 2);
        assert_eq!(second.real, 0x1000);
        assert_ne!(second.virtual_handle, 0x1000, "0x1000 names the first region");
        assert_eq!(names.by_virtual(0x1000), Some(1));
        assert_eq!(names.by_virtual(second.virtual_handle), Some(2));
        assert_eq!(names.by_real(0x1000), Some(2));
        assert_eq!(names.translations().count(), 2);
    }

    #[test]
    fn names_are_one_to_one_under_every_policy() {
        for policy in Policy::ALL {
            let (mut names, mut source) = (keys(), policy.source(3));
            let mut live: Vec<u32> = Vec::new();
            for object in 0..300 {
                live.push(names.insert(&mut *source, 0x100 + object, object).virtual_handle);
                if object % 3 == 0 {
                    let gone = live.remove(live.len() / 2);
                    names.remove(&mut *source, gone);
                }
                if object % 50 == 0 {
                    names.reissue(&mut *source);
                }
            }
            assert_eq!(names.len(), live.len());
            let reals: HashSet<u32> = live.iter().map(|name| names.real(*name).unwrap()).collect();
            assert_eq!(reals.len(), live.len(), "{policy:?}");
            for name in live {
                assert_eq!(names.by_real(names.real(name).unwrap()), names.by_virtual(name), "{policy:?}");
            }
        }
    }

    #[test]
    fn reserved_blocks_are_left_alone() {
        for policy in Policy::ALL {
            let (mut names, mut source) = (keys(), policy.source(9));
            let taken = names.insert(&mut *source, 0x1_0005, 1).virtual_handle;
            let block = names.reserve(taken, 7);
            assert_ne!(block_of(taken), block);
            let other = names.reserve(block, 8);
            assert_ne!(other, block);
            for object in 2..600 {
                let name = names.insert(&mut *source, block + object % BLOCK, object).virtual_handle;
                assert!(![block, other].contains(&block_of(name)), "{policy:?}");
            }
            names.insert_fixed(&mut *source, block + 7, 1000);
            assert_eq!(names.by_virtual(block + 7), Some(1000));
            names.remove(&mut *source, block + 7);
            names.release(block);
            assert!(names.is_free(block + 7));
        }
    }

    #[test]
    fn colliding_handles_collide() {
        let (mut names, mut source) = (Names::new(HandleKind::QueuePair), Policy::Colliding.source(5));
        for number in 0..8 {
            names.insert_fixed(&mut *source, 0x10000 + number, number);
        }
        names.reissue(&mut *source);
        let lies = (0..8).filter(|n| names.by_real(0x10000 + n).is_some_and(|object| object != *n));
        assert!(lies.count() >= 4);
    }
}
