//! Import of objects of other processes: refused, since the device is memory of one process.

use libc::c_int;
use softhca::Errno;
use verbs_abi::{ibv_context, ibv_dm, ibv_mr, ibv_pd};

use crate::errno;

pub(crate) unsafe extern "C" fn ibv_import_device(_fd: c_int) -> *mut ibv_context {
    errno::object(|| Err(Errno::UNSUPPORTED))
}

pub(crate) unsafe extern "C" fn ibv_import_pd(_context: *mut ibv_context, _handle: u32) -> *mut ibv_pd {
    errno::object(|| Err(Errno::UNSUPPORTED))
}

pub(crate) unsafe extern "C" fn ibv_import_mr(_pd: *mut ibv_pd, _handle: u32) -> *mut ibv_mr {
    errno::object(|| Err(Errno::UNSUPPORTED))
}

pub(crate) unsafe extern "C" fn ibv_import_dm(_context: *mut ibv_context, _handle: u32) -> *mut ibv_dm {
    errno::object(|| Err(Errno::UNSUPPORTED))
}
