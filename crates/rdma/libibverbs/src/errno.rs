//! The conventions of verbs: most functions return an errno value, those that make an object
//! return NULL and set `errno`, a few return -1 and set it.

use std::ptr;

use libc::c_int;
use softhca::Errno;

/// Sets the calling thread's `errno`.
pub(crate) fn set(value: c_int) {
    // SAFETY: the C library returns a valid pointer to the calling thread's errno.
    unsafe { *libc::__errno_location() = value };
}

/// 0, or the errno value.
pub(crate) fn code(result: Result<(), Errno>) -> c_int {
    result.map_or_else(|errno| errno.0, |()| 0)
}

/// The object that `make` makes if there is memory for one, or NULL and `errno`.
pub(crate) fn object<T>(make: impl FnOnce() -> Result<*mut T, Errno>) -> *mut T {
    let memory = headroom::check().map_err(|_| Errno(libc::ENOMEM));
    memory.and_then(|()| make()).unwrap_or_else(|errno| {
        set(errno.0);
        ptr::null_mut()
    })
}

/// 0, or -1 and `errno`.
pub(crate) fn minus_one(result: Result<(), Errno>) -> c_int {
    result.map_or_else(
        |errno| {
            set(errno.0);
            -1
        },
        |()| 0,
    )
}
