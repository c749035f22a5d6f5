//! The coordinator's durable state.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use fabric::{Epoch, Vid};
use moves::MoveId;
use moves::journal::{Exit, Instance, MoveRecord, Record, Snapshot};
use redb::{ReadableTable, ReadableTableMetadata, TableDefinition, WriteTransaction};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::file::{File, NUMBERS, decode, put, put_value, take};
use crate::journal::{Change, Value};
use crate::{StoreError, members};

/// Incremented when the layout of tables or values changes.
const VERSION: u32 = 7;

/// Number of ended moves that are stored; the oldest are dropped.
pub const MAX_ENDED_MOVES: u64 = 1000;

/// Number of ended instances that are stored; the oldest are dropped.
pub const MAX_ENDED_INSTANCES: u64 = 64;

const INSTANCES: TableDefinition<u16, &[u8]> = TableDefinition::new("instances");
const MOVES: TableDefinition<u64, &[u8]> = TableDefinition::new("moves");
const ENDED_MOVES: TableDefinition<u64, &[u8]> = TableDefinition::new("ended moves");
/// In the order of their end.
const ENDED_INSTANCES: TableDefinition<u64, &[u8]> = TableDefinition::new("ended instances");

/// One row, under 0.
const NETWORK: TableDefinition<u8, &[u8]> = TableDefinition::new("network");

/// The loop that plans by itself, and the plan that is being carried out: one row each.
const PLANNING: TableDefinition<u8, &[u8]> = TableDefinition::new("planning");
const LOOP: u8 = 0;
const PLAN: u8 = 1;

/// The overlay's devices, by host and name.
const DEVICES: TableDefinition<(&str, &str), &[u8]> = TableDefinition::new("devices");

/// Drained hosts.
const DRAINED: TableDefinition<&str, ()> = TableDefinition::new("drained hosts");

/// Time of each instance's last move, in milliseconds since 1970.
const MOVED: TableDefinition<u16, u64> = TableDefinition::new("moved instances");

const LAST_MOVE: &str = "last move";
const LAST_VID: &str = "last vid";
const LAST_INSTANCE_EPOCH: &str = "last epoch of an instance";
const LAST_EPOCH: &str = "last epoch of a station";

/// A device's host and name.
pub type DeviceKey = (String, String);

/// The coordinator's store.
pub struct Store {
    pub(crate) file: File,
}

/// A move that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedMove {
    /// Its number.
    pub id: MoveId,
    /// As it was when it ended.
    pub record: MoveRecord,
}

/// An instance that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedInstance {
    /// Its identity, which another instance may use by now.
    pub vid: Vid,
    /// As it was when it ended.
    pub instance: Instance,
    /// How it ended.
    pub exit: Exit,
}

impl Store {
    /// Opens the store in the file at `path`, or creates a new one.
    ///
    /// # Errors
    /// If it is in use, of another version, or cannot be read or written.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let prepare = |write: &WriteTransaction| {
            write.open_table(INSTANCES)?;
            write.open_table(MOVES)?;
            write.open_table(ENDED_MOVES)?;
            write.open_table(ENDED_INSTANCES)?;
            write.open_table(NETWORK)?;
            write.open_table(PLANNING)?;
            write.open_table(DEVICES)?;
            write.open_table(DRAINED)?;
            write.open_table(MOVED)?;
            members::prepare(write)
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

    /// The snapshot that results from all records.
    ///
    /// # Errors
    /// If the file cannot be read or understood.
    pub fn load(&self) -> Result<Snapshot, StoreError> {
        self.file.read(|read| {
            let mut snapshot = Snapshot::default();
            for row in read.open_table(INSTANCES)?.iter()? {
                let (vid, bytes) = row?;
                snapshot.instances.extend(Vid::new(vid.value()).zip(Some(decode(bytes.value())?)));
            }
            for row in read.open_table(MOVES)?.iter()? {
                let (id, bytes) = row?;
                snapshot.moves.insert(MoveId(id.value()), decode(bytes.value())?);
            }
            let numbers = read.open_table(NUMBERS)?;
            let last = |what| Ok::<_, redb::Error>(numbers.get(what)?.map_or(0, |last| last.value()));
            snapshot.last_move = MoveId(last(LAST_MOVE)?);
            snapshot.last_epoch = Epoch(last(LAST_INSTANCE_EPOCH)?);
            Ok(snapshot)
        })
    }

    /// Applies a change; it is durable when this returns.
    ///
    /// # Errors
    /// If the file cannot be read or written. Only reopening the store then shows whether the change was written.
    pub fn apply(&self, change: &Change) -> Result<(), StoreError> {
        self.file.write(|write| match change {
            Change::Record(record) => apply(write, record),
            Change::VidGiven(vid) => {
                write.open_table(NUMBERS)?.insert(LAST_VID, u64::from(vid.lid()))?;
                Ok(())
            }
            Change::Drained { host, is_drained } => set_drained(write, host, *is_drained),
            Change::Network(network) => put_value(&mut write.open_table(NETWORK)?, 0, Some(network)),
            Change::Loop(state) => put_value(&mut write.open_table(PLANNING)?, LOOP, Some(state)),
            Change::Plan(plan) => put_value(&mut write.open_table(PLANNING)?, PLAN, Some(plan)),
            Change::Devices { remove, insert, epoch } => {
                change_devices(write, remove.as_ref(), insert.as_ref(), *epoch)
            }
            Change::Members { tokens, removed } => members::change(write, tokens, removed.as_ref()),
        })
    }

