//! The names of memory regions and image files on their way from the source to the destination.

use serde::{Deserialize, Serialize};

/// An address range of an instance's memory in transfer. Only the engine knows what the number stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Region(pub u64);

/// One file of a dump.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageFile {
    /// A plain file name.
    pub name: String,
    /// In bytes.
    pub size: u64,
}
