//! Why a call was refused, as verbs programs read it.

use std::fmt;

/// An `errno` value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// An argument or the object's state forbids the call.
    pub const INVALID: Self = Self(libc::EINVAL);
    /// A queue is full, or a limit of the device is reached.
    pub const NO_MEMORY: Self = Self(libc::ENOMEM);
    /// Something still uses the object.
    pub const BUSY: Self = Self(libc::EBUSY);
    /// The device lacks the feature.
    pub const UNSUPPORTED: Self = Self(libc::EOPNOTSUPP);
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Errno({}: {self})", self.0)
    }
}

impl std::error::Error for Errno {}
