//! The implementations of symbols that this device does not use; `symbols.list` says which.
//!
//! Providers such as libmlx5 register with the library from their constructors and drive devices
//! with its private functions. Here they find no device, so that only registration is ever called:
//! it must do nothing.

use std::ffi::c_void;
use std::ptr;

use crate::errno;

pub(crate) extern "C" fn nothing() {}

pub(crate) extern "C" fn null() -> *mut c_void {
    errno::set(libc::ENOSYS);
    ptr::null_mut()
}

pub(crate) extern "C" fn enosys() -> libc::c_int {
    libc::ENOSYS
}

pub(crate) extern "C" fn minus_one() -> libc::c_long {
    errno::set(libc::ENOSYS);
    -1
}
