//! The memory of a process tree.
//!
//! * [`resident`]: reads it while the tree runs, for pre-copy rounds;
//! * [`page_server`]: receives it from CRIU during the dump;
//! * [`archives`], [`tar`]: tmpfs mounts, which CRIU dumps as archives, and the program that packs them;
//! * [`memory_images`], [`local`]: writes it as image files for CRIU's restore, and the same for a dump that stays on this host;
//! * [`left_behind`], [`fork_advice`]: post-copy: memory that stays at the source, and mappings that a child must not inherit.

pub mod archives;
pub mod fork_advice;
pub mod left_behind;
pub mod local;
pub mod memory_images;
pub mod page_server;
pub mod resident;
pub mod tar;
