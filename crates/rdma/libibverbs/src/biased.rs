//! A biased lock: nearly free for the one thread that takes it again and again.
//!
//! A program that posts and polls in one thread takes the lock some ten million times a second, the library's own
//! thread a thousand times at most. So the program's thread becomes the lock's *owner*, and takes it by plain stores:
//!
//! ```text
//!  owner                          another thread, holding the mutex
//!  inside = 1                     owner = none
//!  ── compiler fence ──           ── membarrier ──
//!  owner still me? go on : back   inside = 0? go on : sleep until woken
//!  inside = 0 (release)           (acquire)
//!  ── compiler fence ──
//!  owner still me? done : wake
//! ```
//!
//! A thread that is not the owner takes the mutex and revokes the ownership. A thread that has taken the mutex some times in a row
//! becomes the owner. A thread that waits for an owner inside holds the mutex already, so that the owner cannot re-enter before.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use softhca::asymmetric::{Among, light_fence};

use waiting::{futex, lock};

/// No thread has this identity.
const NOBODY: usize = 0;

/// Threads that may come to own one lock; more share the mutex.
const MOST_OWNERS: usize = 64;

/// A thread that may own the lock. It has a flag of its own: a thread that finds late that it does not own the lock any
/// longer must not touch the next owner's flag. Never freed.
struct Seat {
    thread: usize,
    /// [`INSIDE`] or [`OUTSIDE`].
    inside: AtomicU32,
}

/// The thread holds the lock as its owner, or is about to find out that it may not.
const INSIDE: u32 = 1;
const OUTSIDE: u32 = 0;

impl Seat {
    /// Futex on which a thread waits for the owner to leave.
    fn is_inside(&self) -> bool {
        self.inside.load(Ordering::Acquire) == INSIDE
    }
}

/// Times in a row after which a thread becomes the owner, at first and at most.
const PATIENCE: u32 = 32;
const MOST_PATIENCE: u32 = 1 << 20;

/// The protected value, and the state of the lock.
pub(crate) struct BiasedLock<T> {
    /// The owner's seat, or null.
    owner: AtomicPtr<Seat>,
    habits: Mutex<Habits>,
    value: UnsafeCell<T>,
}

// SAFETY: the value is handed out to one thread at a time.
unsafe impl<T: Send> Sync for BiasedLock<T> {}

/// Recent takers of the mutex.
pub(crate) struct Habits {
    last: usize,
    in_a_row: u32,
    patience: u32,
    /// There may be an owner: the kernel does its part.
    may_own: bool,
    /// All that have owned the lock.
    seats: Vec<&'static Seat>,
    /// The seat of the last owner, which may still be inside.
    former: Option<&'static Seat>,
}

impl<T> BiasedLock<T> {
    pub(crate) fn new(value: T) -> Self {
        let may_own = Among::Threads.register();
        Self {
            owner: AtomicPtr::new(ptr::null_mut()),
            habits: Mutex::new(Habits {
                last: NOBODY,
                in_a_row: 0,
                patience: PATIENCE,
                may_own,
                seats: Vec::new(),
                former: None,
            }),
            value: UnsafeCell::new(value),
        }
    }

