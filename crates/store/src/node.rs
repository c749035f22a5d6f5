//! What a node remembers.

use std::collections::BTreeMap;
use std::path::Path;

use fabric::Vid;
use moves::entry::{Entry, NodeRecord};
use redb::{ReadableTable, TableDefinition, WriteTransaction};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::StoreError;
use crate::file::{File, decode, put, take};

/// Raised when the layout of tables or values changes.
const VERSION: u32 = 4;

const ENTRIES: TableDefinition<u16, &[u8]> = TableDefinition::new("entries");

/// One row, under 0.
const REMOVED: TableDefinition<u8, &[u8]> = TableDefinition::new("removed hosts");

/// A node's store.
pub struct NodeStore {
    file: File,
}

impl NodeStore {
    /// Opens the store in the file at `path`, or makes a new one.
    ///
    /// # Errors
    /// If it is in use, of another version, or cannot be read or written.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let prepare = |write: &WriteTransaction| {
            write.open_table(ENTRIES)?;
            write.open_table(REMOVED)?;
            Ok(())
        };
        Ok(Self { file: File::open(path, VERSION, prepare)? })
    }

    /// Whether there is room for the records of something new. Those of what is under way have room that is
    /// kept for them.
    ///
    /// # Errors
    /// [`StoreError::NoRoom`].
    pub fn ready(&self) -> Result<(), StoreError> {
        self.file.ready()
    }

    /// What all records so far amount to.
    ///
    /// # Errors
    /// If the file cannot be read or understood.
    pub fn load(&self) -> Result<BTreeMap<Vid, Entry>, StoreError> {
        self.file.read(|read| {
            let mut entries = BTreeMap::new();
            for row in read.open_table(ENTRIES)?.iter()? {
                let (vid, bytes) = row?;
                entries.extend(Vid::new(vid.value()).zip(Some(decode(bytes.value())?)));
            }
            Ok(entries)
        })
    }

    /// Applies a record; it is durable when this returns.
    ///
    /// # Errors
    /// If the file cannot be read or written. Whether the record is there is then unknown until
    /// the store is opened anew.
    pub fn apply(&self, record: &NodeRecord) -> Result<(), StoreError> {
        let (vid, entry) = match record {
            NodeRecord::Set { vid, entry } => (vid, Some(entry)),
            NodeRecord::Removed { vid } => (vid, None),
        };
        self.file.write(|write| put(&mut write.open_table(ENTRIES)?, vid.lid(), entry))
    }

    /// The list of the hosts that were removed from the cluster, if it was ever noted.
    ///
    /// # Errors
    /// If the file cannot be read or understood.
    pub fn removed<R: DeserializeOwned>(&self) -> Result<Option<R>, StoreError> {
        self.file.read(|read| take(&read.open_table(REMOVED)?, 0))
    }

    /// Notes that list; it is durable when this returns.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub fn set_removed(&self, removed: &impl Serialize) -> Result<(), StoreError> {
        self.file.write(|write| put(&mut write.open_table(REMOVED)?, 0, Some(removed)))
    }
}
