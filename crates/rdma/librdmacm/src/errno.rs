//! The conventions of this library: most functions return 0, or -1 with `errno` set. Their bodies run in
//! [`uncancelled`].

use std::{io, ptr};

use libc::c_int;
use waiting::uncancelled;

/// An errno value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

pub(crate) type Result<T> = std::result::Result<T, Errno>;

impl From<io::Error> for Errno {
    fn from(error: io::Error) -> Self {
        Self(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

pub(crate) const INVALID: Errno = Errno(libc::EINVAL);
pub(crate) const NO_DEVICE: Errno = Errno(libc::ENODEV);

/// The calling thread's `errno`.
pub(crate) fn last() -> Errno {
    // SAFETY: the C library returns a valid pointer to the calling thread's errno.
    Errno(unsafe { *libc::__errno_location() })
}

fn set(errno: Errno) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno.0 };
}

/// Clears `errno` before a call after which only [`shortage`] is asked.
pub(crate) fn clear() {
    set(Errno(0));
}

/// The shortage of memory or descriptors that made a call fail without an error, and that may pass. Other values in `errno`
/// do not matter: a search for files in several places also leaves some.
pub(crate) fn shortage() -> Option<Errno> {
    let left = last();
    matches!(left.0, libc::ENOMEM | libc::EMFILE | libc::ENFILE | libc::EAGAIN).then_some(left)
}

/// 0, or -1 and `errno`.
pub(crate) fn status(work: impl FnOnce() -> Result<()>) -> c_int {
    number(|| work().map(|()| 0))
}

/// The number, or -1 and `errno`.
pub(crate) fn number<N: From<i8>>(work: impl FnOnce() -> Result<N>) -> N {
    uncancelled(work).unwrap_or_else(|errno| {
        set(errno);
        N::from(-1)
    })
}

/// The object, if there is memory for one, or NULL and `errno`.
pub(crate) fn object<T>(work: impl FnOnce() -> Result<*mut T>) -> *mut T {
    uncancelled(|| memory().and_then(|()| work())).unwrap_or_else(|errno| {
        set(errno);
        ptr::null_mut()
    })
}

/// Whether there is memory for another object.
///
/// # Errors
/// `ENOMEM`.
pub(crate) fn memory() -> Result<()> {
    Ok(headroom::check()?)
}

/// The result of a verbs function that creates an object.
pub(crate) fn made<T>(object: *mut T) -> Result<*mut T> {
    if object.is_null() { Err(last()) } else { Ok(object) }
}

/// The result of a verbs function that returns an errno value.
pub(crate) fn done(code: c_int) -> Result<()> {
    match code {
        0 => Ok(()),
        -1 => Err(last()),
        code => Err(Errno(code)),
    }
}
