//! A lock that knows whether the current thread holds it.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{Ordering, compiler_fence};
use std::sync::{Mutex, MutexGuard, TryLockError};

use crate::lock;

thread_local! {
    /// Such locks that the thread has, or is about to have.
    static HELD: Cell<u32> = const { Cell::new(0) };
}

/// A lock for a thread that may fork in a handler of a signal: it would wait for itself, if that came while it had the lock.
#[derive(Debug, Default)]
pub struct KnownLock<T>(Mutex<T>);

impl<T> KnownLock<T> {
    /// No thread has it.
    pub const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Takes it.
    pub fn lock(&self) -> KnownGuard<'_, T> {
        let known = Known::new();
        KnownGuard { guard: lock(&self.0), _known: known }
    }

    /// Takes it if it is free.
    pub fn try_lock(&self) -> Option<KnownGuard<'_, T>> {
        let known = Known::new();
        let guard = match self.0.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(KnownGuard { guard, _known: known })
    }
}

/// Whether the calling thread has a [`KnownLock`], or is about to have it.
pub fn has_known_lock() -> bool {
    HELD.get() > 0
}

#[derive(Debug)]
struct Known;

impl Known {
    fn new() -> Self {
        HELD.set(HELD.get() + 1);
        // A handler of a signal is not to find the lock taken, and nobody who knows.
        compiler_fence(Ordering::SeqCst);
        Self
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        HELD.set(HELD.get() - 1);
    }
}

/// Holds the lock.
#[derive(Debug)]
pub struct KnownGuard<'a, T> {
    guard: MutexGuard<'a, T>,
    /// Dropped behind the guard.
    _known: Known,
}

impl<T> Deref for KnownGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for KnownGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_thread_knows_that_it_holds_the_lock() {
        let known = KnownLock::new(1);
        assert!(!has_known_lock());
        let held = known.lock();
        assert!(has_known_lock() && known.try_lock().is_none());
        thread::scope(|scope| assert!(!scope.spawn(has_known_lock).join().unwrap(), "another has it"));
        drop(held);
        assert!(!has_known_lock());
        assert_eq!(known.try_lock().map(|guard| (*guard, has_known_lock())), Some((1, true)));
        assert!(!has_known_lock());
    }
}
