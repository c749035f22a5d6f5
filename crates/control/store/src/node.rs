//! A node's durable state.

use std::collections::BTreeMap;
use std::path::Path;

use fabric::Vid;
use moves::entry::{Entry, NodeRecord};
use redb::{ReadableTable, TableDefinition, WriteTransaction};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::StoreError;
use crate::file::{File, decode, put, take};

/// Incremented when the layout of tables or values changes.
const VERSION: u32 = 4;

const ENTRIES: TableDefinition<u16, &[u8]> = TableDefinition::new("entries");

/// One row, under 0.
const REMOVED: TableDefinition<u8, &[u8]> = TableDefinition::new("removed hosts");

/// A node's store.
pub struct NodeStore {
    file: File,
}

impl NodeStore {
    /// Opens the store in the file at `path`, or creates a new one.
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

    /// Checks that there is room for records of new operations. Operations in progress have reserved
    /// room.
    ///
    /// # Errors
    /// [`StoreError::NoRoom`].
    pub fn ready(&self) -> Result<(), StoreError> {
        self.file.ready()
    }

    /// The entries that result from all records.
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
    /// If the file cannot be read or written. Only reopening the store then shows whether the record
    /// was written.
    pub fn apply(&self, record: &NodeRecord) -> Result<(), StoreError> {
        let (vid, entry) = match record {
            NodeRecord::Set { vid, entry } => (vid, Some(entry)),
            NodeRecord::Removed { vid } => (vid, None),
        };
        self.file.write(|write| put(&mut write.open_table(ENTRIES)?, vid.lid(), entry))
    }

    /// The revocation list, if one was stored.
    ///
    /// # Errors
    /// If the file cannot be read or understood.
    pub fn removed<R: DeserializeOwned>(&self) -> Result<Option<R>, StoreError> {
        self.file.read(|read| take(&read.open_table(REMOVED)?, 0))
    }

    /// Stores the revocation list; it is durable when this returns.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub fn set_removed(&self, removed: &impl Serialize) -> Result<(), StoreError> {
        self.file.write(|write| put(&mut write.open_table(REMOVED)?, 0, Some(removed)))
    }
}