    /// The VID that was given out last, if one was.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn last_vid(&self) -> Result<Option<Vid>, StoreError> {
        self.file.read(|read| {
            let last = read.open_table(NUMBERS)?.get(LAST_VID)?.map(|last| last.value());
            Ok(last.and_then(|last| u16::try_from(last).ok()).and_then(Vid::new))
        })
    }

    /// The plan of the overlay, if one was stored.
    ///
    /// # Errors
    /// If the file cannot be read or understood.
    pub fn network<N: DeserializeOwned>(&self) -> Result<Option<N>, StoreError> {
        self.file.read(|read| take(&read.open_table(NETWORK)?, 0))
    }

    /// The state of the loop that plans by itself, if it was ever switched on.
    ///
    /// # Errors
    /// If the file cannot be read or understood.
    pub fn planning_loop<L: DeserializeOwned>(&self) -> Result<Option<L>, StoreError> {
        self.file.read(|read| take(&read.open_table(PLANNING)?, LOOP))
    }

    /// The plan that is being carried out, or the result of the last one.
    ///
    /// # Errors
    /// If the file cannot be read or understood.
    pub fn plan<P: DeserializeOwned>(&self) -> Result<Option<P>, StoreError> {
        self.file.read(|read| take(&read.open_table(PLANNING)?, PLAN))
    }

    /// The devices of the overlay, and the last epoch that was given.
    ///
    /// # Errors
    /// If the file cannot be read or decoded.
    pub fn devices<D: DeserializeOwned>(&self) -> Result<(BTreeMap<DeviceKey, D>, Epoch), StoreError> {
        self.file.read(|read| {
            let mut devices = BTreeMap::new();
            for row in read.open_table(DEVICES)?.iter()? {
                let (key, bytes) = row?;
                let (host, name) = key.value();
                devices.insert((host.to_owned(), name.to_owned()), decode(bytes.value())?);
            }
            let last = read.open_table(NUMBERS)?.get(LAST_EPOCH)?;
            Ok((devices, Epoch(last.map_or(0, |last| last.value()))))
        })
    }

    /// The hosts that are drained.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn drained_hosts(&self) -> Result<Vec<String>, StoreError> {
        self.file.read(|read| {
            let rows = read.open_table(DRAINED)?;
            rows.iter()?.map(|row| Ok(row?.0.value().to_owned())).collect()
        })
    }

    /// When each instance that has moved did so last, by the calendar's clock, in milliseconds since 1970.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn last_moves(&self) -> Result<Vec<(Vid, u64)>, StoreError> {
        self.file.read(|read| {
            let mut moved = Vec::new();
            for row in read.open_table(MOVED)?.iter()? {
                let (vid, at_ms) = row?;
                moved.extend(Vid::new(vid.value()).zip(Some(at_ms.value())));
            }
            Ok(moved)
        })
    }

    /// The last [`MAX_ENDED_MOVES`] ended moves, the oldest first.
    ///
    /// # Errors
    /// If the file cannot be read or understood.
    pub fn ended_moves(&self) -> Result<Vec<EndedMove>, StoreError> {
        self.file.read(|read| {
            let mut ended = Vec::new();
            for row in read.open_table(ENDED_MOVES)?.iter()? {
                let (id, bytes) = row?;
                ended.push(EndedMove { id: MoveId(id.value()), record: decode(bytes.value())? });
            }
            Ok(ended)
        })
    }

    /// The last [`MAX_ENDED_INSTANCES`] instances that have ended, the oldest first.
    ///
    /// # Errors
    /// If the file cannot be read or understood.
    pub fn ended_instances(&self) -> Result<Vec<EndedInstance>, StoreError> {
        self.file.read(|read| {
            let rows = read.open_table(ENDED_INSTANCES)?;
            rows.iter()?.map(|row| decode(row?.1.value())).collect()
        })
    }
}

fn set_drained(write: &WriteTransaction, host: &str, is_drained: bool) -> Result<(), redb::Error> {
    let mut drained = write.open_table(DRAINED)?;
    if is_drained {
        drained.insert(host, ())?;
    } else {
        drained.remove(host)?;
    }
    Ok(())
}

fn change_devices(
    write: &WriteTransaction,
    remove: Option<&DeviceKey>,
    insert: Option<&(DeviceKey, Value)>,
    epoch: Epoch,
) -> Result<(), redb::Error> {
    let mut devices = write.open_table(DEVICES)?;
    if let Some((host, name)) = remove {
        devices.remove((host.as_str(), name.as_str()))?;
    }
    if let Some(((host, name), device)) = insert {
        put_value(&mut devices, (host.as_str(), name.as_str()), Some(device))?;
    }
    write.open_table(NUMBERS)?.insert(LAST_EPOCH, epoch.0)?;
    Ok(())
}

