//! A lab: several hosts on one machine, each a network namespace that runs a node.
//!
//! ```text
//!  th-LAB-h1          th-LAB-h2          th-LAB-c
//!  br0 10.77.0.1      br0 10.77.0.2      eth0 10.77.255.254
//!   ├ instances        ├ instances        │
//!   └ up0              └ up0              │
//!      │                  │               │
//!  ────h1─────────────────h2──────────────c────  bridge `switch` in th-LAB-sw
//! ```
//!
//! All that leaves a host, its own traffic and that of its instances, passes its port of the
//! switch, so that [`Lab::cut`] needs one rule for each direction there.
//!
//! What a lab owns can be found again without its files: namespaces by their names, processes by
//! the namespace they are in or by the mark in their environment ([`mark::VARIABLE`]), mounts and
//! files by their path. [`Lab::down`] goes by that, and so also clears away what a crash has left.

pub mod daemons;
pub mod error;
pub mod layout;
pub mod mark;
pub mod name;
pub mod network;
pub mod partition;
pub mod process;
pub mod record;
mod run_folder;
pub mod status;
pub mod sweep;
pub mod tool;

mod lab;

pub use error::Error;
pub use lab::{Lab, Progress, Spec};
pub use name::{Host, LabName, Place};

/// What this crate's functions return.
pub type Result<T> = std::result::Result<T, Error>;
