//! A lab: several hosts on one machine, each made of namespaces with a node in them.
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
//! Each host has a mount namespace too, with its own `/tmp`, `/run`, `/dev/shm` and `/var/lib/transhume` ([`files`]), unless
//! [`Files::Shared`] is asked for.
//!
//! All traffic of a host and of its instances passes its port of the
//! switch, so that [`Lab::cut`] needs one rule per direction there.
//!
//! A lab's resources can be found without its files: namespaces by their names, processes by
//! their namespace or by the mark in their environment ([`mark::VARIABLE`]), mounts and
//! files by their paths. [`Lab::down`] uses this, and so also removes the remains of a crash.

pub mod daemons;
pub mod error;
pub mod files;
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
pub use files::Files;
pub use lab::{Lab, Progress, Spec};
pub use name::{Host, LabName, Place};

/// The result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;
