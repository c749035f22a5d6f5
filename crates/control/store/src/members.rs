//! Stored membership: the join tokens, and the removed hosts.

use std::collections::BTreeMap;

use redb::{ReadableTable, TableDefinition, WriteTransaction};
use serde::de::DeserializeOwned;

use crate::file::{decode, put_value};
use crate::journal::Value;
use crate::{Store, StoreError};

/// By number.
const TOKENS: TableDefinition<u64, &[u8]> = TableDefinition::new("join tokens");

/// By name.
const REMOVED: TableDefinition<&str, &[u8]> = TableDefinition::new("removed hosts");

/// The stored membership.
#[derive(Debug, PartialEq, Eq)]
pub struct Members<T, R> {
    /// Tokens, by number.
    pub tokens: BTreeMap<u64, T>,
    /// Records of removed hosts, by name.
    pub removed: BTreeMap<String, R>,
}

pub(crate) fn prepare(write: &WriteTransaction) -> Result<(), redb::Error> {
    write.open_table(TOKENS)?;
    write.open_table(REMOVED)?;
    Ok(())
}

impl Store {
    /// Loads the membership.
    ///
    /// # Errors
    /// If the file cannot be read or understood.
    pub fn members<T: DeserializeOwned, R: DeserializeOwned>(&self) -> Result<Members<T, R>, StoreError> {
        self.file.read(|read| {
            let (mut tokens, mut removed) = (BTreeMap::new(), BTreeMap::new());
            for row in read.open_table(TOKENS)?.iter()? {
                let (number, bytes) = row?;
                tokens.insert(number.value(), decode(bytes.value())?);
            }
            for row in read.open_table(REMOVED)?.iter()? {
                let (host, bytes) = row?;
                removed.insert(host.value().to_owned(), decode(bytes.value())?);
            }
            Ok(Members { tokens, removed })
        })
    }
}

/// Notes tokens, or forgets them, and notes a removed host.
pub(crate) fn change(
    write: &WriteTransaction,
    tokens: &[(u64, Option<Value>)],
    removed: Option<&(String, Value)>,
) -> Result<(), redb::Error> {
    let mut table = write.open_table(TOKENS)?;
    for (number, token) in tokens {
        put_value(&mut table, *number, token.as_ref())?;
    }
    match removed {
        Some((host, removal)) => put_value(&mut write.open_table(REMOVED)?, host.as_str(), Some(removal)),
        None => Ok(()),
    }
}
