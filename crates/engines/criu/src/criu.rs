//! CRIU, and the code around it that dumps and restores a process tree.
//!
//! * [`run`], [`rpc`], [`protobuf`], [`log`]: one run of CRIU, its messages, and its log;
//! * [`turn`], [`guard`]: the lock for one dump at a time, and the process that protects a dumped tree if CRIU dies;
//! * [`root`]: the root file system of an instance, as seen by CRIU;
//! * [`images`]: directories of image files;
//! * [`pages`]: the memory of a tree;
//! * [`pager`], [`paging`]: the pager process of a post-copy move, and the node's handle of it;
//! * [`check`]: the checks that find blockers;
//! * [`fixups`]: repairs of state that CRIU does not dump or restores wrongly;
//! * [`repair_mode`]: TCP connections of a dumped tree that resumes at the source.

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
