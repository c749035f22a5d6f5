//! Values that a forked child does not share with its parent.

use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

static GENERATION: AtomicU32 = AtomicU32::new(0);

/// The number of forks between this process and the first that used the library: tells a child from its parent.
#[inline]
pub fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// A forked child calls this before it uses anything.
pub fn begin_generation() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

struct Made<T> {
    generation: u32,
    value: T,
}

impl<T: Default> Made<T> {
    fn new() -> *mut Self {
        Box::into_raw(Box::new(Self { generation: generation(), value: T::default() }))
    }
}

/// A value with a lock in it. A thread of the parent's may have had it locked at a fork, and is not in the child to unlock it or to end
/// what it was changing; where it was not locked the child may have parts of a later change all the same, as memory is not copied in one
/// moment. So a child begins with a new value, and never looks at what it has inherited.
#[derive(Debug)]
pub struct PerProcess<T> {
    made: AtomicPtr<Made<T>>,
    _owned: PhantomData<Box<T>>,
}

impl<T> PerProcess<T> {
    /// The value is made when it is first needed.
    #[must_use]
    pub const fn new() -> Self {
        Self { made: AtomicPtr::new(ptr::null_mut()), _owned: PhantomData }
    }
}

impl<T: Default> Default for PerProcess<T> {
    /// The value is made at once.
    fn default() -> Self {
        Self { made: AtomicPtr::new(Made::new()), _owned: PhantomData }
    }
}

impl<T: Default> PerProcess<T> {
    /// This process' own.
    #[inline]
    pub fn get(&self) -> &T {
        let found = self.made.load(Ordering::Acquire);
        // SAFETY: it is null, or was made by `Made::new` and is not freed before this is dropped.
        match unsafe { found.as_ref() } {
            Some(made) if made.generation == generation() => &made.value,
            _ => self.renew(found),
        }
    }

    /// Puts an own value in the place of `found`, which is left as it is.
    #[cold]
    fn renew(&self, found: *mut Made<T>) -> &T {
        let own = Made::new();
        let first = match self.made.compare_exchange(found, own, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => own,
            Err(first) => {
                // SAFETY: no other thread has seen it.
                drop(unsafe { Box::from_raw(own) });
                first
            }
        };
        // SAFETY: it was made by a thread of this process, and is not freed before this is dropped.
        unsafe { &(*first).value }
    }
}

impl<T> Drop for PerProcess<T> {
    fn drop(&mut self) {
        let made = *self.made.get_mut();
        // SAFETY: it is null, or was made by `Made::new`.
        if unsafe { made.as_ref() }.is_some_and(|made| made.generation == generation()) {
            // SAFETY: as above, and no thread uses it any more.
            drop(unsafe { Box::from_raw(made) });
        }
    }
}

/// A value that is made once, and never freed. No `OnceLock`: another thread may fork while this one makes it, and the child would wait
/// for that for ever.
#[derive(Debug)]
pub struct MadeOnce<T: 'static> {
    made: AtomicPtr<T>,
    _shared: PhantomData<&'static T>,
}

impl<T> MadeOnce<T> {
    /// It is not made yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { made: AtomicPtr::new(ptr::null_mut()), _shared: PhantomData }
    }

    /// The value, if it is made.
    pub fn get(&self) -> Option<&'static T> {
        // SAFETY: it is null, or came from `set` and is never freed.
        unsafe { self.made.load(Ordering::Acquire).as_ref() }
    }

    /// The value, which is `value` unless another thread was first.
    pub fn set(&self, value: T) -> &'static T {
        let own = Box::into_raw(Box::new(value));
        let first = self.made.compare_exchange(ptr::null_mut(), own, Ordering::AcqRel, Ordering::Acquire);
        if first.is_err() {
            // SAFETY: no other thread has seen it.
            drop(unsafe { Box::from_raw(own) });
        }
        // SAFETY: whichever it is, it is never freed.
        unsafe { &*first.err().unwrap_or(own) }
    }
}

impl<T> Default for MadeOnce<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::lock;

    /// How a forked child ends that does `work`, which may take a moment.
    fn in_child(work: impl FnOnce()) -> libc::c_int {
        let mut status = 0;
        // SAFETY: the child takes no lock that another thread of the parent's may have, and ends here.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::alarm(10);
                begin_generation();
                work();
                libc::_exit(0);
            }
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        }
        status
    }

    #[test]
    fn a_child_gets_its_own_value_in_any_state_of_its_parent() {
        let value = PerProcess::<Mutex<u32>>::default();
        let mut held = lock(value.get());
        *held = 7;
        assert_eq!(in_child(|| assert_eq!(std::mem::take(&mut *lock(value.get())), 0)), 0);
        drop(held);
        assert_eq!(*lock(value.get()), 7);
    }

    #[test]
    fn threads_of_a_process_share_one_value() {
        let value = PerProcess::<Mutex<u32>>::new();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| *lock(value.get()) += 1);
            }
        });
        assert_eq!(*lock(value.get()), 8);
    }

    #[test]
    fn the_first_thread_makes_the_value() {
        let value = MadeOnce::new();
        assert_eq!(value.get(), None);
        assert_eq!((value.set(1), value.set(2), value.get()), (&1, &1, Some(&1)));
    }
}
