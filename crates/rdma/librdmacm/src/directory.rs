//! Requests to the directory of the fabric, and the waiters for their answers.
//!
//! The directory has one owner for a key, a process, which may publish the same again to confirm it after a loss.
//! Only this module knows which of the process' identifiers holds a key.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use libc::c_int;

use crate::errno::{Errno, Result, done};
use crate::verbs::{Found, Verbs};
use waiting::{EventFd, lock};

/// How long a call waits that returns only with the answer: the coordinator may be away for a moment.
const PATIENCE: Duration = Duration::from_secs(10);

/// A found value, and the instance of its process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) lid: u16,
    pub(crate) value: Vec<u8>,
}

/// An answer.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) number: u64,
    pub(crate) result: Result<Vec<Entry>>,
}

/// A call that waits.
#[derive(Default)]
struct Slot {
    result: Mutex<Option<Result<()>>>,
    filled: Condvar,
}

impl Slot {
    fn fill(&self, result: Result<()>) {
        *lock(&self.result) = Some(result);
        self.filled.notify_all();
    }

    fn wait_until(&self, deadline: Instant) -> Result<()> {
        let mut result = lock(&self.result);
        loop {
            if let Some(result) = *result {
                return result;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Errno(libc::ETIMEDOUT));
            }
            result = self.filled.wait_timeout(result, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// The waiter for an answer.
enum Waiter {
    Call(Arc<Slot>),
    /// The manager's thread.
    Thread,
}

/// An identifier, by the address of its core. The identifiers that a forked child has inherited still exist, so none of
/// its own has the same address.
pub(crate) type Holder = usize;

/// See the module.
pub(crate) struct Directory {
    verbs: &'static Verbs,
    next: AtomicU64,
    waiters: Mutex<HashMap<u64, Waiter>>,
    answers: Mutex<Vec<Answer>>,
    /// Keys that identifiers of this process hold, or are about to, and which does.
    held: Mutex<HashMap<Vec<u8>, Holder>>,
    /// Told when the manager's thread has answers.
    wake: Arc<EventFd>,
}

impl Directory {
    pub(crate) fn new(verbs: &'static Verbs, wake: Arc<EventFd>) -> Self {
        Self {
            verbs,
            next: AtomicU64::new(1),
            waiters: Mutex::default(),
            answers: Mutex::default(),
            held: Mutex::default(),
            wake,
        }
    }

    /// Takes answers from now on.
    ///
    /// # Errors
    /// `ENODEV` if this process is not attached to a node.
    pub(crate) fn attend(&'static self) -> Result<()> {
        let context = std::ptr::from_ref(self).cast_mut().cast();
        // SAFETY: `self` is never freed, and `answered` may be called from any thread.
        done(unsafe { (self.verbs.transhume_directory_attend)(answered, context) })
    }

    /// Publishes a value under all `keys`, for `holder` alone, or under none of them.
    ///
    /// # Errors
    /// `EADDRINUSE` if one is another's, of this process or of another; `ETIMEDOUT` if the coordinator is away.
    pub(crate) fn claim(&self, holder: Holder, keys: &[Vec<u8>], value: &[u8]) -> Result<()> {
        self.hold(holder, keys)?;
        let result = self.publish_all(keys, value);
        if result.is_err() {
            self.release(holder, keys, value);
        }
        result
    }

    fn hold(&self, holder: Holder, keys: &[Vec<u8>]) -> Result<()> {
        let mut held = lock(&self.held);
        if keys.iter().any(|key| held.contains_key(key)) {
            return Err(Errno(libc::EADDRINUSE));
        }
        held.extend(keys.iter().map(|key| (key.clone(), holder)));
        Ok(())
    }

    /// Withdraws the claims of `holder`, without waiting.
    pub(crate) fn release(&self, holder: Holder, keys: &[Vec<u8>], value: &[u8]) {
        // A later claim of the key comes after this message.
        let mut held = lock(&self.held);
        for key in keys {
            if held.get(key) == Some(&holder) {
                self.withdraw(key, value);
                held.remove(key);
            }
        }
    }

    fn publish_all(&self, keys: &[Vec<u8>], value: &[u8]) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let asked: Vec<_> = keys.iter().map(|key| self.publish(key, value)).collect();
        let results = asked.into_iter().map(|asked| {
            let (number, slot) = asked?;
            let result = slot.wait_until(deadline);
            // Open questions are withdrawn with publications.
            lock(&self.waiters).remove(&number);
            result
        });
        results.collect::<Vec<_>>().into_iter().collect()
    }

    fn publish(&self, key: &[u8], value: &[u8]) -> Result<(u64, Arc<Slot>)> {
        let slot = Arc::new(Slot::default());
        let number = self.say(self.enter(Waiter::Call(slot.clone())), key, value, true)?;
        Ok((number, slot))
    }

    /// Publishes a value that others may publish as well, without waiting for the answer.
    pub(crate) fn share(&self, key: &[u8], value: &[u8]) {
        // Where there is no room for one more, enough exist.
        let _ = self.say(self.number(), key, value, false);
    }

    fn say(&self, number: u64, key: &[u8], value: &[u8], exclusive: bool) -> Result<u64> {
        // SAFETY: both parts are as long as stated.
        let code = unsafe {
            (self.verbs.transhume_directory_publish)(
                number,
                key.as_ptr(),
                key.len(),
                value.as_ptr(),
                value.len(),
                c_int::from(exclusive),
            )
        };
        self.asked(number, code)
    }

    fn withdraw(&self, key: &[u8], value: &[u8]) {
        // It is refused only for values that are not published, and no caller waits for the answer.
        // SAFETY: both parts are as long as stated.
        let _ = unsafe {
            (self.verbs.transhume_directory_withdraw)(
                self.number(),
                key.as_ptr(),
                key.len(),
                value.as_ptr(),
                value.len(),
            )
        };
    }

    /// Looks a key up; the manager's thread gets the answer to this number.
    ///
    /// # Errors
    /// `EAGAIN` if too much is asked.
    pub(crate) fn look(&self, key: &[u8]) -> Result<u64> {
        let number = self.enter(Waiter::Thread);
        // SAFETY: the key is as long as stated.
        let code = unsafe { (self.verbs.transhume_directory_look)(number, key.as_ptr(), key.len()) };
        self.asked(number, code)
    }

    /// Waits for the end of a process; the manager's thread gets the answer to this number.
    ///
    /// # Errors
    /// `EAGAIN` if too much is asked.
    pub(crate) fn watch(&self, lid: u16, index: u8) -> Result<u64> {
        let number = self.enter(Waiter::Thread);
        // SAFETY: no memory is passed.
        let code = unsafe { (self.verbs.transhume_directory_watch)(number, lid, index) };
        self.asked(number, code)
    }

    /// The answer is not wanted any more.
    pub(crate) fn forget(&self, number: u64) {
        if lock(&self.waiters).remove(&number).is_some() {
            // SAFETY: no memory is passed.
            unsafe { (self.verbs.transhume_directory_forget)(number) };
        }
    }

    /// Answers for the manager's thread.
    pub(crate) fn take_answers(&self) -> Vec<Answer> {
        std::mem::take(&mut lock(&self.answers))
    }

    fn enter(&self, waiter: Waiter) -> u64 {
        let number = self.number();
        lock(&self.waiters).insert(number, waiter);
        number
    }

    /// For a request without a waiter, unless one is entered.
    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn asked(&self, number: u64, code: c_int) -> Result<u64> {
        if code != 0 {
            lock(&self.waiters).remove(&number);
        }
        done(code).map(|()| number)
    }

    fn take(&self, number: u64, result: Result<Vec<Entry>>) {
        match lock(&self.waiters).remove(&number) {
            Some(Waiter::Call(slot)) => slot.fill(result.map(drop)),
            Some(Waiter::Thread) => {
                lock(&self.answers).push(Answer { number, result });
                self.wake.signal();
            }
            None => {}
        }
    }
}

unsafe extern "C" fn answered(
    directory: *mut c_void,
    number: u64,
    code: c_int,
    found: *const Found,
    count: usize,
) {
    // SAFETY: `attend` passed a directory that is never freed.
    let directory = unsafe { &*directory.cast::<Directory>() };
    // SAFETY: libibverbs passes as many values as it says, and a valid pointer also for none.
    let found = unsafe { std::slice::from_raw_parts(found, count) };
    let entry = |found: &Found| Entry {
        lid: found.lid,
        value: found.value[..usize::from(found.length).min(found.value.len())].to_vec(),
    };
    directory.take(number, done(code).map(|()| found.iter().map(entry).collect()));
}
