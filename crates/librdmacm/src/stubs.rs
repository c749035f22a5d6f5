//! What stands behind exports that this library does not implement.

use libc::c_int;

use crate::errno::{Errno, number};

/// -1, with `errno` set.
pub(crate) unsafe extern "C" fn minus_one() -> c_int {
    number(Err(Errno(libc::ENOSYS)))
}
