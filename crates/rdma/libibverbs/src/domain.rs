//! Protection domains, thread domains, and parent domains, which are a protection domain under another name.

use std::sync::atomic::{AtomicU32, Ordering};

use libc::c_int;
use softhca::Errno;
use verbs_abi::constants::IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
use verbs_abi::{ibv_context, ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr};

use crate::context::Context;
use crate::process::Held;
use crate::{errno, object};

/// The object behind a program's `ibv_pd`.
#[repr(C)]
pub(crate) struct Pd {
    base: ibv_pd,
    pub(crate) handle: softhca::Pd,
    /// Objects that were made with this very pointer.
    users: AtomicU32,
    parts: Option<Parts>,
}

starts_with!(Pd, ibv_pd);

/// The domains of a parent domain.
struct Parts {
    pd: *mut ibv_pd,
    /// May be NULL.
    td: *mut ibv_td,
}

impl Pd {
    /// An object was made with it.
    pub(crate) fn enter(&self) {
        self.users.fetch_add(1, Ordering::Relaxed);
    }

    /// Such an object has gone.
    pub(crate) fn leave(&self) {
        self.users.fetch_sub(1, Ordering::Relaxed);
    }

    fn is_used(&self) -> bool {
        self.users.load(Ordering::Relaxed) != 0
    }
}

/// The object behind a program's `ibv_td`.
#[repr(C)]
struct Td {
    base: ibv_td,
    /// Parent domains that it is part of.
    users: AtomicU32,
}

starts_with!(Td, ibv_td);

pub(crate) unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    errno::object(|| {
        // SAFETY: the contract of verbs.
        unsafe { object::context(context) }.and_then(|opened| {
            opened.process.with(|state| {
                let handle = state.device.alloc_pd()?;
                state.objects.pds.insert(handle, Held(context));
                Ok(give(context, handle, None))
            })
        })
    })
}

fn give(context: *mut ibv_context, handle: softhca::Pd, parts: Option<Parts>) -> *mut ibv_pd {
    let base = ibv_pd { context, handle: handle.0 };
    object::give(Pd { base, handle, users: AtomicU32::new(0), parts })
}

/// Of a parent domain nothing but its name goes.
pub(crate) unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: the contract of verbs; a context outlives its objects.
    let (process, domain) = unsafe { (Context::of((*pd).context).process, Pd::of(pd)) };
    errno::code(process.with(|state| {
        if domain.is_used() {
            return Err(Errno::BUSY);
        }
        match &domain.parts {
            Some(parts) => parts.leave(),
            None => {
                state.device.dealloc_pd(domain.handle)?;
                state.objects.pds.remove(&domain.handle);
            }
        }
        // SAFETY: it was made by `give`, and the program gives it back.
        unsafe { object::take::<Pd, _>(pd) };
        Ok(())
    }))
}

impl Parts {
    fn leave(&self) {
        // SAFETY: both are live as long as a parent domain is made of them.
        unsafe {
            Pd::of(self.pd).leave();
            if !self.td.is_null() {
                Td::of(self.td).users.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

/// Objects made with it are in its protection domain. A thread domain changes nothing, since uncontended locks
/// cost nothing. Allocators of the program are not used, hence refused.
pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    // SAFETY: the contract of verbs.
    let ibv_parent_domain_init_attr { pd, td, comp_mask, .. } = unsafe { *attr };
    if comp_mask & !IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT != 0 {
        return errno::object(|| Err(Errno::UNSUPPORTED));
    }
    // SAFETY: the contract of verbs; a thread domain may be NULL.
    let fits = unsafe {
        !pd.is_null()
            && Pd::of(pd).parts.is_none()
            && (*pd).context == context
            && td.as_ref().is_none_or(|td| td.context == context)
    };
    if !fits {
        return errno::object(|| Err(Errno::INVALID));
    }
    // SAFETY: the contract of verbs.
    errno::object(|| unsafe {
        Pd::of(pd).enter();
        if !td.is_null() {
            Td::of(td).users.fetch_add(1, Ordering::Relaxed);
        }
        Ok(give(context, Pd::of(pd).handle, Some(Parts { pd, td })))
    })
}

pub(crate) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    attr: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    // SAFETY: the contract of verbs.
    let comp_mask = unsafe { (*attr).comp_mask };
    errno::object(|| match comp_mask {
        0 => Ok(object::give(Td { base: ibv_td { context }, users: AtomicU32::new(0) })),
        _ => Err(Errno::UNSUPPORTED),
    })
}

pub(crate) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    // SAFETY: the contract of verbs.
    if unsafe { Td::of(td) }.users.load(Ordering::Relaxed) != 0 {
        return libc::EBUSY;
    }
    // SAFETY: `alloc_td` gave it, and the program gives it back.
    unsafe { object::take::<Td, _>(td) };
    0
}
