//! The library's exported functions that this program calls.

use std::ffi::{CStr, c_char, c_void};

use anyhow::{Context as _, Result};
use libc::c_int;
use verbs_abi as abi;

/// The version node of all the functions below.
const VERSION: &CStr = c"IBVERBS_1.1";

macro_rules! functions {
    ($($name:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// One pointer per function, under its C name.
        pub(super) struct Functions {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Functions {
            /// Loads `libibverbs.so.1`.
            ///
            /// # Errors
            /// If it is not there or lacks a function.
            pub(super) fn load() -> Result<Self> {
                let library = open()?;
                // SAFETY: the types are those of `verbs.h` for these names and this version.
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
    ibv_get_device_name(*mut abi::ibv_device) -> *const c_char;
    ibv_open_device(*mut abi::ibv_device) -> *mut abi::ibv_context;
    ibv_close_device(*mut abi::ibv_context) -> c_int;
    ibv_query_device(*mut abi::ibv_context, *mut abi::ibv_device_attr) -> c_int;
    ibv_query_gid(*mut abi::ibv_context, u8, c_int, *mut abi::ibv_gid) -> c_int;
    ibv_get_async_event(*mut abi::ibv_context, *mut abi::ibv_async_event) -> c_int;
    ibv_ack_async_event(*mut abi::ibv_async_event);
    ibv_event_type_str(u32) -> *const c_char;
    ibv_wc_status_str(u32) -> *const c_char;
    ibv_alloc_pd(*mut abi::ibv_context) -> *mut abi::ibv_pd;
    ibv_dealloc_pd(*mut abi::ibv_pd) -> c_int;
    ibv_reg_mr(*mut abi::ibv_pd, *mut c_void, usize, c_int) -> *mut abi::ibv_mr;
    ibv_dereg_mr(*mut abi::ibv_mr) -> c_int;
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
    ibv_create_srq(*mut abi::ibv_pd, *mut abi::ibv_srq_init_attr) -> *mut abi::ibv_srq;
    ibv_destroy_srq(*mut abi::ibv_srq) -> c_int;
    ibv_create_qp(*mut abi::ibv_pd, *mut abi::ibv_qp_init_attr) -> *mut abi::ibv_qp;
    ibv_modify_qp(*mut abi::ibv_qp, *mut abi::ibv_qp_attr, c_int) -> c_int;
    ibv_destroy_qp(*mut abi::ibv_qp) -> c_int;
    ibv_create_comp_channel(*mut abi::ibv_context) -> *mut abi::ibv_comp_channel;
    ibv_destroy_comp_channel(*mut abi::ibv_comp_channel) -> c_int;
}

fn open() -> Result<*mut c_void> {
    // SAFETY: the name is NUL-terminated; the library's constructors run in any program.
    let library = unsafe { libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_NOW) };
    (!library.is_null()).then_some(library).with_context(last_error)
}

/// The function `name`, which is not null.
fn symbol(library: *mut c_void, name: &str) -> Result<*mut c_void> {
    let name = std::ffi::CString::new(name)?;
    // SAFETY: `library` is open, and it is never closed; the names are NUL-terminated. The channel
    // functions have only the older version, which `dlsym` finds.
    let found = unsafe {
        let found = libc::dlvsym(library, name.as_ptr(), VERSION.as_ptr());
        if found.is_null() { libc::dlsym(library, name.as_ptr()) } else { found }
    };
    (!found.is_null()).then_some(found).with_context(last_error)
}

fn last_error() -> String {
    // SAFETY: the text is valid until the next call of the thread.
    unsafe { super::words(libc::dlerror()) }
}
