//! Memory windows: parts of regions under keys of their own, bound and invalidated by work requests.
//!
//! ```text
//!                  bind
//!        ┌──────┐ ─────────────────────────────────────────▶ ┌───────┐ ──┐ bind again, under another
//!        │ FREE │                                            │ BOUND │   │ key: type 1 only
//!        └──────┘ ◀───────────────────────────────────────── └───────┘ ◀─┘
//!                  type 1: bind to nothing
//!                  type 2: invalidate, here or by the peer of the queue pair that has bound it
//! ```
//!
//! A window has 256 virtual keys; a program uses another one for each binding, so that a stale key names nothing.

use verbs::Translation;

use crate::attr::{Access, WindowKind};
use crate::handle::{Mr, Pd};
use crate::work::Binding;

/// The bearer of a key: its rights depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bearer {
    /// The domain of the queue pair, or of its replacement.
    pub pd: Pd,
    /// The incarnation of the queue pair.
    pub incarnation: u64,
}

/// A memory window.
#[derive(Debug)]
pub(crate) struct MemoryWindow {
    pub pd: Pd,
    pub kind: WindowKind,
    /// The first of its keys.
    pub block: u32,
    pub bound: Option<Bound>,
}

/// The memory that a window opens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    /// The virtual key.
    pub key: u32,
    pub mr: Mr,
    /// Where it is.
    pub addr: u64,
    pub length: u64,
    /// The virtual address of its first byte, as peers give it.
    pub iova: u64,
    pub access: Access,
    /// The incarnation of the queue pair that bound it.
    pub incarnation: u64,
}

/// A handle whose translation peers have to learn, and the previous meaning of its real value.
pub(crate) type HandleChange = (Translation, u32);

impl MemoryWindow {
    /// The address of `length` bytes at `va`, if `bearer` may access them as it `needs`.
    pub fn address(&self, bearer: Bearer, va: u64, length: u64, needs: Access) -> Option<u64> {
        let bound = self.bound.filter(|bound| self.admits(bearer, bound) && bound.access.contains(needs))?;
        let offset = va.checked_sub(bound.iova)?;
        let end = offset.checked_add(length)?;
        (end <= bound.length).then(|| bound.addr + offset)
    }

    fn admits(&self, bearer: Bearer, bound: &Bound) -> bool {
        let same_queue_pair = self.kind == WindowKind::One || bound.incarnation == bearer.incarnation;
        self.pd == bearer.pd && same_queue_pair
    }

    /// True if the peer of `bearer` may invalidate it.
    pub fn yields_to(&self, bearer: Bearer) -> bool {
        self.kind == WindowKind::Two && self.bound.is_some_and(|bound| self.admits(bearer, &bound))
    }

    /// True if a request for `binding` by `bearer` may come, with regard to the window.
    pub fn accepts(&self, binding: &Binding, bearer: Bearer) -> bool {
        let allowed =
            Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC | Access::RELAXED_ORDERING;
        self.pd == bearer.pd
            && match self.kind {
                WindowKind::One => allowed.contains(binding.access),
                WindowKind::Two => {
                    let is_free = self.bound.is_none() && binding.length > 0;
                    is_free && (allowed | Access::ZERO_BASED).contains(binding.access)
                }
            }
    }
}
