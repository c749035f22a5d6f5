//! Names of memory regions and image files in a transfer from the source to the destination.

use serde::{Deserialize, Serialize};

/// A region of an instance's memory in a transfer. Only the engine interprets the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Region(pub u64);

/// One file of a dump.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageFile {
    /// A plain file name.
    pub name: String,
    /// Its size in bytes.
    pub size: u64,
}