    /// Takes the lock if this thread owns it.
    #[inline]
    pub(crate) fn lock_as_owner(&self) -> Option<OwnerGuard<'_, T>> {
        // SAFETY: a seat is never freed.
        let seat = unsafe { self.owner.load(Ordering::Acquire).as_ref() }?;
        // A signal handler that interrupts the owner inside finds the lock taken, as any other's would be.
        let is_free = seat.thread == this_thread() && seat.inside.load(Ordering::Relaxed) == OUTSIDE;
        if is_free { self.enter(seat) } else { None }
    }

    /// Takes the lock if it is still owned from this thread's `seat`.
    #[inline]
    fn enter(&self, seat: &'static Seat) -> Option<OwnerGuard<'_, T>> {
        seat.inside.store(INSIDE, Ordering::Relaxed);
        light_fence();
        let guard = OwnerGuard { lock: self, seat };
        // A late thread leaves like the owner does: another may wait for it.
        ptr::eq(self.owner.load(Ordering::Relaxed), seat).then_some(guard)
    }

    /// The owner at `seat` leaves, and wakes a thread that has revoked its ownership meanwhile.
    #[inline]
    fn leave(&self, seat: &'static Seat) {
        seat.inside.store(OUTSIDE, Ordering::Release);
        light_fence();
        if !ptr::eq(self.owner.load(Ordering::Relaxed), seat) {
            futex::wake(&seat.inside);
        }
    }

    /// Takes the lock, for a thread that is to own it if it does so often.
    #[cold]
    pub(crate) fn lock_often(&self) -> Guard<'_, T> {
        let me = this_thread();
        let mut habits = lock(&self.habits);
        self.end_ownership(&habits);
        let Some(seat) = habits.become_owner(me) else {
            return Guard::ByMutex { lock: self, _habits: habits };
        };
        seat.inside.store(INSIDE, Ordering::Relaxed);
        self.owner.store(ptr::from_ref(seat).cast_mut(), Ordering::Release);
        Guard::ByOwner(OwnerGuard { lock: self, seat })
    }

    /// Takes the mutex: only an owner that is inside is before the caller from now on.
    pub(crate) fn claim(&self) -> Claim<'_, T> {
        Claim { lock: self, habits: lock(&self.habits) }
    }

    /// Takes the lock if it is free and uncontended.
    pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
        let habits = match self.habits.try_lock() {
            Ok(habits) => habits,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        self.owner.store(ptr::null_mut(), Ordering::Relaxed);
        Among::Threads.fence();
        let is_held = habits.former.is_some_and(Seat::is_inside);
        (!is_held).then_some(Guard::ByMutex { lock: self, _habits: habits })
    }

    /// In a forked child: no thread owns it, in particular none of the parent's that came to own it after `before`.
    pub(crate) fn disown(&self) {
        self.owner.store(ptr::null_mut(), Ordering::Relaxed);
    }

    /// Waits until no owner is inside. The caller holds the mutex.
    fn end_ownership(&self, habits: &Habits) {
        if !self.owner.swap(ptr::null_mut(), Ordering::Relaxed).is_null() {
            Among::Threads.fence();
        }
        if let Some(seat) = habits.former {
            wait_for(seat);
        }
    }
}

impl Habits {
    /// The seat of thread `me`, if it is to own the lock from now on.
    fn become_owner(&mut self, me: usize) -> Option<&'static Seat> {
        self.in_a_row = if self.last == me { self.in_a_row + 1 } else { 0 };
        self.last = me;
        if self.in_a_row < self.patience || !self.may_own {
            return None;
        }
        self.in_a_row = 0;
        let seat = self.seat_of(me)?;
        if self.former.is_some_and(|former| former.thread != me) {
            // Two threads that take turns are better off with the mutex.
            self.patience = (self.patience * 2).min(MOST_PATIENCE);
        }
        self.former = Some(seat);
        Some(seat)
    }

    fn seat_of(&mut self, me: usize) -> Option<&'static Seat> {
        if let Some(seat) = self.seats.iter().find(|seat| seat.thread == me) {
            return Some(seat);
        }
        if self.seats.len() == MOST_OWNERS {
            return None;
        }
        let seat: &'static Seat = Box::leak(Box::new(Seat { thread: me, inside: AtomicU32::new(OUTSIDE) }));
        self.seats.push(seat);
        Some(seat)
    }
}

/// Waits until the last owner is outside, at last by sleeping: the owner may have lost its processor.
fn wait_for(owner: &Seat) {
    const SPINS: u32 = 100;
    /// The leaving owner wakes us; without `membarrier` it may not see that it has to.
    const AGES: Duration = Duration::from_millis(1);
    let mut turns = 0;
    while owner.is_inside() {
        if turns < SPINS {
            std::hint::spin_loop();
        } else {
            futex::wait(&owner.inside, INSIDE, AGES);
        }
        turns += 1;
    }
}

/// The running thread, by the address of its thread-local storage.
#[inline]
fn this_thread() -> usize {
    let pointer: usize;
    // SAFETY: the first word of a thread's control block is its own address.
    unsafe {
        std::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, preserves_flags, readonly, pure));
    }
    pointer
}

/// Holds the lock for its owner.
///
/// Separate from [`Guard`], which stores in a byte how the lock is held. If that were moved in words, the load of the
/// word would wait until all earlier stores have left the processor, also those to a ring whose lines the neighbour
/// has: a quarter of a microsecond for each message.
pub(crate) struct OwnerGuard<'a, T> {
    lock: &'a BiasedLock<T>,
    seat: &'static Seat,
}

