//! The list of devices: one if the process is attached to a node, else none.

use std::ffi::c_char;
use std::ptr;

use fabric::device_file::NAME;
use libc::c_int;
use verbs_abi::constants::{IBV_NODE_CA, IBV_TRANSPORT_IB};
use verbs_abi::ibv_device;

use crate::process::Process;
use crate::{attach, debug, errno, object};
use waiting::{MadeOnce, OneAtATime, Uncancelled};

/// The structure that programs see. It is the same for all contexts, and after a move.
struct Shown(ibv_device);

// SAFETY: its pointers are null, and it is never written after it was made.
unsafe impl Send for Shown {}
// SAFETY: as above.
unsafe impl Sync for Shown {}

static DEVICE: MadeOnce<Shown> = MadeOnce::new();

fn device() -> *mut ibv_device {
    let shown = DEVICE.get().unwrap_or_else(|| DEVICE.set(describe()));
    ptr::from_ref(&shown.0).cast_mut()
}

fn describe() -> Shown {
    // SAFETY: null pointers and zeroes are values of these fields.
    let mut device: ibv_device = unsafe { object::zeroed() };
    device.node_type = IBV_NODE_CA;
    device.transport_type = IBV_TRANSPORT_IB;
    set_text(&mut device.name, NAME);
    set_text(&mut device.dev_name, NAME);
    set_text(&mut device.dev_path, &format!("/sys/class/infiniband_verbs/{NAME}"));
    set_text(&mut device.ibdev_path, &format!("/sys/class/infiniband/{NAME}"));
    Shown(device)
}

/// `field` holds zeroes, and more than `text`.
fn set_text(field: &mut [c_char], text: &str) {
    for (to, from) in field.iter_mut().zip(text.bytes()) {
        *to = from.cast_signed();
    }
}

/// It takes up to a minute where the node is away: `fork` does not wait for it.
pub(crate) static ATTACHING: OneAtATime = OneAtATime::new();

/// The attached process; attaches it if it is not.
pub(crate) fn attached() -> Option<&'static Process> {
    let _one_at_a_time = ATTACHING.enter();
    if let Some(process) = Process::current() {
        return Some(process);
    }
    attach::attach()
        .inspect_err(|refusal| {
            debug::complain_once(|| refusal.to_string());
            errno::set(refusal.errno());
        })
        .ok()
}

/// A NULL-terminated list of devices, to be freed with [`ibv_free_device_list`].
pub(crate) unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    let _whole = Uncancelled::new();
    if headroom::check().is_err() {
        errno::set(libc::ENOMEM);
        return ptr::null_mut();
    }
    let found = attached().map_or(ptr::null_mut(), |_| device());
    // SAFETY: no memory is passed.
    let list: *mut *mut ibv_device = unsafe { libc::calloc(2, size_of::<*mut ibv_device>()) }.cast();
    if !list.is_null() {
        // SAFETY: the list has room for two.
        unsafe { list.write(found) };
    }
    if !count.is_null() {
        // SAFETY: the contract of verbs: `count` can be written.
        unsafe { count.write(c_int::from(!list.is_null() && !found.is_null())) };
    }
    list
}

pub(crate) unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: the contract of verbs: NULL, or a list that `ibv_get_device_list` made with `calloc`.
    unsafe { libc::free(list.cast()) };
}

pub(crate) unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: the contract of verbs: a live device; only an address is computed.
    unsafe { (&raw const (*device).name).cast() }
}

/// The kernel knows no such device, so it has no index.
pub(crate) unsafe extern "C" fn ibv_get_device_index(_: *mut ibv_device) -> c_int {
    -1
}

/// In network byte order.
pub(crate) unsafe extern "C" fn ibv_get_device_guid(_: *mut ibv_device) -> u64 {
    Process::current().map_or(0, |process| u64::from_ne_bytes(process.identity.vid.guid()))
}
