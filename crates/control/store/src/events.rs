//! The coordinator's event log: the last events, each with a number.

use std::path::Path;

use redb::{ReadableTable, ReadableTableMetadata, TableDefinition, WriteTransaction};

use crate::StoreError;
use crate::file::{File, NUMBERS};

/// Incremented when the layout of tables changes.
const VERSION: u32 = 1;

/// The limit of stored events; the oldest are dropped.
pub const MAX_EVENTS: u64 = 10_000;

/// The limit of stored events in bytes; the oldest are dropped.
pub const MAX_EVENTS_BYTES: u64 = 4 << 20;

const EVENTS: TableDefinition<u64, &[u8]> = TableDefinition::new("events");

const BYTES: &str = "bytes of events";

/// The log. It does not interpret the events' contents.
pub struct EventLog {
    file: File,
}

impl EventLog {
    /// Opens the log in the file at `path`, or creates a new one.
    ///
    /// # Errors
    /// If it is in use, of another version, or cannot be read or written.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let prepare = |write: &WriteTransaction| write.open_table(EVENTS).map(drop).map_err(Into::into);
        Ok(Self { file: File::open(path, VERSION, prepare)? })
    }

    /// Appends events with consecutive numbers, and returns the last number; they are durable when this
    /// returns.
    ///
    /// # Errors
    /// If there is no room, or the file cannot be read or written.
    pub fn append(&self, events: &[Vec<u8>]) -> Result<u64, StoreError> {
        self.file.ready()?;
        self.file.write(|write| {
            let mut kept = write.open_table(EVENTS)?;
            let mut numbers = write.open_table(NUMBERS)?;
            let mut bytes = numbers.get(BYTES)?.map_or(0, |bytes| bytes.value());
            let mut last = kept.last()?.map_or(0, |(last, _)| last.value());
            for event in events {
                last += 1;
                bytes += event.len() as u64;
                kept.insert(last, event.as_slice())?;
            }
            // The last event stays, so that numbering continues.
            while kept.len()? > 1 && (kept.len()? > MAX_EVENTS || bytes > MAX_EVENTS_BYTES) {
                bytes -= kept.pop_first()?.map_or(0, |(_, oldest)| oldest.value().len() as u64);
            }
            numbers.insert(BYTES, bytes)?;
            Ok(last)
        })
    }

    /// The first events after number `after`, at most `limit`, with their numbers.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn after(&self, after: u64, limit: usize) -> Result<Vec<(u64, Vec<u8>)>, StoreError> {
        self.file.read(|read| {
            let rows = read.open_table(EVENTS)?;
            let later = rows.range(after.saturating_add(1)..)?.take(limit);
            later
                .map(|row| {
                    row.map(|(number, event)| (number.value(), event.value().to_vec())).map_err(Into::into)
                })
                .collect()
        })
    }
}