impl<T> Deref for OwnerGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the holder of a guard has exclusive access to the value.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for OwnerGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for OwnerGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.leave(self.seat);
    }
}

/// The mutex is held, and an owner may still be inside.
pub(crate) struct Claim<'a, T> {
    lock: &'a BiasedLock<T>,
    habits: MutexGuard<'a, Habits>,
}

impl<'a, T> Claim<'a, T> {
    /// Ends the ownership, if there is one.
    pub(crate) fn enter(self) -> Guard<'a, T> {
        self.lock.end_ownership(&self.habits);
        Guard::ByMutex { lock: self.lock, _habits: self.habits }
    }
}

/// Holds the lock.
pub(crate) enum Guard<'a, T> {
    ByOwner(OwnerGuard<'a, T>),
    ByMutex {
        lock: &'a BiasedLock<T>,
        /// Unlocked when they are dropped.
        _habits: MutexGuard<'a, Habits>,
    },
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        match self {
            Self::ByOwner(guard) => guard,
            // SAFETY: the holder of a guard has exclusive access to the value.
            Self::ByMutex { lock, .. } => unsafe { &*lock.value.get() },
        }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        match self {
            Self::ByOwner(guard) => guard,
            // SAFETY: as above.
            Self::ByMutex { lock, .. } => unsafe { &mut *lock.value.get() },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const ROUNDS: u64 = 200_000;

    fn take<T>(lock: &BiasedLock<T>) -> Guard<'_, T> {
        lock.lock_as_owner().map_or_else(|| lock.lock_often(), Guard::ByOwner)
    }

    #[test]
    fn threads_of_all_kinds_exclude_each_other() {
        // Two words that are always seen together.
        let lock = BiasedLock::new((0u64, 0u64));
        let add = |mut guard: Guard<'_, (u64, u64)>| {
            assert_eq!(guard.0, guard.1);
            guard.0 += 1;
            light_fence();
            guard.1 += 1;
        };
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| (0..ROUNDS).for_each(|_| add(take(&lock))));
            }
            scope.spawn(|| (0..ROUNDS / 100).for_each(|_| add(lock.claim().enter())));
            scope.spawn(|| (0..ROUNDS / 100).for_each(|_| while lock.try_lock().map(add).is_none() {}));
        });
        assert_eq!(*lock.claim().enter(), (2 * ROUNDS + ROUNDS / 50, 2 * ROUNDS + ROUNDS / 50));
    }

    #[test]
    fn a_frequent_thread_owns_the_lock_until_another_comes() {
        let lock = BiasedLock::new(());
        drop(own(&lock));
        thread::scope(|scope| {
            scope.spawn(|| drop(take(&lock)));
        });
        assert!(lock.owner.load(Ordering::Relaxed).is_null());
        assert!(lock.lock_as_owner().is_none());
    }

    /// Takes the lock until this thread owns it.
    fn own<T>(lock: &BiasedLock<T>) -> OwnerGuard<'_, T> {
        let once_more = |_| {
            drop(lock.lock_often());
            lock.lock_as_owner()
        };
        (0..=PATIENCE + 1).find_map(once_more).unwrap()
    }

    #[test]
    fn a_late_owner_does_not_disturb_the_next_one() {
        let lock = BiasedLock::new(());
        drop(own(&lock));
        let late = lock.habits.lock().unwrap().former.unwrap();
        thread::scope(|scope| {
            let (say, hear) = std::sync::mpsc::channel();
            let (end, ended) = std::sync::mpsc::channel::<()>();
            let lock = &lock;
            scope.spawn(move || {
                let _inside = own(lock);
                say.send(()).unwrap();
                ended.recv().unwrap_err();
            });
            hear.recv().unwrap();
            assert!(lock.enter(late).is_none());
            assert!(lock.try_lock().is_none(), "the other is inside");
            drop(end);
        });
        assert!(lock.try_lock().is_some());
    }

    #[test]
    fn the_owner_inside_is_waited_for() {
        let lock = BiasedLock::new(0);
        let mut inside = own(&lock);
        thread::scope(|scope| {
            let other = scope.spawn(|| *lock.claim().enter());
            assert!(scope.spawn(|| lock.try_lock().is_none()).join().unwrap());
            thread::sleep(Duration::from_millis(20));
            assert!(!other.is_finished());
            *inside = 7;
            drop(inside);
            assert_eq!(other.join().unwrap(), 7);
        });
    }
}
