//! A database file with a version and values in postcard encoding.

use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use redb::{
    Database, DatabaseError, ReadTransaction, ReadableDatabase, ReadableTable, Table, TableDefinition,
    WriteTransaction,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::StoreError;
use crate::journal::Value;
use crate::reserve::Reserve;

/// Single numbers, by name.
pub(crate) const NUMBERS: TableDefinition<&str, u64> = TableDefinition::new("numbers");

const VERSION: &str = "version";

pub(crate) struct File {
    path: PathBuf,
    /// None after a failed write: only reopening the file shows its contents.
    database: Mutex<Option<Database>>,
    reserve: Reserve,
}

impl File {
    /// Opens or creates the file at `path`; `prepare` creates the tables of a new one.
    pub(crate) fn open(
        path: &Path,
        version: u32,
        prepare: impl Fn(&WriteTransaction) -> Result<(), redb::Error>,
    ) -> Result<Self, StoreError> {
        let failed = |source| StoreError::File { path: path.into(), source };
        make_private(path).map_err(|error| failed(error.into()))?;
        let database = Database::create(path).map_err(|error| match error {
            DatabaseError::DatabaseAlreadyOpen => StoreError::InUse(path.into()),
            other => failed(other.into()),
        })?;
        let reserve = Reserve::new(path.with_extension("reserve"));
        let file = Self { path: path.into(), database: Mutex::new(Some(database)), reserve };
        file.sync_name()?;
        let found = file.write(|write| {
            let mut numbers = write.open_table(NUMBERS)?;
            let found = numbers.get(VERSION)?.map(|found| found.value());
            if found.is_none() {
                numbers.insert(VERSION, u64::from(version))?;
            }
            prepare(write)?;
            Ok(found.unwrap_or(u64::from(version)))
        })?;
        if found == u64::from(version) {
            // Without room, new operations are refused later, with the reason.
            let _ = file.ready();
            return Ok(file);
        }
        let found = u32::try_from(found).unwrap_or(u32::MAX);
        Err(StoreError::Version { path: file.path, found, known: version })
    }

    /// Checks that there is room for records of new operations.
    pub(crate) fn ready(&self) -> Result<(), StoreError> {
        self.reserve.hold().map_err(|source| StoreError::NoRoom { path: self.path.clone(), source })
    }

    /// Makes the file's name durable; the database syncs its contents.
    fn sync_name(&self) -> Result<(), StoreError> {
        let parent = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let synced =
            std::fs::File::open(parent.unwrap_or(Path::new("."))).and_then(|parent| parent.sync_all());
        synced.map_err(|source| self.failed(source.into()))
    }

    /// Runs one transaction; it is durable when this returns. If the disk is full, the transaction is repeated in the
    /// reserved room.
    pub(crate) fn write<T>(
        &self,
        change: impl Fn(&WriteTransaction) -> Result<T, redb::Error>,
    ) -> Result<T, StoreError> {
        let attempt = || {
            self.with(|database| {
                let write = database.begin_write()?;
                let result = change(&write)?;
                write.commit()?;
                Ok(result)
            })
        };
        let written = match attempt() {
            Err(error) if is_full(&error) => {
                self.reserve.release();
                attempt()
            }
            written => written,
        };
        written.map_err(|source| self.failed(source))
    }

    /// Reads one consistent state.
    pub(crate) fn read<T>(
        &self,
        look: impl FnOnce(&ReadTransaction) -> Result<T, redb::Error>,
    ) -> Result<T, StoreError> {
        self.with(|database| look(&database.begin_read()?)).map_err(|source| self.failed(source))
    }

    fn with<T>(&self, work: impl FnOnce(&Database) -> Result<T, redb::Error>) -> Result<T, redb::Error> {
        let mut kept = self.database.lock().expect("a thread has panicked in the database");
        let database = match kept.take() {
            Some(database) => database,
            None => Database::open(&self.path)?,
        };
        let result = work(&database);
        if !matches!(result, Err(redb::Error::Io(_) | redb::Error::PreviousIo)) {
            *kept = Some(database);
        }
        result
    }

    fn failed(&self, source: redb::Error) -> StoreError {
        match source {
            redb::Error::Corrupted(what) if what == MALFORMED => {
                StoreError::Malformed { path: self.path.clone(), what: "an encoded value" }
            }
            source => StoreError::File { path: self.path.clone(), source },
        }
    }
}

/// Creates the file at `path` if it does not exist, accessible to its owner only.
fn make_private(path: &Path) -> std::io::Result<()> {
    private::open(path, OpenOptions::new().read(true).write(true).create(true).truncate(false)).map(drop)
}

/// Whether the disk, or the user's quota, is full.
pub(crate) fn is_full(error: &redb::Error) -> bool {
    let full = |kind| matches!(kind, ErrorKind::StorageFull | ErrorKind::QuotaExceeded);
    matches!(error, redb::Error::Io(error) if full(error.kind()))
}

const MALFORMED: &str = "malformed value";

/// Encodes `value`.
pub(crate) fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, redb::Error> {
    postcard::to_stdvec(value).map_err(|_| redb::Error::Corrupted(MALFORMED.into()))
}

/// Decodes the value in `bytes`.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, redb::Error> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        _ => Err(redb::Error::Corrupted(MALFORMED.into())),
    }
}

/// Stores `value` in the row of `key`, or removes the row.
pub(crate) fn put<K: redb::Key + 'static, T: Serialize>(
    table: &mut Table<'_, K, &'static [u8]>,
    key: K::SelfType<'_>,
    value: Option<&T>,
) -> Result<(), redb::Error> {
    match value {
        Some(value) => table.insert(key, encode(value)?.as_slice())?,
        None => table.remove(key)?,
    };
    Ok(())
}

/// Makes the row of `key` hold `value`, or removes it.
pub(crate) fn put_value<K: redb::Key + 'static>(
    table: &mut Table<'_, K, &'static [u8]>,
    key: K::SelfType<'_>,
    value: Option<&Value>,
) -> Result<(), redb::Error> {
    match value {
        Some(Value(bytes)) => table.insert(key, bytes.as_slice())?,
        None => table.remove(key)?,
    };
    Ok(())
}

/// The value in the row of `key`.
pub(crate) fn take<K: redb::Key + 'static, T: DeserializeOwned>(
    table: &impl ReadableTable<K, &'static [u8]>,
    key: K::SelfType<'_>,
) -> Result<Option<T>, redb::Error> {
    table.get(key)?.map(|bytes| decode(bytes.value())).transpose()
}
