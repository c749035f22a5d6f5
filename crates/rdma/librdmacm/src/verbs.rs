//! The functions of `libibverbs.so.1` that this library calls. They are looked up when the first is needed: a link
//! would need the other library at build time, and its symbols without versions would be the oldest ones.

use std::ffi::{CString, c_char, c_void};

use libc::c_int;
use verbs_abi as abi;

use crate::errno::{Errno, NO_DEVICE, Result};
use crate::pages::Pages;
use waiting::{EventFd, MadeOnce};

/// A value that the directory of the fabric has found, as this project's libibverbs passes it.
#[repr(C)]
pub(crate) struct Found {
    pub(crate) lid: u16,
    pub(crate) process: u8,
    pub(crate) length: u8,
    pub(crate) value: [u8; 64],
}

/// Gets the directory's answers: a request's number, 0 or an errno, and the found value.
pub(crate) type OnAnswer = unsafe extern "C" fn(*mut c_void, u64, c_int, *const Found, usize);

macro_rules! functions {
    ($($name:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// One pointer per function, under its C name.
        pub(crate) struct Verbs {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Verbs {
            fn load() -> Result<Self> {
                let library = library()?;
                // SAFETY: the types are those of `verbs.h` for these names and their default versions.
                Ok(unsafe { Self { $($name: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn($($argument),*) $(-> $result)?,
                >(symbol(library, stringify!($name))?),)* } })
            }
        }
    };
}

functions! {
    ibv_get_device_list(*mut c_int) -> *mut *mut abi::ibv_device;
    ibv_free_device_list(*mut *mut abi::ibv_device);
    ibv_open_device(*mut abi::ibv_device) -> *mut abi::ibv_context;
    ibv_close_device(*mut abi::ibv_context) -> c_int;
    ibv_query_device(*mut abi::ibv_context, *mut abi::ibv_device_attr) -> c_int;
    ibv_query_gid(*mut abi::ibv_context, u8, c_int, *mut abi::ibv_gid) -> c_int;
    ibv_alloc_pd(*mut abi::ibv_context) -> *mut abi::ibv_pd;
    ibv_dealloc_pd(*mut abi::ibv_pd) -> c_int;
    ibv_reg_mr(*mut abi::ibv_pd, *mut c_void, usize, c_int) -> *mut abi::ibv_mr;
    ibv_dereg_mr(*mut abi::ibv_mr) -> c_int;
    ibv_create_comp_channel(*mut abi::ibv_context) -> *mut abi::ibv_comp_channel;
    ibv_destroy_comp_channel(*mut abi::ibv_comp_channel) -> c_int;
    ibv_create_cq(
        *mut abi::ibv_context,
        c_int,
        *mut c_void,
        *mut abi::ibv_comp_channel,
        c_int
    ) -> *mut abi::ibv_cq;
    ibv_destroy_cq(*mut abi::ibv_cq) -> c_int;
    ibv_get_cq_event(*mut abi::ibv_comp_channel, *mut *mut abi::ibv_cq, *mut *mut c_void) -> c_int;
    ibv_ack_cq_events(*mut abi::ibv_cq, u32);
    ibv_destroy_srq(*mut abi::ibv_srq) -> c_int;
    ibv_create_qp(*mut abi::ibv_pd, *mut abi::ibv_qp_init_attr) -> *mut abi::ibv_qp;
    ibv_modify_qp(*mut abi::ibv_qp, *mut abi::ibv_qp_attr, c_int) -> c_int;
    ibv_destroy_qp(*mut abi::ibv_qp) -> c_int;
    ibv_create_ah(*mut abi::ibv_pd, *mut abi::ibv_ah_attr) -> *mut abi::ibv_ah;
    ibv_destroy_ah(*mut abi::ibv_ah) -> c_int;
    ibv_attach_mcast(*mut abi::ibv_qp, *const abi::ibv_gid, u16) -> c_int;
    ibv_detach_mcast(*mut abi::ibv_qp, *const abi::ibv_gid, u16) -> c_int;
    transhume_directory_attend(OnAnswer, *mut c_void) -> c_int;
    transhume_directory_publish(u64, *const u8, usize, *const u8, usize, c_int) -> c_int;
    transhume_directory_withdraw(u64, *const u8, usize, *const u8, usize) -> c_int;
    transhume_directory_look(u64, *const u8, usize) -> c_int;
    transhume_directory_watch(u64, u16, u8) -> c_int;
    transhume_directory_forget(u64);
}

/// The library itself.
fn library() -> Result<*mut c_void> {
    // SAFETY: the name is a string; the library's constructors run in any program.
    let library = unsafe { libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_NOW) };
    if library.is_null() { Err(why_not_loaded()) } else { Ok(library) }
}

/// The loader does not distinguish a missing resource from a missing library: this checks whether there is
/// any.
fn why_not_loaded() -> Errno {
    /// More than the library and its dependencies take.
    const MEMORY: usize = 16 << 20;
    let no_descriptor = || EventFd::new(0).err().map(Errno::from);
    Pages::new(MEMORY).err().or_else(no_descriptor).unwrap_or(NO_DEVICE)
}

/// The default version of a function; `ENODEV` if the library lacks it, because it is another project's.
fn symbol(library: *mut c_void, name: &str) -> Result<*mut c_void> {
    let name = CString::new(name).map_err(|_| NO_DEVICE)?;
    // SAFETY: `library` is open, and it is never closed; the name is a string.
    let found = unsafe { libc::dlsym(library, name.as_ptr().cast::<c_char>()) };
    if found.is_null() { Err(NO_DEVICE) } else { Ok(found) }
}

/// The functions. Only a success is kept: a shortage may pass.
///
/// # Errors
/// `ENODEV` if this project's libibverbs is not there; `ENOMEM`, `EMFILE` and the like if it could not be loaded.
pub(crate) fn verbs() -> Result<&'static Verbs> {
    static VERBS: MadeOnce<Verbs> = MadeOnce::new();
    match VERBS.get() {
        Some(verbs) => Ok(verbs),
        // Two threads may load it at once, which is once for the C library.
        None => Verbs::load().map(|loaded| VERBS.set(loaded)),
    }
}

