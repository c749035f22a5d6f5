//! The memory of a process tree.
//!
//! * [`resident`]: as the tree runs, for pre-copy rounds;
//! * [`page_server`]: as CRIU dumps it;
//! * [`archives`], [`tar`]: file systems in memory, which CRIU carries as archives, and the program that packs them;
//! * [`memory_images`], [`local`]: as CRIU restores it, and a dump that stays here;
//! * [`left_behind`], [`fork_advice`]: memory that a post-copy move leaves at the source, and memory that no child may have.

pub mod archives;
pub mod fork_advice;
pub mod left_behind;
pub mod local;
pub mod memory_images;
pub mod page_server;
pub mod resident;
pub mod tar;