/// Loads the rows that `record` concerns into a snapshot, applies the record there, and writes the rows back: the meaning of a
/// record is defined in one place.
fn apply(write: &WriteTransaction, record: &Record) -> Result<(), redb::Error> {
    let mut instances = write.open_table(INSTANCES)?;
    let mut moves = write.open_table(MOVES)?;
    let ids = moves_of(record);
    let mut snapshot = Snapshot::default();
    for id in &ids {
        snapshot.moves.extend(take(&moves, id.0)?.map(|known| (*id, known)));
    }
    let known: Vec<(MoveId, MoveRecord)> = snapshot.moves.clone().into_iter().collect();
    let vids: Vec<Vid> = vid_of(record).into_iter().chain(known.iter().map(|(_, known)| known.vid)).collect();
    for vid in &vids {
        snapshot.instances.extend(take(&instances, vid.lid())?.map(|instance| (*vid, instance)));
    }
    if let Record::InstanceEnded { vid, exit } = record
        && *exit != Exit::NotStarted
        && let Some(instance) = snapshot.instances.get(vid)
    {
        keep_ended_instance(
            write,
            &EndedInstance { vid: *vid, instance: instance.clone(), exit: exit.clone() },
        )?;
    }
    snapshot.apply(record);
    for vid in vids {
        put(&mut instances, vid.lid(), snapshot.instances.get(&vid))?;
    }
    for id in ids {
        put(&mut moves, id.0, snapshot.moves.get(&id))?;
    }
    note_highest(write, LAST_INSTANCE_EPOCH, snapshot.last_epoch.0)?;
    note_last_moves(write, record, &known)?;
    if let Record::InstanceAdded { vid, .. } = record {
        // This includes a restored instance, whose VID was not allocated here.
        note_highest(write, LAST_VID, vid.lid().into())?;
    }
    match (record, &known[..]) {
        (Record::MoveBegan { id, .. }, _) => note_highest(write, LAST_MOVE, id.0),
        (Record::MoveEnded { .. }, [(id, known)]) => keep_ended_move(write, *id, known),
        _ => Ok(()),
    }
}

/// Stores the time of moves between hosts; a restore from a checkpoint is none.
fn note_last_moves(
    write: &WriteTransaction,
    record: &Record,
    known: &[(MoveId, MoveRecord)],
) -> Result<(), redb::Error> {
    let mut moved = write.open_table(MOVED)?;
    match record {
        Record::MovesCommitted { .. } => {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let now_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
            for (_, known) in known.iter().filter(|(_, known)| known.is_between_hosts()) {
                moved.insert(known.vid.lid(), now_ms)?;
            }
        }
        Record::InstanceAdded { vid, .. } | Record::InstanceEnded { vid, .. } => {
            moved.remove(vid.lid())?;
        }
        _ => {}
    }
    Ok(())
}

/// Stores `value` as the number `name`, unless the stored number is higher.
fn note_highest(write: &WriteTransaction, name: &str, value: u64) -> Result<(), redb::Error> {
    let mut numbers = write.open_table(NUMBERS)?;
    let last = numbers.get(name)?.map_or(0, |last| last.value());
    if value > last {
        numbers.insert(name, value)?;
    }
    Ok(())
}

fn keep_ended_move(write: &WriteTransaction, id: MoveId, record: &MoveRecord) -> Result<(), redb::Error> {
    let mut ended = write.open_table(ENDED_MOVES)?;
    put(&mut ended, id.0, Some(record))?;
    while ended.len()? > MAX_ENDED_MOVES {
        ended.pop_first()?;
    }
    Ok(())
}

fn keep_ended_instance(write: &WriteTransaction, instance: &EndedInstance) -> Result<(), redb::Error> {
    let mut ended = write.open_table(ENDED_INSTANCES)?;
    let number = ended.last()?.map_or(0, |(last, _)| last.value() + 1);
    put(&mut ended, number, Some(instance))?;
    while ended.len()? > MAX_ENDED_INSTANCES {
        ended.pop_first()?;
    }
    Ok(())
}

fn moves_of(record: &Record) -> Vec<MoveId> {
    match record {
        Record::InstanceAdded { .. } | Record::InstanceEnded { .. } => Vec::new(),
        Record::MovesCommitted { ids } | Record::MovesSaved { ids } => ids.iter().copied().collect(),
        Record::MoveBegan { id, .. }
        | Record::MoveConfirmed { id }
        | Record::MoveRolledBack { id, .. }
        | Record::MoveEnded { id } => vec![*id],
    }
}

fn vid_of(record: &Record) -> Option<Vid> {
    match record {
        Record::InstanceAdded { vid, .. } | Record::InstanceEnded { vid, .. } => Some(*vid),
        _ => None,
    }
}
