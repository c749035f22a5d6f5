//! Copy-on-write sharing between worlds.

use std::cell::Cell;
use std::hash::{Hash, Hasher};
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use super::fold::Fold;

/// A part of a world. Most actions change few parts: copies of a world share the unchanged ones, with their hashes.
#[derive(Clone, Debug)]
pub(super) struct Shared<T> {
    value: Rc<T>,
    hash: Cell<Option<u64>>,
}

impl<T> Shared<T> {
    pub fn new(value: T) -> Self {
        Self { value: Rc::new(value), hash: Cell::new(None) }
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: Clone> DerefMut for Shared<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.hash.set(None);
        Rc::make_mut(&mut self.value)
    }
}

impl<T: Hash> Hash for Shared<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let hash = self.hash.get().unwrap_or_else(|| Fold::of(&self.value));
        self.hash.set(Some(hash));
        state.write_u64(hash);
    }
}