/// A C structure of zeroes and null pointers.
///
/// # Safety
/// All-zero bytes are a value of `T`.
pub(crate) unsafe fn zeroed<T>() -> T {
    // SAFETY: the caller's promise.
    unsafe { std::mem::MaybeUninit::zeroed().assume_init() }
}

/// `enum ibv_qp_state`.
pub(crate) mod state {
    pub(crate) const INIT: u32 = 1;
    pub(crate) const RTR: u32 = 2;
    pub(crate) const RTS: u32 = 3;
    pub(crate) const ERR: u32 = 6;
}

/// `enum ibv_qp_attr_mask`.
pub(crate) mod mask {
    pub(crate) const STATE: i32 = 1;
    pub(crate) const ACCESS_FLAGS: i32 = 1 << 3;
    pub(crate) const PKEY_INDEX: i32 = 1 << 4;
    pub(crate) const PORT: i32 = 1 << 5;
    pub(crate) const QKEY: i32 = 1 << 6;
    pub(crate) const AV: i32 = 1 << 7;
    pub(crate) const PATH_MTU: i32 = 1 << 8;
    pub(crate) const TIMEOUT: i32 = 1 << 9;
    pub(crate) const RETRY_CNT: i32 = 1 << 10;
    pub(crate) const RNR_RETRY: i32 = 1 << 11;
    pub(crate) const RQ_PSN: i32 = 1 << 12;
    pub(crate) const MAX_QP_RD_ATOMIC: i32 = 1 << 13;
    pub(crate) const MIN_RNR_TIMER: i32 = 1 << 15;
    pub(crate) const SQ_PSN: i32 = 1 << 16;
    pub(crate) const MAX_DEST_RD_ATOMIC: i32 = 1 << 17;
    pub(crate) const DEST_QPN: i32 = 1 << 20;
}

/// `enum ibv_qp_type`.
pub(crate) mod kind {
    pub(crate) const RC: u32 = 2;
    pub(crate) const UC: u32 = 3;
    pub(crate) const UD: u32 = 4;
    pub(crate) const XRC_SEND: u32 = 9;
    pub(crate) const XRC_RECV: u32 = 10;
}
