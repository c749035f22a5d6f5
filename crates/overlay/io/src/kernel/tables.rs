//! The maps of the programs.

use std::io;

use aya::maps::{HashMap, MapData, PerCpuHashMap};
use aya::{Ebpf, Pod};

/// A map.
pub type Table<K, V> = HashMap<MapData, K, V>;

/// The same, with a value for each processor.
pub type Counts<K, V> = PerCpuHashMap<MapData, K, V>;

pub fn table<K: Pod, V: Pod>(programs: &mut Ebpf, name: &str) -> io::Result<Table<K, V>> {
    let map = programs.take_map(name).ok_or_else(|| missing(name))?;
    Table::try_from(map).map_err(io::Error::other)
}

pub fn counts<K: Pod, V: Pod>(programs: &mut Ebpf, name: &str) -> io::Result<Counts<K, V>> {
    let map = programs.take_map(name).ok_or_else(|| missing(name))?;
    Counts::try_from(map).map_err(io::Error::other)
}

pub fn missing(name: &str) -> io::Error {
    io::Error::other(format!("the eBPF object has no program `{name}`"))
}
