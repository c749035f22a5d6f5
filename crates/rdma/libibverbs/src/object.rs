//! Objects that a program holds: a C structure first, then our fields.

use std::mem::MaybeUninit;

use softhca::Errno;
use verbs_abi::ibv_context;

use crate::context::Context;

/// Says that the structure `$object` starts with the C structure `$c`.
macro_rules! starts_with {
    ($object:ty, $c:ty) => {
        impl $object {
            /// The object at which a program's pointer points.
            ///
            /// # Safety
            /// `pointer` came from this library, and the object is not destroyed meanwhile.
            pub(crate) unsafe fn of<'a>(pointer: *mut $c) -> &'a Self {
                // SAFETY: the caller's promise; every such pointer leads to the start of `Self`.
                unsafe { &*pointer.cast::<Self>() }
            }
        }
    };
}

/// A C structure of zeroes and null pointers.
///
/// # Safety
/// All-zero bytes are a value of `T`.
pub(crate) unsafe fn zeroed<T>() -> T {
    // SAFETY: the caller's promise.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// Gives `object` to the program.
pub(crate) fn give<T, C>(object: T) -> *mut C {
    Box::into_raw(Box::new(object)).cast()
}

/// Takes an object back from the program, and drops it.
///
/// # Safety
/// `pointer` came from [`give`] of a `T`, and is not used again.
pub(crate) unsafe fn take<T, C>(pointer: *mut C) {
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(pointer.cast::<T>()) });
}

/// The context of a program's pointer, or `EINVAL` for NULL.
///
/// # Safety
/// `context` is NULL or a context of this library.
pub(crate) unsafe fn context<'a>(context: *mut ibv_context) -> Result<&'a Context, Errno> {
    if context.is_null() {
        return Err(Errno::INVALID);
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { Context::of(context) })
}
