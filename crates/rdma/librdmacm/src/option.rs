//! Options of identifiers, devices, and the names of events.

use std::ffi::{CStr, c_char};

use libc::{c_int, c_void};
use verbs_abi::{ibv_context, rdma_cm_id};

use crate::errno::{Errno, INVALID, Result, made, object, status};
use crate::id::Id;
use crate::manager::Manager;
use waiting::lock;

/// `RDMA_OPTION_ID` and its options: type of service, reuse of addresses, one family alone, time-out of acknowledgements.
const LEVEL_ID: c_int = 0;
const TYPE_OF_SERVICE: c_int = 0;
const REUSE_ADDRESS: c_int = 1;
const ONLY_FAMILY: c_int = 2;
const ACK_TIMEOUT: c_int = 3;

/// # Safety
/// `value` is readable for `length` bytes.
unsafe fn set(id: &mut Id, level: c_int, option: c_int, value: *const c_void, length: usize) -> Result<()> {
    let expected = match (level, option) {
        (LEVEL_ID, TYPE_OF_SERVICE | ACK_TIMEOUT) => 1,
        (LEVEL_ID, REUSE_ADDRESS | ONLY_FAMILY) => size_of::<c_int>(),
        _ => return Err(Errno(libc::ENOSYS)),
    };
    if value.is_null() || length != expected {
        return Err(INVALID);
    }
    if option == ONLY_FAMILY {
        // SAFETY: the caller's promise.
        lock(&id.core.state).only_family = unsafe { value.cast::<c_int>().read_unaligned() } != 0;
    }
    Ok(())
}

/// Routes and time-outs belong to the device: such options are accepted and change nothing.
pub(crate) unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    length: usize,
) -> c_int {
    // SAFETY: the contract of the connection manager: a live identifier, and a value as long as stated.
    status(|| unsafe { Id::given(id).and_then(|id| set(id, level, option, value, length)) })
}

/// The open devices, as a NULL-terminated list to be freed with [`rdma_free_devices`].
pub(crate) unsafe extern "C" fn rdma_get_devices(count: *mut c_int) -> *mut *mut ibv_context {
    let list = object(|| {
        let manager = Manager::get()?;
        // SAFETY: no memory is passed.
        let list = made(unsafe { libc::calloc(2, size_of::<*mut ibv_context>()) })?;
        let list = list.cast::<*mut ibv_context>();
        // SAFETY: the list has room for two.
        unsafe { list.write(manager.device.context) };
        Ok(list)
    });
    if !count.is_null() {
        // SAFETY: the contract of the connection manager: `count` can be written.
        unsafe { count.write(c_int::from(!list.is_null())) };
    }
    list
}

pub(crate) unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: the contract of the connection manager: NULL, or a list of `rdma_get_devices`.
    unsafe { libc::free(list.cast()) };
}

const EVENTS: [&CStr; 16] = [
    c"RDMA_CM_EVENT_ADDR_RESOLVED",
    c"RDMA_CM_EVENT_ADDR_ERROR",
    c"RDMA_CM_EVENT_ROUTE_RESOLVED",
    c"RDMA_CM_EVENT_ROUTE_ERROR",
    c"RDMA_CM_EVENT_CONNECT_REQUEST",
    c"RDMA_CM_EVENT_CONNECT_RESPONSE",
    c"RDMA_CM_EVENT_CONNECT_ERROR",
    c"RDMA_CM_EVENT_UNREACHABLE",
    c"RDMA_CM_EVENT_REJECTED",
    c"RDMA_CM_EVENT_ESTABLISHED",
    c"RDMA_CM_EVENT_DISCONNECTED",
    c"RDMA_CM_EVENT_DEVICE_REMOVAL",
    c"RDMA_CM_EVENT_MULTICAST_JOIN",
    c"RDMA_CM_EVENT_MULTICAST_ERROR",
    c"RDMA_CM_EVENT_ADDR_CHANGE",
    c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
];

pub(crate) unsafe extern "C" fn rdma_event_str(event: u32) -> *const c_char {
    let name = usize::try_from(event).ok().and_then(|event| EVENTS.get(event));
    name.map_or(c"UNKNOWN EVENT".as_ptr(), |name| name.as_ptr())
}
