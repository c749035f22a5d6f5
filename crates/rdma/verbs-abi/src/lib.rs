//! The binary interface of rdma-core (version 44) for programs compiled against `verbs.h` and `rdma_cma.h`: structures and symbols.
//!
//! * The modules re-exported here hold the structures, field by field under their C names, so that
//!   `verbs.h` and its manual pages document them; [`LAYOUTS`] lists them all for the test that holds
//!   them against a C compiler and the installed header.
//! * [`constants`]: enumerators. Enumerations are [`u32`] or [`i32`] here: a program may pass any value.
//! * [`symbols`]: what `libibverbs.so.1` exports, under which version nodes.
//!
//! Newer headers only append: to the end of structures, and before the start of [`verbs_context`].

#![allow(missing_docs, reason = "verbs.h documents its structures and enumerators")]
#![allow(non_camel_case_types, non_snake_case, reason = "the names of verbs.h")]

#[macro_use]
mod layout;
mod address;
mod cma;
pub mod constants;
mod context;
mod device;
mod extended;
mod queue;
pub mod symbols;
mod work;

pub use address::*;
pub use cma::*;
pub use context::*;
pub use device::*;
pub use extended::*;
pub use layout::{Field, Layout};
pub use queue::*;
pub use work::*;

/// Every structure of this crate.
pub const LAYOUTS: &[&[Layout]] = &[
    address::LAYOUTS,
    cma::LAYOUTS,
    context::LAYOUTS,
    device::LAYOUTS,
    extended::LAYOUTS,
    queue::LAYOUTS,
    work::LAYOUTS,
];
