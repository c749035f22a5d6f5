//! CRIU, and all that it takes to dump a process tree here and restore it there.
//!
//! * [`run`], [`rpc`], [`protobuf`], [`log`]: one run of CRIU, its messages, and its log;
//! * [`turn`], [`guard`]: one dump at a time, and the guard that keeps a dumped tree from the death of CRIU;
//! * [`root`]: the root file system of an instance, as CRIU has to do with it;
//! * [`images`]: where image files lie;
//! * [`pages`]: the memory of a tree;
//! * [`paging`], [`pager`]: memory that comes after the instance (post-copy);
//! * [`check`]: what pins a tree to its host;
//! * [`fixups`]: what CRIU does not carry, or carries wrongly, mended;
//! * [`repair_mode`]: TCP connections of a dumped tree that runs on.

pub mod check;
pub mod fixups;
#[doc(hidden)]
pub mod foreign;
pub mod guard;
pub mod images;
pub mod log;
pub mod pager;
pub mod pages;
pub mod paging;
pub mod protobuf;
pub mod repair_mode;
pub mod root;
pub mod rpc;
pub mod run;
pub mod turn;
